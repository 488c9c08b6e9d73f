"""Prefetching of items for a labelling session, on its own thread: the next one is ready before it is needed."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trainer.control.control import Interrupted
from trainer.errors import DataError, StorageError, TrainerError
from trainer.preferences.items import Item, SessionPlan
from trainer.preferences.queues import QueueContext

if TYPE_CHECKING:
    from trainer.preferences.queues.mixture import Mixture
    from workbench.labelling.session_thread import SessionState, SessionThread

LEAST = 12  # items ahead of the labeller; with fewer, the prefetcher waits for no queue
_MOST = 24  # items ahead after a refill: many at once, so that labels seldom wait for items to be written
_LOOK = 1.0  # seconds between checks whether a run has written more
_RETRY = 5.0  # seconds until items that could not be saved are put again


class Prefetcher:
    """Thread that draws the items of `plan` and puts them into the open `session`, until it is closed.

    waiting: what it waits for now, in words. problem: why no more items come. Both are empty if there is nothing to
    report. total: how many items the session will have at most, without those judged in another one; None if that is
    not known. All may be read on any thread.
    """

    def __init__(self, session: SessionThread, plan: SessionPlan, context: QueueContext) -> None:
        self.waiting = ""
        self.problem = ""
        self.total: int | None = None
        self._left_out_by_queues: tuple[str, ...] = ()  # reported by the queues
        self._left_out_by_store: tuple[str, ...] = ()  # refused by the store
        self._session = session
        self._plan = plan
        self._wake = threading.Event()
        self._outer_check = context.check
        self._context = replace(context, check=self._check, wake=self._wake.set)
        self._told_ahead = 0  # items ahead when the last one was labelled; `_ahead` is of an earlier or later moment
        self._ahead = 0
        self._items = 0  # of the session, without those judged in another one
        self._closing = False
        self._gate = threading.Lock()  # once closed, nothing is put: another session may be open
        self._thread = threading.Thread(target=self._run, name="label prefetch", daemon=True)
        self._thread.start()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Reasons why queues, files, rows and items were left out, a line each; others may continue."""
        return self._left_out_by_queues + self._left_out_by_store

    def need(self, ahead: int) -> None:
        """Set how many items are open behind the current one, and wake the thread; returns at once."""
        self._told_ahead = ahead
        self._wake.set()

    def close(self) -> None:
        """Stop putting items, and end the thread at its next small step; returns at once."""
        with self._gate:
            self._closing = True
        self._wake.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread ends after `close`, for at most `timeout` seconds."""
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            self._fetch()
        except Interrupted:
            pass
        except TrainerError as error:
            self._end(str(error))
        except Exception as bug:  # noqa: BLE001  the labeller keeps the items so far and sees the error
            print("".join(traceback.format_exception(bug)))  # noqa: T201  captured by the log pane
            self._end(f"unexpected {type(bug).__name__}: {bug}: this is a bug, its traceback is in the log")

    def _fetch(self) -> None:
        from trainer.preferences.queues.mixture import Mixture  # here, because it imports NumPy

        mixture = Mixture(self._plan, self._context)
        try:
            while True:
                self._wake.clear()  # before the checks, so that no later wake-up is missed
                self._check()
                if self._told_ahead < LEAST or self.waiting:
                    with self._gate:
                        self._check()  # after `leave`, this would take the claim back
                        state = self._session.state()
                    self._take(state.result())
                    self._fill(mixture)
                if self._plan.limit and self._items >= self._plan.limit:
                    return self._end("")
                if mixture.exhausted:
                    return self._end(self._why_no_more())
                left = mixture.left
                self.total = None if left is None else self._items + left
                self._wake.wait(_LOOK if self.waiting else None)
        finally:
            mixture.close()

    def _fill(self, mixture: Mixture) -> None:
        """Put items until there are enough or none are available; the first one alone, so that it is shown at once."""
        while (room := self._room()) > 0:
            drawn: list[Item] = []
            while len(drawn) < room:
                item = mixture.draw(hurry=self._ahead + len(drawn) < LEAST)
                if item is None:
                    break
                drawn.append(item)
                self._check()
            self._left_out_by_queues = tuple(mixture.problems)
            if drawn:
                self._put(drawn)
            if len(drawn) < room:
                self.waiting = mixture.waiting
                return
        self.waiting = ""

    def _room(self) -> int:
        """Return how many items to put at once."""
        most = self._plan.limit - self._items if self._plan.limit else _MOST
        return min(_MOST - self._ahead, max(self._ahead, 1), most)

    def _put(self, drawn: Sequence[Item]) -> None:
        """Put all of `drawn`, and retry for as long as the store cannot be written. Leave out items that it rejects."""
        while True:
            try:
                with self._gate:
                    self._check()
                    put = self._session.put(drawn)
                state = put.result()
            except DataError as error:
                if len(drawn) > 1:
                    for item in drawn:
                        self._put([item])
                else:
                    self._left_out_by_store += (str(error),)
                return
            except StorageError as error:
                self.problem = str(error)
                self._wake.wait(_RETRY)
                self._wake.clear()
                self._check()
            else:
                self.problem = ""
                self._take(state)
                return

    def _take(self, state: SessionState) -> None:
        self._ahead, self._items = state.ahead, state.record.items - state.record.elsewhere

    def _why_no_more(self) -> str:
        """Return why there are no more items; empty if all items were asked."""
        if self.left_out:
            return "; ".join(self.left_out)
        return "" if self._items else f"{self._context.labeller} has judged everything: add another queue"

    def _end(self, problem: str) -> None:
        self.waiting, self.problem = "", problem
        with self._gate:
            if not self._closing:
                self._session.exhausted()

    def _check(self) -> None:
        self._outer_check()
        if self._closing:
            raise Interrupted("labelling has ended", save=False)
