"""Labelling session on its own thread, so that no screen waits for the disk."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from trainer.errors import UsageError
from trainer.preferences.claims import Claim
from trainer.preferences.items import Item, Progress, SessionItem, SessionPlan, SessionRecord
from trainer.preferences.records import Judgement
from trainer.preferences.sessions import LabelSession, begin_session, guidelines_text, list_sessions, open_session
from trainer.preferences.store import PreferenceStore

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """Current state of a session.

    exhausted: no more items will be added, and no other session shows one of the items left.
    """

    record: SessionRecord
    current: SessionItem | None  # stays the same until it is judged; else the first left that no other session shows
    ahead: int  # items left to judge besides `current`
    progress: Progress
    last: SessionItem | None  # the item that was labelled last
    exhausted: bool


class SessionThread:
    """Open session of the store at `path`.

    Any thread may call. Each call returns a future; the calls are handled in order. When the future of `label`,
    `relabel`, `undo` or `put` is set, the change is on disk. If the future raises a TrainerError (full disk, locked or
    damaged store, item labelled in another window), nothing has changed and the call can be repeated. A future cannot
    be cancelled: a decision is saved even if nobody waits for it any more.

    labelled: called on the thread after each label that was made, changed or undone. left: called there when the
    session is left, after the labels that were still on their way. They return at once and raise nothing.
    """

    def __init__(
        self, path: Path, labelled: Callable[[], None] = lambda: None, left: Callable[[], None] = lambda: None
    ) -> None:
        self._path = path
        self._labelled = labelled
        self._left = left
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._gate = threading.Lock()  # no call is queued after the one that ends the thread
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="labels")
        self._store: PreferenceStore | None = None  # this and all below: used on that thread only
        self._session_id: int | None = None
        self._session: LabelSession | None = None  # None: read it from the store first
        self._claim: Claim | None = None  # of the open session
        self._shown: int | None = None  # the position that it claims
        self._exhausted = False

    def sessions(self) -> Future[list[SessionRecord]]:
        """Return the sessions in the store, the newest first; empty if there is no store yet."""
        return self._call(lambda: list_sessions(self._opened()) if self._path.exists() else [])

    def flagged(self) -> Future[list[str]]:
        """Return the keys of the comparisons that are flagged; empty if there is no store yet."""
        return self._call(lambda: self._opened().flagged() if self._path.exists() else [])

    def begin(self, labeller: str, plan: SessionPlan, guidelines: str = "") -> Future[SessionState]:
        """Begin a session and open it. guidelines: their text."""
        return self._call(lambda: self._open_session(begin_session(self._opened(), labeller, plan, guidelines)))

    def resume(self, session_id: int) -> Future[SessionState]:
        """Open a session at its first item without a label; UsageError if there is no such session."""
        return self._call(lambda: self._open_session(open_session(self._opened(), session_id)))

    def state(self) -> Future[SessionState]:
        """Return the current state of the session, including changes made in other windows."""
        return self._call(lambda: self._state(self._open_one()))

    def put(self, items: Sequence[Item]) -> Future[SessionState]:
        """Append items."""
        return self._call(lambda: self._change(lambda session: session.put(items)))

    def label(self, position: int, judgement: Judgement) -> Future[SessionState]:
        """Save the judgement of the item at `position`; UsageError if it already has a label."""
        return self._judge(lambda session: session.label(position, judgement))

    def relabel(self, position: int, judgement: Judgement) -> Future[SessionState]:
        """Replace the judgement of the item at `position`; UsageError if it has none."""
        return self._judge(lambda session: session.relabel(position, judgement))

    def undo(self) -> Future[SessionState]:
        """Undo the newest label, if there is one; its item is the current one again."""

        def undo(session: LabelSession) -> None:
            position = session.undo()
            if position is not None:
                self._shown = position

        return self._judge(undo)

    def item(self, position: int) -> Future[SessionItem]:
        """Return the item at `position`, with its label; UsageError if there is no such item."""
        return self._call(lambda: self._open_one().item(position))

    def history(self, limit: int = 200, before: int | None = None) -> Future[list[SessionItem]]:
        """Return up to `limit` labelled items, the newest label first.

        before: id of a label; only older labels are returned.
        """
        return self._call(lambda: self._open_one().history(limit, before))

    def guidelines(self) -> Future[str]:
        """Return the text of the session's guidelines; empty if it has none."""
        return self._call(lambda: guidelines_text(self._opened(), self._open_one().record.guidelines))

    def served(self) -> Future[set[str]]:
        """Return the keys of the comparisons in the session, without repeats."""
        return self._call(lambda: self._open_one().served())

    def exhausted(self) -> None:
        """Declare that no more items will be added: from now on, the number of items left is exact."""
        self._call(partial(setattr, self, "_exhausted", True))

    def leave(self) -> None:
        """Release the current item, so that other sessions can show it. The session can be resumed. Returns at once."""
        if self._thread.ident is not None:  # else there is no session to leave
            self._call(self._leave)

    def close(self) -> None:
        """Close the store after all calls made so far; returns at once."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self._calls.put(None)

    def join(self) -> None:
        """Wait until the store is closed after `close`."""
        if self._thread.ident is not None:
            self._thread.join()

    def _call(self, work: Callable[[], _T]) -> Future[_T]:
        future: Future[_T] = Future()
        future.set_running_or_notify_cancel()
        with self._gate:
            if self._closed:
                future.set_exception(UsageError("labelling has ended: begin or resume a session"))
                return future
            if self._thread.ident is None:
                self._thread.start()
            self._calls.put(partial(_settle, future, work))
        return future

    def _judge(self, change: Callable[[LabelSession], object]) -> Future[SessionState]:
        def work() -> SessionState:
            state = self._change(change)
            self._labelled()
            return state

        return self._call(work)

    def _change(self, change: Callable[[LabelSession], object]) -> SessionState:
        session = self._open_one()
        try:
            with self._opened().log.transaction():  # rolled back, too, if reading the new state fails
                change(session)
                return self._state(session)
        except BaseException:
            self._session = None  # it may contain what was rolled back
            raise

    def _run(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                call()
        finally:
            self._leave()
            if self._store is not None:
                self._store.close()

    def _opened(self) -> PreferenceStore:
        if self._store is None:
            self._store = PreferenceStore(self._path)
        return self._store

    def _open_session(self, session: LabelSession) -> SessionState:
        self._release()
        self._session_id, self._session, self._exhausted = session.record.id, session, False
        self._claim = Claim(self._path, session.record.labeller)
        return self._state(session)

    def _leave(self) -> None:
        self._release()
        self._left()

    def _release(self) -> None:
        self._shown = None
        if self._claim is not None:
            self._claim.release()

    def _open_one(self) -> LabelSession:
        if self._session_id is None:
            raise UsageError("no labelling session is open: begin or resume one")
        if self._session is None:
            self._session = open_session(self._opened(), self._session_id)
        return self._session

    def _state(self, session: LabelSession) -> SessionState:
        current, record = session.next_open(self._claim, self._shown), session.record
        self._shown = current.position if current is not None else None
        still_open, limit = record.left, record.plan.limit
        if self._exhausted:
            left: int | None = still_open
        else:
            left = max(limit - record.done, still_open) if limit else None
        return SessionState(
            record=record,
            current=current,
            ahead=still_open - (current is not None),
            progress=session.progress(left),
            last=session.newest(),
            exhausted=self._exhausted and (current is not None or not still_open),
        )


def _settle(future: Future[_T], work: Callable[[], _T]) -> None:
    try:
        result = work()
    except Exception as error:  # noqa: BLE001  the future reports it; the next call may succeed
        future.set_exception(error)
    else:
        future.set_result(result)
