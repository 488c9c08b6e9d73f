"""The formulas against NumPy in float64, intervals, and random keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import mlx.core as mx
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from reference import Floats, float64

from trainer import maths
from trainer.arrays import Purpose, clear_cache, key_for
from trainer.confidence import wilson_interval
from trainer.errors import counted
from trainer.maths import adapted_kl_coef

NAN = float("nan")
B, T, V = 5, 7, 11
LENGTHS = [7, 1, 4, 6, 2]
ragged = st.lists(st.integers(1, 9), min_size=1, max_size=5)
fractions = st.floats(0, 1)
ROWS = [5, 1, 0, 3]
AGGREGATIONS: list[maths.Aggregation] = ["token", "sequence", "constant"]
groups_of_numbers = st.integers(2, 5).flatmap(
    lambda size: st.lists(st.lists(st.floats(-9, 9, width=16), min_size=size, max_size=size), min_size=1, max_size=4)
)


def mask_of(lengths: list[int], width: int | None = None) -> mx.array:
    return (mx.arange(width or max(lengths))[None] < mx.array(lengths)[:, None]).astype(mx.float32)


RAGGED = mask_of(ROWS, 7)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32))


def dirty(x: mx.array, mask: mx.array, garbage: float = NAN) -> mx.array:
    return mx.where(mask > 0, x, garbage)


def close(actual: mx.array, expected: Floats | float, tolerance: float = 1e-5) -> None:
    assert actual.dtype == mx.float32
    np.testing.assert_allclose(float64(actual), expected, rtol=tolerance, atol=tolerance)


# Log-probs and entropy


def test_token_logprobs_are_those_of_a_float64_softmax() -> None:
    logits, tokens = normal(B, T, V, scale=4), mx.array(np.random.default_rng(1).integers(0, V, (B, T)))
    expected = np.take_along_axis(reference.log_softmax(float64(logits)), np.array(tokens)[..., None], -1)[..., 0]
    close(maths.token_logprobs(logits, tokens), expected)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_logits_are_normalised_in_float32(dtype: mx.Dtype) -> None:
    logits, tokens = normal(T, V, scale=4).astype(dtype), mx.arange(T)
    exact = reference.log_softmax(float64(logits.astype(mx.float32)))[np.arange(T), np.arange(T)]
    assert maths.token_logprobs(logits, tokens).dtype == maths.entropy(logits).dtype == mx.float32
    close(maths.token_logprobs(logits, tokens), exact)


def test_entropy_is_of_the_whole_distribution() -> None:
    logits = normal(B, V, scale=3)
    close(maths.entropy(logits), reference.entropy(float64(logits)))
    close(maths.entropy(mx.zeros((1, V))), math.log(V))


def test_the_entropy_does_not_depend_on_the_height_of_each_rows_logits() -> None:
    # Sixteenths, which float32 holds exactly at this height, so that only the arithmetic can be at fault.
    logits = mx.array(np.random.default_rng(0).integers(-64, 64, (3, 11)).astype(np.float32) / 16)
    heights = mx.array([0.0, 30_000.0, -30_000.0])[:, None]
    close(maths.entropy(logits + heights), reference.entropy(float64(logits)))


def test_a_token_that_cannot_be_drawn_adds_nothing_to_the_entropy_or_its_gradient() -> None:
    logits = mx.array([1.0, -0.5, 0.3])
    closed = mx.concatenate([logits, mx.array([-float("inf")])])
    close(maths.entropy(closed), float(maths.entropy(logits)))
    gradient = mx.grad(lambda x: maths.entropy(x).sum())
    close(gradient(closed), [*gradient(logits).tolist(), 0.0])


# KL


def test_every_estimator_is_its_closed_form() -> None:
    logprobs, ref = normal(B, T), normal(B, T, seed=1)
    log_r = float64(ref) - float64(logprobs)
    close(maths.kl_estimate(logprobs, ref, "k1"), -log_r)
    close(maths.kl_estimate(logprobs, ref, "k2"), log_r**2 / 2)
    close(maths.kl_estimate(logprobs, ref, "k3"), np.minimum(np.exp(log_r) - 1 - log_r, 10))
    close(maths.kl_estimate(logprobs, ref, "abs"), abs(log_r))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_average_to_the_exact_kl_of_policy_against_reference(estimator: maths.KLEstimator) -> None:
    p, q = (reference.log_softmax(float64(normal(V, seed=seed))) for seed in (0, 1))
    exact = float((np.exp(p) * (p - q)).sum())
    estimates = float64(maths.kl_estimate(mx.array(p.astype(np.float32)), mx.array(q.astype(np.float32)), estimator))
    assert (np.exp(p) * estimates).sum() == pytest.approx(exact, abs=1e-6)


def test_a_k3_is_bounded_where_the_reference_alone_likes_a_token_and_not_where_the_policy_does() -> None:
    close(maths.kl_estimate(mx.array([-30.0, -200.0]), mx.array(-0.1), "k3"), 10.0)
    close(maths.kl_estimate(mx.array(-0.001), mx.array(-12.501), "k3"), 11.5)


@pytest.mark.parametrize("gap", [-200.0, -30.0, -2.7, -2.5, -0.1, 0.1, 2.5, 12.0, 200.0])
def test_the_gradient_of_a_k3_in_the_loss_always_pulls_the_policy_to_the_reference(gap: float) -> None:
    gradient = mx.grad(lambda logprob: maths.kl_loss(logprob, mx.array(-5.0), "k3"))(mx.array(-5.0 + gap))
    close(gradient, max(1 - math.exp(-gap), -12.610868))  # that of k3 up to where it is 10, then constant


@given(st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=20))
def test_k3_is_never_negative(log_ratios: list[float]) -> None:
    assert maths.kl_estimate(mx.array(log_ratios), mx.zeros(len(log_ratios)), "k3").min() >= 0
    assert maths.approx_kl(mx.array(log_ratios)).min() >= 0


# Masked statistics


@given(ragged, st.integers(0, 4))
def test_masked_statistics_are_those_of_the_real_tokens_alone(lengths: list[int], padding: int) -> None:
    mask = mask_of(lengths, max(lengths) + padding)
    x = dirty(normal(*mask.shape), mask)
    real = reference.real(x, lengths)
    close(maths.masked_mean(x, mask), real.mean())
    close(maths.masked_variance(x, mask), real.var())


def test_nothing_is_averaged_whitened_or_rewarded_where_there_are_no_tokens_or_equal_numbers() -> None:
    empty = mx.full((2, 3), NAN), mx.zeros((2, 3))
    assert maths.masked_mean(*empty).item() == 0
    assert not maths.whiten(*empty).any()
    assert not maths.whiten(mx.full((B, T), 0.1), mx.ones((B, T))).any()
    mask = mask_of([0, 2])
    assert maths.shaped_rewards(mx.zeros((2, 2)), mx.array([3.0, 4.0]), mask, kl_coef=1).tolist() == [[0, 0], [0, 4]]


@pytest.mark.parametrize("shift_mean", [True, False])
def test_whitening_gives_the_real_tokens_variance_1_and_moves_the_mean_only_if_asked(shift_mean: bool) -> None:
    mask = mask_of(LENGTHS)
    x = dirty(normal(B, T, scale=3) + 5, mask)
    whitened, before = maths.whiten(x, mask, shift_mean=shift_mean), reference.real(x, LENGTHS)
    real = reference.real(whitened, LENGTHS)
    assert real.var() == pytest.approx(1, abs=1e-4)
    assert real.mean() == pytest.approx(0 if shift_mean else before.mean(), abs=1e-4)
    np.testing.assert_allclose(real - real.mean(), (before - before.mean()) / before.std(), atol=1e-4)
    assert float64(whitened)[float64(mask) == 0].tolist() == [0.0] * int((1 - mask).sum().item())


# Rewards, TD errors, advantages


@given(ragged, st.floats(0, 2))
def test_the_score_is_added_once_and_on_the_last_real_token(lengths: list[int], kl_coef: float) -> None:
    mask = mask_of(lengths, max(lengths) + 2)
    kl, scores = normal(*mask.shape), normal(len(lengths), seed=1)
    rewards = float64(maths.shaped_rewards(dirty(kl, mask), scores, mask, kl_coef=kl_coef))
    for row, length in enumerate(lengths):
        expected = -kl_coef * float64(kl)[row, :length]
        expected[-1] += float64(scores)[row]
        np.testing.assert_allclose(rewards[row, :length], expected, atol=1e-5)
        assert not rewards[row, length:].any()


@given(ragged, fractions, fractions, st.booleans())
def test_gae_is_the_double_sum_of_its_definition_on_ragged_batches(
    lengths: list[int], gamma: float, lam: float, bootstrap: bool
) -> None:
    mask = mask_of(lengths, max(lengths) + 1)
    rewards, values = normal(*mask.shape), normal(*mask.shape, seed=1)
    final = normal(len(lengths), seed=2) if bootstrap else None
    deltas = maths.td_errors(dirty(rewards, mask), dirty(values, mask), mask, gamma=gamma, final_values=final)
    ends = None if final is None else final.tolist()
    expected = reference.td_errors(float64(rewards), float64(values), lengths, gamma, ends)
    close(deltas, expected)
    advantages = maths.discounted_sums(dirty(deltas, mask), mask, gamma * lam)
    close(advantages, reference.gae(expected, lengths, gamma, lam))


# Losses


def check_slope(loss: Callable[[mx.array], mx.array], x: float, slope: float) -> None:
    """Check the gradient of `loss` at `x`, and that the loss itself rises so."""
    difference = (loss(mx.array(x + 1e-3)) - loss(mx.array(x - 1e-3))).item() / 2e-3
    assert mx.grad(loss)(mx.array(x)).item() == pytest.approx(slope, abs=1e-5)
    assert difference == pytest.approx(slope, abs=1e-3)


PLAIN: dict[str, float] = {"clip": 0.2}
WIDE = {"clip": 0.2, "clip_high": 0.5, "dual_clip": 3.0}


@pytest.mark.parametrize(
    ("ratio", "advantage", "bounds", "slope"),
    [
        (1.5, 1.0, PLAIN, 0.0),
        (0.5, -1.0, PLAIN, 0.0),  # where clipping takes hold
        (1.5, -1.0, PLAIN, 1.5),
        (0.5, 1.0, PLAIN, -0.5),  # outside the range, but on the way back: not clipped
        (1.1, 2.0, PLAIN, -2.2),
        (1.0, -3.0, PLAIN, 3.0),
        (1.4, 1.0, WIDE, -1.4),  # below the upper bound of 1.5
        (1.6, 1.0, WIDE, 0.0),
        (0.7, -1.0, WIDE, 0.0),  # the lower bound is the other one
        (2.5, -1.0, WIDE, 2.5),
        (3.5, -1.0, WIDE, 0.0),  # beyond the second clip: the loss is 3 and stays there
        (3.5, 1.0, WIDE, 0.0),
    ],
)
def test_the_policy_gradient_is_minus_advantage_times_ratio_and_zero_where_clipped(
    ratio: float, advantage: float, bounds: dict[str, float], slope: float
) -> None:
    def loss(logprob: mx.array) -> mx.array:
        return maths.clipped_policy_loss(logprob, mx.array(advantage), **bounds)

    check_slope(loss, math.log(ratio), slope)


@pytest.mark.parametrize(
    ("advantage", "clip_high", "loss", "slope"),
    [
        (2.0, 0.2, -2.2103418, -2.2103418),  # the mean of the log-ratios is 0.1, and e^0.1 is 1.1051709
        (2.0, 0.05, -2.1, 0.0),  # clipped at 1.05, all three tokens alike: alone, the last of them would not be
        (-2.0, 0.05, 2.2103418, 2.2103418),
    ],
)
def test_a_sequences_ratio_is_the_geometric_mean_of_its_tokens_and_is_clipped_for_all_of_them(
    advantage: float, clip_high: float, loss: float, slope: float
) -> None:
    log_ratio, mask = mx.array([[0.1, 0.3, -0.1, NAN]]), mx.array([[1.0, 1.0, 1.0, 0.0]])

    def gspo(log_ratio: mx.array) -> mx.array:
        ratio = maths.sequence_log_ratio(log_ratio, mask)
        losses = maths.clipped_policy_loss(ratio, mx.full((1, 4), advantage), clip=0.2, clip_high=clip_high)
        close(losses[0, :3], float64([loss] * 3))
        return maths.aggregated(losses, mask, "sequence")

    close(mx.grad(gspo)(log_ratio)[0], float64([slope / 3] * 3 + [0.0]))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [(3.0, 0.5, 2.0, -1.0), (3.0, -0.5, -2.0, 1.0), (0.5, 0.5, 0.5, -0.25)],  # the bound is 2, the log-prob -2
)
def test_cispo_bounds_the_weight_of_a_token_and_no_token_loses_its_gradient(
    ratio: float, advantage: float, loss: float, slope: float
) -> None:
    def cispo(logprob: mx.array) -> mx.array:
        return maths.cispo_loss(logprob, logprob + 2.0 + math.log(ratio), mx.array(advantage), clip_high=1.0)

    found, gradient = mx.value_and_grad(cispo)(mx.array(-2.0))
    close(mx.stack([found, gradient]), float64([loss, slope]))


@pytest.mark.parametrize("clip", [0.2, None])
def test_the_value_loss_is_half_the_larger_squared_error(clip: float | None) -> None:
    values, old, returns = normal(B, T), normal(B, T, seed=1), normal(B, T, seed=2)
    expected = reference.value_loss(float64(values), float64(old), float64(returns), clip)
    close(maths.clipped_value_loss(values, old, returns, clip=clip), expected)


# Explained variance


def test_explained_variance_is_of_the_real_tokens() -> None:
    mask, values, returns = mask_of(LENGTHS), normal(B, T), normal(B, T, seed=1) + 1
    expected = reference.explained_variance(reference.real(values, LENGTHS), reference.real(returns, LENGTHS))
    close(maths.explained_variance(dirty(values, mask), dirty(returns, mask), mask), expected)


def test_a_perfect_critic_explains_everything_and_a_constant_one_nothing() -> None:
    mask, returns = mask_of(LENGTHS), normal(B, T)
    close(maths.explained_variance(returns + 3, returns, mask), 1.0)
    close(maths.explained_variance(mx.full((B, T), 0.7), returns, mask), 0.0)
    close(maths.explained_variance(-returns, returns, mask), -3.0)


def test_explained_variance_is_unknown_where_returns_vary_by_no_more_than_rounding() -> None:
    assert math.isnan(maths.explained_variance(normal(B, T), mx.ones((B, T)), mask_of(LENGTHS)).item())
    returns, values, mask = mx.array([[1e-7, -1e-7]]), mx.array([[3.0, -1.0]]), mx.ones((1, 2))
    assert math.isnan(maths.explained_variance(values, returns, mask).item())


# The clips


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
    rows = [x[row, :length] for row, length in enumerate(ROWS)]
    if aggregation == "token":
        return float(np.concatenate(rows).mean())
    if aggregation == "sequence":
        return float(np.mean([row.mean() for row in rows if len(row)]))
    return sum(row.sum() for row in rows) / (sum(len(row) > 0 for row in rows) * max_tokens)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_each_aggregation_is_the_mean_that_its_name_says_and_parts_add_up(aggregation: maths.Aggregation) -> None:
    x = dirty(normal(*RAGGED.shape), RAGGED)
    total = maths.aggregation_total(RAGGED, aggregation, 11)
    assert (total.shape, total.dtype) == ((), mx.float32)
    whole = maths.aggregated(x, RAGGED, aggregation)
    close(whole / total, slow_mean(float64(x), aggregation, 11))
    parts = [maths.aggregated(x[rows], RAGGED[rows], aggregation) for rows in (slice(0, 1), slice(1, 4))]
    close(whole, float64(parts).sum())


# Sums ahead, and groups


def test_long_discounted_sums_are_exact_to_float32() -> None:
    """A matrix product of float32 is off in the last digits, and one of TF32, on some GPUs, in the third."""
    x, lengths = normal(3, 600), [600, 1, 333]
    found = maths.discounted_sums(x, mask_of(lengths), 0.999)
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


HOW = {"target": 6.0, "horizon": 1000, "sequences": 10}


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (6.0, 1.0),  # on target
        (6.6, 1 + 0.1 * 0.01),  # a tenth too much
        (5.4, 1 - 0.1 * 0.01),
        (60.0, 1 + 0.2 * 0.01),  # as far as it may move
        (0.0, 1 - 0.2 * 0.01),
        (-1.0, 1 - 0.2 * 0.01),
    ],
)
def test_the_coefficient_moves_by_the_formula_of_the_paper(kl: float, factor: float) -> None:
    assert adapted_kl_coef(0.05, kl, **HOW) == pytest.approx(0.05 * factor, rel=1e-12)


@pytest.mark.parametrize(("kl", "factor"), [(0.0, 0.8), (60.0, 1.2)])
def test_a_batch_beyond_the_horizon_moves_the_coefficient_by_a_fifth_and_never_below_zero(
    kl: float, factor: float
) -> None:
    assert adapted_kl_coef(0.05, kl, target=6.0, horizon=10, sequences=64) == pytest.approx(0.05 * factor)


@pytest.mark.parametrize("kl", [math.nan, math.inf, -math.inf])
def test_a_kl_that_is_not_finite_changes_nothing(kl: float) -> None:
    assert adapted_kl_coef(0.05, kl, **HOW) == 0.05


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.277532799863),
        (7, 10, 0.396778147461, 0.892208732594),
        (130, 200, 0.58163464336, 0.712711758726),
        (1000, 1000, 0.996173241514, 1.0),
    ],
)
def test_the_wilson_interval_is_that_of_statsmodels(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=1e-10)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 labels"), (1, "1 label"), (2, "2 labels"), (12_000, "12,000 labels")]
)
def test_nouns_agree_with_their_count(count: int, text: str) -> None:
    assert counted(count, "label") == text
    assert counted(2, "entry", "entries") == "2 entries"


@pytest.mark.parametrize(
    ("device", "cached", "cleared"),
    [("cpu", 1, 1), ("gpu", 20, 0), ("gpu", 21, 1)],
    ids=["a CPU", "a GPU with room", "a full GPU"],
)
def test_freed_buffers_stay_where_memory_is_slow_to_get_and_not_short(
    device: str, cached: int, cleared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(getattr(mx, device)))
    monkeypatch.setattr(mx, "get_active_memory", lambda: 30)
    monkeypatch.setattr(mx, "get_cache_memory", lambda: cached)
    monkeypatch.setattr(mx, "get_memory_limit", lambda: 100)
    monkeypatch.setattr(mx, "clear_cache", lambda: calls.append(None))
    clear_cache()
    assert len(calls) == cleared


def test_every_seed_purpose_and_number_has_a_key_of_its_own() -> None:
    keys = {tuple(key_for(seed, purpose, n).tolist()) for seed, purpose, n in product(range(5), Purpose, range(40))}
    assert len(keys) == 5 * len(Purpose) * 40
    assert key_for(1, Purpose.ROLLOUT, 2).tolist() != key_for(2, Purpose.ROLLOUT, 1).tolist()


def test_keys_are_those_that_saved_runs_were_made_with() -> None:
    assert key_for(0, Purpose.ADAPTER).tolist() == [1358922860, 3964924996]
    assert key_for(0, Purpose.ROLLOUT, 1).tolist() == [3354216986, 1961547765]
    assert key_for(2**32 - 1, Purpose.EVALUATION).tolist() == [1061970975, 246676199]
    numbers = {purpose.name: purpose.value for purpose in Purpose}
    assert numbers == {"ADAPTER": 1, "ROLLOUT": 2, "MINIBATCHES": 3, "EVALUATION": 4, "FOLDS": 5}
