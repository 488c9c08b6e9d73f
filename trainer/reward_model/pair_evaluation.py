"""Evaluation on held-out pairs: the lead of the better completion in each, and the numbers computed from the leads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer.confidence import Z95, Interval, wilson_interval
from trainer.maths import davidson_logprobs
from trainer.pairs.groups import Group, Pair
from trainer.reward_model.network import Scale, Scores
from trainer.reward_model.predictions import (
    Accuracy,
    Baseline,
    CalibrationBin,
    PairPrediction,
    RewardModelReport,
    TieMass,
)

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
    rows: npt.NDArray[np.intp]  # [P, 2] of the better and of the worse completion
    longer_by: Leads  # [P] tokens by which the better completion is longer
    lengths: Leads  # [P] tokens of the longer completion of the two
    is_tie: npt.NDArray[np.bool_]  # [P]
    sources: npt.NDArray[np.object_]  # [P] text

    def decided(self) -> Outcomes:
        """Return the pairs that are not ties."""
        return Outcomes._make(values[~self.is_tie] for values in self)


def pair_rows(groups: Sequence[Group]) -> Iterator[tuple[Group, Pair, int, int]]:
    """Yield each pair with its group, and the rows of its better and worse completion.

    Rows number the sequences, one group after the other.
    """
    first = 0
    for group in groups:
        for pair in group.pairs:
            yield group, pair, first + pair.better, first + pair.worse
        first += len(group.sequences)


def outcomes_of(groups: Sequence[Group], scores: Scores, logit_std: float) -> Outcomes:
    """Compute the outcomes of all pairs of `groups`. scores: raw, of each row as in `pair_rows`."""
    pairs = [pair for group in groups for pair in group.pairs]
    rows = np.array([places for _, _, *places in pair_rows(groups)], dtype=np.intp).reshape(-1, 2)
    better, worse = rows.T
    lengths = np.array([count for group in groups for count in group.completions], dtype=np.float64)
    return Outcomes(
        leads=(scores[better] - scores[worse]) / logit_std,
        rows=rows,
        longer_by=lengths[better] - lengths[worse],
        lengths=np.maximum(lengths[better], lengths[worse]),
        is_tie=np.array([pair.is_tie for pair in pairs], dtype=np.bool_),
        sources=np.array([pair.source for pair in pairs], dtype=np.object_),
    )


def length_slope_of(groups: Sequence[Group]) -> float:
    """Return `fit_length_slope` of the decided pairs of `groups`."""
    even = np.zeros(sum(len(group.sequences) for group in groups))
    return fit_length_slope(outcomes_of(groups, even, 1.0).decided().longer_by)


def pair_predictions(groups: Sequence[Group], scores: Scores, scale: Scale) -> list[PairPrediction]:
    """Build the prediction of each pair of `groups` from `scores`, which are as for `outcomes_of`."""
    rewards = ((scores - scale.mean) / scale.std).tolist()
    texts = [one for group in groups for one in group.pairs_with_texts()]
    return [
        PairPrediction(
            key=key,
            source=pair.source,
            strength=pair.strength,
            is_tie=pair.is_tie,
            prompt=prompt,
            chosen=chosen,
            rejected=rejected,
            chosen_reward=rewards[better],
            rejected_reward=rewards[worse],
            lead=float(scores[better] - scores[worse]) / scale.logit_std,
            chosen_tokens=group.completions[pair.better],
            rejected_tokens=group.completions[pair.worse],
        )
        for (group, _, better, worse), (pair, key, prompt, chosen, rejected) in zip(
            pair_rows(groups), texts, strict=True
        )
    ]


def baseline(leads: Leads) -> Baseline:
    """Compute accuracy and log-loss of a model with these `leads` of the better completions; NaN without leads.

    The accuracy is the share of positive leads; a lead of 0 counts half. The log-loss is the mean of
    -log sigmoid(lead) in nats; guessing gives log 2.
    """
    if not leads.size:
        return Baseline(math.nan, math.nan)
    return Baseline(float(_right(leads).mean()), float(np.logaddexp(0.0, -leads).mean()))


def report_on(
    found: Outcomes,
    *,
    length_slope: float,
    untrained: Baseline | None = None,
    log_nu: mx.array | float | None = None,
) -> RewardModelReport:
    """Compute the report on `found`.

    length_slope: from `fit_length_slope`; log_nu: the model's, if it allows ties.
    """
    decided = found.decided()
    leads, by_length = decided.leads, length_slope * decided.longer_by
    bins, own = calibration(leads), baseline(leads)
    ranges = np.digitize(decided.longer_by / np.maximum(decided.lengths, 1), _LENGTH_BOUNDS)
    ties = None
    if log_nu is not None and found.is_tie.any():
        logprobs = davidson_logprobs(mx.array(found.leads.astype(np.float32)), mx.array(float(log_nu)))
        mass = np.exp(np.array(logprobs)[:, 1])
        on_decided = float(mass[~found.is_tie].mean()) if leads.size else math.nan
        ties = TieMass(int(found.is_tie.sum()), float(mass[found.is_tie].mean()), on_decided)
    return RewardModelReport(
        accuracy=_accuracy("all", leads),
        log_loss=own.log_loss,
        calibration_error=calibration_error(bins),
        calibration=bins,
        by_length=[
            _accuracy(name, leads[here]) for place, name in enumerate(_LENGTHS) if (here := ranges == place).any()
        ],
        by_source=[
            _accuracy(source or "not known", leads[decided.sources == source])
            for source in sorted(set(decided.sources))
        ],
        ties=ties,
        length=baseline(by_length),
        untrained=untrained,
        over_length=paired_difference(_right(leads) - _right(by_length)) if leads.size else None,
    )


def paired_difference(gains: Leads) -> Interval:
    """Estimate how much more often one model is right than another on the same pairs, with a 95% interval.

    gains: [P] from -1, only the other is right, to 1, only the one is. With p_+ and p_- the shares of either kind, and
    one pair more of each:

        p_+ - p_-  +-  z sqrt((p_+ + p_- - (p_+ - p_-)^2) / (P + 2))

    So the interval has a width where the two agree on all pairs, and stays between -1 and 1. Bonett and Price 2012,
    "Adjusted Wald confidence interval for a difference of binomial proportions based on paired data".
    """
    count = gains.size + 2
    up, down = (np.maximum(gains, 0).sum() + 1) / count, (np.maximum(-gains, 0).sum() + 1) / count
    margin = Z95 * math.sqrt((up + down - (up - down) ** 2) / count)
    return Interval(float(gains.mean()), max(-1.0, float(up - down - margin)), min(1.0, float(up - down + margin)))


def calibration(leads: Leads) -> list[CalibrationBin]:
    """Split the probability of the preferred completion, 0.5 to 1, into ten bins of equal width; leave out empty ones.

    leads: [P] logits of the better completions.
    """
    confidence = 1 / (1 + np.exp(-np.abs(leads)))
    right = _right(leads)
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


def _right(leads: Leads) -> Leads:
    """Return for each pair 1 if the better completion leads, a half if neither does, else 0."""
    right: Leads = (np.sign(leads) + 1) / 2
    return right


def _accuracy(name: str, leads: Leads) -> Accuracy:
    value = baseline(leads).accuracy
    low, high = wilson_interval(round(value * leads.size) if leads.size else 0, leads.size)
    return Accuracy(name, leads.size, value, low, high)
