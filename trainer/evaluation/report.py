"""The record of an evaluation of a checkpoint: plain numbers with their intervals, to be printed."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from trainer.evaluation.intervals import Interval


class BestOfN(NamedTuple):
    """The mean over prompts of the expected best score of n responses of the reference."""

    n: int
    kl: float  # the most that best of n can be away from the reference, nats a sequence
    score: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """An evaluation of a checkpoint. Every interval is of 95 %, over the prompts.

    policy, reference: score, reward (score less the KL penalty), kl (nats a sequence), length (tokens), truncated
    (share), and under `parts.` and its name the raw score of each reward source.
    """

    run: str
    kind: str  # "ppo" or "dpo"
    checkpoint: str
    iteration: int
    averaged: bool  # the policy judged is the moving average
    kl_coef: float  # of the penalty
    prompts: int
    samples: int  # responses to each
    seed: int
    policy: dict[str, Interval]
    reference: dict[str, Interval]
    gain: Interval  # the policy's score less the reference's
    win_rate: Interval  # share of the pairs in which the policy scores higher than the reference; a tie counts half
    pairs: int
    best_of: list[BestOfN]
    critic: dict[str, Interval]  # explained_variance and error, on rollouts that it has not seen; empty without one

    def as_dict(self) -> dict[str, Any]:
        """Plain values; numbers that are not finite become None (JSON has none)."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
