"""The whole screen at three sizes and in three colour schemes, as text that a reviewer can read.

UPDATE_SNAPSHOTS=1 rewrites tests/snapshots/; look at the difference before you keep it.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import scripted_run
from rich.color import ColorType
from snapshots import (
    SCHEMES,
    SIZE,
    SNAPSHOTS,
    check_few_colours,
    check_when_drawn,
    contrasts,
    drawn,
    in_scheme,
    luminance,
    written_run,
)
from waiting import until
from workbench_app import screen_text, start_run, status

from trainer.engine.control import Control
from trainer.events import Alert, PhaseProgress, RunEnded, StateChanged
from workbench.samples.sample_list import SampleList
from workbench.samples.sample_view import SampleView


def learning(emit: Any, control: Control) -> RunEnded:
    """Play forty iterations of a run that learns, with events for the timeline, then a pause."""
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


@pytest.mark.parametrize(
    ("size", "scheme"), [((80, 24), "workbench"), ((200, 60), "workbench"), *((SIZE, scheme) for scheme in SCHEMES)]
)
async def test_the_screen_matches_its_snapshot(size: tuple[int, int], scheme: str) -> None:
    async with in_scheme(scheme, learning, size=size) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: "‖ paused" in status(screen))
        await check_when_drawn(pilot, lambda: screen_text(screen), SNAPSHOTS / f"{size[0]}x{size[1]}.txt")
        colours = drawn(screen)
        if scheme == "NO_COLOR":
            kinds = {color.type for style in colours for color in (style.color, style.bgcolor) if color}
            assert kinds <= {ColorType.DEFAULT}
        elif scheme == "ansi-16":
            check_few_colours(colours)
        else:
            dark = scheme == "workbench"
            backgrounds = [luminance(style.bgcolor) for style in colours if style.bgcolor]
            assert (sum(backgrounds) / len(backgrounds) < 0.5) == dark
            assert min(contrasts(colours)) >= 3


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_an_open_sample_matches_its_snapshot(scheme: str) -> None:
    async with in_scheme(scheme, watch=written_run(Path("runs/quickstart-0001")), size=SIZE) as (screen, pilot):
        await pilot.press("f4", "z")
        await until(pilot, lambda: screen.query_one(SampleList).selected is not None)
        await pilot.press("enter")
        await until(pilot, lambda: screen.query_one(SampleView).display)
        await pilot.press(*["right"] * 8, "k", "underscore", "a", *([] if scheme == "NO_COLOR" else ["g"]))
        await check_when_drawn(pilot, lambda: screen_text(screen), SNAPSHOTS / "sample.txt")
        colours = drawn(screen)
        if scheme == "NO_COLOR":
            kinds = {color.type for style in colours for color in (style.color, style.bgcolor) if color}
            assert kinds <= {ColorType.DEFAULT}
            assert any(style.underline for style in colours)
        elif scheme == "ansi-16":
            check_few_colours(colours)
            assert len({(style.color, style.bgcolor) for style in colours}) > 4, (
                "tokens have the colours of their numbers"
            )
        else:
            assert min(contrasts(colours)) >= 3
            assert len({style.bgcolor for style in colours}) > 5, "tokens have the colours of their numbers"
