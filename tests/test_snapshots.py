"""The whole screen at three sizes and in three colour schemes, as text that a reviewer can read.

UPDATE_SNAPSHOTS=1 writes tests/snapshots/ anew; look at the difference before you keep it.
"""

from __future__ import annotations

import math
import os
import random
from pathlib import Path
from typing import Any

import pytest
import scripted_run
import token_samples
from rich.color import Color as RichColor
from rich.color import ColorType
from textual.color import Color
from workbench_app import screen_text, status, until, workbench

from trainer.config import Config, save_config
from trainer.control.control import Control
from trainer.events import Alert, PhaseProgress, RunEnded, SamplesWritten, StateChanged
from trainer.runs.folder import RunFolder
from trainer.runs.journal import Journal
from trainer.runs.samples import write_samples
from workbench.samples.sample_list import SampleList
from workbench.samples.sample_view import SampleView
from workbench.screen.main import MainScreen

SNAPSHOTS = Path(__file__).parent / "snapshots"
SIZES = [(80, 24), (120, 36), (200, 60)]
SCHEMES = ["workbench", "paper", "NO_COLOR"]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PPO_WORKBENCH_CONFIG_DIR", str(tmp_path / "config"))


def learning(emit: Any, control: Control) -> RunEnded:
    """Forty iterations of a run that learns, with what a timeline shows, then a pause."""
    random.seed(0)
    emit(scripted_run.started(iterations=60))
    for number in range(1, 41):
        noise = random.gauss(0, 0.08)
        progress = 1 - math.exp(-number / 15)
        emit(
            scripted_run.samples(
                number,
                ("The concert last night", " was a triumph! The band played with such joy."),
                ("From the top of the mountain, Thandi could see", " a beautiful sunrise below the clouds."),
            )
        )
        emit(
            scripted_run.iteration(
                number,
                score_mean=0.1 + 0.5 * progress + noise,
                kl=9 * progress + 4 * noise,
                entropy=3.4 - 0.6 * progress + noise,
                policy_loss=-0.03 + noise / 10,
                value_loss=0.06 * (1 - progress) + 0.02 + abs(noise) / 10,
                clip_fraction=0.02 + abs(noise) / 4,
                explained_variance=0.5 * progress + noise if number != 20 else math.nan,
                grad_norm=3 + 5 * noise,
            )
        )
        if number == 9:
            message = "18 % of the responses were cut short: raise rollout.max_new_tokens"
            emit(Alert(iteration=9, level="warning", code="truncated", message=message))
    emit(PhaseProgress(iteration=41, phase="update", done=3, total=8))
    emit(StateChanged(state="paused"))
    return scripted_run.wait(lambda *_: None, control)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", SIZES, ids=["80x24", "120x36", "200x60"])
async def test_the_screen_is_as_it_was_looked_at(
    size: tuple[int, int], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scheme == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    async with workbench(learning, size=size) as (screen, pilot):
        if scheme != "NO_COLOR":
            screen.app.theme = scheme
        await pilot.press("space")
        await until(pilot, lambda: "‖ paused" in status(screen))
        await pilot.pause(0.3)
        check(screen_text(screen), SNAPSHOTS / f"{size[0]}x{size[1]}.txt")
        colours = drawn(screen)
        if scheme == "NO_COLOR":
            kinds = {color.type for style in colours for color in (style.color, style.bgcolor) if color}
            assert kinds <= {ColorType.DEFAULT}
        else:
            dark = scheme == "workbench"
            backgrounds = [luminance(style.bgcolor) for style in colours if style.bgcolor]
            assert (sum(backgrounds) / len(backgrounds) < 0.5) == dark
            assert min(contrasts(colours)) >= 3


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", SIZES, ids=["80x24", "120x36", "200x60"])
async def test_an_open_sample_is_as_it_was_looked_at(
    size: tuple[int, int], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scheme == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    async with workbench(watch=written_run(Path("runs/quickstart-0001")), size=size) as (screen, pilot):
        if scheme != "NO_COLOR":
            screen.app.theme = scheme
        await pilot.press("f4", "z")
        await until(pilot, lambda: screen.query_one(SampleList).selected is not None)
        await pilot.press("enter")
        await until(pilot, lambda: screen.query_one(SampleView).display)
        await pilot.press(*["right"] * 8, "K", *([] if scheme == "NO_COLOR" else ["g"]))
        await pilot.pause(0.3)
        check(screen_text(screen), SNAPSHOTS / f"sample-{size[0]}x{size[1]}.txt")
        colours = drawn(screen)
        if scheme == "NO_COLOR":
            kinds = {color.type for style in colours for color in (style.color, style.bgcolor) if color}
            assert kinds <= {ColorType.DEFAULT}
            assert any(style.underline for style in colours)
        else:
            assert min(contrasts(colours)) >= 3
            assert len({style.bgcolor for style in colours}) > 5, "tokens have the colours of their numbers"


def written_run(folder: Path) -> Path:
    """A run that has ended, with one sequence whose numbers fit together."""
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
    journal = Journal(folder / "events.jsonl")
    journal.emit(scripted_run.started(folder=str(folder)))
    journal.emit(SamplesWritten(iteration=12, path="samples/step-000012.parquet", rows=1, previews=[]))
    journal.emit(scripted_run.iteration(12))
    journal.emit(scripted_run.ended("done", 12))
    journal.close()
    return folder


def check(text: str, path: Path) -> None:
    """Compare `text` with the snapshot at `path`, whatever its colours."""
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def drawn(screen: MainScreen) -> list[Any]:
    """The styles of all words on the terminal, as the application's filters leave them; lines are decoration."""
    background = Color.parse("black")
    strips = screen._compositor.render_strips()
    for line_filter in screen.app._filters:
        strips = [strip.apply_filter(line_filter, background) for strip in strips]
    return [
        segment.style
        for strip in strips
        for segment in strip
        if segment.style and any(character.isalnum() for character in segment.text)
    ]


def luminance(color: RichColor) -> float:
    return Color.from_rich_color(color).brightness


def contrasts(styles: list[Any]) -> list[float]:
    """WCAG contrast of each style that has both colours and is not a scroll bar or a line."""
    pairs = {(style.color, style.bgcolor) for style in styles if style.color and style.bgcolor}
    return [
        ratio(Color.from_rich_color(front), Color.from_rich_color(back))
        for front, back in pairs
        if ColorType.DEFAULT not in (front.type, back.type)
    ]


def ratio(one: Color, other: Color) -> float:
    def relative(color: Color) -> float:
        def linear(value: int) -> float:
            share = value / 255
            return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

        return 0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b)

    high, low = sorted((relative(one), relative(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
