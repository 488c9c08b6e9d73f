"""The stylesheets, one for each area of the screen."""

from __future__ import annotations

from pathlib import Path

ALL_STYLES = sorted(Path(__file__).parent.glob("*.tcss"))
