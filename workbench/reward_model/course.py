"""Training of a reward model, built from its events."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field

from trainer.events import (
    Event,
    RewardModelEvaluation,
    RewardModelStep,
    RunEnded,
    RunStarted,
    State,
    StateChanged,
)


@dataclass(slots=True)
class Course:
    """Steps by ascending number, with loss and accuracy on the batch of each, and the evaluations."""

    started: RunStarted | None = None
    state: State = "loading"
    ended: RunEnded | None = None
    numbers: array[int] = field(default_factory=lambda: array("q"))
    losses: array[float] = field(default_factory=lambda: array("d"))
    accuracies: array[float] = field(default_factory=lambda: array("d"))
    evaluations: list[RewardModelEvaluation] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Number of steps of the whole run; 0 before it has started."""
        return self.started.iterations if self.started else 0

    @property
    def step(self) -> int:
        """Number of the last step; 0 before the first."""
        return self.numbers[-1] if self.numbers else 0

    def take(self, event: Event) -> None:
        """Fold in one event; unknown kinds change nothing."""
        match event:
            case RunStarted():
                self._cut(event.resumed_at or 0)
                self.started, self.ended = event, None
            case StateChanged():
                self.state = event.state
            case RewardModelStep():
                self._cut(event.iteration - 1, evaluations=False)
                self.numbers.append(event.iteration)
                self.losses.append(event.loss)
                self.accuracies.append(event.accuracy)
            case RewardModelEvaluation():
                self.evaluations = [found for found in self.evaluations if found.iteration < event.iteration]
                self.evaluations.append(event)
            case RunEnded():
                self.ended, self.state = event, event.state

    def copy(self) -> Course:
        """Return a copy that does not change when this course does."""
        return Course(
            started=self.started,
            state=self.state,
            ended=self.ended,
            numbers=self.numbers[:],
            losses=self.losses[:],
            accuracies=self.accuracies[:],
            evaluations=self.evaluations[:],
        )

    def _cut(self, last: int, *, evaluations: bool = True) -> None:
        """Drop what comes after step `last`: a resumed run does it again."""
        size = bisect_right(self.numbers, last)
        for column in (self.numbers, self.losses, self.accuracies):
            del column[size:]
        if evaluations:
            self.evaluations = [found for found in self.evaluations if found.iteration <= last]
