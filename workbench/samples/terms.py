"""The sum behind the advantage of a token, term by term: TD errors with GAE, rewards without a critic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from workbench.run.sample_records import TokenSample
from workbench.samples import recompute


class Term(NamedTuple):
    """One term: weight * x."""

    token: int  # index in the response of the token whose TD error or reward it is
    weight: float
    x: float
    product: float
    running: float  # the sum up to here


def advantage_terms(sample: TokenSample, index: int) -> list[Term]:
    """Return the terms of the sum for token `index`, nearest first; none where the settings are not known.

    The sum is sum_l (gamma lambda)^l delta_{t+l} with GAE, and G_t = sum_l gamma^l r_{t+l} with reinforce and remax.
    Where the response is one action it is R = sum_t r_t, over all rewards whatever the token.
    """
    settings = sample.settings
    if settings is None:
        return []
    if settings.estimator == "gae":
        return _terms(sample.numbers.get("td_errors", ())[index:], index, settings.gamma * settings.lam)
    rewards = sample.numbers.get("rewards", ())
    if settings.estimator in recompute.PER_RESPONSE:
        return _terms(rewards, 0, 1.0)
    return _terms(rewards[index:], index, settings.gamma)


def _terms(numbers: Iterable[float], first: int, factor: float) -> list[Term]:
    running, terms = 0.0, []
    for ahead, x in enumerate(numbers):
        weight = recompute.power(factor, ahead)
        product = weight * x
        running += product
        terms.append(Term(first + ahead, weight, x, product, running))
    return terms
