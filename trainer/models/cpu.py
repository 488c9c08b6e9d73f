"""Exponentials for MLX's CPU backend, which computes exp, tanh and sigmoid one number at a time.

MLX takes 16 to 21 ns for each of them, so that SwiGLU and the softmax over the vocabulary cost as much as the matrix
products (`benchmarks/bench_elementwise.py`). Written in sums and products inside `mx.compile`, which the C++ compiler
turns into vector instructions, the same functions take 2 to 5 ns and stay within 1e-6 of the exact ones. Not for a GPU.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn

_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.693359375, -2.12194440e-4
_ROUND = 12582912.0  # 1.5 * 2**23: adding and taking it away rounds a float32 to a whole number


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


@mx.custom_function
def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """silu(gate) * x, elementwise; any one shape, float32."""
    return _swiglu(gate, x)


@swiglu.vjp
def _swiglu_vjp(primals: Any, cotangent: mx.array, _: mx.array) -> Any:
    gate, x = primals
    return _swiglu_gradients(gate, x, cotangent)


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
    weighted = (exponentials[..., None, :] @ shifted[..., None]).squeeze((-1, -2))
    return chosen - mx.log(total), mx.log(total) - weighted / total


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
    return x @ mx.ones((x.shape[-1],))  # BLAS sums in blocks: quicker and closer than the backend's own loop


def _chosen(logits: mx.array, tokens: mx.array, top: mx.array) -> mx.array:
    return (mx.take_along_axis(logits, tokens[..., None], axis=-1) - top).squeeze(-1)


def _shifted_exp(logits: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """The maximum [..., 1], x = logits - maximum, and exp(x) = 2**n exp(r) with r = x - n ln 2.

    x is held above -87, where the result is 2**-126 and not 0: so a logit of -inf adds nothing to the entropy, and not
    0 times inf. In three kernels, for one that returns two arrays is not vectorised.
    """
    top = logits.max(axis=-1, keepdims=True)
    shifted = mx.maximum(logits - top, -87.0)
    n = _exponent(shifted)
    return top, shifted, _mantissa(shifted, n) * _power_of_two_bits(n).view(mx.float32)


@partial(mx.compile, shapeless=True)
def _exponent(x: mx.array) -> mx.array:
    return x * _LOG2E + _ROUND - _ROUND


@partial(mx.compile, shapeless=True)
def _mantissa(x: mx.array, n: mx.array) -> mx.array:
    r = (x - n * _LN2_HIGH - n * _LN2_LOW) * 0.25
    quarter = ((r * (1 / 24) + 1 / 6) * r + 0.5) * r * r + r + 1.0  # |r| < 0.087: Taylor to within 4e-8
    half = quarter * quarter
    return half * half


@partial(mx.compile, shapeless=True)
def _power_of_two_bits(n: mx.array) -> mx.array:
    return (n + 127.0).astype(mx.int32) * (1 << 23)


@partial(mx.compile, shapeless=True)
def _held(x: mx.array) -> mx.array:
    return mx.clip(x, -50.0, 50.0)  # beyond, the approximant of exp turns back towards 1


def _sigmoid(x: mx.array) -> mx.array:
    """1 / (1 + exp(-x)) to within 1e-6, by exp(-x) = exp(-x / 16)**16 and the [2/2] Pade approximant of exp.

    Few operations, for inside a gradient MLX does not fuse and each of them is a pass over memory.
    """
    x = _held(x)
    even, odd = 1.0 + mx.square(x * (1 / 16 / 12**0.5)), x * (1 / 32)
    e = mx.square(mx.square(mx.square(mx.square((even - odd) / (even + odd)))))
    return mx.reciprocal(1.0 + e)


@partial(mx.compile, shapeless=True)
def _swiglu(gate: mx.array, x: mx.array) -> mx.array:
    return gate * _sigmoid(gate) * x


def _swiglu_gradients(gate: mx.array, x: mx.array, cotangent: mx.array) -> tuple[mx.array, mx.array]:
    """d/dg = x s (1 + g (1 - s)),  d/dx = g s, with s = sigmoid(g)."""
    s = _sigmoid(gate)
    silu, scaled = gate * s, cotangent * s
    return scaled * x * (1.0 + gate - silu), scaled * gate
