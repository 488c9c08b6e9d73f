"""Pictures of the screen as readable text, and the colours in them.

UPDATE_SNAPSHOTS=1 rewrites tests/snapshots/; look at the difference before you keep it.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from difflib import unified_diff
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import scripted_run
import token_samples
from apart import ROOT
from colors import contrast
from config_files import save_config
from rich.color import Color as RichColor
from rich.color import ColorType
from textual.color import Color
from textual.geometry import Region
from textual.pilot import Pilot
from textual.screen import Screen
from waiting import until
from workbench_app import workbench

from trainer.config import Config
from trainer.events import SamplesWritten
from trainer.runs.folder import RunFolder
from trainer.runs.samples import write_samples
from workbench.screen.main_screen import MainScreen

SNAPSHOTS = ROOT / "tests" / "snapshots"
SIZE = (120, 36)
SCHEMES = ["workbench", "paper", "ansi-16", "NO_COLOR"]


def written_run(folder: Path) -> Path:
    """Write a finished run with one sequence whose numbers fit together."""
    texts = [
        " was",
        " a",
        " tri",
        "umph",
        "!",
        " The",
        " band",
        " played",
        " with",
        " such",
        " 日本",
        " joy",
        ".",
        "\n",
    ]
    texts += [" Every", "body", " sang", " 🎉", " and", " no", "body", " went", " home", " early", ".", "<|im_end|>"]
    row = token_samples.sample_row(
        0,
        texts=texts,
        prompt="The concert last night",
        completion="".join(texts[:-1]),
        score=0.81,
        kl_sum=7.9,
        truncated=False,
    )
    folder.mkdir(parents=True)
    write_samples(RunFolder(folder).samples_file(12), [row], 12, token_samples.SETTINGS)
    save_config(Config(), folder / "config.toml")
    written = SamplesWritten(iteration=12, path="samples/step-000012.parquet", rows=1, previews=[])
    start, end = scripted_run.started(folder=str(folder)), scripted_run.ended("done", 12)
    scripted_run.write_events(folder, start, written, scripted_run.iteration(12), end)
    return folder


@asynccontextmanager
async def in_scheme(scheme: str, play: Any = None, **opening: Any) -> AsyncIterator[tuple[MainScreen, Pilot[str]]]:
    """Open the application with a theme, or without colours for NO_COLOR, as on a machine of 25.3 GB."""
    with pytest.MonkeyPatch.context() as patch:
        memory = SimpleNamespace(total=25_300_000_000, available=20_000_000_000)
        patch.setattr(psutil, "virtual_memory", lambda: memory)
        if scheme == "NO_COLOR":
            patch.setenv("NO_COLOR", "1")
        async with workbench(play, **opening) as (screen, pilot):
            if scheme != "NO_COLOR":
                screen.app.theme = scheme
            yield screen, pilot


async def check_when_drawn(pilot: Pilot[Any], shown: Callable[[], str], path: Path) -> None:
    """Compare the screen with the snapshot at `path` once everything is drawn; fail after 30 seconds."""
    with suppress(AssertionError, FileNotFoundError):  # `check` says what differs
        await until(pilot, lambda: _trimmed(shown()) == path.read_text(encoding="utf-8"))
    await pilot.pause()
    check(shown(), path)


def check(text: str, path: Path) -> None:
    """Compare `text` with the snapshot at `path`, ignoring colours."""
    text = _trimmed(text)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    kept = path.read_text(encoding="utf-8")
    assert text == kept, "\n".join(unified_diff(kept.splitlines(), text.splitlines(), lineterm=""))


def _trimmed(text: str) -> str:
    """Return the text without blanks at the ends of lines, and with one time of day in place of all: they change."""
    text = re.sub(r"\b\d\d:\d\d:\d\d\b", "12:00:00", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def drawn(screen: Screen[Any], region: Region | None = None) -> list[Any]:
    """Return the styles of all words on the terminal or in a region, after the application's filters.

    Lines are decoration.
    """
    background = Color.parse("black")
    strips = screen._compositor.render_strips()
    if region is not None:
        strips = [strip.crop(region.x, region.right) for strip in strips[region.y : region.bottom]]
    for line_filter in filter(lambda one: one.enabled, screen.app._filters):
        strips = [strip.apply_filter(line_filter, background) for strip in strips]
    return [
        segment.style
        for strip in strips
        for segment in strip
        if segment.style and any(character.isalnum() for character in segment.text)
    ]


def drawn_pieces(screen: Screen[Any], region: Region | None = None) -> list[tuple[str, float, float]]:
    """Return the pieces of text on the screen, or in a region, each with its contrast and the least that it needs.

    A word needs 4.5, signs and lines need 3.
    """
    strips = screen._compositor.render_strips()
    if region is not None:
        strips = [strip.crop(region.x, region.right) for strip in strips[region.y : region.bottom]]
    found = []
    for segment in itertools.chain.from_iterable(strips):
        style = segment.style
        if style and style.color and style.bgcolor and segment.text.strip():
            color, on = (Color(*one.get_truecolor()) for one in (style.color, style.bgcolor))
            least = 4.5 if any(map(str.isalnum, segment.text)) else 3.0
            found.append((segment.text, contrast(color, on), least))
    return found


def check_few_colours(styles: list[Any]) -> None:
    """Assert that only the terminal's own sixteen colours are used, and several of them."""
    colors = {color for style in styles for color in (style.color, style.bgcolor) if color}
    assert {color.type for color in colors} == {ColorType.DEFAULT, ColorType.STANDARD}, colors
    assert len(colors) > 4, colors


def luminance(color: RichColor) -> float:
    return Color.from_rich_color(color).brightness


def contrasts(styles: list[Any]) -> list[float]:
    """Return the WCAG contrast of each style that has both colours and is not a scroll bar or a line."""
    pairs = {(style.color, style.bgcolor) for style in styles if style.color and style.bgcolor}
    return [
        contrast(Color.from_rich_color(front), Color.from_rich_color(back))
        for front, back in pairs
        if ColorType.DEFAULT not in (front.type, back.type)
    ]
