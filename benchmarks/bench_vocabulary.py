"""Compare log-probs in chunks of positions with those of all logits at once: peak of MLX's allocations, and time.

Run: .venv/bin/python benchmarks/bench_vocabulary.py [--rounds 3]

A random head is put on random hidden states of one sequence. "forward" computes the log-prob of each token, "gradient"
also the gradient of their sum by the states. Both ways run in turns; memory does not count the head.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import NamedTuple

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx

from trainer.models.logprobs import token_logprobs
from trainer.models.vocabulary import at_positions

HEADS = {49_152: 576, 151_936: 1024}  # inputs by vocabulary: SmolLM2-135M, Qwen3-0.6B


class Problem(NamedTuple):
    """Log-probs of T tokens."""

    head: mx.array  # [V, D]
    states: mx.array  # [1, T, D]
    tokens: mx.array  # [1, T]


def main() -> None:
    """Measure every size and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each, after one more (default: 3)")
    parser.add_argument("--vocabularies", nargs="+", type=int, choices=HEADS, default=list(HEADS))
    parser.add_argument("--positions", nargs="+", type=int, default=[256, 1024])
    options = parser.parse_args()
    print("| vocabulary | positions | pass | at once, MB | in chunks, MB | at once, s | in chunks, s |")
    print("|---|---|---|---|---|---|---|")
    for vocabulary in options.vocabularies:
        for positions in options.positions:
            given = problem(vocabulary, positions)
            for name, ways in (("forward", (at_once, in_chunks)), ("gradient", (with_gradient(at_once), chunked()))):
                found = compared(given, ways, options.rounds)
                sizes = " | ".join(f"{peak / 1e6:,.0f}" for peak, _ in found)
                times = " | ".join(f"{seconds:.2f}" for _, seconds in found)
                print(f"| {vocabulary:,} | {positions:,} | {name} | {sizes} | {times} |", flush=True)


def problem(vocabulary: int, positions: int) -> Problem:
    """Return a random problem."""
    width = HEADS[vocabulary]
    keys = mx.random.split(mx.random.key(0), 3)
    given = Problem(
        mx.random.normal((vocabulary, width), key=keys[0]) * width**-0.5,
        mx.random.normal((1, positions, width), key=keys[1]),
        mx.random.randint(0, vocabulary, (1, positions), key=keys[2]),
    )
    mx.eval(given)
    return given


def at_once(given: Problem, states: mx.array) -> mx.array:
    """Compute the log-probs from the logits of all positions."""
    return token_logprobs(states @ given.head.T, given.tokens)


def in_chunks(given: Problem, states: mx.array, *, gradient: bool = False) -> mx.array:
    """Compute the log-probs as the trainer does."""

    def compute(logits: mx.array, tokens: mx.array) -> tuple[mx.array, ...]:
        return (token_logprobs(logits, tokens),)

    mask = mx.ones(given.tokens.shape)
    columns = {"tokens": given.tokens}
    return at_positions(lambda x: x @ given.head.T, states, mask, compute, columns, gradient=gradient)[0]


def with_gradient(way: Callable[[Problem, mx.array], mx.array]) -> Callable[[Problem, mx.array], mx.array]:
    """Return a function that computes the gradient of the sum of a way's log-probs by the states."""

    def gradient(given: Problem, states: mx.array) -> mx.array:
        found: mx.array = mx.grad(lambda states: way(given, states).sum())(states)
        return found

    return gradient


def chunked() -> Callable[[Problem, mx.array], mx.array]:
    """Return the trainer's way to the same gradient."""
    return with_gradient(partial(in_chunks, gradient=True))


def compared(
    given: Problem, ways: tuple[Callable[[Problem, mx.array], mx.array], ...], rounds: int
) -> list[tuple[float, float]]:
    """Return peak in bytes and median seconds of each way. Raises SystemExit if their results differ."""
    results = [way(given, given.states) for way in ways]
    if not mx.allclose(*results, rtol=1e-3, atol=1e-4).item():
        raise SystemExit("the two ways differ")
    del results
    peaks, seconds = [0.0] * len(ways), [list[float]() for _ in ways]
    for _ in range(rounds):
        for place, way in enumerate(ways):
            mx.clear_cache()
            held = mx.get_active_memory()
            mx.reset_peak_memory()
            started = time.perf_counter()
            mx.eval(way(given, given.states))
            seconds[place].append(time.perf_counter() - started)
            peaks[place] = max(peaks[place], mx.get_peak_memory() - held)
    return list(zip(peaks, map(median, seconds), strict=True))


if __name__ == "__main__":
    main()
