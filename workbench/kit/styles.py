"""The stylesheets of the main screen and of all that opens above it."""

from __future__ import annotations

from pathlib import Path, PurePath

ALL_STYLES: list[str | PurePath] = [*sorted(Path(__file__).parent.parent.rglob("*.tcss"), key=lambda path: path.name)]
"""The stylesheets, each in the package of the widgets that it styles."""
