"""Worker of the open labelling session: one thread saves labels, draws items ahead and reports the win rate."""

from __future__ import annotations

import contextlib
import json
import math
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from trainer.engine.inbox import add_event
from trainer.errors import (
    DataError,
    Interrupted,
    ModelError,
    StorageError,
    TrainerError,
    UsageError,
    cannot_write,
    one_line,
)
from trainer.evaluation.human import human_evaluation
from trainer.events import HumanEvaluation
from trainer.preferences.queues import QueueContext
from trainer.preferences.records import (
    Item,
    Judgement,
    Progress,
    SessionItem,
    SessionPlan,
    SessionRecord,
    Text,
)
from trainer.preferences.sessions import (
    LabelSession,
    begin_session,
    guidelines_text,
    leave_session,
    list_sessions,
    open_session,
)
from trainer.preferences.store import PreferenceStore
from trainer.questions import Answer, Question
from trainer.runs.folder import RunFolder
from workbench.system.children import last_error, own_command, started

if TYPE_CHECKING:
    from trainer.preferences.queues.mixture import Mixture

T = TypeVar("T")

AHEAD = 12  # items ahead of the labeller; with fewer, a quick queue fills in for a slow one
_FULL = 24  # most items ahead
_LOOK = 1.0  # seconds between checks whether a queue has more
_RETRY = 5.0  # seconds until an item that could not be saved is put again
_REST = 0.5  # seconds without a label after which rates and agreement are counted
_PAUSE = 2.0  # least seconds between two counts of the win rate
_SHARE = 20  # pause after a count, as a multiple of its duration: labels wait for a count
_NICENESS = 15  # of scoring: training and the screen go first
_WAY_OUT = "look at it with ppo-workbench reward-model eval"

Ask = Callable[[Path, Question, threading.Event], Answer]
"""Function that asks the model of the run in a folder, called on the queues' threads; it blocks.

Raises TrainerError, and Interrupted once the event is set: the session was left.
"""


class SupplyReport(NamedTuple):
    """Report on the items that come.

    ended: no more will. waiting: what the next one waits for. problem: why none comes. left_out: queues, rows and items
    that were left out, a line each. left: how many may still come; None if that is not known.
    """

    ended: bool = False
    waiting: str = ""
    problem: str = ""
    left_out: tuple[str, ...] = ()
    left: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """Current state of a session."""

    record: SessionRecord
    guidelines: str = ""  # their text
    current: SessionItem | None  # the first item without a label
    ahead: int  # items left to judge besides `current`
    progress: Progress
    last: SessionItem | None  # the item that was labelled last
    supply: SupplyReport


class ItemSupply:
    """Items of `plan`, drawn and put into the session one at a time, before they are needed."""

    def __init__(self, plan: SessionPlan, context: QueueContext) -> None:
        self.report = SupplyReport()
        self._plan = plan
        self._context = context
        self._mixture: Mixture | None = None
        self._item: Item | None = None  # drawn, and not put yet
        self._refused: tuple[str, ...] = ()  # why the store rejected items

    def step(self, record: SessionRecord, ahead: int, put: Callable[[Sequence[Item]], object]) -> float:
        """Draw an item and put it; return the seconds until the next step, infinite if there are enough."""
        ended, waiting, problem, wait = False, "", "", 0.0
        left_out, left = self.report.left_out, self.report.left
        try:
            if self._mixture is None:
                from trainer.preferences.queues.mixture import Mixture  # here, because it imports NumPy

                self._mixture = Mixture(self._plan, self._context)
            mixture, items, limit = self._mixture, record.items - record.elsewhere, self._plan.limit
            if self._item is None and (mixture.exhausted or (limit and items >= limit)):
                ended = True
            elif self._item is None and ahead >= _FULL:
                wait = math.inf
            elif (item := self._item or mixture.draw(hurry=ahead < AHEAD)) is None:
                waiting, wait = mixture.waiting, 0.0 if mixture.exhausted else _LOOK
            else:
                self._item = item
                try:
                    put([item])
                except DataError as error:
                    self._refused += (str(error),)
                self._item = None
            left_out = (*mixture.problems, *self._refused)
            left = None if mixture.left is None else mixture.left + (self._item is not None)
            if ended and not (limit and items >= limit):
                nothing = "" if items else f"{self._context.labeller} has judged everything: add another queue"
                problem = "; ".join(left_out) or nothing
        except StorageError as error:
            problem, wait = str(error), _RETRY
        except Interrupted:
            ended = True
        except TrainerError as error:
            ended, problem = True, str(error)
        self.report = SupplyReport(ended, waiting, problem, left_out, left)
        return math.inf if ended else wait

    def close(self) -> None:
        """Close the store that the queues read."""
        if self._mixture is not None:
            self._mixture.close()


class SessionWorker:
    """Thread with the labelling sessions of the store at `path`, one at a time.

    Any thread may call. Each call returns a future; calls are handled in order, before any item is drawn. When the
    future of `label` or `undo` is set, the change is on disk. If it raises a TrainerError, nothing has changed and the
    call can be repeated. A future cannot be cancelled: a label is saved even if nobody waits for it any more.

    ask: asks a run's model. state: newest state of the open session. win_rate_problem: why the last report failed. bug:
    any other error; it has ended the thread and is that of all calls, so whoever looks at the worker raises it.
    """

    def __init__(self, path: Path, ask: Ask | None = None) -> None:
        self.path = path
        self.state: SessionState | None = None
        self.win_rate_problem = ""
        self.bug: Exception | None = None
        self._ask = ask
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._gate = threading.Lock()  # no call is queued after the thread has ended
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="labels")
        self._left = threading.Event()  # set when the open session is left
        self._store: PreferenceStore | None = None  # this and all below: used on the thread only
        self._session_id: int | None = None
        self._session: LabelSession | None = None  # None: read it from the store first
        self._supply: ItemSupply | None = None
        self._uncounted = math.inf  # when the rates in the progress of `state` became out of date
        self._run_asked: RunFolder | None = None  # the run that the plan asks about
        self._win_rate: HumanEvaluation | None = None  # the last one that the session has reported
        self._relabelled = False  # since the win rate was counted
        self._due = -math.inf  # when it may be counted again

    def kept(self) -> Future[tuple[list[SessionRecord], list[str]]]:
        """Return the sessions in the store, the newest first, and the keys of the comparisons that are flagged."""

        def read() -> tuple[list[SessionRecord], list[str]]:
            if not self.path.exists():  # there is no store until the first session
                return [], []
            return list_sessions(self._opened()), self._opened().flagged()

        return self._call(read)

    def begin(self, labeller: str, plan: SessionPlan, guidelines: str = "") -> Future[SessionState]:
        """Leave the open session and begin another. guidelines: their text."""
        return self._call(lambda: self._enter(lambda store: begin_session(store, labeller, plan, guidelines)))

    def resume(self, session_id: int) -> Future[SessionState]:
        """Leave the open session and resume another; UsageError if there is none with this id."""
        return self._call(lambda: self._enter(lambda store: open_session(store, session_id)))

    def label(self, item: SessionItem, judgement: Judgement) -> Future[SessionState]:
        """Save the judgement of `item`, in place of the one that it has."""
        return self._call(lambda: self._change(lambda session: session.label(item, judgement)))

    def undo(self) -> Future[SessionState]:
        """Undo the newest label, if there is one; its item is the current one again."""

        def undo(session: LabelSession) -> SessionItem | None:
            session.undo()
            return session.newest()

        return self._call(lambda: self._change(undo))

    def put(self, items: Sequence[Item]) -> Future[SessionState]:
        """Append items to the session."""
        return self._call(lambda: self._put(items))

    def item(self, position: int) -> Future[SessionItem]:
        """Return the item at `position`, with its label."""
        return self._call(lambda: self._open().item(position))

    def history(self, limit: int = 200, before: int | None = None) -> Future[list[SessionItem]]:
        """Return up to `limit` labelled items, the newest label first; with `before`, those with an older label."""
        return self._call(lambda: self._open().history(limit, before))

    def leave(self) -> None:
        """Leave the open session, which can be resumed, after all calls made so far; returns at once."""
        self._left.set()
        if self._thread.ident is not None:
            self._call(self._leave)

    def close(self) -> None:
        """Leave the session and end the thread after all calls made so far; returns at once."""
        self.leave()
        with self._gate:
            self._closed = True
            self._calls.put(None)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the store is closed after `close`."""
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _call(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        with self._gate:
            if self._closed:
                future.set_exception(self.bug or UsageError("labelling has ended: begin or resume a session"))
                return future
            if self._thread.ident is None:
                self._thread.start()
            self._calls.put((future, work))
        return future

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as bug:  # noqa: BLE001  whoever waits for a call, or looks at the worker, raises it
            with self._gate:
                self.bug, self._closed = bug, True
            while not self._calls.empty():
                if (call := self._calls.get()) is not None:
                    call[0].set_exception(bug)
            self._left.set()
        if self._store is not None:
            self._store.close()

    def _serve(self) -> None:
        """Answer calls, and work while there are none, until `close`."""
        wait = math.inf
        while True:
            try:
                call = self._calls.get(timeout=None if wait == math.inf else wait)
            except queue.Empty:
                wait = self._work()
                continue
            if call is None:
                return
            future, work = call
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
                if not isinstance(error, TrainerError):
                    raise
            wait = 0.0  # another call may be queued

    def _work(self) -> float:
        """Do one small step while nobody calls; return the seconds until the next one."""
        if self._supply is None or self.state is None:
            return math.inf
        wait, report = math.inf, self._supply.report
        if not report.ended:
            wait = self._supply.step(self.state.record, self.state.ahead, self._put)
        with contextlib.suppress(TrainerError):  # the next call reports it
            if self.state.supply != self._supply.report:
                self.state = self._read_state(self.state.last)
            if wait > 0 and time.monotonic() - self._uncounted >= _REST:
                self._uncounted, left = math.inf, self.state.progress.left
                self.state = replace(self.state, progress=self._open().progress(left))
            elif self._uncounted < math.inf:
                wait = min(wait, _REST)
        return min(wait, self._report_win_rate()) if wait > 0 else wait

    def _report_win_rate(self, *, at_once: bool = False) -> float:
        """Report a changed win rate to its run; return the seconds until that is due."""
        began = time.monotonic()
        if self._run_asked is None or not self._relabelled:
            return math.inf
        if began < self._due and not at_once:
            return self._due - began
        self._relabelled = False
        try:
            name = self._run_asked.name
            found = human_evaluation(self._opened().preferences(run=name), name)
            if found is not None and found != self._win_rate:
                add_event(self._run_asked.root, found)
                self._win_rate = found
            self.win_rate_problem = ""
        except TrainerError as error:
            self.win_rate_problem = one_line(error)
        self._due = time.monotonic() + max(_PAUSE, _SHARE * (time.monotonic() - began))
        return math.inf

    def _opened(self) -> PreferenceStore:
        if self._store is None:
            self._store = PreferenceStore(self.path)
        return self._store

    def _open(self) -> LabelSession:
        if self._session_id is None:
            raise UsageError("no labelling session is open: begin or resume one")
        if self._session is None:
            self._session = open_session(self._opened(), self._session_id)
        return self._session

    def _enter(self, opening: Callable[[PreferenceStore], LabelSession]) -> SessionState:
        self._leave()
        session = opening(self._opened())
        record = session.record
        self._session_id, self._session, self._left = record.id, session, (left := threading.Event())
        sources = (queue.source for queue in record.plan.queues if queue.queue not in ("dataset", "again"))
        run, ask = next((Path(source) for source in sources if source), None), self._ask
        context = QueueContext(
            labeller=record.labeller,
            store=self.path,
            served=session.served(),
            ask=None if ask is None or run is None else lambda question: ask(run, question, left),
            score=partial(score, closing=left),
            wake=lambda: self._calls.put((Future(), lambda: None)),
        )
        self._supply = ItemSupply(record.plan, context)
        if run is not None:
            self._run_asked, self._win_rate = RunFolder(run.resolve()), None
        self.state = self._read_state(session.newest(), guidelines_text(self._opened(), record.guidelines))
        return self.state

    def _leave(self) -> None:
        self._left.set()
        self._report_win_rate(at_once=True)
        if self._supply is not None:
            self._supply.close()
        if self._session_id is not None:
            with contextlib.suppress(TrainerError):  # it counts as left once the process has ended
                leave_session(self._opened(), self._session_id)
        self._session_id = self._session = self._supply = self._run_asked = self.state = None
        self._due, self.win_rate_problem = -math.inf, ""

    def _change(self, change: Callable[[LabelSession], SessionItem | None]) -> SessionState:
        """Make a change of the labels, and return the new state with the item that `change` returns as the last one."""
        session = self._open()
        try:
            with self._opened().transaction():  # rolled back, too, if reading the new state fails
                state = self._read_state(change(session))
        except BaseException:
            self._session = None  # it may contain what was rolled back
            raise
        self.state, self._relabelled = state, True
        return state

    def _put(self, items: Sequence[Item]) -> SessionState:
        self._open().put(items)
        self.state = self._read_state(self.state.last if self.state is not None else None)
        return self.state

    def _read_state(self, last: SessionItem | None, guidelines: str | None = None) -> SessionState:
        assert self._supply is not None
        session, supply = self._open(), self._supply.report
        if guidelines is None:
            guidelines = self.state.guidelines if self.state is not None else ""
        current, record = session.next_open(), session.record
        still_open, limit = record.left, record.plan.limit
        known = [still_open] if supply.ended else []  # bounds of the number of items to judge
        if not supply.ended:
            known += [limit - record.done] if limit else []
            known += [still_open + supply.left] if supply.left is not None else []
        left = max(min(known), still_open) if known else None
        self._uncounted = math.inf if self.state is None else time.monotonic()
        progress = replace(self.state.progress, done=record.done, left=left) if self.state else session.progress(left)
        return SessionState(
            record=record,
            guidelines=guidelines,
            current=current,
            ahead=still_open - (current is not None),
            progress=progress,
            last=last,
            supply=supply,
        )


def score(model: str, rows: Sequence[tuple[Text, Text]], *, closing: threading.Event) -> list[float]:
    """Return the score of the reward model in the folder `model` for each (prompt, completion).

    Runs `ppo-workbench reward-model score`, and blocks while it loads the model and scores. Raises ModelError if the
    model cannot be used, StorageError if the rows cannot be written, Interrupted once `closing` is set.
    """
    lines = [json.dumps({"prompt": prompt, "completion": completion}) + "\n" for prompt, completion in rows]
    try:
        with tempfile.TemporaryDirectory(prefix="ppo-workbench-") as folder:
            data, answers = Path(folder, "rows.jsonl"), Path(folder, "scores.jsonl")
            data.write_text("".join(lines), encoding="utf-8")
            command = own_command("reward-model", "score", model, "--data", str(data))
            with answers.open("wb") as stdout, tempfile.TemporaryFile() as stderr:
                process = started(command, stdout, stderr, niceness=_NICENESS)
                while process.poll() is None and not closing.wait(0.1):
                    pass
                if process.poll() is None:
                    process.kill()
                    process.wait()
                if closing.is_set():
                    raise Interrupted("scoring has ended", save=False)
                if code := process.returncode:
                    reason = last_error(stderr) or f"its process ended with code {code}; {_WAY_OUT}"
                    raise ModelError(f"reward model '{model}' cannot score: {reason}")
            with answers.open(encoding="utf-8") as found:
                scores = [float(json.loads(line)["score"]) for line in found]
    except OSError as error:
        raise cannot_write("to the temporary folder", error) from None
    except (ValueError, KeyError, TypeError):
        scores = []
    if len(scores) != len(rows):
        raise ModelError(f"reward model '{model}' did not return {len(rows)} scores: {_WAY_OUT}")
    return scores
