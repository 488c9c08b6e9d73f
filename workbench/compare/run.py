"""A run to compare, with everything that was read from its folder."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.events import Alert, Decision, Event, RolledBack
from workbench.run.sample_records import Sample
from workbench.run.view import RunView

LETTERS = string.ascii_uppercase
"""Letters of the runs, in the order in which they were named. No more runs can be compared at once."""
_LEAST, _SHARE = 5, 20


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the compared runs. Texts are as on disk, not made safe to print."""

    letter: str
    name: str  # the shortest end of the folder's path that no other run has
    folder: Path
    kind: str
    state: str  # training, done, stopped, failed or interrupted
    view: RunView
    alarms: int = 0  # including other warnings and errors
    rollbacks: int = 0
    config: Mapping[str, Any] | None = None  # None if config.toml cannot be read
    samples: Sequence[Sample] = ()  # newest iteration first
    problems: Sequence[str] = ()  # what could not be read

    @property
    def window(self) -> int:
        """Iterations per mean, because one batch is mostly noise: a twentieth of all, but at least five."""
        return max(_LEAST, len(self.view.history) // _SHARE)

    def column(self, name: str) -> Sequence[float]:
        """Return the metric `name` of every iteration; empty if runs of this kind do not have it."""
        history = self.view.history
        return history.column(name) if name in history.names else ()


def troubles(events: Sequence[Event]) -> tuple[int, int]:
    """Count the warnings and errors, including alarms, and the rollbacks."""
    alarms = sum(isinstance(e, Alert) and not isinstance(e, Decision) and e.level != "info" for e in events)
    return alarms, sum(isinstance(event, RolledBack) for event in events)


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return for each of `folders`, which must differ, the shortest end of its path that no other has."""
    return [_distinct_name(folder, [other for other in folders if other != folder]) for folder in folders]


def _distinct_name(folder: Path, others: Sequence[Path]) -> str:
    for depth in range(1, len(folder.parts)):
        end = folder.parts[-depth:]
        if all(other.parts[-depth:] != end for other in others):
            return "/".join(end)
    return str(folder)
