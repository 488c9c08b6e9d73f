"""Stylesheets by name, for applications that show a part of the screen."""

from __future__ import annotations

from pathlib import Path

from workbench.kit.theming import ALL_STYLES


def styles_path(*names: str) -> list[Path]:
    """Return the paths of these stylesheets, in this order, for an app's CSS_PATH."""
    by_name = {path.name: path for path in ALL_STYLES}
    return [by_name[name] for name in names]
