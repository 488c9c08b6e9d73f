"""The best linear head on states that are not trained: where a reward model of few comparisons should begin.

A head of random numbers moves the adapter in a random direction until it has been learnt itself. Fitting it first, and
then training both, distorts the states less (Kumar et al. 2022, "Fine-tuning can distort pretrained features").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.errors import UsageError
from trainer.pairs.groups import Group
from trainer.reward_model.pair_evaluation import accuracy_of, pair_rows

Floats = npt.NDArray[np.float64]

FOLDS = 5
MOST_COMPARISONS = 4096
"""More of them hardly change so few numbers."""
PENALTIES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)
"""Candidates, where the mean square of a difference between two states is 1. From 0.1 on, the head is near 0."""
_STEPS = 50


class Differences(NamedTuple):
    """P decided pairs: how the state of the better completion differs from that of the worse one."""

    states: Floats  # [P, D]
    margins: Floats  # [P] logits by which the better one must lead
    weights: Floats  # [P] those of a comparison sum to 1
    prompts: npt.NDArray[np.intp]  # [P] number of the prompt


class FittedHead(NamedTuple):
    """A head, and how well heads like it do on comparisons that they were not fitted to."""

    weight: Floats  # [D] the score of a state, in logits
    penalty: float
    accuracy: float  # in the cross-validation
    pairs: int


def check_enough(groups: Iterable[Group]) -> None:
    """Raise UsageError if fewer than `FOLDS` prompts have a decided pair."""
    decided: set[int] = set()
    for group in groups:
        if any(not pair.is_tie for pair in group.pairs):
            decided.add(group.prompt)
        if len(decided) == FOLDS:
            return
    raise UsageError(
        f"train.head = fitted needs decided comparisons of at least {FOLDS} prompts to train on, and there "
        f"{'is' if len(decided) == 1 else 'are'} {len(decided)}: label more, or use train.head = random"
    )


def differences(groups: Sequence[Group], states: Floats, margin: float) -> Differences:
    """Return the decided pairs of `groups`.

    states: [N, D] of all their sequences, one group after the other; margin: logits for each step of strength above
    the first.
    """
    found = [(group, pair, better, worse) for group, pair, better, worse in pair_rows(groups) if not pair.is_tie]
    better, worse = (np.array([row[place] for row in found], dtype=np.intp) for place in (2, 3))
    return Differences(
        states=states[better] - states[worse],
        margins=np.array([margin * (pair.strength - 1) for _, pair, *_ in found], dtype=np.float64),
        weights=np.array([1 / sum(not one.is_tie for one in group.pairs) for group, *_ in found], dtype=np.float64),
        prompts=np.array([group.prompt for group, *_ in found], dtype=np.intp),
    )


def fit_head(found: Differences, seed: Sequence[int], *, parts: int = 1) -> FittedHead:
    """Fit a head w to `found`, pairs of at least `FOLDS` prompts.

        min_w  sum_p c_p log(1 + exp(m_p - w . d_p)) / sum_p c_p  +  penalty/2 s^2 |w|^2

    d_p: the differences; c_p: their weights; m_p: their margins; s^2: the mean square of |d_p|, of each of the `parts`
    of a state apart, so that none counts for more because its numbers are larger. The penalty is the one of `PENALTIES`
    whose heads have the lowest loss in a cross-validation, in which the pairs of a prompt stay together. seed: of the
    folds. Raises UsageError if no states differ.
    """
    prompts, members = np.unique(found.prompts, return_inverse=True)
    squares = np.square(found.states).mean(axis=0).reshape(parts, -1).sum(axis=1)
    if not squares.all():
        raise UsageError("train.head = fitted found no difference between the completions: use train.head = random")
    scale = np.repeat(np.sqrt(squares), found.states.shape[1] // parts)
    states = found.states / scale
    basis = np.eye(states.shape[1])
    if len(states) < states.shape[1]:  # the best head is a sum of the differences, so it is in their span
        basis, places = np.linalg.qr(states.T)
        states = places.T
    scaled = found._replace(states=states)
    fold = (np.random.default_rng(seed).permutation(len(prompts)) % FOLDS)[members]
    leads = np.empty((len(PENALTIES), len(fold)))
    for number in range(FOLDS):
        out = fold == number
        kept = Differences._make(values[~out] for values in scaled)
        weight = np.zeros(scaled.states.shape[1])
        for place in reversed(range(len(PENALTIES))):  # from the strongest on: each begins where the one before ended
            weight = _fitted(kept, PENALTIES[place], weight)
            leads[place, out] = scaled.states[out] @ weight
    losses = np.logaddexp(0.0, found.margins - leads) @ found.weights
    best = int(np.argmin(losses))
    weight = basis @ _fitted(scaled, PENALTIES[best], np.zeros(scaled.states.shape[1])) / scale
    return FittedHead(weight, PENALTIES[best], accuracy_of(leads[best]), len(fold))


def _fitted(found: Differences, penalty: float, weight: Floats) -> Floats:
    """Return the head of one penalty by Newton's method, from `weight` on."""
    shares = found.weights / found.weights.sum()
    for _ in range(_STEPS):
        wrong = 1 / (1 + np.exp(np.clip(found.states @ weight - found.margins, -500, 500)))
        gradient = found.states.T @ (shares * wrong) - penalty * weight
        curvature = (found.states * (shares * wrong * (1 - wrong))[:, None]).T @ found.states
        curvature[np.diag_indices_from(curvature)] += penalty
        step = np.linalg.solve(curvature, gradient)
        weight = weight + step
        if float(np.abs(found.states @ step).max()) < 1e-6:
            break
    return weight
