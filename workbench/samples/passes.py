"""A token in each pass over the batch: its ratio, the effect of the clip, and its loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from trainer.runs.samples import SampleSettings
from workbench.samples import recompute


class Loss(NamedTuple):
    """L = -w max(min(rho A, clip(rho) A), c A) + beta KL_t; a term that the run does not use is None."""

    unclipped: float  # rho A
    clipped: float  # clip(rho) A
    bound: float | None  # c A of the dual clip, where A is negative
    weight: float | None  # w, the importance weight pi_old / pi_sampler, capped
    kl: float | None  # beta KL_t under the policy of that pass, where the KL is in the loss

    @property
    def total(self) -> float:
        """The loss L."""
        kept = min(self.unclipped, self.clipped)
        kept = kept if self.bound is None else max(kept, self.bound)
        return -kept * (1.0 if self.weight is None else self.weight) + (self.kl or 0.0)


class Pass(NamedTuple):
    """A token in one pass over the batch."""

    name: str  # "epoch 1" and so on, "after" for the pass after the last; "pass 1" where the epochs are not known
    ratio: float  # pi / pi_old; NaN where the token was part of no step in the epoch
    probability: float | None  # under the policy of that pass
    in_loss: bool  # the token was part of an optimiser step
    skipped: bool  # an epoch in which the token was part of no step
    outside: bool  # the ratio is outside its range
    clipped: bool  # the loss has no gradient, because of the range or the dual clip
    loss: Loss | None  # None without a step, or where a term is not known


def ratio_range(settings: SampleSettings) -> tuple[float, float]:
    """Return the bounds between which a ratio is not clipped."""
    return 1 - settings.clip, 1 + (settings.clip_high or settings.clip)


def passes(
    ratios: Sequence[float],
    settings: SampleSettings | None,
    *,
    advantage: float | None,
    logprob: float | None,
    ref_logprob: float | None,
    weight: float | None,
) -> tuple[Pass, ...]:
    """Return the passes of a token with these `ratios`. advantage: the one that the loss saw."""
    epochs = settings.epochs if settings is not None else -1
    known = epochs <= len(ratios) <= epochs + 1
    low, high = ratio_range(settings) if settings is not None else (-math.inf, math.inf)
    found = []
    for number, ratio in enumerate(ratios, 1):
        is_epoch, measured = not known or number <= epochs, not math.isnan(ratio)
        name = "after" if not is_epoch else f"epoch {number}" if known else f"pass {number}"
        in_loss, clipped, loss = is_epoch and measured, False, None
        if in_loss and settings is not None and advantage is not None:
            clipped = _is_clipped(ratio, advantage, settings)
            loss = _loss(ratio, advantage, logprob, ref_logprob, weight, settings)
        found.append(
            Pass(
                name=name,
                ratio=ratio,
                probability=None if logprob is None or not measured else recompute.exp(logprob) * ratio,
                in_loss=in_loss,
                skipped=is_epoch and not measured,
                outside=measured and not low <= ratio <= high,
                clipped=clipped,
                loss=loss,
            )
        )
    return tuple(found)


def _is_clipped(ratio: float, advantage: float, settings: SampleSettings) -> bool:
    low, high = ratio_range(settings)
    by_dual_clip = advantage < 0 < settings.dual_clip < ratio
    return by_dual_clip or (ratio > high and advantage > 0) or (ratio < low and advantage < 0)


def _loss(
    ratio: float,
    advantage: float,
    logprob: float | None,
    ref_logprob: float | None,
    weight: float | None,
    settings: SampleSettings,
) -> Loss | None:
    low, high = ratio_range(settings)
    kl = None
    if settings.kl_in == "loss" and logprob is not None and ratio > 0:
        value = recompute.kl(logprob + math.log(ratio), ref_logprob, settings).value  # under the policy of that pass
        kl = None if value is None else settings.kl_coef * value
    if (settings.kl_in == "loss" and kl is None) or (settings.importance_cap and weight is None):
        return None
    return Loss(
        unclipped=ratio * advantage,
        clipped=min(max(ratio, low), high) * advantage,
        bound=settings.dual_clip * advantage if advantage < 0 < settings.dual_clip else None,
        weight=weight,
        kl=kl,
    )
