"""Positions on a scale as colours, or as attributes without colours, and as underlines, which need neither."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rich.style import Style
from textual.color import Color

from workbench.kit.theming import contrast

_STEPS = 8  # of colour, from none to the strongest
_STRONGEST = 0.8  # share of the theme's heat colour in the last step, or less, so that the text keeps its colour
_FAINT = 0.6  # share of the theme's middle colour in the block of zero
_READABLE = 4.5  # contrast of text, WCAG 2.2 AA


@dataclass(frozen=True, slots=True)
class Ladder:
    """Styles of text from one end of a scale to the other; `plain` for a token without a reading."""

    steps: tuple[Style, ...]
    marks: tuple[Style, ...]  # of the blocks, which have no background
    missing: Style
    plain: Style

    def at(self, position: float) -> Style:
        """Return the style of text at `position`, 0 to 1; for NaN, that of a missing number."""
        return self.missing if math.isnan(position) else self.steps[_nearest(position, len(self.steps))]

    def mark(self, position: float) -> Style:
        """Return the style of the block at `position`, 0 to 1; for NaN, that of a missing number."""
        return self.missing if math.isnan(position) else self.marks[_nearest(position, len(self.marks))]


def heat_ladder(variables: Mapping[str, str], *, diverging: bool, colorless: bool = False) -> Ladder:
    """Return the ladder of the theme with these variables.

    Values further from the middle, or from 0 of a magnitude, stand out more. Text reaches a contrast of 4.5 on every
    step. The terminal's own colours (`ansi_...`) cannot be mixed, so they give few steps: plain, coloured text,
    coloured background. colorless: use attributes only.
    """
    if colorless:
        plain, strong = Style(), Style(bold=True)
        attributes = (strong, plain, strong) if diverging else (plain, strong)
        return Ladder(attributes, (plain,), Style(italic=True), plain)
    ground, text = Color.parse(variables["background"]), Color.parse(variables["foreground"])
    low, mid, high = (Color.parse(variables[f"heat-{name}"]) for name in ("low", "mid", "high"))
    plain, missing = _style(text, ground), _style(mid, ground) + Style(italic=True)
    rising, marks = _rise(mid, high, text, ground)
    if not diverging:
        return Ladder((plain, *rising), marks, missing, plain)
    falling, others = _rise(mid, low, text, ground)
    return Ladder((*reversed(falling), plain, *rising), (*reversed(others[1:]), *marks), missing, plain)


def underline_style(position: float, *, diverging: bool) -> Style:
    """Return no underline in the first third of the way to an end, one in the second, two in the last; none for NaN."""
    size = abs(2 * position - 1) if diverging else position
    if not size >= 1 / 3:
        return Style.null()
    return Style(underline=True, underline2=True) if size > 2 / 3 else Style(underline=True)


def _nearest(position: float, count: int) -> int:
    return math.floor(position * (count - 1) + 0.5)


def _rise(mid: Color, heat: Color, text: Color, ground: Color) -> tuple[tuple[Style, ...], tuple[Style, ...]]:
    """Return the styles of text after the plain one up to `heat`, and those of blocks from the middle up to it."""
    if ground.ansi is not None:
        ends = Color.parse("ansi_black"), Color.parse("ansi_bright_white")
        steps = _style(heat, ground), _style(max(ends, key=lambda end: contrast(end, heat)), heat)
        return steps, (_style(mid, ground), _style(heat, ground))
    shares = (_STRONGEST * share / 40 for share in range(40, 0, -1))
    strongest = next((share for share in shares if contrast(text, ground.blend(heat, share)) >= _READABLE), 0.0)
    grounds = [ground.blend(heat, strongest * step / _STEPS) for step in range(1, _STEPS + 1)]
    least = ground.blend(mid, _FAINT)
    marks = tuple(_style(least.blend(heat, step / _STEPS), ground) for step in range(_STEPS + 1))
    return tuple(_style(text, on) for on in grounds), marks


def _style(text: Color, ground: Color) -> Style:
    return Style(color=text.rich_color, bgcolor=ground.rich_color)
