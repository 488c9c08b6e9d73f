"""A run with alarms, decisions and evaluations at three sizes and in three colour schemes, as text."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import scripted_run
from scripted_run import alarm, evaluation
from snapshots import SCHEMES, SIZE, SNAPSHOTS, check_few_colours, check_when_drawn, contrasts, drawn, in_scheme
from waiting import until
from workbench_app import screen_text, start_run, status

from trainer.engine.control import Control
from trainer.events import Decision, RolledBack, RunEnded, StateChanged
from workbench.training.alarms import AlarmScreen


def going_wrong(emit: Any, control: Control) -> RunEnded:
    """Play forty iterations whose KL diverges, rolled back once, with evaluations and three alarms; then a pause."""
    random.seed(0)
    emit(scripted_run.started(iterations=60))
    for n in range(1, 41):
        noise, share = random.gauss(0, 0.08), 0.5 + n / 100
        score, entropy = 0.1 + 0.5 * (1 - math.exp(-n / 15)) + noise, 3.4 - 0.05 * n
        numbers = {"kl": 0.6 * n + 4 * noise, "kl_coef": 0.02 * 1.02**n, "clip_fraction": 0.1 + 0.008 * n}
        emit(scripted_run.iteration(n, score_mean=score, entropy=entropy, **numbers))
        if n % 10 == 0:
            rate = {"win_rate": share, "win_rate_low": share - 0.1, "win_rate_high": 0.95}
            emit(evaluation(n, score_mean=0.3 + n / 100, **rate))
        if n == 18:
            reason = "the score fell by more than a deviation below its best"
            values = {"level": "warning", "code": "convergence_degradation", "message": reason}
            emit(Decision(iteration=18, rule="degradation", action="rollback", evidence={"score": 0.2}, **values))
            emit(RolledBack(iteration=18, to=10, reason=reason))
    cut = {"message": "18 % of the responses were cut short", "evidence": {"truncated": 0.18}, "fixes": []}
    advice = "Raise rollout.max_new_tokens, or set reward.overlong_penalty."
    emit(alarm(33, code="truncation", advice=advice, **cut))
    message = "43 % of the ratios were clipped, on the mean of five iterations"
    emit(alarm(37, code="clip_saturation", level="error", message=message, evidence={"clip_fraction": 0.43}))
    emit(alarm(40))
    emit(StateChanged(state="paused"))
    return scripted_run.wait(lambda *_: None, control)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_alarms_match_their_snapshots(scheme: str) -> None:
    async with in_scheme(scheme, going_wrong, size=SIZE) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: "‖ paused" in status(screen))
        await check_when_drawn(pilot, lambda: screen_text(screen), SNAPSHOTS / "alarms.txt")
        if scheme == "ansi-16":
            check_few_colours(drawn(screen))
        elif scheme != "NO_COLOR":
            assert min(contrasts(drawn(screen))) >= 3
        await pilot.press("exclamation_mark")
        await until(pilot, lambda: isinstance(screen.app.screen, AlarmScreen))
        over: Any = screen.app.screen
        await check_when_drawn(pilot, lambda: screen_text(over), SNAPSHOTS / "alarm.txt")
        if scheme not in ("NO_COLOR", "ansi-16"):
            dialog = over.query_one(".dialog").region  # the screen behind it is dimmed on purpose
            assert min(contrasts(drawn(over, dialog))) >= 3
