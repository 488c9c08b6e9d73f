"""The options of the policy loss, its means over a batch, and baselines of groups: each against float64 loops."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from reference import Floats, float64

from trainer import maths

NAN = float("nan")
LENGTHS = [5, 1, 0, 3]
MASK = (mx.arange(7)[None] < mx.array(LENGTHS)[:, None]).astype(mx.float32)
AGGREGATIONS: list[maths.Aggregation] = ["token", "sequence", "constant"]
groups_of_numbers = st.integers(2, 5).flatmap(
    lambda size: st.lists(st.lists(st.floats(-9, 9, width=16), min_size=size, max_size=size), min_size=1, max_size=4)
)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32))


def close(actual: mx.array, expected: Floats | float, tolerance: float = 1e-5) -> None:
    assert actual.dtype == mx.float32
    np.testing.assert_allclose(float64(actual), expected, rtol=tolerance, atol=tolerance)


# The clips


def slow_policy_loss(
    log_ratio: Floats, advantages: Floats, clip: float, high: float | None, dual: float | None
) -> list[float]:
    """Compute the loss token by token, as the papers write it, with the cases told apart by `if`."""
    losses = []
    for moved, advantage in zip(np.exp(log_ratio), advantages, strict=True):
        held = min(max(moved, 1 - clip), 1 + (clip if high is None else high))
        gain = min(moved * advantage, held * advantage)
        if dual is not None and advantage < 0:
            gain = max(gain, dual * advantage)
        losses.append(-gain)
    return losses


@pytest.mark.parametrize("high", [None, 0.5, 0.05])
@pytest.mark.parametrize("dual", [None, 1.5, 3.0])
def test_a_separate_upper_bound_and_a_second_clip_match_the_papers(high: float | None, dual: float | None) -> None:
    logprobs = mx.concatenate([normal(300), mx.array([40.0, 40.0, -40.0])])
    old, advantages = normal(303, seed=1), mx.concatenate([normal(300, seed=2), mx.array([-2.0, 2.0, 2.0])])
    found = maths.clipped_policy_loss(logprobs, old, advantages, clip=0.2, clip_high=high, dual_clip=dual)
    close(found, slow_policy_loss(float64(logprobs) - float64(old), float64(advantages), 0.2, high, dual))


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [
        (1.4, 1.0, -1.4),  # below the upper bound of 1.5
        (1.6, 1.0, 0.0),
        (0.7, -1.0, 0.0),  # the lower bound is the other one
        (2.5, -1.0, 2.5),
        (3.5, -1.0, 0.0),  # beyond the second clip: the loss is 3 and stays there
        (3.5, 1.0, 0.0),
    ],
)
def test_the_gradient_ends_at_each_bound_and_only_there(ratio: float, advantage: float, slope: float) -> None:
    def loss(logprob: mx.array) -> mx.array:
        return maths.clipped_policy_loss(
            logprob, mx.array(0.0), mx.array(advantage), clip=0.2, clip_high=0.5, dual_clip=3.0
        )

    assert mx.grad(loss)(mx.array(math.log(ratio))).item() == pytest.approx(slope, abs=1e-5)


# Weights for the sampler


def test_weights_are_the_ratio_of_policy_to_sampler_and_no_more_than_the_cap() -> None:
    old, sampler = normal(50), normal(50, seed=1)
    expected = np.minimum(np.exp(float64(old) - float64(sampler)), 1.5)
    assert (expected == 1.5).any()
    assert (expected < 0.5).any()
    close(maths.importance_weights(old, sampler, 1.5), expected)


def test_no_gradient_flows_through_a_weight() -> None:
    old, sampler = normal(9), normal(9, seed=1)
    for place in (0, 1):
        gradient = mx.grad(lambda *x: maths.importance_weights(*x, 2.0).sum(), argnums=place)(old, sampler)
        assert not gradient.any()


# Means over a batch


def slow_mean(x: Floats, aggregation: str, max_tokens: int) -> float:
    rows = [x[row, :length] for row, length in enumerate(LENGTHS)]
    if aggregation == "token":
        return float(np.concatenate(rows).mean())
    if aggregation == "sequence":
        return float(np.mean([row.mean() for row in rows if len(row)]))
    return sum(row.sum() for row in rows) / (sum(len(row) > 0 for row in rows) * max_tokens)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_each_aggregation_is_the_mean_that_its_name_says_and_parts_add_up(aggregation: maths.Aggregation) -> None:
    x = mx.where(MASK > 0, normal(*MASK.shape), NAN)
    total = maths.aggregation_total(MASK, aggregation, 11)
    assert (total.shape, total.dtype) == ((), mx.float32)
    whole = maths.aggregated(x, MASK, aggregation)
    close(whole / total, slow_mean(float64(x), aggregation, 11))
    parts = [maths.aggregated(x[rows], MASK[rows], aggregation) for rows in (slice(0, 1), slice(1, 4))]
    close(whole, float64(parts).sum())


def test_a_token_of_a_long_sequence_counts_less_only_where_every_sequence_counts_the_same() -> None:
    for aggregation, weights in (("token", [1.0, 1.0]), ("sequence", [0.2, 1.0]), ("constant", [1.0, 1.0])):
        gradient = mx.grad(lambda x, name: maths.aggregated(x, MASK, name))(mx.zeros(MASK.shape), aggregation)
        close(gradient[:2, 0], float64(weights))
        assert not (gradient * (1 - MASK)).any()


# Sums ahead, and groups


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.floats(0, 1))
def test_discounted_sums_are_those_of_the_real_tokens_ahead(lengths: list[int], discount: float) -> None:
    mask = (mx.arange(max(lengths) + 2)[None] < mx.array(lengths)[:, None]).astype(mx.float32)
    x = normal(*mask.shape)
    found = maths.discounted_sums(mx.where(mask > 0, x, NAN), mask, discount)
    close(found, reference.gae(float64(x), lengths, discount, 1.0))


def test_long_discounted_sums_are_exact_to_float32() -> None:
    """A matrix product of float32 is off in the last digits, and one of TF32, on some GPUs, in the third."""
    x, lengths = normal(3, 600), [600, 1, 333]
    mask = (mx.arange(600)[None] < mx.array(lengths)[:, None]).astype(mx.float32)
    found = maths.discounted_sums(x, mask, 0.999)
    expected = reference.gae(float64(x), lengths, 0.999, 1.0)
    np.testing.assert_array_equal(np.array(found), expected.astype(np.float32))


@given(groups_of_numbers)
def test_each_of_a_group_is_measured_against_the_mean_of_the_others(groups: list[list[float]]) -> None:
    size = len(groups[0])
    found = maths.leave_one_out_mean(mx.array(groups).reshape(-1), size)
    expected = [(sum(group) - own) / (size - 1) for group in groups for own in group]
    close(found, float64(expected), 1e-4)


@given(groups_of_numbers)
def test_a_groups_moments_are_its_mean_and_its_samples_deviation(groups: list[list[float]]) -> None:
    means, deviations = maths.group_moments(mx.array(groups).reshape(-1), len(groups[0]))
    rows = float64(groups)
    close(means, np.repeat(rows.mean(axis=1), rows.shape[1]), 1e-4)
    close(deviations, np.repeat(rows.std(axis=1, ddof=1), rows.shape[1]), 1e-4)


def test_members_that_are_not_known_are_in_no_baseline() -> None:
    x = mx.array([1.0, NAN, 4.0, NAN, 2.0, NAN, NAN, NAN, NAN])
    means, deviations = maths.group_moments(x, 3)
    assert maths.leave_one_out_mean(x, 3)[mx.array([0, 2, 4])].tolist() == [4.0, 1.0, 2.0]
    assert means.tolist()[:6] == [2.5] * 3 + [2.0] * 3
    assert deviations.tolist() == pytest.approx([math.sqrt(4.5)] * 3 + [0.0] * 6)


def test_equal_numbers_are_exactly_their_mean_and_do_not_deviate() -> None:
    """Otherwise a group whose members all earned the same would get advantages; in float32 the mean is off here."""
    same = mx.full((7,), 0.3)
    assert maths.leave_one_out_mean(same, 7).tolist() == same.tolist()
    means, deviations = maths.group_moments(same, 7)
    assert means.tolist() == same.tolist()
    assert not deviations.any()


def test_the_root_mean_square_is_of_the_real_tokens() -> None:
    x = normal(*MASK.shape, scale=3.0)
    real = float64(x)[float64(MASK) > 0]
    close(maths.root_mean_square(mx.where(MASK > 0, x, NAN), MASK), math.sqrt((real**2).mean()))
