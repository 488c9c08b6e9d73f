"""Drawing a token: the frequencies are the softmax's, and nothing that was ruled out is ever drawn."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from trainer.config.schema import RolloutConfig
from trainer.rollout.generation import _first_above, sample_tokens

INF = float("inf")
LARGEST_DRAW = 1 - 2**-24  # of a uniform number in float32


def draws(logits: np.ndarray, count: int, seed: int = 0, **sampling: float) -> np.ndarray:
    rows, keys = mx.broadcast_to(mx.array(logits.astype(np.float32)), (count, len(logits))), mx.random.key(seed)
    return np.array(sample_tokens(rows, mx.random.split(keys, count), RolloutConfig.model_validate(sampling)).tokens)


def filtered(logits: np.ndarray, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """Return the sampled distribution token by token in float64: temperature, top-k, top-p, each renormalised."""
    probabilities = np.exp(logits.astype(np.float64) / temperature)
    order, mass, kept = np.argsort(-probabilities)[: top_k or None], 0.0, []
    total = probabilities[order].sum()
    for token in order:
        if mass < top_p:
            kept.append(token)
        mass += probabilities[token] / total
    return np.where(np.isin(np.arange(len(logits)), kept), probabilities, 0) / probabilities[kept].sum()


def vocabulary(words: int, dtype: mx.Dtype) -> tuple[mx.array, np.ndarray]:
    """Return logits in `dtype`, 20 of which have half of the mass, and their log-softmax in float64."""
    random = np.random.default_rng(0)
    logits = random.normal(size=words) * 2.5
    logits[:20] += np.log(np.exp(logits[20:]).sum() / np.exp(logits[:20]).sum())
    row = mx.array(logits.astype(np.float32)).astype(dtype)
    exact = np.array(row.astype(mx.float32)).astype(np.float64)
    return row, exact - np.log(np.exp(exact).sum())


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_k": 5, "top_p": 0.7},
        {"top_k": 40, "top_p": 0.5},
        {"top_k": 3, "top_p": 0.9, "temperature": 1.6},
        {"top_k": 12, "top_p": 0.6, "temperature": 0.7},
        {"top_k": 1, "top_p": 0.1},
        {"top_k": 8},
        {"top_p": 0.6},
    ],
)
def test_filters_leave_the_distribution_of_temperature_then_top_k_then_top_p(sampling: dict[str, Any]) -> None:
    count = 4000
    logits = np.random.default_rng(5).normal(size=300) * 2
    expected = count * filtered(logits, **sampling)
    seen = np.bincount(draws(logits, count, **sampling), minlength=len(logits))
    kept = expected > 0
    assert not seen[~kept].any()
    assert (seen[expected > 9] > 0).all()
    assert (abs(seen - expected)[kept] <= 5 * np.sqrt(expected[kept]) + 1).all()


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize(
    ("words", "temperature", "count"),
    [(1000, 1.0, 8000), (49_152, 1.0, 2000), (49_152, 0.7, 2000), (150_000, 1.0, 1000)],
)
def test_a_vocabulary_is_drawn_as_the_softmax_says_in_every_type(
    words: int, temperature: float, count: int, dtype: mx.Dtype
) -> None:
    row, logprobs = vocabulary(words, dtype)
    logprobs = logprobs / temperature
    logprobs -= np.log(np.exp(logprobs).sum())
    sampling = RolloutConfig(temperature=temperature)
    keys = mx.random.split(mx.random.key(0), count).reshape(-1, 100, 2)
    rows = mx.broadcast_to(row, (100, len(logprobs)))
    drawn = np.concatenate([np.array(sample_tokens(rows, some, sampling).tokens) for some in keys])
    # Ten groups of one probability each, likeliest tokens first: how often each is drawn.
    order = np.argsort(-logprobs)
    masses = np.exp(logprobs[order])
    group_of = np.empty(len(order), dtype=int)
    group_of[order] = np.minimum(10 * (np.cumsum(masses) - masses / 2), 9).astype(int)
    expected = count * np.bincount(group_of, weights=np.exp(logprobs), minlength=10)
    seen = np.bincount(group_of[drawn], minlength=10)
    assert (
        (seen - expected)[expected > 5] ** 2 / expected[expected > 5]
    ).sum() < 27.9  # one in a thousand of 9 degrees
    probabilities = np.exp(logprobs)
    entropy = -(probabilities * logprobs).sum()
    deviation = np.sqrt((probabilities * (logprobs + entropy) ** 2).sum() / count)
    assert -logprobs[drawn].mean() == pytest.approx(entropy, abs=4 * deviation)


def test_a_row_is_drawn_the_same_in_any_batch() -> None:
    logits = mx.random.normal((6, 1000), key=mx.random.key(2)) * 3
    keys = mx.random.split(mx.random.key(3), 6)
    together = sample_tokens(logits, keys, RolloutConfig(top_k=100))
    for place in range(6):
        alone = sample_tokens(logits[place : place + 1], keys[place : place + 1], RolloutConfig(top_k=100))
        for one, other in zip(alone, together, strict=True):
            assert mx.array_equal(one[0], other[place])


@pytest.mark.parametrize("place", [0, 1, 255, 256, 300])
def test_a_word_at_minus_infinity_is_never_drawn(place: int) -> None:
    logits = np.full(301, -INF)
    logits[place] = -3.0
    assert set(draws(logits, 50)) == {place}


def test_adding_a_constant_or_very_large_logits_change_nothing() -> None:
    logits = np.linspace(-4, 4, 64)
    assert (draws(logits, 50) == draws(logits + 1024, 50)).all()
    assert set(draws(np.array([1e30, -1e30, 0.0]), 20)) == {0}


@pytest.mark.parametrize(
    ("weights", "sums"),
    [
        ([1.0, 0.0, 0.0, 1.0, 0.0], [1.0, 1.0 - 2**-24, 1.0 + 2**-23, 2.0, 2.0]),  # a rounding up before a weight
        ([1.0, 0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 2.0, 2.0 - 2**-23, 2.0 + 2**-22]),  # a rounding up after the last
        ([0.0, 1.0, 1.0, 0.0, 0.0], [2**-24, 1.0, 2.0, 2.0 - 2**-23, 2.0 - 2**-23]),  # the last is not the largest
    ],
)
def test_sums_that_fall_by_a_rounding_never_draw_a_weight_of_0(weights: list[float], sums: list[float]) -> None:
    draws = mx.array([0.0, 0.25, 0.5 - 2**-25, 0.5, 0.5 + 2**-24, 0.75, 1 - 2**-23, LARGEST_DRAW])
    rows = (mx.broadcast_to(mx.array(row), (draws.size, len(row))) for row in (sums, weights))
    found = _first_above(*rows, draws).tolist()
    likely = [place for place, weight in enumerate(weights) if weight > 0]
    assert set(found) == set(likely)
    assert found == sorted(found)


def test_logits_that_are_nan_still_give_a_token_of_the_vocabulary() -> None:
    """The loss reports them; an index beyond the vocabulary would read foreign memory."""
    drawn = sample_tokens(mx.full((3, 700), math.nan), mx.random.split(mx.random.key(0), 3), RolloutConfig())
    assert drawn.tokens.max().item() < 700
