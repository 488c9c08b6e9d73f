"""Items for a labelling session, made on a thread of its own so that the next one is there before it is needed."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from trainer.control.control import Interrupted
from trainer.errors import DataError, StorageError, TrainerError
from trainer.preferences.items import Item, SessionPlan
from trainer.preferences.queues.context import QueueContext
from workbench.labelling.desk import DeskState

if TYPE_CHECKING:
    from trainer.preferences.queues.mixture import Mixture

LEAST = 12  # items ahead of the labeller: where there are fewer, no queue is waited for
_MOST = 24  # they are filled up to so many then, so that labels seldom wait for items to be written
_LOOK = 1.0  # seconds until it is looked again whether a run has written more
_RETRY = 5.0  # seconds until items that could not be kept are put again


class Desk(Protocol):
    """What the supply needs of a `LabelDesk`."""

    def state(self) -> Future[DeskState]: ...
    def put(self, items: Sequence[Item]) -> Future[DeskState]: ...
    def exhausted(self, no_more: bool) -> None: ...


class Supply:
    """Draws the items of `plan` and puts them to the session under way at `desk`, from its making until it is closed.

    waiting: what it waits for now, in words; problem: why no more items come. Both are empty where there is nothing to
    say, and may be read on any thread.
    """

    def __init__(self, desk: Desk, plan: SessionPlan, context: QueueContext) -> None:
        self.waiting = ""
        self.problem = ""
        self._told: tuple[str, ...] = ()  # by the queues
        self._refused: tuple[str, ...] = ()  # by the desk
        self._desk = desk
        self._plan = plan
        self._outer_heed = context.heed
        self._context = replace(context, heed=self._heed, wake=self._wake_up)
        self._ahead = 0
        self._items = 0  # of the session, but for those that were judged in another one
        self._closing = False
        self._gate = threading.Lock()  # once closed, nothing goes to the desk: another session may be under way there
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="label supply", daemon=True)
        self._thread.start()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Why queues, files, rows and items were left out, a line each; others may go on."""
        return self._told + self._refused

    def need(self, ahead: int) -> None:
        """Tell how many items are open behind the current one; returns at once."""
        self._ahead = ahead
        self._wake.set()

    def close(self) -> None:
        """Put no more to the desk, and end at the next small step; returns at once."""
        with self._gate:
            self._closing = True
        self._wake.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended after `close`, `timeout` seconds at most."""
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            self._take(self._desk.state().result())
            self._supply()
        except Interrupted:
            pass
        except TrainerError as error:
            self._end(str(error))
        except Exception as bug:  # noqa: BLE001  the labeller goes on with what is there and reads what happened
            print("".join(traceback.format_exception(bug)))  # noqa: T201  captured by the log pane
            self._end(f"unexpected {type(bug).__name__}: {bug}: this is a bug, its traceback is in the log")

    def _supply(self) -> None:
        from trainer.preferences.queues.mixture import Mixture  # here, because that imports NumPy

        mixture = Mixture(self._plan, self._context)
        try:
            while True:
                self._wake.clear()  # before looking: what comes from now on is not missed
                self._heed()
                if self._ahead < LEAST or self.waiting:
                    self._fill(mixture)
                if self._is_full():
                    return self._end("")
                if mixture.exhausted:
                    return self._end(self._why_no_more())
                self._wake.wait(_LOOK if self.waiting else None)
        finally:
            mixture.close()

    def _fill(self, mixture: Mixture) -> None:
        """Put items until there are enough, or there are none now: the first alone, so that it is there at once."""
        while (room := self._room()) > 0:
            drawn: list[Item] = []
            while len(drawn) < room:
                item = mixture.draw(hurry=self._ahead + len(drawn) < LEAST)
                if item is None:
                    break
                drawn.append(item)
                self._heed()
            self._told = tuple(mixture.problems)
            if drawn:
                self._put(drawn)
            if len(drawn) < room:
                self.waiting = mixture.waiting
                return
        self.waiting = ""

    def _room(self) -> int:
        """How many items to put at once."""
        most = self._plan.limit - self._items if self._plan.limit else _MOST
        return min(_MOST - self._ahead, max(self._ahead, 1), most)

    def _put(self, drawn: Sequence[Item]) -> None:
        """Put all of `drawn`, however long the disk is full; what makes no sense to the store is left out."""
        while True:
            try:
                with self._gate:
                    self._heed()
                    put = self._desk.put(drawn)
                state = put.result()
            except DataError as error:
                if len(drawn) > 1:
                    for item in drawn:
                        self._put([item])
                else:
                    self._refused += (str(error),)
                return
            except StorageError as error:
                self.problem = str(error)
                self._wake.wait(_RETRY)
                self._wake.clear()
                self._heed()
            else:
                self.problem = ""
                self._take(state)
                return

    def _take(self, state: DeskState) -> None:
        self._ahead, self._items = state.ahead, state.record.items - state.record.elsewhere

    def _is_full(self) -> bool:
        return bool(self._plan.limit) and self._items >= self._plan.limit

    def _why_no_more(self) -> str:
        """Why there are no more items; empty where all that there is has been asked."""
        if self.left_out:
            return "; ".join(self.left_out)
        return (
            "" if self._items else f"there is nothing that {self._context.labeller} has not judged: add another queue"
        )

    def _end(self, problem: str) -> None:
        self.waiting, self.problem = "", problem
        with self._gate:
            if not self._closing:
                self._desk.exhausted(True)

    def _wake_up(self) -> None:
        self._wake.set()

    def _heed(self) -> None:
        self._outer_heed()
        if self._closing:
            raise Interrupted("the labelling was ended", save=False)
