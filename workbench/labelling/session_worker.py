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
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from trainer.engine.inbox import add_event
from trainer.errors import DataError, Interrupted, ModelError, StorageError, TrainerError, UsageError, one_line, writing
from trainer.events import HumanEvaluation
from trainer.preferences.agreement import human_evaluation
from trainer.preferences.queues import QueueContext, disputed_keys
from trainer.preferences.records import Item, Judgement, Progress, SessionItem, SessionPlan, SessionRecord, Text
from trainer.preferences.sessions import LabelSession, begin_session, guidelines_text, list_sessions, open_session
from trainer.preferences.store import PreferenceStore
from trainer.questions import Answer, Question
from trainer.runs.folder import RunFolder
from workbench.system.children import last_error, own_command, started

if TYPE_CHECKING:
    from trainer.preferences.queues.mixture import Mixture

P = ParamSpec("P")
T = TypeVar("T")

AHEAD = 12  # items ahead of the labeller; with fewer, a quick queue fills in for a slow one
_FULL = 24  # most items ahead
LOOK = 1.0  # seconds between checks whether a queue has more
RETRY = 5.0  # seconds until an item that could not be saved is put again
_REST = 0.5  # seconds without a label after which rates and agreement are counted
PAUSE = 2.0  # least seconds between two counts of the win rate
SHARE = 20  # pause after a count, as a multiple of its duration: labels wait for a count
_NICENESS = 15  # of scoring: training and the screen go first
_WAY_OUT = "look at it with ppo-workbench reward-model eval"

Ask = Callable[[Path, Question, threading.Event], Answer]
"""Function that asks the model of the run in a folder, called on the queues' threads; it blocks.

Raises TrainerError, and Interrupted once the event is set: the session was left.
"""


class SupplyReport(NamedTuple):
    """Report on the items that come.

    ended: no more will. waiting: what the next one waits for. problem: why none comes. left_out: queues, rows and items
    that were left out, a line each.
    """

    ended: bool = False
    waiting: str = ""
    problem: str = ""
    left_out: tuple[str, ...] = ()


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
        self._context: QueueContext | None = None  # of the session's queues
        self._mixture: Mixture | None = None  # from the first item on
        self._drawn: Item | None = None  # drawn, and not put yet
        self._refused: tuple[str, ...] = ()  # why the store rejected items
        self._supply = SupplyReport()
        self._uncounted = math.inf  # when the rates in the progress of `state` became out of date
        self._run_asked: RunFolder | None = None  # the run that the plan asks about
        self._win_rate: HumanEvaluation | None = None  # the last one that the session has reported
        self._relabelled = False  # since the win rate was counted
        self._due = -math.inf  # when it may be counted again

    def kept(self) -> Future[tuple[list[SessionRecord], list[str], list[str]]]:
        """Return the sessions in the store, the newest first, and the keys of what is flagged and disputed."""

        def read() -> tuple[list[SessionRecord], list[str], list[str]]:
            if not self.path.exists():  # there is no store until the first session
                return [], [], []
            return list_sessions(self._opened()), self._opened().flagged(), disputed_keys(self._opened())

        return self._call(read)

    def begin(self, labeller: str, plan: SessionPlan, guidelines: str = "") -> Future[SessionState]:
        """Leave the open session and begin another. guidelines: their text."""
        return self._call(self._enter, begin_session, labeller, plan, guidelines)

    def resume(self, session_id: int) -> Future[SessionState]:
        """Leave the open session and resume another; UsageError if there is none with this id."""
        return self._call(self._enter, open_session, session_id)

    def label(self, item: SessionItem, judgement: Judgement) -> Future[SessionState]:
        """Save the judgement of `item`, in place of the one that it has."""
        return self._call(self._change, item, judgement)

    def undo(self) -> Future[SessionState]:
        """Undo the newest label, if there is one; its item is the current one again."""
        return self._call(self._change)

    def put(self, items: Sequence[Item]) -> Future[SessionState]:
        """Append items to the session."""
        return self._call(self._put, items)

    def item(self, position: int) -> Future[SessionItem]:
        """Return the item at `position`, with its label."""
        return self._call(lambda: self._open().item(position))

    def history(self) -> Future[list[SessionItem]]:
        """Return the labelled items, the newest label first."""
        return self._call(lambda: self._open().history())

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

    def _call(self, work: Callable[P, T], *given: P.args, **options: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        with self._gate:
            if self._closed:
                future.set_exception(self.bug or UsageError("labelling has ended: begin or resume a session"))
                return future
            if self._thread.ident is None:
                self._thread.start()
            self._calls.put((future, partial(work, *given, **options)))
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
        if self.state is None:
            return math.inf
        wait = math.inf if self._supply.ended else self._draw(self.state)
        with contextlib.suppress(TrainerError):  # the next call reports it
            if self._session is None or self.state.supply != self._supply:
                self.state = self._read_state(self.state.last)
            if wait > 0 and time.monotonic() - self._uncounted >= _REST:
                self._uncounted, left = math.inf, self.state.progress.left
                self.state = replace(self.state, progress=self._open().progress(left))
            elif self._uncounted < math.inf:
                wait = min(wait, _REST)
        return min(wait, self._report_win_rate()) if wait > 0 and self._relabelled else wait

    def _draw(self, state: SessionState) -> float:
        """Draw an item and put it; return the seconds until the next step, infinite if there are enough."""
        assert self._context is not None
        record, limit, wait = state.record, state.record.plan.limit, 0.0
        report = SupplyReport(left_out=self._supply.left_out)
        try:
            if self._mixture is None:
                from trainer.preferences.queues.mixture import Mixture  # here, because it imports NumPy

                self._mixture = Mixture(record.plan, self._context)
            mixture, items = self._mixture, record.items - record.elsewhere
            whole = bool(limit) and items >= limit
            if self._drawn is None and (mixture.exhausted or whole):
                report = report._replace(ended=True)
            elif self._drawn is None and state.ahead >= _FULL:
                wait = math.inf
            elif (item := self._drawn or mixture.draw(hurry=state.ahead < AHEAD)) is None:
                report, wait = report._replace(waiting=mixture.waiting), 0.0 if mixture.exhausted else LOOK
            else:
                self._drawn = item
                try:
                    self._put([item])
                except DataError as error:
                    self._refused += (str(error),)
                self._drawn = None
            left_out = (*mixture.problems, *self._refused)
            report = report._replace(left_out=left_out)
            if report.ended and not whole:
                nothing = "" if items else f"{record.labeller} has judged everything: add another queue"
                report = report._replace(problem="; ".join(left_out) or nothing)
        except StorageError as error:
            report, wait = report._replace(problem=str(error)), RETRY
        except Interrupted:
            report = report._replace(ended=True)
        except TrainerError as error:
            report = report._replace(ended=True, problem=str(error))
        self._supply = report
        return math.inf if report.ended else wait

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
        self._due = time.monotonic() + max(PAUSE, SHARE * (time.monotonic() - began))
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

    def _enter(self, opening: Callable[..., LabelSession], *given: object) -> SessionState:
        self._leave()
        session = opening(self._opened(), *given)
        record = session.record
        self._session_id, self._session, self._left = record.id, session, (left := threading.Event())
        sources = (queue.source for queue in record.plan.queues if queue.queue not in ("dataset", "again"))
        run, ask = next((Path(source) for source in sources if source), None), self._ask
        self._context = QueueContext(
            labeller=record.labeller,
            path=self.path,
            served=session.served(),
            ask=None if ask is None or run is None else lambda question: ask(run, question, left),
            score=partial(score, closing=left),
            wake=lambda: self._calls.put((Future(), lambda: None)),
        )
        if run is not None:
            self._run_asked, self._win_rate = RunFolder(run.resolve()), None
        self.state = self._read_state(session.newest(), guidelines_text(self._opened(), record.guidelines))
        return self.state

    def _leave(self) -> None:
        self._left.set()
        self._report_win_rate(at_once=True)
        if self._mixture is not None:
            self._mixture.close()
        self._session_id = self._session = self._mixture = self._drawn = self._run_asked = self.state = None
        self._supply, self._refused, self._due, self.win_rate_problem = SupplyReport(), (), -math.inf, ""

    def _change(self, item: SessionItem | None = None, judgement: Judgement | None = None) -> SessionState:
        """Save the judgement of `item`, or else undo the newest label; return the new state."""
        session = self._open()
        try:
            assert self._store is not None
            with self._store.transaction():  # rolled back, too, if reading the new state fails
                if item is not None and judgement is not None:
                    last: SessionItem | None = session.label(item, judgement)
                else:
                    session.undo()
                    last = session.newest()
                state = self._read_state(last)
        except BaseException:
            self._session = None  # it may contain what was rolled back
            raise
        self.state, self._relabelled = state, self._run_asked is not None
        return state

    def _put(self, items: Sequence[Item]) -> SessionState:
        self._open().put(items)
        self.state = self._read_state(self.state.last if self.state is not None else None)
        return self.state

    def _read_state(self, last: SessionItem | None, guidelines: str = "") -> SessionState:
        session, supply, before = self._open(), self._supply, self.state
        current, record = session.next_open(), session.record
        left = max(limit - record.done, record.left) if (limit := record.plan.limit) else None
        if supply.ended:
            left = record.left
        self._uncounted = math.inf if before is None else time.monotonic()
        return SessionState(
            record=record,
            guidelines=before.guidelines if before is not None else guidelines,
            current=current,
            ahead=record.left - (current is not None),
            progress=replace(before.progress, done=record.done, left=left) if before else session.progress(left),
            last=last,
            supply=supply,
        )


def score(model: str, rows: Sequence[tuple[Text, Text]], *, closing: threading.Event) -> list[float]:
    """Return the score of the reward model in the folder `model` for each (prompt, completion).

    Runs `ppo-workbench reward-model score`, and blocks while it loads the model and scores. Raises ModelError if the
    model cannot be used, StorageError if the rows cannot be written, Interrupted once `closing` is set.
    """
    lines = [json.dumps({"prompt": prompt, "completion": completion}) + "\n" for prompt, completion in rows]
    scores: list[float] = []
    prefix = "ppo-workbench-"
    with writing("to the temporary folder"), tempfile.TemporaryDirectory(prefix=prefix) as folder:
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
        with answers.open(encoding="utf-8") as found, contextlib.suppress(ValueError, KeyError, TypeError):
            scores = [float(json.loads(line)["score"]) for line in found]
    if len(scores) != len(rows):
        raise ModelError(f"reward model '{model}' did not return {len(rows)} scores: {_WAY_OUT}")
    return scores
