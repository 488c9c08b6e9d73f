"""Evaluation on held-out pairs: the lead of the better completion in each, and the numbers computed from the leads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer.maths import davidson_logprobs
from trainer.preference_data.groups import Group
from trainer.preferences.agreement import wilson_interval
from trainer.reward_model.network import Scores
from trainer.reward_model.predictions import (
    Accuracy,
    Baseline,
    CalibrationBin,
    PairPrediction,
    RewardModelReport,
    TieMass,
)
from trainer.reward_model.snapshot import Scale

Leads = npt.NDArray[np.float64]

BINS = 10
# Bounds of (better length - worse length) / longer length, and the names of the ranges between them.
_LENGTH_BOUNDS = (-0.5, -0.1, 0.1, 0.5)
_LENGTHS = ("half as long or less", "shorter", "about as long", "longer", "twice as long or more")
_RIDGE = 1e-3  # keeps the slope finite where length alone decides every pair
_STEPS = 50


class Outcomes(NamedTuple):
    """P labelled pairs, and the lead of the better completion in each; in a tie, the lead of the first one."""

    leads: Leads  # [P] logits
    longer_by: Leads  # [P] tokens by which the better completion is longer
    lengths: Leads  # [P] tokens of the longer completion of the two
    is_tie: npt.NDArray[np.bool_]  # [P]
    sources: list[str]  # [P]

    def decided(self) -> Outcomes:
        """Return the pairs that are not ties."""
        return self.where(~self.is_tie)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Outcomes:
        """Return the pairs for which `chosen` is true."""
        sources = [source for source, is_chosen in zip(self.sources, chosen, strict=True) if is_chosen]
        return Outcomes(self.leads[chosen], self.longer_by[chosen], self.lengths[chosen], self.is_tie[chosen], sources)


def outcomes_of(groups: Sequence[Group], scores: Scores, logit_std: float) -> Outcomes:
    """Compute the outcomes of all pairs of `groups`.

    scores: raw scores of their sequences, one group after the other.
    """
    leads, longer_by, lengths, ties, sources = [], [], [], [], []
    first = 0
    for group in groups:
        for pair in group.pairs:
            better, worse = group.completions[pair.better], group.completions[pair.worse]
            leads.append((scores[first + pair.better] - scores[first + pair.worse]) / logit_std)
            longer_by.append(better - worse)
            lengths.append(max(better, worse))
            ties.append(pair.is_tie)
            sources.append(pair.source)
        first += len(group.sequences)
    return Outcomes(
        np.array(leads, dtype=np.float64),
        np.array(longer_by, dtype=np.float64),
        np.array(lengths, dtype=np.float64),
        np.array(ties, dtype=np.bool_),
        sources,
    )


def pair_predictions(groups: Sequence[Group], scores: Scores, scale: Scale) -> list[PairPrediction]:
    """Build the prediction of each pair of `groups` from `scores`, which are as for `outcomes_of`."""
    found, first = [], 0
    for group in groups:
        rewards = ((scores[first : first + len(group.sequences)] - scale.mean) / scale.std).tolist()
        for better, worse, is_tie, strength, source, key in group.pairs:
            pair = PairPrediction(
                key=key,
                source=source,
                strength=strength,
                is_tie=is_tie,
                prompt=group.prompt_text,
                chosen=group.texts[better],
                rejected=group.texts[worse],
                chosen_reward=rewards[better],
                rejected_reward=rewards[worse],
                lead=float(scores[first + better] - scores[first + worse]) / scale.logit_std,
                chosen_tokens=group.completions[better],
                rejected_tokens=group.completions[worse],
            )
            found.append(pair)
        first += len(group.sequences)
    return found


def accuracy_of(leads: Leads) -> float:
    """Return the share of positive leads; a lead of 0 counts half. NaN without leads."""
    return float(((leads > 0) + 0.5 * (leads == 0)).mean()) if leads.size else float("nan")


def log_loss_of(leads: Leads) -> float:
    """Return the mean of -log sigmoid(lead) in nats; guessing gives log 2. NaN without leads."""
    return float(np.logaddexp(0.0, -leads).mean()) if leads.size else float("nan")


def report_on(
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


def fit_length_slope(longer_by: Leads) -> float:
    """Fit the slope b, logits a token, of a logistic regression on how much longer the better completion is.

    A reward model that does not beat this baseline has learnt no more than to prefer length.

        max_b sum_i log sigmoid(b x_i) - ridge/2 (b s)^2,   s the root mean square of x

    Solved by Newton's method. There is no intercept, because the order within a pair means nothing. Returns 0 without
    pairs.
    """
    scale = float(np.sqrt(np.square(longer_by).mean())) if longer_by.size else 0.0
    if scale == 0:
        return 0.0
    x, slope = longer_by / scale, 0.0
    for _ in range(_STEPS):
        wrong = 1 / (1 + np.exp(np.clip(slope * x, -500, 500)))
        gradient = (wrong * x).mean() - _RIDGE * slope
        curvature = (wrong * (1 - wrong) * x * x).mean() + _RIDGE
        step = float(np.clip(gradient / curvature, -2, 2))  # a full step from afar may overshoot
        slope += step
        if abs(step) < 1e-10:
            break
    return slope / scale


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
