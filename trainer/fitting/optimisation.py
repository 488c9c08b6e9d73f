"""Gradients over micro-batches, Adam with its schedule, and reports of phases, for training of every kind.

Micro-batches fit the memory. Checkpoints hold Adam's tree.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeVar, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_map

from trainer.arrays import clear_cache, leaves, to_list
from trainer.config.pairs import PairsOptimConfig
from trainer.config.schema import OptimConfig
from trainer.distributed.ranks import Ranks
from trainer.errors import DivergedError
from trainer.events import Alert, Phase, PhaseProgress, Progress, Report, ignored
from trainer.models.adapters import Parameters
from trainer.models.forward import checkpointed

MAX_SKIPPED_IN_A_ROW = 3
Tree = TypeVar("Tree")  # of parameters or gradients
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
    end, even on error. backbone: in training mode meanwhile, with dropout off. grad_checkpoint: compute its blocks
    again in the backward pass. join: puts the measurements of two parts together; by default, adds the arrays of a
    NamedTuple.
    """

    def measured(traced: Tree, part: Part) -> tuple[mx.array, Measured]:
        put(traced)
        return loss(part)

    loss_and_grad = mx.value_and_grad(measured)
    mx.eval(parameters)  # read from a file, they may wait for it
    total: Tree | None = None
    found: Measured | None = None
    with ExitStack() as stack:
        stack.callback(backbone.eval)
        backbone.train()  # hybrid models then use operations with a gradient in place of Metal kernels without one
        for module in backbone.modules():
            if isinstance(module, nn.Dropout):
                module.eval()
        if grad_checkpoint:
            stack.enter_context(checkpointed(backbone))
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


class StepOptimizer:
    """Adam of a run that counts steps from 1, with one learning rate on a schedule over `total_steps`."""

    def __init__(self, config: PairsOptimConfig, parameters: Parameters, *, total_steps: int) -> None:
        self.config = config
        self.total_steps = total_steps
        self._adam = adam(config, parameters)

    def learning_rate(self, number: int) -> float:
        """Return the learning rate of step `number`. The warm-up is a share of the steps."""
        warmup = round(self.config.warmup * self.total_steps)
        return self.config.lr * schedule_factor(self.config, number - 1, self.total_steps, warmup=warmup)

    def step(
        self, number: int, gradients: Parameters, loss: float, parameters: Parameters, put: Callable[[Parameters], None]
    ) -> dict[str, Any]:
        """Take step `number` from `parameters`, unless `loss` or the gradient is NaN or inf; `put` gets the new ones.

        Returns the fields `grad_norm`, before clipping, and `skipped` of the step's event.
        """
        norm = global_norm(gradients)
        taken = math.isfinite(norm) and math.isfinite(loss)
        if taken:
            self._adam.learning_rate = self.learning_rate(number)
            after = self._adam.apply_gradients(clipped(gradients, norm, self.config.max_grad_norm), parameters)
            mx.eval(after, self._adam.state)  # otherwise the next step's graph would include this one's
            put(after)
        return {"grad_norm": norm, "skipped": not taken}

    def state(self) -> dict[str, Any]:
        """Return moments and step count as one tree of arrays."""
        return copied(self._adam.state)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self._adam.state = copied(state)


def adam(config: OptimConfig | PairsOptimConfig, parameters: Parameters) -> optim.AdamW:
    """Return Adam with decoupled weight decay and bias correction, ready for `parameters`."""
    betas = [config.beta1, config.beta2]
    made = optim.AdamW(0.0, betas=betas, eps=config.eps, weight_decay=config.weight_decay, bias_correction=True)
    made.init(parameters)
    return made


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """Return Adam's state as a tree of its own, because Adam changes its tree in place."""
    return cast("dict[str, Any]", tree_map(lambda x: x, state))


def global_norm(gradients: Any) -> float:
    """Return the norm of all gradients in a tree together."""
    squares = [mx.square(gradient).sum() for gradient in leaves(gradients)]
    # One wait for all sums, which are rounded once: a resumed run has its arrays in a different order.
    return math.sqrt(math.fsum(to_list(mx.stack(squares)) if squares else ()))


def clipped(gradients: Tree, norm: float, max_norm: float) -> Tree:
    """Return `gradients`, whose global norm is `norm`, scaled down to at most `max_norm`."""
    scale = min(1.0, max_norm / (norm + 1e-6))
    return cast("Tree", tree_map(lambda gradient: gradient * scale, gradients))


def schedule_factor(config: OptimConfig | PairsOptimConfig, step: int, total: int, *, warmup: int) -> float:
    """Return the factor on the learning rates at `step` (from 0) of `total`.

    It rises linearly over `warmup` steps, then follows the schedule.
    """
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "constant":
        return 1.0
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    return 1 - progress if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))


def optimizer_trees(flat: Parameters, sides: Mapping[str, Parameters]) -> dict[str, dict[str, Any]]:
    """Return Adam's state for the parameters of each side, from arrays with names like `policy.<parameter name>.m`.

    The names of a side "" have no prefix. Raises ValueError if an array is missing, has another shape, or is of nothing
    that is trained.
    """
    flat, trees = dict(flat), dict[str, dict[str, Any]]()
    for side, parameters in sides.items():
        prefix, tree = f"{side}." if side else "", dict[str, Any]()
        for name, parameter in parameters.items():
            tree[name] = {leaf: flat.pop(f"{prefix}{name}.{leaf}", None) for leaf in ("m", "v")}
            if any(moment is None or moment.shape != parameter.shape for moment in tree[name].values()):
                raise ValueError(f"the optimiser lacks the moments {list(parameter.shape)} of '{prefix}{name}'")
        for name in ("step", "learning_rate"):
            if f"{prefix}{name}" in flat:
                tree[name] = flat.pop(f"{prefix}{name}")
            if parameters and (name not in tree or tree[name].size != 1):
                raise ValueError(f"the optimiser lacks the number '{prefix}{name}'")
        trees[side] = tree
    if flat:
        raise ValueError(f"the optimiser has an array of nothing that is trained, '{min(flat)}'")
    return trees


class Phases:
    """Reporter and timer of phases. clock: seconds, on one that stops while a run is paused.

    The report of a phase with `done = 0` is its start. seconds: duration of each timed phase since the last `begin`;
    memory: peak of MLX's own allocations, bytes.
    """

    def __init__(self, report: Report = ignored, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.begin()
        self.latest: Phase | None = None
        """Phase that was reported last."""
        self._report = report

    def begin(self) -> None:
        """Forget the phases before."""
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, int] = {}
        self.began = self.clock()

    def start(self, iteration: int, phase: Phase, *, passes: int = 1) -> Progress:
        """Report the start of a phase; return a function that reports (done, total) of each of its `passes`."""
        finished = 0
        self.latest = phase

        def progress(done: int, total: int) -> None:
            nonlocal finished
            if finished or done:
                done_of_all, all_of_it = finished * total + done, total * passes
                self._report(PhaseProgress(iteration=iteration, phase=phase, done=done_of_all, total=all_of_it))
            finished += done == total

        self._report(PhaseProgress(iteration=iteration, phase=phase, done=0, total=1))
        return progress

    @contextmanager
    def __call__(self, iteration: int, phase: Phase, *, passes: int = 1) -> Iterator[Progress]:
        """Time a phase, which may have several parts; yield what `start` returns."""
        progress = self.start(iteration, phase, passes=passes)
        started = self.clock()
        mx.reset_peak_memory()
        yield progress
        self.memory[phase] = max(mx.get_peak_memory(), self.memory.get(phase, 0))
        clear_cache()  # phases differ in shapes, so the next cannot reuse these buffers
        self.seconds[phase] = self.clock() - started + self.seconds.get(phase, 0.0)


class SkippedSteps:
    """Counter of steps that were skipped in a row because loss or gradient was NaN or inf.

    unit: what the run counts. hint: ends the alert. remedy: returns the advice in the error, when it is raised.
    """

    def __init__(self, unit: Literal["iteration", "step"], remedy: Callable[[], str], *, hint: str = "") -> None:
        self.in_a_row = 0
        self._unit = unit
        self._remedy = remedy
        self._hint = hint

    def after(self, number: int, *, skipped: bool, report: Report) -> None:
        """Report a step of `number` if it was skipped. Raises DivergedError at the third in a row."""
        if not skipped:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        message = f"loss or gradient was NaN or inf: the step was skipped{self._hint}"
        report(Alert(iteration=number, level="warning", code="step_skipped", message=message))
        if self.in_a_row == MAX_SKIPPED_IN_A_ROW:
            raise DivergedError(
                f"loss or gradient was NaN or inf {MAX_SKIPPED_IN_A_ROW} times in a row at {self._unit} {number}: "
                f"{self._remedy()}"
            )
