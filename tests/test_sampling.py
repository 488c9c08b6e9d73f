"""Drawing a token: the frequencies are the softmax's, and nothing that was ruled out is ever drawn."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from trainer.sampling import _invert, categorical

INF = float("inf")
LARGEST_DRAW = 1 - 2**-24  # of a uniform number in float32


def draws(logits: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    row = mx.array(logits.astype(np.float32))
    return np.array(mx.stack([categorical(row, key) for key in mx.random.split(mx.random.key(seed), count)]))


@pytest.mark.parametrize("words", [3, 255, 256, 257, 1000])
def test_words_are_drawn_as_often_as_the_softmax_says(words: int) -> None:
    count = 3000
    logits = np.random.default_rng(words).normal(size=words) * 2
    expected = count * np.exp(logits) / np.exp(logits).sum()
    seen = np.bincount(draws(logits, count), minlength=words)
    assert len(seen) == words
    common = expected >= 5
    seen, expected = (np.append(x[common], x[~common].sum()) for x in (seen, expected))
    freedom = common.sum()
    assert ((seen - expected) ** 2 / np.maximum(expected, 1e-9)).sum() < freedom + 3 * (2 * freedom) ** 0.5


def test_the_tail_of_a_large_vocabulary_keeps_its_mass() -> None:
    tail, count = 49_151, 2000  # each with 1 / 98,302: a running sum in float32 would hold every one, but not in half
    logits = np.append(np.log(tail), np.zeros(tail))
    assert (draws(logits, count) > 0).mean() == pytest.approx(0.5, abs=4 * 0.5 / count**0.5)


@pytest.mark.parametrize("place", [0, 1, 255, 256, 300])
def test_a_word_at_minus_infinity_is_never_drawn(place: int) -> None:
    logits = np.full(301, -INF)
    logits[place] = -3.0
    assert set(draws(logits, 50)) == {place}


def test_adding_a_constant_or_very_large_logits_change_nothing() -> None:
    logits = np.linspace(-4, 4, 64)
    assert (draws(logits, 50) == draws(logits + 1024, 50)).all()
    assert set(draws(np.array([1e30, -1e30, 0.0]), 20)) == {0}


def test_a_key_draws_the_same_word_and_another_key_another() -> None:
    logits = np.zeros(1000)
    assert (draws(logits, 20) == draws(logits, 20)).all()
    assert (draws(logits, 20) != draws(logits, 20, seed=1)).any()


@pytest.mark.parametrize("u", [0.0, 1e-30, 0.1, 0.25, 0.5, 0.999, LARGEST_DRAW])
@pytest.mark.parametrize("seed", range(5))
def test_the_word_drawn_is_where_the_sum_of_weights_passes_u(seed: int, u: float) -> None:
    random = np.random.default_rng(seed)
    weights = (random.random(200) ** 8 * (random.random(200) < 0.5)).astype(np.float32)
    sums = np.cumsum(weights, dtype=np.float64)
    index = int(_invert(mx.array(weights), mx.array(u)))
    assert weights[index] > 0
    assert sums[index] >= u * sums[-1] - 1e-6 * sums[-1]
    assert sums[index] - weights[index] <= u * sums[-1] + 1e-6 * sums[-1]
