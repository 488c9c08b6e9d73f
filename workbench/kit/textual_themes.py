"""Textual's own themes, with colours moved as far as needed to be read."""

from __future__ import annotations

from collections.abc import Sequence

from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

from workbench.kit.theming import ThemeSpec, contrast, to_textual

_WORD, _LINE = 4.6, 3.2  # contrast with every ground, a little more than WCAG 2.2 asks for
_TEXTS = ("foreground", "primary", "secondary", "accent", "success", "warning", "error")


def textual_themes() -> dict[str, Theme]:
    """Return Textual's themes by name, without those of the terminal's colours: we have our own."""
    return {name: readable(theme) for name, theme in BUILTIN_THEMES.items() if not theme.ansi}


def readable(theme: Theme) -> Theme:
    """Return `theme` with our variables, and with words and lines that stand out from each of its grounds."""
    made = theme.to_color_system().generate()
    names = ("background", "surface", "panel", "panel-lighten-1", "surface-darken-1")
    grounds = [Color.parse(made[name]) for name in names]
    end = max(Color.parse("white"), Color.parse("black"), key=lambda color: min(contrast(color, on) for on in grounds))
    colors = {name: _apart(Color.parse(made[name]), end, grounds, _WORD) for name in _TEXTS}
    muted = _apart(Color.parse(made["foreground"]).blend(grounds[0], 0.3), end, grounds, _WORD)
    middle = _apart(grounds[0].blend(Color.parse(colors["foreground"]), 0.4), end, grounds, _LINE)
    chart = ("primary", "warning", "success", "secondary", "error", "accent")
    variables = {f"chart-{number}": colors[name] for number, name in enumerate(chart, 1)}
    variables |= {"chart-axis": muted, "chart-target": colors["warning"], "chart-missing": colors["error"]}
    variables |= {"heat-low": colors["warning"], "heat-mid": middle, "heat-high": colors["primary"]}
    variables |= {"text-muted": muted}
    base = {name: made[name] for name in ("background", "surface", "panel")}
    return to_textual(ThemeSpec(theme.name, theme.dark, colors | base, variables))


def _apart(color: Color, end: Color, grounds: Sequence[Color], least: float) -> str:
    """Return `color`, moved as little as needed towards `end` for this contrast with all `grounds`."""
    mixes = (color.blend(end, step / 50) for step in range(51))
    return next((mix for mix in mixes if min(contrast(mix, on) for on in grounds) >= least), end).hex
