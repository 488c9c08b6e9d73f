"""Record of the evaluation of a checkpoint: plain numbers with their intervals, for printing."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from trainer.evaluation.intervals import Interval


class BestOfN(NamedTuple):
    """Mean over prompts of the expected best score of n responses of the reference."""

    n: int
    kl: float  # upper bound of the KL from the reference, nats a sequence
    score: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """An evaluation of a checkpoint. Every interval is a 95% interval over the prompts.

    Keys of policy and reference: score, reward (score minus the KL penalty), kl (nats a sequence), length (tokens),
    truncated (share), and `parts.NAME` with the raw score of each reward source.
    """

    run: str
    kind: str  # "ppo" or "dpo"
    checkpoint: str
    iteration: int
    averaged: bool  # whether the policy is its moving average
    kl_coef: float  # of the KL penalty
    prompts: int
    samples: int  # responses to each prompt
    seed: int
    policy: dict[str, Interval]
    reference: dict[str, Interval]
    gain: Interval  # the policy's score minus the reference's
    win_rate: Interval  # share of pairs in which the policy scores higher than the reference; ties count half
    pairs: int
    best_of: list[BestOfN]
    critic: dict[str, Interval]  # explained_variance and error, on unseen rollouts; empty without a critic

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; numbers that are not finite become None, since JSON lacks them."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
