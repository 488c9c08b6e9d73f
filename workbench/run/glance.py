"""A run at a glance: its state and the curves of its newest iterations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from trainer.errors import StorageError
from trainer.events import Alarm, Iteration, RewardModelEvaluation, RunEnded
from trainer.runs.journal import JournalReader, without_superseded
from trainer.runs.journal_lines import TimedEvent
from trainer.runs.listing import PPO, RunSummary
from workbench.numbers import percent

_ITERATIONS = 500  # newest iterations of a curve


class Glance(NamedTuple):
    """A run at a glance. scores and kls: one number for each iteration, NaN where it has none."""

    run: RunSummary
    scores: Sequence[float] = ()
    kls: Sequence[float] = ()
    first: int = 1  # iteration of the first number
    result: str = ""  # of a run on comparisons
    seconds: float = math.nan  # mean of an iteration
    ended: float | None = None  # unix seconds, as are the times of the alarms
    alarms: Sequence[tuple[float, str]] = ()  # time and code


def glance_at(run: RunSummary) -> Glance:
    """Read the newest iterations of a run; what cannot be read is left out."""
    reader = JournalReader(run.folder.events, _ITERATIONS)
    try:
        events = without_superseded(reader.poll())
    except StorageError:  # the listing reports it
        events = []
    return _glance(run, events)


def _glance(run: RunSummary, events: Sequence[TimedEvent]) -> Glance:
    steps = [event for _, event in events if isinstance(event, Iteration) and event.iteration <= run.iteration]
    seconds = [sum(step.seconds.values()) for step in steps]
    held_out = [event for _, event in events if isinstance(event, RewardModelEvaluation)]
    ends = [at for at, event in events if isinstance(event, RunEnded)]
    return Glance(
        run,
        [step.score_mean for step in steps],
        [step.kl for step in steps],
        first=steps[0].iteration if steps else 1,
        result=f"{percent(held_out[-1].accuracy)} held out" if held_out and run.kind != PPO else "",
        seconds=sum(seconds) / len(seconds) if seconds else math.nan,
        ended=ends[-1] if ends and run.state != "training" else None,
        alarms=[(at, event.code) for at, event in events if isinstance(event, Alarm)],
    )
