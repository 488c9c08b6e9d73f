"""Attention of several positions at once on MLX's CPU backend, whose own softmax takes an exponential at a time."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import base

from trainer.models.cpu.kernels import precise_exponentials

_LEAST = -1e30  # a score that counts for nothing, but leaves a row of nothing else finite


def attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None = None,
) -> mx.array:
    """Compute softmax(scale Q K^T + mask) V, with mlx-lm's arguments: [B, H, L, D] to [B, H, L, E].

    queries: [B, H, L, D]; keys: [B, K, S, D] and values: [B, K, S, E], each shared by H / K heads of queries. mask:
    "causal", None, or an array that broadcasts to [B, H, L, S], of booleans or to add. Decoding steps, whose lengths
    all differ, and types other than float32 go to mlx-lm's own function.
    """
    length = queries.shape[2]
    if length == 1 or queries.dtype != mx.float32 or sinks is not None or hasattr(cache, "bits"):
        own: mx.array = base.scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)
        return own
    batch, heads, _, width = queries.shape
    shared = (batch, keys.shape[1], -1, width)  # one product for all query heads that share their keys
    scores = ((queries * scale).reshape(shared) @ keys.swapaxes(-1, -2)).reshape(batch, heads, length, -1)
    if isinstance(mask, str):
        before = keys.shape[2] - length  # the queries are those of the last positions
        mask = mx.arange(length)[:, None] + before >= mx.arange(keys.shape[2])
    if mask is not None:
        scores = mx.where(mask, scores, _LEAST) if mask.dtype == mx.bool_ else scores + mask
    weights: mx.array = _softmax(scores)  # type: ignore[assignment]
    found = weights.reshape(*shared[:3], keys.shape[2]) @ values
    return found.reshape(batch, heads, length, -1)


@mx.custom_function
def _softmax(scores: mx.array) -> mx.array:
    weights = precise_exponentials(scores - scores.max(axis=-1, keepdims=True))
    return weights * mx.reciprocal(weights.sum(axis=-1, keepdims=True))


@_softmax.vjp
def _softmax_vjp(primals: Any, cotangents: Any, outputs: Any) -> Any:
    """Compute the gradient: d/ds = p (g - sum p g)."""
    weighted = cotangents * outputs
    return weighted - outputs * weighted.sum(axis=-1, keepdims=True)
