"""The metrics of an iteration as every display shows them: name, unit, digits, in the order of interest."""

from __future__ import annotations

import math
from typing import NamedTuple

from trainer.events import Iteration


class Metric(NamedTuple):
    """One number of an iteration, and how it is written."""

    field: str  # of `Iteration`
    label: str  # in a list, where there is room
    heading: str  # over a column
    unit: str
    digits: int
    factor: float = 1.0  # from the event's unit to the shown one

    def of(self, iteration: Iteration) -> float:
        """The value in the shown unit."""
        return float(getattr(iteration, self.field)) * self.factor

    def text(self, value: float, *, sign: bool = False) -> str:
        """`value` (in the shown unit) with this metric's digits; - when it is not finite."""
        if not math.isfinite(value):
            return "-"
        return f"{value:{'+' if sign else ''}.{self.digits}f}"


METRICS = (
    Metric("score_mean", "score", "score", "", 3),
    Metric("kl", "KL", "KL", "nats/seq", 2),
    Metric("entropy", "entropy", "entropy", "nats/tok", 3),
    Metric("policy_loss", "policy loss", "p.loss", "", 4),
    Metric("value_loss", "value loss", "v.loss", "", 4),
    Metric("clip_fraction", "clip fraction", "clip", "%", 1, 100),
    Metric("explained_variance", "expl. variance", "expl.var", "", 2),
    Metric("response_length", "length", "length", "tokens", 1),
)
