"""Evaluation of a reward model on held-out pairs, next to simpler baselines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import mlx.core as mx
import numpy as np

from trainer.maths import davidson_logprobs
from trainer.preferences.reliability import wilson_interval
from trainer.reward_model.outcomes import Leads, Outcomes, accuracy_of, log_loss_of
from trainer.reward_model.report import Accuracy, Baseline, CalibrationBin, RewardModelReport, TieMass

BINS = 10
# Bounds of (better length - worse length) / longer length, and the names of the ranges between them.
_LENGTH_BOUNDS = (-0.5, -0.1, 0.1, 0.5)
_LENGTHS = ("half as long or less", "shorter", "about as long", "longer", "twice as long or more")


def report(
    found: Outcomes, *, length_slope: float, untrained: Baseline | None = None, log_nu: float | None = None
) -> RewardModelReport:
    """Compute the report on `found`.

    length_slope: from `fit_length_slope`; log_nu: the model's, if it allows ties.
    """
    decided = found.decided()
    bins = calibration(decided.leads)
    by_length = length_slope * decided.longer_by
    return RewardModelReport(
        accuracy=_accuracy("all", decided.leads),
        log_loss=log_loss_of(decided.leads),
        calibration_error=calibration_error(bins),
        calibration=bins,
        by_length=list(_by_length(decided)),
        by_source=list(_by_source(decided)),
        ties=_tie_mass(found, log_nu),
        length=Baseline(accuracy_of(by_length), log_loss_of(by_length)),
        untrained=untrained,
    )


def baseline(found: Outcomes) -> Baseline:
    """Compute accuracy and log-loss of the model whose outcomes are `found`."""
    leads = found.decided().leads
    return Baseline(accuracy_of(leads), log_loss_of(leads))


def calibration(leads: Leads) -> list[CalibrationBin]:
    """Split the probability of the preferred completion, 0.5 to 1, into ten bins of equal width; leave out empty ones.

    leads: [P] logits of the better completions.
    """
    confidence = 1 / (1 + np.exp(-np.abs(leads)))
    right = (leads > 0) + 0.5 * (leads == 0)
    places = np.minimum(((confidence - 0.5) * 2 * BINS).astype(int), BINS - 1)
    return [
        CalibrationBin(
            low=0.5 + place / (2 * BINS),
            high=0.5 + (place + 1) / (2 * BINS),
            pairs=int(here.sum()),
            confidence=float(confidence[here].mean()),
            accuracy=float(right[here].mean()),
        )
        for place in range(BINS)
        if (here := places == place).any()
    ]


def calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """Return the expected calibration error; NaN without pairs.

        ECE = sum_b n_b / n |confidence_b - accuracy_b|

    Guo et al. 2017 (arXiv 1706.04599), eq. 3.
    """
    pairs = sum(one.pairs for one in bins)
    off = sum(one.pairs * abs(one.confidence - one.accuracy) for one in bins)
    return off / pairs if pairs else math.nan


def _accuracy(name: str, leads: Leads) -> Accuracy:
    value = accuracy_of(leads)
    low, high = wilson_interval(round(value * leads.size) if leads.size else 0, leads.size)
    return Accuracy(name, leads.size, value, low, high)


def _by_length(decided: Outcomes) -> Iterator[Accuracy]:
    share = decided.longer_by / np.maximum(decided.lengths, 1)
    places = np.digitize(share, _LENGTH_BOUNDS)
    for place, name in enumerate(_LENGTHS):
        if (here := places == place).any():
            yield _accuracy(name, decided.leads[here])


def _by_source(decided: Outcomes) -> Iterator[Accuracy]:
    for source in sorted(set(decided.sources)):
        here = np.array([one == source for one in decided.sources], dtype=np.bool_)
        yield _accuracy(source or "not known", decided.leads[here])


def _tie_mass(found: Outcomes, log_nu: float | None) -> TieMass | None:
    if log_nu is None or not found.is_tie.any():
        return None
    logprobs = davidson_logprobs(mx.array(found.leads.astype(np.float32)), mx.array(log_nu))
    mass = np.exp(np.array(logprobs)[:, 1])
    decided = mass[~found.is_tie]
    return TieMass(
        int(found.is_tie.sum()), float(mass[found.is_tie].mean()), float(decided.mean()) if decided.size else math.nan
    )
