"""Record the README's animation: the starter model learns, and a token says why it was pushed. Takes some five minutes.

Run: .venv/bin/python docs/recording.py
The result, docs/screenshots/recording.svg, is a drawing of rows of text. Each row is drawn once for as long as it stays
the same, so a recording is smaller than its frames.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from rich.color import Color
from rich.segment import Segment
from rich.terminal_theme import DIMMED_MONOKAI
from screenshots import FOLDER, opened, until
from textual.pilot import Pilot

from workbench.app import WorkbenchApp
from workbench.opening import Opening

SIZE = 110, 30
CELL, LINE = 8.4, 18.0  # width and height of a character in pixels
ITERATIONS = 20
_FONT = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Frame(NamedTuple):
    """A state of the screen and how long the animation shows it."""

    rows: Sequence[str]  # of SVG, without their position
    seconds: float


def row(segments: Sequence[Segment]) -> str:
    """Return one row of the terminal as SVG: backgrounds first, then text, each piece as wide as its cells."""
    rects, texts, column = [], [], 0
    for text, style, _ in segments:
        cells = Segment(text).cell_length
        x, width = column * CELL, cells * CELL
        column += cells
        if not cells:
            continue
        ink, ground = _colour(style and style.color, "#c8c8c8"), _colour(style and style.bgcolor, "")
        if style and style.reverse:
            ink, ground = ground or "#101010", ink
        if ground:
            rects.append(f'<rect x="{x:g}" width="{width:g}" height="{LINE:g}" fill="{ground}"/>')
        if text.strip():
            looks = "".join(
                f' {name}="{value}"'
                for name, value, on in (
                    ("font-weight", "bold", style and style.bold),
                    ("font-style", "italic", style and style.italic),
                    ("text-decoration", "underline", style and style.underline),
                )
                if on
            )
            texts.append(
                f'<text x="{x:g}" y="{LINE * 0.75:g}" fill="{ink}" textLength="{width:g}"'
                f' lengthAdjust="spacingAndGlyphs"{looks}>{escape(text)}</text>'
            )
    return "".join(rects + texts)


def _colour(colour: Color | None, default: str) -> str:
    if colour is None or colour.is_default:
        return default
    return colour.get_truecolor(DIMMED_MONOKAI).hex


def animation(frames: Sequence[Frame], columns: int) -> str:
    """Return an SVG that shows the frames one after the other, for ever.

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
    size = f"{columns * CELL:g} {height * LINE:g}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="{_FONT}" font-size="14"'
        ' xml:space="preserve">\n<rect width="100%" height="100%" fill="#101010"/>\n' + "\n".join(pieces) + "\n</svg>\n"
    )


def _while(start: float, end: float, total: float) -> str:
    """Return the animation that shows a row from `start` to `end` seconds of each round of `total` seconds."""
    return (
        '<animate attributeName="visibility" calcMode="discrete" values="hidden;visible;hidden"'
        f' repeatCount="indefinite" keyTimes="0;{start / total:.5g};{end / total:.5g}" dur="{total:g}s"/>'
    )


class Recorder:
    """Keeps frames of an application while it is driven."""

    def __init__(self, app: WorkbenchApp) -> None:
        self._app = app
        self.frames: list[Frame] = []

    def take(self, seconds: float) -> None:
        """Keep the screen as it is, to be shown for this long."""
        strips = self._app.screen._compositor.render_strips()
        self.frames.append(Frame([row(list(strip)) for strip in strips], seconds))

    async def while_not(self, pilot: Pilot[str], condition: Callable[[], bool], *, every: float, shown: float) -> None:
        """Keep a frame at intervals, in real seconds, until the condition holds."""
        while not condition():
            self.take(shown)
            await pilot.pause(every)


async def record() -> list[Frame]:
    """Drive the workbench from its first screen to a token of the trained model."""
    app = WorkbenchApp(Opening(overrides=(f"ppo.iterations={ITERATIONS}",)))
    recorder = Recorder(app)
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(app, pilot)
        run = screen.supervisor

        async def press(*keys: str, seconds: float, wait: float = 0.5) -> None:
            await pilot.press(*keys)
            await pilot.pause(wait)
            recorder.take(seconds)

        await pilot.pause(2.0)
        recorder.take(2.5)
        await press("t", seconds=2.5, wait=1.5)
        await pilot.press("enter")
        await until(pilot, lambda: run.view.phase is not None)
        await recorder.while_not(pilot, lambda: run.view.iteration >= ITERATIONS, every=5.0, shown=0.2)
        await until(pilot, lambda: not run.trains_here)
        await pilot.pause(1.0)
        recorder.take(2.5)
        await press("f4", "z", seconds=1.5, wait=2.0)
        await press("o", "home", "enter", seconds=2.0, wait=2.0)
        for _ in range(6):
            await press("right", seconds=0.4, wait=0.2)
        recorder.take(2.0)
        await press("enter", seconds=4.0, wait=1.0)
    return recorder.frames


def main() -> None:
    """Write the recording."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PPO_WORKBENCH_CONFIG_DIR"] = folder
        os.chdir(folder)
        frames = asyncio.run(record())
    path = Path(FOLDER) / "recording.svg"
    path.write_text(animation(frames, SIZE[0]), encoding="utf-8")


if __name__ == "__main__":
    main()
