"""Sampling of tokens with temperature, top-p and top-k; every sequence has its own random key."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
from mlx_lm.sample_utils import apply_top_k, apply_top_p

from trainer.config.schema import RolloutConfig
from trainer.models.logprobs import exponentials

_BLOCK = 256
_BELOW_ONE = 1 - 2**-23


def make_sampler(sampling: RolloutConfig, key: mx.array) -> Callable[[mx.array], mx.array]:
    """Return the sampler of one sequence: [1, V] logits or log-probs to [1] token, random by `key` alone.

    It computes in float32, whatever the logits' type: the eight bits of bfloat16 are too few to sum a vocabulary.
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
    """Draw an index from softmax(logits) by inverting the distribution function.

        i = the first with  sum_{j <= i} w_j > u sum_j w_j,   w = exp(logits - max),   u uniform in [0, 1)

    It draws a block of tokens first, then a token of the block, each with its own u, so that float32 represents the
    tail of a large vocabulary. Gumbel noise (`mx.random.categorical`) would need a random number and two logarithms per
    token. logits: [V] of any float type, at least one above -inf; a token at -inf is never drawn. Returns a scalar.
    """
    logits = logits.astype(mx.float32)
    weights = exponentials(logits - logits.max())
    weights = mx.pad(weights, (0, -weights.shape[0] % _BLOCK)).reshape(-1, _BLOCK)
    for_block, for_word = mx.random.uniform(shape=(2,), key=key)
    block = _invert(weights.sum(axis=-1), for_block)
    return block * _BLOCK + _invert(weights[block], for_word)


def _invert(weights: mx.array, u: mx.array) -> mx.array:
    """Find the first index whose cumulative sum exceeds u times the total. Its weight is positive despite rounding."""
    sums = mx.cumsum(weights)
    target = sums[-1] * mx.minimum(u, _BELOW_ONE)
    return (sums <= target).sum()
