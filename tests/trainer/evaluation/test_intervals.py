"""Intervals cover a known truth as often as they promise, and best of n is what its name says."""

from __future__ import annotations

import itertools
import math

import mlx.core as mx
import numpy as np
import pytest

from trainer import maths
from trainer.confidence import mean_interval, t_quantile
from trainer.evaluation.intervals import (
    best_of_kl,
    best_of_n,
    bootstrap_interval,
    critic_sums,
    explained_variance_of_sums,
    prompt_means,
    rms_of_sums,
    share_interval,
    win_shares,
)

TABLE = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 7: 2.3646, 15: 2.1314, 30: 2.0423, 120: 1.9799, 10_000: 1.9602}


@pytest.mark.parametrize(("df", "quantile"), TABLE.items())
def test_quantiles_of_t_match_the_tables(df: int, quantile: float) -> None:
    assert t_quantile(df) == pytest.approx(quantile, abs=6e-5)


@pytest.mark.parametrize("prompts", [3, 16])
def test_the_interval_of_a_mean_covers_it_in_95_of_100_samples(prompts: int) -> None:
    draws = np.random.default_rng(1).normal(0.3, 2.0, (4000, prompts))
    covers = [low <= 0.3 <= high for _, low, high in map(mean_interval, draws)]
    assert np.mean(covers) == pytest.approx(0.95, abs=0.012)


@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize("samples", [1, 4])
def test_the_interval_of_a_share_covers_it_also_where_a_prompt_has_several_responses(
    share: float, samples: int
) -> None:
    draws = np.random.default_rng(2).binomial(samples, share, (4000, 20)) / samples
    covers = np.mean([low <= share <= high for _, low, high in map(share_interval, draws)])
    assert covers >= 0.93
    if samples == 1:
        assert covers <= 0.98


def test_responses_without_a_score_are_left_out() -> None:
    scores = np.array([[1.0, math.nan], [math.nan, math.nan], [2.0, 4.0], [3.0, 3.0]])
    means = prompt_means(scores)
    np.testing.assert_array_equal(means, [1.0, math.nan, 3.0, 3.0])
    assert mean_interval(means) == mean_interval(np.array([1.0, 3.0, 3.0]))
    wins = win_shares(scores, np.full((4, 1), 2.5), np.ones((4, 2, 1), dtype=bool))
    np.testing.assert_array_equal(wins, [0.5, math.nan, 0.5, 0.5])
    assert share_interval(wins).value == 0.5
    np.testing.assert_array_equal(best_of_n(scores, 1), [math.nan, math.nan, 3.0, 3.0])
    assert math.isnan(explained_variance_of_sums(np.zeros(5)))
    assert math.isnan(rms_of_sums(np.zeros(5)))


def test_the_bootstrap_covers_the_explained_variance_of_a_critic() -> None:
    draws = np.random.default_rng(3)
    covers = []
    for _ in range(300):
        values = draws.normal(0, 1, (40, 6))
        returns = values + draws.normal(0, 0.5, (40, 6))  # so 1 - 0.25 / 1.25
        _, low, high = bootstrap_interval(critic_sums(values, returns, np.ones((40, 6))), explained_variance_of_sums)
        covers.append(low <= 0.8 <= high)
    assert np.mean(covers) > 0.9


def test_one_prompt_gives_a_value_without_bounds_and_no_prompts_give_neither() -> None:
    assert mean_interval(np.array([2.0]))[0] == 2
    assert all(math.isnan(bound) for bound in mean_interval(np.array([2.0]))[1:])
    assert all(math.isnan(number) for number in (*mean_interval(np.zeros(0)), *share_interval(np.zeros(0))))
    one = critic_sums(np.zeros((1, 3)), np.arange(3.0)[None], np.ones((1, 3)))
    assert bootstrap_interval(one, rms_of_sums)[0] == pytest.approx(math.sqrt(5 / 3))
    assert math.isnan(bootstrap_interval(one, rms_of_sums)[1])


def test_the_numbers_of_a_critic_are_those_of_the_trainer_whatever_the_padding_holds() -> None:
    draws = np.random.default_rng(4)
    mask = (np.arange(7)[None] < np.array([7, 1, 4])[:, None]).astype(float)
    values, returns = draws.normal(2, 1, (3, 7)), draws.normal(1, 3, (3, 7))
    of_padding = np.where(mask > 0, 0.0, math.nan)
    sums = critic_sums(values + of_padding, returns + of_padding, mask).sum(axis=0)
    expected = maths.explained_variance(*map(mx.array, (values * mask, returns * mask, mask)))
    assert float(explained_variance_of_sums(sums)) == pytest.approx(float(expected), abs=1e-5)
    errors = (returns - values)[mask > 0]
    assert float(rms_of_sums(sums)) == pytest.approx(math.sqrt(np.mean(errors**2)))


def test_returns_that_do_not_vary_have_no_explained_variance() -> None:
    sums = critic_sums(np.zeros((2, 3)), np.full((2, 3), 0.1), np.ones((2, 3)))
    assert math.isnan(float(explained_variance_of_sums(sums.sum(axis=0))))
    assert all(math.isnan(number) for number in bootstrap_interval(sums, explained_variance_of_sums))


def test_best_of_n_is_the_mean_over_all_choices_of_n() -> None:
    scores = np.random.default_rng(5).normal(0, 1, (3, 6))
    for n in range(1, 7):
        choices = [scores[:, list(chosen)].max(axis=1) for chosen in itertools.combinations(range(6), n)]
        np.testing.assert_allclose(best_of_n(scores, n), np.mean(choices, axis=0))
    np.testing.assert_array_equal(best_of_n(scores, 6), scores.max(axis=1))


def test_best_of_n_grows_with_n_and_so_does_its_cost() -> None:
    scores = np.random.default_rng(6).normal(0, 1, (5, 1024))
    best = [best_of_n(scores, n) for n in (1, 2, 8, 512, 1024)]
    assert all((after > before).all() for before, after in itertools.pairwise(best))
    np.testing.assert_allclose(best[0], scores.mean(axis=1))
    assert best_of_kl(1) == 0
    assert best_of_kl(4) == pytest.approx(math.log(4) - 0.75)


def test_a_win_rate_counts_pairs_and_half_of_the_ties() -> None:
    policy, reference = np.array([[1.0, 3.0], [0.0, 0.0]]), np.array([[2.0, 3.0], [-1.0, 0.5]])
    nowhere = np.zeros((2, 2, 2), dtype=bool)
    np.testing.assert_array_equal(win_shares(policy, reference, nowhere), [1.5 / 4, 2 / 4])
    same = nowhere.copy()
    same[0, 0, 0] = True  # scored 1 and 2, but one and the same response
    np.testing.assert_array_equal(win_shares(policy, reference, same), [2 / 4, 2 / 4])
