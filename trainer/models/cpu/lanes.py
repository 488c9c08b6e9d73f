"""Lanes: micro-batches that are computed side by side on the cores of a CPU.

A BLAS that shares each product among the cores waits for the slowest of them some thousand times in a pass. Where other
programs run, that is most of the time. Lanes meet only at the end of their micro-batches. On an idle machine they are
slower, because products with all cores leave the memory to what is not a product. `benchmarks/bench_lanes.py` compares
both.
"""

from __future__ import annotations

import atexit
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

import mlx.core as mx

from trainer.models.cpu.blas import blas_threads, threads_each
from trainer.models.cpu.denormals import start_compute_threads

BUILDING = threading.RLock()
"""Held while a graph is built from a model whose modules or parameters are replaced meanwhile."""

Part = TypeVar("Part")
Result = TypeVar("Result")
_busy = 1  # lanes that compute now


class _Worker:
    """A thread for one more lane, kept until the program ends: a BLAS holds 150 KB of each that ever used it."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="lane", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def start(self, work: Callable[[], None]) -> threading.Event:
        """Have the thread do `work`, which raises no error; return an event that is set at its end."""
        done = threading.Event()
        self._work.put((work, done))
        return done

    def _run(self) -> None:
        start_compute_threads()
        while (given := self._work.get()) is not None:
            work, done = given
            work()
            del given, work  # else what it computed is held until the next
            done.set()
        mx.clear_streams()  # MLX aborts the process if a thread ends with its streams

    def _stop(self) -> None:
        self._work.put(None)
        self._thread.join()


_idle: list[_Worker] = []


def busy_lanes() -> int:
    """Return how many lanes share the memory at present."""
    return _busy


def lanes_for(lengths: Sequence[int], budget: int, most: int) -> int:
    """Return how many micro-batches of these rows to compute side by side, with at most `budget` tokens in all.

    One on a GPU, and on a CPU whose BLAS uses one thread. lengths: tokens of each row; most: `optim.lanes`.
    """
    if not lengths or mx.default_device() != mx.Device(mx.cpu):
        return 1
    return max(1, min(most, blas_threads(), len(lengths), budget // max(lengths)))


def lane_budget(lengths: Sequence[int], budget: int, lanes: int) -> int:
    """Return the tokens of a micro-batch, so that each of `lanes` has one of about the same size."""
    if lanes == 1 or not lengths:
        return budget
    return min(budget // lanes, max(lengths) * -(-len(lengths) // lanes))


def side_by_side(compute: Callable[[Part], Result], parts: Iterable[Part], lanes: int = 1) -> Iterator[Result]:
    """Yield `compute` of each of `parts`, in their order, `lanes` of them at a time.

    compute: must evaluate what it returns, and hold BUILDING while it replaces modules or parameters of the model. What
    it uses must be evaluated, since MLX computes an array only on the thread that made it; the arrays of a part are
    evaluated here. The next parts are taken, and results are used, on the calling thread while nothing is computed. An
    error in any lane is raised here, once all of them are done.
    """
    if lanes == 1:
        yield from map(compute, parts)
        return
    rest = iter(parts)
    while now := list(itertools.islice(rest, lanes)):
        mx.eval(now)
        yield from _computed(compute, now)


def _computed(compute: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
    global _busy
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def run(number: int) -> None:
        try:
            results[number] = compute(parts[number])
        except BaseException as error:  # noqa: BLE001  raised below
            errors[number] = error

    others = [_idle.pop() if _idle else _Worker() for _ in parts[1:]]
    _busy = len(parts)
    try:
        with threads_each(max(1, blas_threads() // len(parts))):
            done = [other.start(partial(run, number)) for number, other in enumerate(others, 1)]
            run(0)
            for event in done:
                event.wait()
    finally:
        _busy = 1
        _idle.extend(others)
    for number in sorted(errors):
        raise errors[number]
    for number in range(len(parts)):
        yield results.pop(number)  # so that only the caller holds it: gradients are added in place
