"""Functions of mlx-lm that have a faster version for MLX's CPU backend, and their exchange in a family's module.

On two AMD cores, 8 sequences of 68 tokens through the starter model, the scores take 1.10 times as long without our
attention and 1.28 times without our SwiGLU; the gradient 1.05 and 1.12 times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import activations, base

from trainer.models.cpu.kernels import precise_exponentials, swiglu

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
    if isinstance(mask, str):
        before = keys.shape[2] - length  # the queries are those of the last positions
        mask = mx.arange(length)[:, None] + before >= mx.arange(keys.shape[2])
    found: mx.array = _attention(scale, mask)(queries, keys, values)[0]
    return found


def _attention(scale: float, mask: mx.array | None) -> Callable[..., tuple[mx.array, mx.array]]:
    """Return a function of queries, keys and values that returns the result and the weights P, [B, H, L, S].

    As one function, it keeps the weights alone for its gradient, not the scores that they are made of.
    """

    @mx.custom_function
    def forward(queries: mx.array, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        scores = _by_query_head(_grouped(queries * scale, keys) @ keys.swapaxes(-1, -2), queries)
        if mask is not None:
            scores = mx.where(mask, scores, _LEAST) if mask.dtype == mx.bool_ else scores + mask
        weights = precise_exponentials(scores - scores.max(axis=-1, keepdims=True))
        weights = weights * mx.reciprocal(weights.sum(axis=-1, keepdims=True))
        return _by_query_head(_grouped(weights, keys) @ values, queries), weights

    @forward.vjp
    def backward(primals: Any, cotangents: Any, outputs: Any) -> Any:
        """Compute the gradients, with G that of the result: dV = P^T G, dP = G V^T, dS = P (dP - sum P dP)."""
        (queries, keys, values), weights = primals, outputs[1]
        on_result = _grouped(cotangents[0], keys)
        on_weights = _by_query_head(on_result @ values.swapaxes(-1, -2), queries)
        weighted = weights * on_weights
        on_scores = _grouped(weighted - weights * weighted.sum(axis=-1, keepdims=True), keys)
        on_queries = _by_query_head(on_scores @ keys, queries) * scale
        on_keys = on_scores.swapaxes(-1, -2) @ _grouped(queries, keys) * scale
        return on_queries, on_keys, _grouped(weights, keys).swapaxes(-1, -2) @ on_result

    return cast("Callable[..., tuple[mx.array, mx.array]]", forward)


def _grouped(x: mx.array, keys: mx.array) -> mx.array:
    """Put the query heads that share their keys one below the other: [B, H, L, N] to [B, K, H / K * L, N]."""
    return x.reshape(*keys.shape[:2], -1, x.shape[-1])


def _by_query_head(x: mx.array, queries: mx.array) -> mx.array:
    """Undo `_grouped`: [B, K, H / K * L, N] to [B, H, L, N]."""
    return x.reshape(*queries.shape[:3], x.shape[-1])


_FASTER: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {  # mlx-lm's own, ours
    "swiglu": (activations.swiglu, swiglu),
    "scaled_dot_product_attention": (base.scaled_dot_product_attention, attention),
}


def use_faster_functions(backbone: nn.Module) -> set[str]:
    """Make the family of `backbone` use our versions of mlx-lm's functions; return the names of those that it has.

    This replaces the names in the family's module, so it applies to every model of that family in this process.
    """
    found = set()
    for module in {sys.modules[type(layer).__module__] for layer in backbone.modules()}:
        for name, pair in _FASTER.items():
            if getattr(module, name, None) in pair and module is not base:
                setattr(module, name, pair[1])
                found.add(name)
    return found
