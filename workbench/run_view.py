"""The state of a run as its events tell it: what any screen shows is a function of this record."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from trainer.events import (
    Alert,
    CheckpointSaved,
    Evaluation,
    Event,
    Iteration,
    PhaseProgress,
    RunEnded,
    RunStarted,
    SamplesWritten,
    State,
    StateChanged,
)

_RECENT = 5  # iterations that the remaining time and the summary's means are taken over


@dataclass(slots=True)
class RunView:
    """What a reader wants to know of a run; `take` folds one event in, be it live or of a journal."""

    started: RunStarted | None = None
    state: State = "loading"
    phase: PhaseProgress | None = None
    iterations: list[Iteration] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    samples: SamplesWritten | None = None
    checkpoint: CheckpointSaved | None = None
    ended: RunEnded | None = None

    def take(self, event: Event) -> None:
        """Fold one event in; kinds that are not known change nothing."""
        match event:
            case RunStarted():
                self._start(event)
            case StateChanged():
                self.state = event.state
                self.phase = None
            case PhaseProgress():
                self.phase = event
            case Iteration():
                self.iterations.append(event)
                self.phase = None
            case Evaluation():
                self.evaluations.append(event)
            case Alert():
                self.alerts.append(event)
            case SamplesWritten():
                self.samples = event
            case CheckpointSaved():
                self.checkpoint = event
            case RunEnded():
                self.ended = event
                self.state = event.state
                self.phase = None

    @property
    def last(self) -> Iteration | None:
        """The newest iteration."""
        return self.iterations[-1] if self.iterations else None

    @property
    def iteration(self) -> int:
        """Iterations behind us, those of before a resumption counted."""
        if self.last is not None:
            return self.last.iteration
        return (self.started.resumed_at or 0) if self.started else 0

    @property
    def total(self) -> int:
        """Iterations that the run is to have."""
        return self.started.iterations if self.started else 0

    def seconds_left(self) -> float:
        """Expected time to the end of the run, from the newest iterations; NaN before the first."""
        recent = self.iterations[-_RECENT:]
        if not recent:
            return math.nan
        return sum(seconds(i) for i in recent) / len(recent) * max(self.total - self.iteration, 0)

    def first_and_last(self, name: str) -> tuple[float, float]:
        """Means of the metric `name` over the first and the last five iterations; NaN before the first."""
        values = [getattr(i, name) for i in self.iterations]
        return _mean(values[:_RECENT]), _mean(values[-_RECENT:])

    def _start(self, event: RunStarted) -> None:
        self.started = event
        self.ended = None
        self.state = "loading"
        if event.resumed_at is not None:
            # What was trained after the checkpoint, before the run was killed, is done anew.
            self.iterations = [i for i in self.iterations if i.iteration <= event.resumed_at]
            self.evaluations = [e for e in self.evaluations if e.iteration <= event.resumed_at]


def seconds(iteration: Iteration) -> float:
    """Seconds that `iteration` took, all phases together."""
    return sum(iteration.seconds.values())


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
