"""The stylesheets, each in the package of the widgets that it styles."""

from __future__ import annotations

from pathlib import Path

ALL_STYLES = sorted(Path(__file__).parent.rglob("*.tcss"), key=lambda path: path.name)
