"""Compare the functions of trainer/models/cpu with MLX's own functions on the CPU: time, ratio and error, in one table.

Run: .venv/bin/python benchmarks/bench_elementwise.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
import numpy as np
from mlx_lm.models.activations import swiglu
from mlx_lm.models.base import scaled_dot_product_attention as theirs_attention

from trainer import maths
from trainer.models.cpu import kernels as cpu
from trainer.models.cpu.kernels import attention as our_attention

ROUNDS = 10
VOCABULARY, TOKENS, WIDTH = 49152, 96, 1536


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds of the fastest of ROUNDS calls, after a warm-up. Other load only makes a call slower."""
    mx.eval(run())
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        mx.eval(run())
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Time each function, print the table, then the largest errors of the log-probs."""
    gate, x = mx.random.normal((512, WIDTH)) * 4, mx.random.normal((512, WIDTH))
    logits, tokens = mx.random.normal((TOKENS, VOCABULARY)) * 4, mx.random.randint(0, VOCABULARY, (TOKENS,))
    mx.eval(gate, x, logits, tokens)

    def gradient(function: Callable[[mx.array, mx.array], mx.array]) -> Callable[[], object]:
        return lambda: mx.value_and_grad(lambda a: function(a, tokens).sum())(logits)

    def gradient_swiglu(function: Callable[[mx.array, mx.array], mx.array]) -> Callable[[], object]:
        return lambda: mx.value_and_grad(lambda a: function(a, x).sum())(gate)

    def heads(length: int) -> list[mx.array]:
        return [mx.random.normal((4, count, length, 64)) for count in (9, 3, 3)]

    def attention(function: Callable[..., mx.array], heads: list[mx.array]) -> mx.array:
        return function(*heads, None, 0.125, "causal")

    def gradient_attention(function: Callable[..., mx.array], heads: list[mx.array]) -> object:
        return mx.value_and_grad(lambda *x: attention(function, list(x)).sum(), argnums=[0, 1, 2])(*heads)

    rows: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
        ("SwiGLU", lambda: swiglu(gate, x), lambda: cpu.swiglu(gate, x)),
        ("SwiGLU with gradient", gradient_swiglu(swiglu), gradient_swiglu(cpu.swiglu)),
        ("log-prob", lambda: maths.token_logprobs(logits, tokens), lambda: cpu.token_logprobs(logits, tokens)),
        ("log-prob with gradient", gradient(maths.token_logprobs), gradient(cpu.token_logprobs)),
        (
            "log-prob and entropy",
            lambda: (maths.token_logprobs(logits, tokens), maths.entropy(logits)),
            lambda: cpu.logprobs_and_entropy(logits, tokens),
        ),
    ]
    for length in (64, 512):
        for name, run in (("", attention), (" with gradient", gradient_attention)):
            both = (partial(run, function, heads(length)) for function in (theirs_attention, our_attention))
            rows.append((f"attention, {length}{name}", *both))
    print(f"{'function':28} {'MLX ms':>8} {'ours ms':>8} {'ratio':>6}")
    for name, theirs, ours in rows:
        a, b = seconds(theirs) * 1e3, seconds(ours) * 1e3
        print(f"{name:28} {a:8.1f} {b:8.1f} {a / b:6.1f}")

    exact = np.array(logits, dtype=np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    log_total = np.log(np.exp(exact).sum(axis=1))
    truth = exact[np.arange(TOKENS), np.array(tokens)] - log_total
    for name, found in (("MLX", maths.token_logprobs(logits, tokens)), ("ours", cpu.token_logprobs(logits, tokens))):
        print(f"largest error of a log-prob against float64, {name}: {np.abs(np.array(found) - truth).max():.1e}")


if __name__ == "__main__":
    main()
