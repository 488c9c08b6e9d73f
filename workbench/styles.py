"""The stylesheets, each in the room of what it styles."""

from __future__ import annotations

from pathlib import Path

ALL_STYLES = sorted(Path(__file__).parent.rglob("*.tcss"), key=lambda path: path.name)
