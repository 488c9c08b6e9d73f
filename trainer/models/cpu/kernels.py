"""Exponentials for MLX's CPU backend, which computes exp, tanh and sigmoid one number at a time.

SwiGLU and the softmax over the vocabulary then cost as much as the matrix products. Written in sums and products, which
the C++ compiler turns into vector instructions, they are 3 to 10 times as fast fused by `mx.compile`, and about twice
inside a gradient, where MLX does not fuse (`benchmarks/bench_elementwise.py`). They are not for a GPU. Each shape is
compiled by itself, for `shapeless=True` gives slower code.
"""

from __future__ import annotations

import sys
from typing import Any

import mlx.core as mx
import mlx.nn as nn

_BLOCK = 256


def use_vector_swiglu(backbone: nn.Module) -> bool:
    """Let the family of `backbone` use `swiglu` of this module in place of mlx-lm's; True where it has one.

    It replaces the name in the family's module, so it holds for every model of that family in this process.
    """
    from mlx_lm.models.activations import swiglu as slow

    replaced = False
    for module in {type(layer).__module__ for layer in backbone.modules()}:
        if getattr(sys.modules[module], "swiglu", None) in (slow, swiglu):
            setattr(sys.modules[module], "swiglu", swiglu)  # noqa: B010  a module has no such attribute for mypy
            replaced = True
    return replaced


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """silu(gate) * x, elementwise; any one shape, float32."""
    return _swiglu_and_sigmoid(gate, x)[0]  # type: ignore[index, no-any-return]


@mx.custom_function
def _swiglu_and_sigmoid(gate: mx.array, x: mx.array) -> tuple[mx.array, mx.array]:
    s = _sigmoid(gate)
    return gate * s * x, s  # the second for the gradient


@_swiglu_and_sigmoid.vjp
def _swiglu_vjp(primals: Any, cotangents: Any, outputs: Any) -> Any:
    """d/dg = x s (1 + g (1 - s)),  d/dx = g s, with s = sigmoid(g)."""
    (gate, x), s = primals, outputs[1]
    silu, scaled = gate * s, cotangents[0] * s
    return scaled * x * (1.0 + gate - silu), scaled * gate


def token_logprobs(logits: mx.array, tokens: mx.array) -> mx.array:
    """log softmax(logits)[token]. logits: [..., V] float32; tokens: [...]. Returns [...]; differentiable."""
    logprobs: mx.array = _log_softmax_at(logits, tokens)[0]  # type: ignore[index]
    return logprobs


def logprobs_and_entropy(logits: mx.array, tokens: mx.array) -> tuple[mx.array, mx.array]:
    """log softmax(logits)[token], and the entropy of the distribution, from one exponential; not differentiable.

    logits: [..., V] float32; tokens: [...]. Returns two [...] arrays.
    """
    top, shifted, exponentials = _shifted_exp(mx.stop_gradient(logits))
    total = _row_sums(exponentials)
    chosen = _chosen(logits, tokens, top)
    weighted = _row_sums(exponentials * shifted)
    return chosen - mx.log(total), mx.log(total) - weighted / total


@mx.compile
def exponentials(x: mx.array) -> mx.array:
    """exp(x), elementwise, for x <= 0; 0 where it is below exp(-80). float32; not differentiable."""
    return mx.where(x > -80.0, _exp(mx.maximum(x, -87.0), halvings=6), 0.0)


@mx.custom_function
def _log_softmax_at(logits: mx.array, tokens: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    top, _, exponentials = _shifted_exp(logits)
    total = _row_sums(exponentials)
    chosen = _chosen(logits, tokens, top)
    return chosen - mx.log(total), exponentials, total  # the last two for the gradient: once is dear enough


@_log_softmax_at.vjp
def _log_softmax_at_vjp(primals: Any, cotangents: Any, outputs: Any) -> Any:
    """d log p_k / d l = onehot_k - p."""
    _, tokens = primals
    (_, exponentials, total), on_logprob = outputs, cotangents[0]
    gradient = exponentials * (-on_logprob / total)[..., None]
    here = mx.take_along_axis(gradient, tokens[..., None], axis=-1) + on_logprob[..., None]
    return mx.put_along_axis(gradient, tokens[..., None], here, axis=-1), mx.zeros_like(tokens)


def _row_sums(x: mx.array) -> mx.array:
    """Sums over the last axis, of blocks first: float32 adds 50,000 numbers one after another only to 1e-4.

    BLAS is the quicker adder, but how well it adds a long row depends on the processor.
    """
    whole = x.shape[-1] // _BLOCK * _BLOCK
    blocks = x[..., :whole].reshape(*x.shape[:-1], -1, _BLOCK) @ mx.ones((_BLOCK,))
    return blocks.sum(axis=-1) + x[..., whole:].sum(axis=-1)


def _chosen(logits: mx.array, tokens: mx.array, top: mx.array) -> mx.array:
    return (mx.take_along_axis(logits, tokens[..., None], axis=-1) - top).squeeze(-1)


def _shifted_exp(logits: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """The maximum [..., 1], x = logits - maximum, and exp(x).

    x is held above -87, where the result is next to nothing and not 0: so a logit of -inf adds nothing to the entropy,
    and not 0 times inf.
    """
    top = logits.max(axis=-1, keepdims=True)
    shifted = _shifted(logits, top)
    return top, shifted, _softmax_exp(shifted)


@mx.compile
def _shifted(logits: mx.array, top: mx.array) -> mx.array:
    return mx.maximum(logits - top, -87.0)


@mx.compile
def _softmax_exp(x: mx.array) -> mx.array:
    return _exp(x, halvings=6)


@mx.compile
def _sigmoid(x: mx.array) -> mx.array:
    return mx.reciprocal(1.0 + _exp(mx.clip(-x, -50.0, 50.0), halvings=4))


def _exp(x: mx.array, *, halvings: int) -> mx.array:
    """exp(x) = exp(x / 2^k)^(2^k), with the [2/2] Pade approximant of exp, for x not far beyond 2^k.

        exp(y) = (1 + y/2 + y^2/12) / (1 - y/2 + y^2/12) + O(y^5 / 720)

    Few operations, for inside a gradient MLX does not fuse and each of them is a pass over memory. Where exp(x) counts
    in a sum with 1 the result is good to 2e-6; its relative error grows where it is next to nothing.
    """
    scale = 0.5**halvings
    even, odd = 1.0 + mx.square(x * (scale / 12**0.5)), x * (scale / 2)
    power = (even + odd) / (even - odd)
    for _ in range(halvings):
        power = mx.square(power)
    return power
