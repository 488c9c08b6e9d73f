"""Micro-batches: sequences packed into parts that fit the memory, and the gradient of a step summed over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import TypeVar

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from trainer.distributed.ranks import Ranks
from trainer.models.grad_checkpoint import checkpointed
from trainer.models.trunk import differentiable

Tree = TypeVar("Tree")  # parameters, as `put` takes them
Part = TypeVar("Part")  # a micro-batch
Row = TypeVar("Row")
Measured = TypeVar("Measured")  # what a loss measures on the way: a tree of arrays


def micro_batch_rows(
    lengths: Sequence[int],
    budget: int,
    *,
    counts: Sequence[int] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[list[int]]:
    """Yield rows in groups of similar length whose padded tokens stay within `budget`.

    A row over the budget forms its own group.

    lengths: tokens of each row. counts: sequences of each row, if a row has several, of which `lengths` has the
    longest. progress: called after each group with the number of rows done and the total. The longest come first, so
    that memory peaks at the start.
    """
    group: list[int] = []
    sequences = 0
    for place, row in enumerate(sorted(range(len(lengths)), key=lambda row: -lengths[row])):
        count = 1 if counts is None else counts[row]
        if group and lengths[group[0]] * (sequences + count) > budget:
            yield group
            progress(place, len(lengths))
            group, sequences = [], 0
        group.append(row)
        sequences += count
    if group:
        yield group
        progress(len(lengths), len(lengths))


def _added(one: Measured, other: Measured) -> Measured:
    return type(one)(*map(mx.add, one, other))  # type: ignore[call-overload]


def accumulate(
    loss: Callable[[Part], tuple[mx.array, Measured]],
    parameters: Tree,
    parts: Iterable[Part],
    *,
    put: Callable[[Tree], None],
    backbone: nn.Module,
    grad_checkpoint: bool = False,
    join: Callable[[Measured, Measured], Measured] = _added,
) -> tuple[Tree, Measured]:
    """Return the gradient of the summed `loss` over `parts`, and the measurements of all parts.

    loss: must divide by the weight of the whole step, so that the result does not depend on the parts. put: writes
    parameters into the model; the real ones are there again whenever `parts` is asked for the next one, and at the
    end, even on error. backbone: in training mode meanwhile. grad_checkpoint: compute its blocks again in the backward
    pass. join: puts the measurements of two parts together; by default, adds the arrays of a NamedTuple.
    """

    def measured(traced: Tree, part: Part) -> tuple[mx.array, Measured]:
        put(traced)
        return loss(part)

    loss_and_grad = mx.value_and_grad(measured)
    mx.eval(parameters)  # read from a file, they may wait for it
    total: Tree | None = None
    found: Measured | None = None
    with differentiable(backbone), checkpointed(backbone) if grad_checkpoint else nullcontext():
        for part in parts:
            try:
                # Of a copy: where the loss raises an error, MLX leaves its tracers in the tree that it was given.
                (value, new), gradients = loss_and_grad(tree_map(lambda array: array, parameters), part)
            finally:
                put(parameters)  # the traced arrays must not stay in the model
            mx.eval(gradients, new)  # frees this micro-batch's graph: a toy peaks at 2.9 MB, not 16.0
            total = gradients if total is None else tree_map(mx.add, total, gradients)
            found = new if found is None else join(found, new)
            mx.eval(total, found)
            del part, value, gradients, new  # not to be held while the next part is computed
    assert total is not None
    assert found is not None
    return total, found


def shared_gradient(
    ranks: Ranks,
    rows: Sequence[Row],
    tokens: Sequence[int],
    gradient: Callable[[Sequence[Row]], tuple[Tree, Measured]],
) -> tuple[Tree, Measured]:
    """Return the gradient of a step on `rows` and its measurements, where each rank computes those of its share.

    tokens: of each row, by which the rows are dealt. gradient: as `accumulate` returns it, for some of the rows; the
    loss must be divided by the weight of the whole step. Of fewer rows than ranks, all compute the whole and take the
    first one's.
    """
    if ranks.alone:
        return gradient(rows)
    is_dealt = len(rows) >= ranks.size
    share = [rows[place] for place in ranks.dealt(tokens)] if is_dealt else rows
    with ranks.all_or_none():
        found = gradient(share)
    return ranks.summed(found) if is_dealt else ranks.from_first(found)
