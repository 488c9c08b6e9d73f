"""Kernels of MLX's CPU backend: vectorised exponentials, attention, and the folder and failures of compiled kernels.

MLX computes exp, tanh and sigmoid on a CPU one number at a time. With those, SwiGLU and the softmax over the vocabulary
cost as much as the matrix products. These versions use sums and products, which the C++ compiler turns into vector
instructions. They are 3 to 10 times as fast when fused by `mx.compile`, and about twice as fast inside a gradient,
where MLX does not fuse. They are not for a GPU. Each shape is compiled separately: `shapeless=True` gives slower code.

Two functions of mlx-lm are exchanged in a family's module. On two AMD cores, 8 sequences of 68 tokens through the
starter model, the scores take 1.10 times as long without our attention and 1.28 times without our SwiGLU; the gradient
1.05 and 1.12 times.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import activations, base

from trainer.errors import ModelError, one_line, shortened

_SHAPES = 64  # that each compiled function keeps
_BLOCK = 256
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # the first has few bits, so its product with n is exact
_ROUNDING = 1.5 * 2**23  # a float32 of this size has no bits after the point
_EXP_POLYNOMIAL = (  # of (exp(f) - 1 - f) / f^2, highest power first
    *(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3),
    *(4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
)
_LEAST = -1e30  # a score that counts for nothing, but leaves a row of nothing else finite

Result = TypeVar("Result")


def _compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """Compile `function` of arrays for each shape, and forget the shapes that were used longest ago.

    `mx.compile` keeps 8 to 40 KB for every shape until the compiled function is deleted, and the lengths of responses
    give a run thousands of shapes.
    """
    made: dict[tuple[tuple[int, ...], ...], Callable[..., Result]] = {}  # by shapes, those used longest ago first

    def call(*arrays: mx.array) -> Result:
        shapes = tuple(array.shape for array in arrays)
        # MLX tells compiled functions apart by the function that was compiled, so each needs one of its own.
        made[shapes] = made.pop(shapes) if shapes in made else mx.compile(lambda *arrays: function(*arrays))
        if len(made) > _SHAPES:
            del made[next(iter(made))]
        return made[shapes](*arrays)

    return call


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """Compute silu(gate) * x, elementwise; both of one shape and float type.

    The exponential squares its error several times, so it needs float32 whatever the type.
    """
    product: mx.array = _swiglu_and_sigmoid(gate.astype(mx.float32), x.astype(mx.float32))[0]  # type: ignore[index]
    return product.astype(gate.dtype)


@mx.custom_function
def _swiglu_and_sigmoid(gate: mx.array, x: mx.array) -> tuple[mx.array, mx.array]:
    s = _sigmoid(gate)
    return gate * s * x, s  # s is for the gradient


@_swiglu_and_sigmoid.vjp
def _swiglu_vjp(primals: Any, cotangents: Any, outputs: Any) -> Any:
    """Compute the gradient: d/dg = x s (1 + g (1 - s)),  d/dx = g s, with s = sigmoid(g)."""
    (gate, x), s = primals, outputs[1]
    silu, scaled = gate * s, cotangents[0] * s
    return scaled * x * (1.0 + gate - silu), scaled * gate


@_compiled
def exponentials(x: mx.array) -> mx.array:
    """Compute exp(x), elementwise, for x <= 0; 0 where it is below exp(-80). float32; not differentiable."""
    return mx.where(x > -80.0, _exp(mx.maximum(x, -87.0), halvings=6), 0.0)


@_compiled
def precise_exponentials(x: mx.array) -> mx.array:
    """Compute exp(x), elementwise, for x <= 0, with a relative error of 1e-7; 2e-38 below -87. Not differentiable.

        exp(x) = 2^n exp(f),   n = round(x / ln 2),   |f| <= ln(2) / 2

    The exponential of the remainder f is the polynomial of Cephes' expf; 2^n is made of its bits. Unlike `_exp`, it
    does not enlarge a rounding of x, and takes a third longer. float32.
    """
    x = mx.maximum(x, -87.0)
    n = (x * _LOG2_E + _ROUNDING) - _ROUNDING
    f = (x - n * _LN2_HIGH) - n * _LN2_LOW
    power = mx.array(0.0)
    for coefficient in _EXP_POLYNOMIAL:
        power = power * f + coefficient
    bits = (n + 127.0).astype(mx.int32) * 2**23
    return (power * f * f + f + 1.0) * bits.view(mx.float32)


@mx.custom_function
def log_softmax_at(logits: mx.array, tokens: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Compute log softmax(logits)[token], and what its gradient needs. logits: [..., V] float32; tokens: [...]."""
    top, _, exponentials = shifted_exp(logits)
    total = row_sums(exponentials)
    chosen = (mx.take_along_axis(logits, tokens[..., None], axis=-1) - top).squeeze(-1)
    return chosen - mx.log(total), exponentials, total  # the last two are for the gradient, to compute them only once


@log_softmax_at.vjp
def _log_softmax_at_vjp(primals: Any, cotangents: Any, outputs: Any) -> Any:
    """Compute the gradient: d log p_k / d l = onehot_k - p."""
    _, tokens = primals
    (_, exponentials, total), on_logprob = outputs, cotangents[0]
    gradient = exponentials * (-on_logprob / total)[..., None]
    here = mx.take_along_axis(gradient, tokens[..., None], axis=-1) + on_logprob[..., None]
    return mx.put_along_axis(gradient, tokens[..., None], here, axis=-1), mx.zeros_like(tokens)


@mx.custom_function
def divergence_of(logits: mx.array, ref_logits: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Compute KL(p || q), differentiable by `logits` alone, and what its gradient needs.

    logits, ref_logits: [..., V] float32.
    """
    _, shifted, exponentials = shifted_exp(logits)
    _, ref_shifted, ref_exponentials = shifted_exp(ref_logits)
    total, ref_total = (row_sums(x)[..., None] for x in (exponentials, ref_exponentials))
    gaps = _gaps(shifted, ref_shifted, mx.log(total / ref_total))
    probabilities = exponentials / total
    divergence = row_sums(probabilities * gaps)
    return divergence, probabilities, gaps  # the last two are for the gradient


@divergence_of.vjp
def _kl_divergence_vjp(primals: Any, cotangents: Any, outputs: Any) -> Any:
    """Compute the gradient: d KL / d l_v = p_v (log p_v - log q_v - KL)."""
    divergence, probabilities, gaps = outputs
    gradient = _kl_gradient(probabilities, gaps, divergence[..., None], cotangents[0][..., None])
    return gradient, mx.zeros_like(primals[1])


_gaps = _compiled(lambda shifted, ref_shifted, log_totals: shifted - ref_shifted - log_totals)  # log p - log q
_kl_gradient = _compiled(lambda p, gaps, divergence, factor: p * (gaps - divergence) * factor)
_shifted = _compiled(lambda logits, top: mx.maximum(logits - top, -87.0))
_softmax_exp = _compiled(lambda x: _exp(x, halvings=6))
_sigmoid = _compiled(lambda x: mx.reciprocal(1.0 + _exp(mx.clip(-x, -50.0, 50.0), halvings=4)))


def row_sums(x: mx.array) -> mx.array:
    """Sum over the last axis, by blocks first: adding 50,000 float32 numbers one by one has an error of 1e-4.

    BLAS adds each block, which is faster. It does not add whole rows, because its error on a long row depends on the
    processor.
    """
    whole = x.shape[-1] // _BLOCK * _BLOCK
    blocks = x[..., :whole].reshape(*x.shape[:-1], -1, _BLOCK) @ mx.ones((_BLOCK,))
    return blocks.sum(axis=-1) + x[..., whole:].sum(axis=-1)


def shifted_exp(logits: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Return the maximum [..., 1], x = logits - maximum, and exp(x).

    x is bounded below by -87, where exp(x) is tiny but not 0. A logit of -inf thus adds next to nothing to the entropy,
    instead of 0 times inf.
    """
    top = logits.max(axis=-1, keepdims=True)
    shifted = _shifted(logits, top)
    return top, shifted, _softmax_exp(shifted)


def _exp(x: mx.array, *, halvings: int) -> mx.array:
    """Compute exp(x) = exp(x / 2^k)^(2^k) with the [2/2] Pade approximant of exp, for |x| not far beyond 2^k.

        exp(y) = (1 + y/2 + y^2/12) / (1 - y/2 + y^2/12) + O(y^5 / 720)

    It uses few operations, because inside a gradient MLX does not fuse and each operation is a pass over memory. Added
    to 1, the result is accurate to 2e-6; its relative error grows where exp(x) is tiny.
    """
    scale = 0.5**halvings
    even, odd = 1.0 + mx.square(x * (scale / 12**0.5)), x * (scale / 2)
    power = (even + odd) / (even - odd)
    for _ in range(halvings):
        power = mx.square(power)
    return power


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

    As one function, it keeps only the weights P, [B, H, L, S], for its gradient, not the scores that they are made of.

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

    @mx.custom_function
    def forward(queries: mx.array, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        scores = (_grouped(queries * scale, keys) @ keys.swapaxes(-1, -2)).reshape(*queries.shape[:3], -1)
        if mask is not None:
            scores = mx.where(mask, scores, _LEAST) if mask.dtype == mx.bool_ else scores + mask
        weights = precise_exponentials(scores - scores.max(axis=-1, keepdims=True))
        weights = weights * mx.reciprocal(weights.sum(axis=-1, keepdims=True))
        return (_grouped(weights, keys) @ values).reshape(*queries.shape[:3], -1), weights

    @forward.vjp
    def backward(primals: Any, cotangents: Any, outputs: Any) -> Any:
        """Compute the gradients, with G that of the result: dV = P^T G, dP = G V^T, dS = P (dP - sum P dP)."""
        (queries, keys, values), weights = primals, outputs[1]
        on_result = _grouped(cotangents[0], keys)
        on_weights = (on_result @ values.swapaxes(-1, -2)).reshape(*queries.shape[:3], -1)
        weighted = weights * on_weights
        on_scores = _grouped(weighted - weights * weighted.sum(axis=-1, keepdims=True), keys)
        on_queries = (on_scores @ keys).reshape(*queries.shape) * scale
        on_keys = on_scores.swapaxes(-1, -2) @ _grouped(queries, keys) * scale
        return on_queries, on_keys, _grouped(weights, keys).swapaxes(-1, -2) @ on_result

    found: mx.array = forward(queries, keys, values)[0]  # type: ignore[index]
    return found


def _grouped(x: mx.array, keys: mx.array) -> mx.array:
    """Put the query heads that share their keys one below the other: [B, H, L, N] to [B, K, H / K * L, N]."""
    return x.reshape(*keys.shape[:2], -1, x.shape[-1])


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


_VARIABLES = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")  # in the order of C++'s temp_directory_path


def own_kernel_folder() -> None:
    """Make sure that only this user can put kernels where MLX looks for them.

    MLX compiles to `mlx/` in the folder for temporary files and loads any file there that has the name of a kernel. On
    a shared host that folder may belong to another user. Raises ModelError in that case.
    """
    folder = _kernel_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            folder.chmod(0o700)
            return
    except FileExistsError:
        pass
    except OSError:
        return  # MLX reports the problem when it first compiles
    raise ModelError(
        f"'{folder}' is not a folder of yours, and MLX would run compiled code that lies there: set TMPDIR to a folder "
        "that only you can write"
    )


def check_compiler(error: BaseException) -> None:
    """Raise ModelError if `error` says that MLX could not compile a kernel: then no model is to blame."""
    _, failed, rest = one_line(error).partition("[Compile::eval_cpu] Failed to compile function ")
    if failed:
        reason = rest.rpartition("the output is: ")[2] if "the output is: " in rest else rest.partition(": ")[2]
        raise ModelError(
            f"MLX could not compile a kernel ({shortened(reason, 200)}): check that g++ runs and that "
            f"'{_kernel_folder()}' has space, or set TMPDIR to another folder"
        ) from error


def _kernel_folder() -> Path:
    return Path(next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), "/tmp")) / "mlx"  # noqa: S108
