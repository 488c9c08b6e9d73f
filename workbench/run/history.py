"""Metrics of a run's iterations as columns of numbers, 8 bytes each, and summaries at the width of a chart."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Literal, NamedTuple

from trainer.events import DPOStep, Evaluation, Event, Iteration, RewardModelEvaluation, RewardModelStep
from trainer.runs.listing import PPO
from workbench.run.metrics import DPO, REWARD_MODEL, Numbers

_EVENTS: dict[str, type[Event]] = {PPO: Iteration, REWARD_MODEL: RewardModelStep, DPO: DPOStep}
_KINDS = {event: kind for kind, event in _EVENTS.items()}
_NO_METRICS = ("iteration", "seconds")
_PHASES = ("generate", "score", "reward", "update")
_BETWEEN = ("evaluate", "save")  # after an iteration, reported by events of their own
_FIFTHS = tuple(tuple(f"calibration/{fifth}/{name}" for name in ("value", "outcome", "tokens")) for fifth in range(5))
_KEPT_BUCKETS = 200  # summaries: those of some charts of a run that stands still
_EVALUATED = {
    PPO: ("score_mean", "win_rate", "best_of_score", "explained_variance"),
    REWARD_MODEL: ("accuracy",),
    DPO: ("accuracy",),
}


class Bucket(NamedTuple):
    """A summary of neighbouring values. Only finite ones count; low to last are NaN if there are none."""

    low: float
    high: float
    mean: float
    last: float
    first_index: int
    last_index: int  # included
    missing: int  # how many of them are NaN or infinite


def kind_of(event: Numbers) -> str:
    """Return the kind of run that reports its numbers by such events."""
    return _KINDS[type(event)]


def seconds(event: Numbers) -> float:
    """Return the seconds that an iteration took, all phases together."""
    return sum(event.seconds.values()) if isinstance(event, Iteration) else event.seconds


class MetricHistory:
    """Iterations by ascending number, with a column for each metric: the scalar fields of the events, and seconds.

    The columns of seconds are `seconds_total` and, for PPO, one for each phase, such as `seconds_generate`; NaN for a
    phase that did not run. `seconds_evaluate` and `seconds_save` are not in the total. There are also columns of
    evaluations, such as `eval/win_rate`: the result of the newest evaluation by then, NaN before the first. `names`
    lists the columns. kind: the kind of run; an unknown kind has the columns of PPO.
    """

    def __init__(self, kind: str = PPO) -> None:
        self.kind = kind if kind in _EVENTS else PPO
        numbers = [f.name for f in fields(_EVENTS[self.kind]) if f.type in ("int", "float")]
        scalars = [name for name in numbers if name not in _NO_METRICS]
        phases = [f"seconds_{phase}" for phase in _PHASES] if self.kind == PPO else []
        self._evaluated = {f"eval/{name}": math.nan for name in _EVALUATED[self.kind]}
        between = [f"seconds_{phase}" for phase in _BETWEEN]
        self.names = (*scalars, "seconds_total", *phases, *between, *self._evaluated)
        self._scalars_of = attrgetter(*scalars)
        self.numbers = array("q")
        self._fifths = [name for fifth in _FIFTHS for name in fifth] if self.kind == PPO else []
        self._columns = {name: array("d") for name in (*self.names, *self._fifths)}
        self._buckets: dict[tuple[object, ...], list[Bucket]] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def append(self, event: Numbers) -> None:
        """Add an iteration of this kind of run. It replaces all iterations with its number or a higher one."""
        if self.numbers and event.iteration <= self.numbers[-1]:
            self.cut(event.iteration - 1)
        self.numbers.append(event.iteration)
        values = [*self._scalars_of(event), seconds(event)]
        if isinstance(event, Iteration):
            values += [event.seconds.get(phase, math.nan) for phase in _PHASES]
        values += [math.nan] * len(_BETWEEN)
        values += self._evaluated.values()
        if isinstance(event, Iteration):
            found = [number for fifth in event.calibration[: len(_FIFTHS)] if len(fifth) == 3 for number in fifth]
            values += found + [math.nan] * (len(self._fifths) - len(found))
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
        self._buckets.clear()

    def forget_evaluations(self) -> None:
        """Show no evaluation for later iterations until the next one: their prompts are others."""
        self._evaluated = dict.fromkeys(self._evaluated, math.nan)

    def evaluate(self, event: Evaluation | RewardModelEvaluation) -> None:
        """Store the results of `event`, an evaluation of a run of this kind, for its iteration and all later ones."""
        start = bisect_left(self.numbers, event.iteration)
        for name in self._evaluated:
            value = getattr(event, name.removeprefix("eval/"), None)
            if value is None:
                continue  # DPO has evaluations of two sorts
            self._evaluated[name] = value
            if start < len(self):
                self._columns[name][start:] = array("d", [value]) * (len(self) - start)
        self._buckets.clear()
        self.spend("evaluate", event.iteration, event.seconds)

    def spend(self, phase: Literal["evaluate", "save"], iteration: int, seconds: float) -> None:
        """Add the seconds of an evaluation or a checkpoint to its iteration; ignored if that is not there."""
        at = bisect_left(self.numbers, iteration)
        if at < len(self) and self.numbers[at] == iteration:
            column = self._columns[f"seconds_{phase}"]
            column[at] = seconds if math.isnan(column[at]) else column[at] + seconds

    def seconds_at(self, position: int) -> dict[str, float]:
        """Return where the time of the iteration at `position` went: the seconds of each phase that ran, in order.

        Kinds of run without phases have one, `train`.
        """
        names = {"seconds_total": "train"} if self.kind != PPO else {f"seconds_{phase}": phase for phase in _PHASES}
        names |= {f"seconds_{phase}": phase for phase in _BETWEEN}
        spent = {phase: self._columns[name][position] for name, phase in names.items()}
        return {phase: seconds for phase, seconds in spent.items() if 0 <= seconds < math.inf}

    def calibration(self, start: int, stop: int) -> list[tuple[float, float, int]]:
        """Return the critic's mean value, the mean outcome, and the number of tokens for each fifth of the tokens.

        The lowest values come first. Pooled over positions `start` to before `stop`; empty if none of them has any.
        """
        pooled = []
        for names in _FIFTHS if self._fifths else ():
            columns = (self._columns[name][start:stop] for name in names)
            rows = [row for row in zip(*columns, strict=True) if all(map(math.isfinite, row)) and row[2] > 0]
            if tokens := sum(count for *_, count in rows):
                value, outcome = (sum(row[place] * (row[2] / tokens) for row in rows) for place in (0, 1))
                pooled.append((value, outcome, int(tokens)))
        return pooled

    def prepend(self, earlier: MetricHistory) -> None:
        """Insert the iterations of `earlier` that come before the first one of this history.

        Those of another kind of run are left out.
        """
        if earlier.kind != self.kind:
            return
        size = bisect_left(earlier.numbers, self.numbers[0]) if self.numbers else len(earlier)
        self.numbers[:0] = earlier.numbers[:size]
        for column, older in zip(self._columns.values(), earlier._columns.values(), strict=True):
            column[:0] = older[:size]
        self._buckets.clear()

    def cut(self, last: int) -> None:
        """Drop the iterations above `last`."""
        size = bisect_right(self.numbers, last)
        if size == len(self.numbers):
            return
        del self.numbers[size:]
        for column in self._columns.values():
            del column[size:]
        self._buckets.clear()
        self._evaluated = {name: self._columns[name][-1] if size else math.nan for name in self._evaluated}

    def column(self, name: str) -> Sequence[float]:
        """Return all values of the metric `name`: the column itself, which grows. Raises KeyError if unknown."""
        return self._columns[name]

    def buckets(self, name: str, width: int, start: int = 0, stop: int | None = None) -> list[Bucket]:
        """Return the values of `name` at positions `start` to before `stop`, in `width` buckets of nearly equal size.

        If there are fewer values than `width`, each has a bucket. Kept until the history changes: do not change it.
        """
        column = self._columns[name]
        start, stop, _ = slice(start, stop).indices(len(self))
        size = max(stop - start, 0)
        width = min(max(width, 0), size)
        if not width:
            return []
        if (key := (name, width, start, stop)) in self._buckets:
            return self._buckets[key]
        if len(self._buckets) >= _KEPT_BUCKETS:
            self._buckets.clear()
        import numpy as np

        edges = np.arange(width + 1) * size // width
        firsts, counts = edges[:-1], np.diff(edges)
        values = np.array(column[start:stop])
        finite = np.isfinite(values)
        finites = np.add.reduceat(finite, firsts, dtype=np.int64)
        lows = np.minimum.reduceat(np.where(finite, values, np.inf), firsts)
        highs = np.maximum.reduceat(np.where(finite, values, -np.inf), firsts)
        lasts = np.maximum.reduceat(np.where(finite, np.arange(size), -1), firsts)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            means = np.add.reduceat(np.where(finite, values, 0.0), firsts) / finites
            means = np.where(np.isfinite(means), means, lows / 2 + highs / 2)  # the sum has overflowed
        means = np.clip(means, lows, highs)  # rounding can move it outside
        known = finites > 0
        summaries = [np.where(known, numbers, np.nan) for numbers in (lows, highs, means, values[lasts])]
        places = (firsts + start, firsts + start + counts - 1, counts - finites)
        self._buckets[key] = list(map(Bucket, *(array.tolist() for array in (*summaries, *places))))
        return self._buckets[key]

    def range_of(self, name: str) -> tuple[float, float]:
        """Return the least and the greatest finite value of `name`; NaN if there is none."""
        buckets = self.buckets(name, 1)
        return (buckets[0].low, buckets[0].high) if buckets else (math.nan, math.nan)

    def index_of(self, iteration: int) -> int:
        """Return the position of the iteration whose number is nearest to `iteration`; 0 in an empty history."""
        after = min(bisect_left(self.numbers, iteration), len(self) - 1)
        if after > 0 and iteration - self.numbers[after - 1] <= self.numbers[after] - iteration:
            return after - 1
        return max(after, 0)
