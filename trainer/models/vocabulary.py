"""Functions of logits at the real positions of a batch, some positions at a time: never the logits of all at once.

Logits are by far the largest arrays of scoring and training: a vocabulary of 150,000 words takes 600 KB a position, and
the gradient several times that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np

CHUNK = 128
"""Positions at a time on a CPU, where about ten arrays of their logits are alive at once; twice as many on a GPU.

Each chunk reads all weights of the head, which takes longer than the product itself if there are few positions.
"""

Head = Callable[[mx.array], mx.array]  # from hidden states [B, T, D] to logits [B, T, V]
Compute = Callable[..., tuple[mx.array, ...]]
Columns = dict[str, mx.array]


def at_positions(
    head: Head, states: mx.array, mask: mx.array, compute: Compute, columns: Columns, *, gradient: bool = False
) -> tuple[mx.array, ...]:
    """Return the results of `compute` at the real positions of a batch: [B, T, ...] each, 0 elsewhere.

    Nothing at other positions is read. Without `gradient`, the results are evaluated. With it, they are lazy, and the
    first one is differentiable by `states`; the others are constants. Its gradient is computed along with it, while the
    logits are there, so it takes no pass over them later.

    states: [B, T, D]; mask: [B, T], 1.0 on the real positions. compute: takes logits [n, V] and `columns` [n, ...] of n
    positions, and returns arrays [n, ...]; a result may depend on its own position alone. columns: [B, T, ...].
    """
    places = mx.array(np.flatnonzero(np.array(mask) > 0).astype(np.int32))

    def real(x: mx.array) -> mx.array:
        return x.reshape(-1, *x.shape[2:])[places]

    def scattered(x: mx.array) -> mx.array:
        flat = mx.zeros((mask.size, *x.shape[1:]), dtype=x.dtype).at[places].add(x)
        return flat.reshape(*mask.shape, *x.shape[1:])

    def of_chunk(states: mx.array, columns: Columns) -> tuple[mx.array, ...]:
        return compute(head(states[None])[0], **columns)

    if not places.size:  # one position gives the shapes, and is not evaluated
        shapes = of_chunk(states[:1, 0], {name: x[:1, 0] for name, x in columns.items()})
        return tuple(mx.zeros((*mask.shape, *x.shape[1:]), dtype=x.dtype) for x in shapes)
    chosen = {name: real(x) for name, x in columns.items()}
    size = CHUNK if mx.default_device() == mx.Device(mx.cpu) else 2 * CHUNK
    run = _with_gradient if gradient else _evaluated
    return tuple(map(scattered, run(of_chunk, real(states), chosen, size)))


def _evaluated(of_chunk: Compute, states: mx.array, columns: Columns, size: int) -> tuple[mx.array, ...]:
    """Evaluate chunk after chunk. Returns [N, ...] arrays."""
    parts = []
    for part, others in _chunks(states, columns, size):
        parts.append(of_chunk(part, others))
        mx.eval(parts[-1])  # frees the logits of this chunk
    return _joined(parts)


def _with_gradient(of_chunk: Compute, states: mx.array, columns: Columns, size: int) -> tuple[mx.array, ...]:
    """Return lazy [N, ...] arrays, the first with its gradient by `states` [N, D].

    A result depends on the state of its own position alone, so the gradient of the sum of a chunk's results holds that
    of each. In a gradient, evaluated arrays keep their graphs, logits and all. So nothing is evaluated here: each chunk
    waits for the one before.
    """

    def summed(states: mx.array, columns: Columns) -> tuple[mx.array, tuple[mx.array, ...]]:
        results = of_chunk(states, columns)
        return results[0].sum(), results

    of_sum: Any = mx.value_and_grad(summed)

    @mx.custom_function
    def run(states: mx.array) -> tuple[mx.array, ...]:
        parts: list[tuple[mx.array, ...]] = []
        for part, others in _chunks(mx.stop_gradient(states), columns, size):
            after = mx.depends([part], list(parts[-1]))[0] if parts else part
            (_, results), gradient = of_sum(after, others)
            parts.append((*results, gradient))
        return _joined(parts)

    @run.vjp
    def by_state(primals: Any, cotangents: Any, outputs: Any) -> Any:
        gradient = outputs[-1]
        return (gradient.astype(mx.float32) * cotangents[0][:, None]).astype(gradient.dtype)

    found: tuple[mx.array, ...] = run(states)  # type: ignore[assignment]
    return found[:-1]


def _chunks(states: mx.array, columns: Columns, size: int) -> Iterator[tuple[mx.array, Columns]]:
    for start in range(0, states.shape[0], size):
        here = slice(start, start + size)
        yield states[here], {name: x[here] for name, x in columns.items()}


def _joined(parts: list[tuple[mx.array, ...]]) -> tuple[mx.array, ...]:
    return tuple(mx.concatenate(list(column)) for column in zip(*parts, strict=True))
