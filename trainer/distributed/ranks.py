"""The ranks of a run: the processes that train it together, and what they exchange by MLX's collectives."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten, tree_map

from trainer.arrays import leaves, to_list
from trainer.errors import RankError, one_line

Floats = npt.NDArray[np.float64]
Result = TypeVar("Result")
Tree = TypeVar("Tree")
Value = TypeVar("Value")  # of plain types, which JSON keeps

HUNG = 75
"""Exit code of a rank that another one has kept waiting for too long."""
_KEPT: dict[str, type[Exception]] = {"MemoryError": MemoryError, "RuntimeError": RuntimeError}
_PACKAGES = ("ppo-workbench", "mlx", "mlx-lm", "transformers")
_MODEL_FILES = (".safetensors", ".json", ".model", ".jinja")
_BLOCK = 1 << 24  # bytes hashed at either end of a file of the model


class Released(Exception):  # noqa: N818  nothing went wrong
    """End of what a rank does, because the first rank has ended it on request."""


class Ranks:
    """The processes that train one run together; each has the whole model. Alone, nothing is exchanged.

    The first rank leads: it has the run's folder, handles requests and begins each iteration by `lead`; the others
    `follow`. Inside an iteration all ranks run the same code and meet in the same exchanges, so each exchange is a
    method that every rank must call. seconds, sent: time spent in exchanges, with the waiting for others, and bytes
    given to them.
    """

    def __init__(self, group: mx.distributed.Group | None = None, *, timeout: float = 1800.0) -> None:
        self._group = group
        self._place = (0, 1) if group is None else (group.rank(), group.size())
        self.rank, self.size = self._place
        self.alone = self.size == 1  # this process trains the run by itself
        self.timeout = timeout  # seconds that an exchange may take
        self.hosts = [f"rank {rank}" for rank in range(self.size)]  # names for messages
        self.on_hang: Callable[[str], object] = lambda _: None
        """Called with the reason before the process ends because an exchange took too long, on another thread."""
        self.begin()
        self._began: float | None = None  # of the exchange under way
        self.idle = True
        """True while the other ranks wait for an order of the first one, which must give none otherwise."""
        self.same_state = False
        """True if all ranks have the state of the first one. Set it to False after a change on that one alone."""
        if self.size > 1:
            threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    @property
    def leads(self) -> bool:
        """Return whether this is the first rank."""
        return self.rank == 0

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Have this rank compute everything by itself inside the block, while the others wait for its word."""
        alone = self.alone
        self.rank, self.size, self.alone = 0, 1, True
        try:
            yield
        finally:
            self.rank, self.size = self._place
            self.alone = alone

    # Shares of the work

    def rows(self, count: int) -> list[int]:
        """Return this rank's share of `count` rows: neighbours, so that samples of one prompt stay together."""
        return [int(row) for row in np.array_split(np.arange(count), self.size)[self.rank]]

    def dealt(self, lengths: Sequence[int]) -> list[int]:
        """Return this rank's share of rows of these lengths, so that each has as many tokens as can be."""
        if self.alone:
            return list(range(len(lengths)))
        ordered = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        there, back = self.rank, self.size - 1 - self.rank  # else the first rank had the longest of each round
        starts = range(0, len(ordered), self.size)
        chosen = (start + (back if turn % 2 else there) for turn, start in enumerate(starts))
        return [ordered[place] for place in chosen if place < len(ordered)]

    def begin(self) -> None:
        """Count seconds and bytes from here on, where the work that all do begins."""
        self.seconds, self.sent = 0.0, 0

    def described(self, seconds: float, memory: int) -> list[dict[str, Any]]:
        """Return what each rank has done since `begin`, if there are several. memory: peak here, bytes."""
        if self.alone:
            return []
        here = {"host": self.hosts[self.rank], "seconds": seconds, "waiting": self.seconds, "sent": self.sent}
        return self.gather({**here, "memory_bytes": memory})

    # Exchanges of arrays

    def summed(self, tree: Tree) -> Tree:
        """Return the sums over all ranks of a tree's arrays, with the same bits on each rank.

        Names, shapes and types must be those of the other ranks. One exchange for each type of number.
        """
        if self.alone:
            return tree
        arrays = leaves(tree)
        by_name = sorted(range(len(arrays)), key=[str(pair[0]) for pair in tree_flatten(tree)].__getitem__)
        results: dict[int, mx.array] = {}
        for dtype in sorted({array.dtype for array in arrays}, key=str):
            # By name, because a state that was read from a file has its names in another order.
            places = [place for place in by_name if arrays[place].dtype == dtype]
            flat = mx.concatenate([arrays[place].reshape(-1) for place in places])
            total = self._exchange(mx.distributed.all_sum, flat)
            ends = np.cumsum([arrays[place].size for place in places])[:-1].tolist()
            for place, part in zip(places, mx.split(total, ends), strict=True):
                results[place] = part.reshape(arrays[place].shape)
        mx.eval(list(results.values()))
        rest = iter([results[place] for place in range(len(arrays))])
        summed: Tree = tree_map(lambda array: next(rest), tree)
        return summed

    def largest(self, array: mx.array) -> mx.array:
        """Return the maxima over all ranks of an array's numbers."""
        return array if self.alone else self._exchange(mx.distributed.all_max, array)

    def from_first(self, tree: Tree) -> Tree:
        """Return the first rank's tree of arrays; `tree` of the others gives the shapes."""
        return tree if self.alone else self.summed(tree if self.leads else tree_map(mx.zeros_like, tree))

    # Exchanges of plain values

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all ranks, in their order; lists, dicts, texts and numbers, as JSON has them."""
        if self.alone:
            return [value]
        data = json.dumps(value).encode()
        counts = to_list(self._exchange(mx.distributed.all_gather, mx.array([len(data)], dtype=mx.int32)))
        padded = np.zeros(max(counts), dtype=np.uint8)
        padded[: len(data)] = np.frombuffer(data, dtype=np.uint8)
        found = np.array(self._exchange(mx.distributed.all_gather, mx.array(padded))).reshape(self.size, -1)
        return [json.loads(row[:count].tobytes()) for row, count in zip(found, counts, strict=True)]

    def together(self, compute: Callable[[], Value]) -> list[Value]:
        """Return the results of `compute` on all ranks. If it fails on one, all raise, as in `all_or_none`."""
        if self.alone:
            return [compute()]
        with self.all_or_none():
            value = compute()
        return self.gather(value)

    def by_row(self, lengths: Sequence[int], compute: Callable[[list[int]], Floats]) -> Floats:
        """Return the numbers of N rows, of which each rank computes a share: [N, ...].

        lengths: tokens of each row. compute: returns the numbers of some rows, which it gets by position.
        """
        if self.alone:
            return compute(list(range(len(lengths))))
        share = self.dealt(lengths)
        shares = self.together(lambda: (share, compute(share).tolist()))
        rows = [row for part, _ in shares for row in part]
        return np.array([numbers for _, part in shares for numbers in part])[np.argsort(rows)]

    @contextmanager
    def all_or_none(self, *, ends: bool = False) -> Iterator[None]:
        """Run the block on every rank; if it fails on one, it fails on all. ends: they then all end.

        Raises the rank's own error, or RankError with that of another. What MLX raises, and MemoryError, keep their
        types, so that a failed allocation is one on every rank.
        """
        if self.alone:
            yield
            return
        problem: Exception | None = None
        try:
            yield
        except Exception as error:  # noqa: BLE001  raised again below, once the others know
            problem = error
        found = self.gather(None if problem is None else [type(problem).__name__, one_line(problem)])
        if all(what is None for what in found):
            return
        self.idle = not ends  # all of them return to where the first rank tells them what to do
        if problem is not None:
            raise problem
        rank, (kind, message) = next((rank, what) for rank, what in enumerate(found) if what)
        raise _KEPT.get(kind, RankError)(f"{self.hosts[rank]} failed: {message}")

    def check_same(self, model: Path, data: Sequence[Any]) -> None:
        """Raise RankError on every rank if they differ in their versions, the model in its folder, or the data.

        From here on, messages name the hosts.
        """
        if self.alone:
            return
        self.hosts = [f"rank {rank} ({host})" for rank, host in enumerate(self.gather(socket.gethostname()))]
        found = self.gather(facts_of(model, data))
        for rank, facts in enumerate(found):
            for what in sorted(found[0].keys() | facts.keys()):
                one, other = found[0].get(what, "missing"), facts.get(what, "missing")
                if one != other:
                    raise RankError(
                        f"{what} is {one} on {self.hosts[0]} and {other} on {self.hosts[rank]}: every rank needs the "
                        "same"
                    )

    # What the first rank says

    def send(self, do: str, **values: Any) -> None:
        """Send the others, which wait for it, what to do next."""
        if self._place[1] > 1:
            self.idle = False
            now = self.rank, self.size, self.alone
            self.rank, self.size = self._place  # also while it computes apart
            self.alone = False
            try:
                self.gather({"do": do, **values})
            finally:
                self.rank, self.size, self.alone = now

    def end(self) -> None:
        """Send the others their end, if they wait for it; those that have failed wait for nothing."""
        self.on_hang = lambda _: None  # of a run, whose model would stay in memory until the next one
        if self.idle:
            with contextlib.suppress(RankError):
                self.send("end")

    def receive(self) -> dict[str, Any]:
        """Wait for what the first rank says, on another one. It may take its time: a run can be paused for days."""
        timeout, self.timeout = self.timeout, float("inf")
        try:
            order = self.gather(dict[str, Any]())[0]
        finally:
            self.timeout = timeout
        self.idle = order["do"] in ("stop", "end")
        return order

    def meet(self, check: Callable[[], None]) -> None:
        """Wait for all of several ranks, while the first handles requests by `check`, which may hold or end their work.

        Raises what `check` raises there, and Released on the others.
        """
        if not self.leads:
            if self.receive()["do"] == "stop":
                raise Released
        else:
            self.idle = True
            try:
                check()
            except BaseException:
                self.send("stop")
                self.idle = True
                raise
            self.send("go")

    def lead(
        self,
        do: str,
        work: Callable[[], Result],
        shared_state: Callable[[], tuple[dict[str, Any], Any]],
        **values: Any,
    ) -> Result:
        """Return the result of `work` on the first rank, which the others do too, from the same state.

        do, values: say to them what it is. shared_state: returns the state that the work begins with: its plain
        values, and a tree of its arrays. Raises what `work` raises if it has failed on all, and RankError if it ran
        out of memory here alone.
        """
        if self.alone:
            return work()
        if self.same_state:
            self.send(do, state=None, **values)
        else:
            plain, arrays = shared_state()
            self.send(do, state=plain, **values)
            self.from_first(arrays)
            self.same_state = True
        self.begin()
        try:
            result = work()
        except (MemoryError, RuntimeError) as error:
            if self.idle:
                raise
            # The others wait for the rest of the work, so it cannot be repeated.
            raise RankError(
                f"rank 0 failed, and the others do not know it ({one_line(error)}): resume the run"
            ) from error
        self.idle = True
        return result

    def follow(self, work: Callable[[dict[str, Any]], object], free_memory: Callable[[], None]) -> None:
        """Do what the first rank says by `lead`, until it ends the run.

        work: gets its order, with its plain state as "state" if this rank must take that over; the arrays come next,
        by `from_first`. free_memory: called after work that has failed on some rank.
        """
        while (order := self.receive())["do"] != "end":
            try:
                work(order)
            except Exception:
                if not self.idle:  # the other ranks do not know of it
                    raise
            if self.idle:  # only here: until its end, the exception holds the arrays of the work
                free_memory()
            self.idle = True

    # One exchange

    def _exchange(self, operation: Callable[..., mx.array], array: mx.array) -> mx.array:
        """Evaluate one collective operation. Raises RankError if a rank is lost."""
        mx.eval(array)  # what is computed before is no waiting
        self._began = time.monotonic()
        try:
            result = operation(array, group=self._group)
            mx.eval(result)
        except RuntimeError as error:
            raise RankError(f"{self._others()} was lost ({one_line(error)}): see its own messages") from error
        finally:
            self.seconds += time.monotonic() - self._began
            self._began = None
        self.sent += array.nbytes
        return result

    def _watch(self) -> None:
        """End the process when an exchange takes too long: MLX itself would wait forever."""
        while True:
            time.sleep(1.0)
            began = self._began
            if began is not None and time.monotonic() - began > self.timeout:
                message = f"{self._others()} did not answer for {self.timeout:g} s (run.rank_timeout)"
                sys.stderr.write(f"ppo-workbench: {self.hosts[self.rank]}: {message}\n")
                sys.stderr.flush()
                try:
                    self.on_hang(message)
                finally:
                    os._exit(HUNG)

    def _others(self) -> str:
        return " or ".join(host for rank, host in enumerate(self.hosts) if rank != self.rank)


ALONE = Ranks()
"""The one process of a run that is trained by itself."""


def facts_of(model: Path, data: Sequence[Any]) -> dict[str, str]:
    """Return what must be the same on all ranks. model: its folder; data: prompts or preferences as they were read."""
    facts = {f"the version of {name}": metadata.version(name) for name in _PACKAGES}
    facts["the version of Python"] = ".".join(platform.python_version_tuple()[:2])
    for file in model.iterdir():
        if file.suffix in _MODEL_FILES and file.is_file():
            size = file.stat().st_size
            digest = hashlib.sha256(str(size).encode())
            with file.open("rb") as content:
                digest.update(content.read(_BLOCK))
                content.seek(max(size - _BLOCK, 0))
                digest.update(content.read(_BLOCK))
            facts[f"the model's file {file.name}"] = digest.hexdigest()[:16]
    digest = hashlib.sha256()
    for row in data:
        digest.update(json.dumps(row, default=str).encode())
    facts["the data (its hash)"] = digest.hexdigest()[:16]
    return facts
