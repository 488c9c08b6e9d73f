"""Labels of a workspace: their store, the open session with what feeds it, and the win rate that the labels give."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.control.questions import Answer, Question
from trainer.errors import TrainerError
from trainer.evaluation.human import add_event, human_evaluation
from trainer.events import HumanEvaluation
from trainer.preferences.store import PreferenceStore
from trainer.runs.folder import RunFolder
from workbench.labelling.plans import SessionChoice
from workbench.labelling.prefetch import Prefetcher
from workbench.labelling.reward_processes import score
from workbench.labelling.session_thread import SessionState, SessionThread

if TYPE_CHECKING:
    from trainer.preferences.items import SessionPlan

Ask = Callable[[Path, Question, threading.Event], Answer]
"""Function that asks the model of the run in a folder, unless the event says that the session was left.

Called on the queues' threads. Raises TrainerError, and Interrupted once the session was left.
"""

_PAUSE = 2.0  # minimum seconds between two counts
_SHARE = 20  # pause after a count, as a multiple of its duration: the screen shares the interpreter


class LabelWorkspace:
    """Store at `store` with one labelling session at a time. Call its methods on the screen's thread.

    win_rates: creates the `WinRate` of the run in a folder.
    """

    def __init__(self, store: Path, ask: Ask, win_rates: Callable[[Path], WinRate]) -> None:
        self.store = store
        self.thread = SessionThread(store, self._labelled, self._end_win_rate)
        self.prefetcher: Prefetcher | None = None
        self.win_rate: WinRate | None = None
        self._ask = ask
        self._win_rates = win_rates
        self._left = threading.Event()  # set when the open session is left

    async def open(self, choice: SessionChoice) -> SessionState:
        """Leave the open session and begin or resume another. Raises TrainerError."""
        self.leave()
        if choice.plan is not None:
            opened = self.thread.begin(choice.labeller, choice.plan, choice.guidelines)
        else:
            assert choice.resume is not None
            opened = self.thread.resume(choice.resume)
        state = await asyncio.wrap_future(opened)
        served = await asyncio.wrap_future(self.thread.served())
        self._feed(state.record.labeller, state.record.plan, served)
        return state

    def leave(self) -> None:
        """Leave the session, which gets no more items and can be resumed. Returns at once."""
        if self.prefetcher is not None:
            self.prefetcher.close()
            self.prefetcher = None
        self._left.set()
        self.thread.leave()

    def close(self) -> None:
        """Leave the session and close the store once all labels are written; returns at once."""
        self.leave()
        self.thread.close()

    def _labelled(self) -> None:
        if self.win_rate is not None:
            self.win_rate.labelled()

    def _end_win_rate(self) -> None:
        if self.win_rate is not None:
            self.win_rate.close()
            self.win_rate = None

    def _feed(self, labeller: str, plan: SessionPlan, served: set[str]) -> None:
        """Start what supplies the session with items, and what reports its win rate."""
        from trainer.preferences.queues import QueueContext

        sources = (queue.source for queue in plan.queues if queue.queue not in ("dataset", "again"))
        run = next((Path(source) for source in sources if source), None)  # that the plan asks about
        self._left = left = threading.Event()

        def ask(question: Question) -> Answer:
            assert run is not None
            return self._ask(run, question, left)

        context = QueueContext(
            labeller=labeller,
            store=self.store,
            served=served,
            ask=None if run is None else ask,
            score=partial(score, closing=left),
        )
        self.prefetcher = Prefetcher(self.thread, plan, context)
        self.win_rate = None if run is None else self._win_rates(run)


class WinRate:
    """Thread that counts the labels in `store` and reports a changed win rate to the run in `folder`.

    It works for any process that trains the run. known: the last evaluation that the run received. problem: why the
    last report failed; empty if it did not.
    """

    def __init__(self, store: Path, folder: Path, *, known: HumanEvaluation | None = None) -> None:
        self.known = known
        self.problem = ""
        self._store = store
        self._run = RunFolder(folder.resolve())
        self._changed = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="win rate")
        self._thread.start()

    def labelled(self) -> None:
        """Count again, because labels were made, changed or undone; returns at once."""
        self._changed = True
        self._wake.set()

    def close(self) -> None:
        """Report what is not reported yet, then end the thread; returns at once."""
        self._closing.set()
        self._wake.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread ends after `close`."""
        self._thread.join(timeout)

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            began = time.perf_counter()
            if self._changed:
                self._changed = False  # before the count, so that later labels are counted again
                self._count()
            if self._closing.is_set() and not self._changed:  # labels may have come while it counted
                return
            self._closing.wait(max(_PAUSE, _SHARE * (time.perf_counter() - began)))

    def _count(self) -> None:
        try:
            with PreferenceStore(self._store, create=False) as store:
                found = human_evaluation(store.preferences(run=self._run.name), self._run.name)
            if found is not None and found != self.known:
                add_event(self._run.root, found)
                self.known = found
            self.problem = ""
        except TrainerError as error:
            self.problem = " ".join(str(error).split())
