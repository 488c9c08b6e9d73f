"""Screens as SVG for docs/screenshots.py: still ones, and animations in which each row is drawn once while it stays.

Lines, blocks and braille are rectangles, so that they meet in every font; all else is text, as wide as its cells.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import DIMMED_MONOKAI
from textual.pilot import Pilot

from workbench.app import WorkbenchApp
from workbench.kit.theming import shipped_themes

CELL, LINE, MARGIN = 9, 18, 9  # width and height of a character, and the space around the screen, in pixels
_FONT = "'DejaVu Sans Mono', Menlo, Consolas, ui-monospace, monospace"
_SHARP = ' shape-rendering="crispEdges"'  # no seam between the backgrounds of rows
_GROUND = str(shipped_themes()["workbench"].background)
_BLOCKS: dict[str, tuple[float, float, float, float]] = {"▀": (0, 0, 1, 0.5), "▐": (0.5, 0, 0.5, 1)}
_BLOCKS |= {"▔": (0, 0, 1, 0.125), "▕": (0.875, 0, 0.125, 1)}
_BLOCKS |= {chr(0x2580 + n): (0.0, 1 - n / 8, 1, n / 8) for n in range(1, 9)}
_BLOCKS |= {chr(0x2590 - n): (0, 0, n / 8, 1) for n in range(1, 8)}


class Frame(NamedTuple):
    """A state of the screen and how long the animation shows it."""

    rows: Sequence[str]  # of SVG, without their position
    seconds: float


def shape(char: str) -> list[tuple[float, float, float, float]]:
    """Return the rectangles (left, top, width, height) of a character of lines, a block or braille; none for others."""
    words = unicodedata.name(char, "").split()
    if char in _BLOCKS:
        left, top, width, height = _BLOCKS[char]
        return [(left * CELL, top * LINE, width * CELL, height * LINE)]
    if words[:1] == ["BRAILLE"]:
        dots = [(bit // 3, bit % 3) if bit < 6 else (bit - 6, 3) for bit in range(8) if ord(char) >> bit & 1]
        return [(1 + x * 4.5, 1 + y * 4.5, 2.5, 2.5) for x, y in dots]
    if words[:2] != ["BOX", "DRAWINGS"] or {"DASH", "DOUBLE", "SINGLE", "DIAGONAL"} & {*words}:
        return []
    found: list[tuple[float, float, float, float]] = []
    thick, gap = 1, 2 if "ARC" in words else 0
    for part in " ".join(words[2:]).split(" AND "):  # as in LIGHT VERTICAL AND RIGHT, or VERTICAL LIGHT AND LEFT HEAVY
        thick = 3 if "HEAVY" in part else 1 if "LIGHT" in part else thick
        x, y = (CELL - thick) // 2, (LINE - thick) // 2
        sides = {"LEFT": (0, y, x + thick - gap, thick), "RIGHT": (x + gap, y, CELL - x - gap, thick)}
        sides |= {"UP": (x, 0, thick, y + thick - gap), "DOWN": (x, y + gap, thick, LINE - y - gap)}
        sides |= {"HORIZONTAL": (0, y, CELL, thick), "VERTICAL": (x, 0, thick, LINE)}
        found += [sides[word] for word in part.split() if word in sides]
    if gap:
        found.append((x + (1 if "RIGHT" in words else -1), y + (1 if "DOWN" in words else -1), 1, 1))
    return found


_DRAWN = "".join(char for char in map(chr, [*range(0x2500, 0x25A0), *range(0x2801, 0x2900)]) if shape(char))
_PIECES = re.compile(rf"[{_DRAWN}]+|[!-~]+(?: [!-~]+)*| +|.[\u0300-\u036f\u200b-\u200f\ufe00-\ufe0f]*")


_FOLDER = "/home/anna/study"  # shown in place of where a picture was made


def row(segments: Sequence[Segment]) -> str:
    """Return one row of the terminal as SVG: backgrounds first, then what is written, each piece in its cells."""
    grounds: list[tuple[str, int]] = []  # colours, and how many cells have them
    written, column, here = [], 0, str(Path.cwd())
    for text, style, _ in segments:
        ink, ground = (
            _colour(style.color if style else None, "#c8c8c8"),
            _colour(style.bgcolor if style else None, _GROUND),
        )
        if style and style.reverse:
            ink, ground = ground, ink
        grounds.append((ground, cell_len(text)))
        looks = "".join(
            f' {name}="{value}"'
            for name, value, on in (
                ("font-weight", "bold", style and style.bold),
                ("font-style", "italic", style and style.italic),
                ("text-decoration", "underline", style and style.underline),
            )
            if on
        )
        for piece in _PIECES.findall(text.replace(here, _FOLDER.ljust(len(here), "_")[: len(here)])):
            x, column = column * CELL, column + cell_len(piece)
            if piece[0] in _DRAWN:
                written.append(f'<path fill="{ink}" d="{_outline(piece, x)}"/>')
            elif column * CELL > x and (piece.strip() or "underline" in looks):
                written.append(
                    f'<text x="{x}" y="{LINE * 0.75:g}" fill="{ink}" textLength="{column * CELL - x}"'
                    f' lengthAdjust="spacingAndGlyphs"{looks}>{escape(piece)}</text>'
                )
    rects, column = [], 0
    for colour, same in groupby(grounds, key=lambda one: one[0]):
        x, cells = column * CELL, sum(cells for _, cells in same)
        column += cells
        if colour != _GROUND:
            rects.append(f'<rect x="{x}" width="{cells * CELL}" height="{LINE}" fill="{colour}"{_SHARP}/>')
    return "".join(rects + written)


def _outline(piece: str, x: float) -> str:
    """Return the path of characters with a shape; equal ones from side to side are one rectangle."""
    path = []
    for char, same in groupby(piece):
        count = len(list(same))
        for left, top, width, height in shape(char):
            joined = width == CELL
            for place in range(1 if joined else count):
                long = width * count if joined else width
                path.append(f"M{x + place * CELL + left:g} {top:g}h{long:g}v{height:g}h-{long:g}z")
        x += count * CELL
    return "".join(path)


def _colour(colour: Style | Color | None, default: str) -> str:
    if not isinstance(colour, Color) or colour.is_default:
        return default
    return colour.get_truecolor(DIMMED_MONOKAI).hex


def animation(frames: Sequence[Frame], columns: int) -> str:
    """Return an SVG that shows the frames one after the other, for ever; a still picture of one.

    A row that stays the same over several frames is drawn once, and shown as long as they last.
    """
    starts = [0.0]
    for frame in frames:
        starts.append(starts[-1] + frame.seconds)
    total, height = starts[-1], len(frames[0].rows)
    pieces = []
    for y in range(height):
        number = 0
        for drawn, same in groupby(frame.rows[y] for frame in frames):
            first, number = number, number + len(list(same))
            shown = f'<g transform="translate(0 {y * LINE:g})"'
            if number - first < len(frames):
                shown += f' visibility="hidden">{_while(starts[first], starts[number], total)}'
            else:
                shown += ">"
            pieces.append(f"{shown}{drawn}</g>")
    size = f"{columns * CELL + 2 * MARGIN} {height * LINE + 2 * MARGIN}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-{MARGIN} -{MARGIN} {size}" font-family="{_FONT}"'
        f' font-size="{CELL / 0.6:g}" xml:space="preserve">\n'
        f'<rect x="-{MARGIN}" y="-{MARGIN}" width="100%" height="100%" rx="{MARGIN}" fill="{_GROUND}"/>\n'
        + "\n".join(pieces)
        + "\n</svg>\n"
    )


def _while(start: float, end: float, total: float) -> str:
    """Return the animation that shows a row from `start` to `end` seconds of each round of `total` seconds."""
    return (
        '<animate attributeName="visibility" calcMode="discrete" values="hidden;visible;hidden"'
        f' repeatCount="indefinite" keyTimes="0;{start / total:.5g};{end / total:.5g}" dur="{total:g}s"/>'
    )


class Recorder:
    """Presses keys in an application, and keeps frames of what it shows."""

    def __init__(self, app: WorkbenchApp, pilot: Pilot[str]) -> None:
        self._app, self._pilot = app, pilot
        self.frames: list[Frame] = []

    def take(self, seconds: float) -> Frame:
        """Keep the screen as it is, to be shown for this long."""
        strips = self._app.screen._compositor.render_strips()
        self.frames.append(Frame([row(list(strip)) for strip in strips], seconds))
        return self.frames[-1]

    async def press(self, *keys: str, seconds: float = 0, wait: float = 0.5) -> None:
        """Press keys, wait for what they begin, and keep a frame if it is to be shown."""
        for key in keys:
            await self._pilot.press(key)
            await self._pilot.pause(0.2)
        await self._pilot.pause(wait)
        if seconds:
            self.take(seconds)

    async def until(self, condition: Callable[..., object], *arguments: object) -> None:
        """Let the application work until the condition holds."""
        while not condition(*arguments):
            await self._pilot.pause(0.1)
