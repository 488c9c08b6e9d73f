"""Sampling of one token for each row of a batch, from its own key, in float32 whatever the type of the logits."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
from mlx_lm.sample_utils import apply_top_k, apply_top_p

from trainer.config.schema import RolloutConfig
from trainer.models.logprobs import exponentials

_BLOCK = 256  # tokens of the vocabulary that are drawn together
_BELOW_ONE = 1 - 2**-23


class Sampled(NamedTuple):
    """One token of each of B rows, and the keys of the next step."""

    tokens: mx.array  # [B]
    logprobs: mx.array  # [B] of the sampling distribution, before top-k and top-p
    keys: mx.array  # [B, 2]


def sample_tokens(logits: mx.array, keys: mx.array, sampling: RolloutConfig) -> Sampled:
    """Sample a token from each row of `logits`: [B, V] of any float type; keys: [B, 2], one for each row.

    Temperature, then top-k, then top-p of what top-k has kept, as in transformers and vLLM; mlx-lm filters the other
    way round.

    A row's token depends on its logits and its key alone. The eight bits of bfloat16 are too few to sum a vocabulary,
    so everything is computed in float32.
    """
    logits = logits.astype(mx.float32)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    top = logits.max(axis=-1, keepdims=True)
    filtered = logits - top
    weights = exponentials(filtered)
    log_total = mx.log(_blocks(weights).sum(axis=-1).sum(axis=-1, keepdims=True))
    if 0 < sampling.top_k < logits.shape[-1]:
        filtered = apply_top_k(filtered, sampling.top_k)
        weights = mx.where(filtered > -mx.inf, weights, 0.0)
    if sampling.top_p < 1:
        weights = mx.where(apply_top_p(filtered, sampling.top_p) > -mx.inf, weights, 0.0)
    split = mx.vmap(mx.random.split)(keys)  # [B, 2, 2]
    tokens = categorical(weights, split[:, 1])
    logprobs = mx.take_along_axis(logits, tokens[:, None], axis=-1) - top - log_total
    return Sampled(tokens, logprobs.squeeze(-1), split[:, 0])


def categorical(weights: mx.array, keys: mx.array) -> mx.array:
    """Draw an index of each row with probability w_i / sum_j w_j, by inverting the distribution function.

        i = the first with  sum_{j <= i} w_j > u sum_j w_j,   u uniform in [0, 1)

    It draws a block of tokens first, then a token of the block, each with its own u, so that float32 represents the
    tail of a large vocabulary. Gumbel noise (`mx.random.categorical`) would need a random number and two logarithms per
    token. weights: [B, V], not negative, at least one above 0 in each row; keys: [B, 2]. Returns [B] indices; one of
    weight 0 is never drawn.
    """
    u = mx.vmap(lambda key: mx.random.uniform(shape=(2,), key=key))(keys)
    blocks = _blocks(weights)
    sums = blocks.sum(axis=-1)
    block = _first_above(mx.cumsum(sums, axis=-1), sums, u[:, 0])
    inside = mx.take_along_axis(blocks, block[:, None, None], axis=1).squeeze(1)
    return block * _BLOCK + _first_above(mx.cumsum(inside, axis=-1), inside, u[:, 1])


def _blocks(weights: mx.array) -> mx.array:
    """Return [B, V] in blocks, [B, V / 256, 256], the last filled up with 0."""
    if rest := -weights.shape[-1] % _BLOCK:
        weights = mx.pad(weights, [(0, 0), (0, rest)])
    return weights.reshape(weights.shape[0], -1, _BLOCK)


def _first_above(sums: mx.array, weights: mx.array, u: mx.array) -> mx.array:
    """Find the first index of positive weight whose sum exceeds u times the largest of such sums.

    A GPU sums in parallel, and a sum may be one rounding below the one before it. So a sum that is the first above the
    target may be that of a weight of 0, and the last sum may not be the largest. Without a positive weight, as when the
    logits are NaN, it is index 0. sums, weights: [..., N]; u: [...].
    """
    sums = mx.where(weights > 0, sums, 0.0)
    target = sums.max(axis=-1, keepdims=True) * mx.minimum(u, _BELOW_ONE)[..., None]
    count = sums.shape[-1]
    return mx.where(sums > target, mx.arange(count), count).min(axis=-1) % count
