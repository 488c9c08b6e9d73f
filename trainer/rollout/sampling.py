"""Drawing tokens: temperature, top-p and top-k, and every sequence from a random key of its own."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
from mlx_lm.sample_utils import apply_top_k, apply_top_p

from trainer.config.schema import RolloutConfig
from trainer.models.logprobs import exponentials

_BLOCK = 256
_BELOW_ONE = 1 - 2**-23


def make_sampler(sampling: RolloutConfig, key: mx.array) -> Callable[[mx.array], mx.array]:
    """One sequence's sampler, [1, V] logits or log-probs to [1] token, drawing from `key` and nothing else.

    All of it is done in float32, whatever the logits' type: bfloat16 has eight bits, too few to add up a vocabulary.
    """
    state = [key]

    def sample(logits: mx.array) -> mx.array:
        logits = logits.astype(mx.float32)
        if sampling.temperature != 1:
            logits = logits / sampling.temperature
        if sampling.top_p < 1:
            logits = apply_top_p(logits - mx.logsumexp(logits, axis=-1, keepdims=True), sampling.top_p)
        if 0 < sampling.top_k < logits.shape[-1]:
            logits = apply_top_k(logits, sampling.top_k)
        state[0], draw = mx.random.split(state[0])
        return categorical(logits[0], draw)[None]

    return sample


def categorical(logits: mx.array, key: mx.array) -> mx.array:
    """An index drawn from softmax(logits), by inverting the distribution function:

        i = the first with  sum_{j <= i} w_j > u sum_j w_j,   w = exp(logits - max),   u uniform in [0, 1)

    first among blocks of words, then within the block, each with a number u of its own: so float32 holds the tail of a
    large vocabulary. Gumbel noise (`mx.random.categorical`) would take a random number and two logarithms a word.
    logits: [V] of any float type, at least one above -inf; a word at -inf is never drawn. Returns a scalar.
    """
    logits = logits.astype(mx.float32)
    weights = exponentials(logits - logits.max())
    weights = mx.pad(weights, (0, -weights.shape[0] % _BLOCK)).reshape(-1, _BLOCK)
    for_block, for_word = mx.random.uniform(shape=(2,), key=key)
    block = _invert(weights.sum(axis=-1), for_block)
    return block * _BLOCK + _invert(weights[block], for_word)


def _invert(weights: mx.array, u: mx.array) -> mx.array:
    """The first index where the sum so far exceeds u times the whole: one of positive weight, for rounding too."""
    sums = mx.cumsum(weights)
    target = sums[-1] * mx.minimum(u, _BELOW_ONE)
    return (sums <= target).sum()
