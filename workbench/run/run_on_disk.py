"""A run on disk, whether another process trains it now or it has ended: its events, and requests to its trainer."""

from __future__ import annotations

import dataclasses
import math
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from trainer.engine import inbox
from trainer.errors import StorageError, UsageError
from trainer.events import Event, Iteration, PhaseProgress, RewardModelStep, RunStarted
from trainer.questions import Answer, Question
from trainer.runs.folder import RunFolder, read_config
from trainer.runs.journal import JournalReader, TimedEvent
from trainer.runs.sinks import read_progress
from workbench.run.history import MetricHistory, kind_of
from workbench.run.threads import give
from workbench.run.view import RunView

NEWEST = 2000  # iterations that the first `take` returns
BLOCK_BYTES = 64 * 1024  # of older events, read at a time: some 1 ms
SHARE = 0.007  # seconds after which `earlier` begins no further block
_LOOK_AGAIN = 1.0  # seconds between two checks whether the run is live
_WITHIN = ("generate", "score", "reward", "update")  # the phases of an iteration


class RunOnDisk:
    """The journal of the run in `folder`; while another process trains it, its progress, and requests to its trainer.

    The first `take` reads only the newest 2000 iterations, however long the journal is; of what came before, it returns
    only the start of the run. `earlier` returns the metrics from there, but no evaluations, checkpoints and alerts.
    What cannot be read is left out and reported in `problems`.

    Requests raise UsageError if no process trains the run any more, StorageError if they cannot be delivered.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run = RunFolder(folder.resolve())
        self._reader = JournalReader(self._run.events, iterations=NEWEST)
        self._opening: TimedEvent | None = None
        self._restarts = 0
        self._older_count_to = math.inf  # unread iterations above this one were done again
        self._iteration = 0
        self._progress: PhaseProgress | None = None
        self.live = False  # whether some process trained the run when `take` last looked, at most once a second
        self._looked = -math.inf
        self._failure = ""
        self.finished = False
        """True once `take` finds no process training the run, and nothing new; the run may resume."""
        self.kl_target: float | None = None  # nats a sequence, when it last started; None if kl_coef is fixed
        self._asked: dict[Path, Future[Answer]] = {}  # by the path of the answer

    @property
    def problems(self) -> list[str]:
        """Parts of the run that cannot be read, a line each."""
        problems = [self._failure] if self._failure else []
        problems += self._reader.problems
        if self._reader.unfinished and not self.live:
            problems.append("the last line is cut: its event is lost")
        return problems

    def take(self) -> list[Event]:
        """Return the events of `take_timed`."""
        return [event for _, event in self.take_timed()]

    def take_timed(self) -> list[TimedEvent]:
        """Return what is new in the journal, then the newest progress of a live run; pass answers on.

        If another journal has replaced the first one, it is read as the first one was.
        """
        self._exchange()
        now = time.monotonic()
        if now - self._looked >= _LOOK_AGAIN:
            self.live, self._looked = self._run.is_live(), now
        live = self.live  # checked first: then everything that a trainer wrote before it ended can be read
        try:
            events = self._new_events()
        except StorageError as error:
            self._failure = str(error)
            events = []
        if live and (progress := read_progress(self._run.progress)) != self._progress:
            self._progress = progress
            # An iteration may be over: the file will follow. 0 is what comes before the first one.
            if progress and not (0 < progress.iteration <= self._iteration and progress.phase in _WITHIN):
                events.append((time.time(), progress))
        self.finished = not live and not events
        return events

    def earlier(self) -> MetricHistory | None:
        """Return older iterations, as many as can be read in some 10 ms: those before the ones returned so far.

        Prepend them to the history that `take` fills. None when all were returned, until another journal replaces this
        one.
        """
        end = time.perf_counter() + SHARE
        newest_first: list[Iteration | RewardModelStep] = []
        read = False
        try:
            while (block := self._reader.earlier(BLOCK_BYTES)) is not None:
                read = True
                for _, event in reversed(block):
                    if isinstance(event, Iteration | RewardModelStep) and event.iteration <= self._older_count_to:
                        newest_first.append(event)  # it was not done again later
                    self._note(event)
                if time.perf_counter() >= end:
                    break
        except StorageError as error:
            self._failure = str(error)
        if not read:
            return None
        chunk = MetricHistory(kind_of(newest_first[-1])) if newest_first else MetricHistory()
        for iteration in reversed(newest_first):
            chunk.append(iteration)
        return chunk

    def close(self) -> None:
        """Fail the open questions with UsageError, because nobody takes answers any more."""
        self._fail("the question was cancelled: ask again")

    def send(self, command: inbox.Command, **values: Any) -> None:
        """Send a request with the values that `inbox.send` describes. Returns at once."""
        inbox.send(self.folder, command, **values)

    def ask(self, question: Question) -> Future[Answer]:
        """Ask the model to write. A later `take` brings the answer. Raises UsageError and StorageError.

        The future fails with UsageError if the run ends first. Once it is cancelled, the next `take` ends the writing.
        """
        future: Future[Answer] = Future()
        self._asked[inbox.ask(self.folder, question)] = future
        return future

    def _new_events(self) -> list[TimedEvent]:
        events = self._reader.poll()
        missing = not events and not self.live and not self._run.events.exists()
        self._failure = f"no journal '{self._run.events}': open a run that has started" if missing else ""
        if self._reader.restarts != self._restarts:
            self._restarts = self._reader.restarts
            self._older_count_to, self._iteration, self._progress = math.inf, 0, None
        for _, event in events:
            self._note(event)
        started = any(isinstance(event, RunStarted) for _, event in events)
        if self._reader.opening is not self._opening:
            self._opening = self._reader.opening
            if self._opening is not None:
                events.insert(0, self._opening)
        if not any(isinstance(event, RunStarted) for _, event in events):
            return events
        try:
            ppo: Any = read_config(self._run).get("ppo")
        except StorageError:
            ppo = {}
        ppo = ppo if isinstance(ppo, dict) else {}
        target = ppo.get("kl_target") if ppo.get("kl_controller") == "adaptive" else None
        self.kl_target = target if isinstance(target, float) else None
        changes: dict[str, Any] = {"name": self._run.name, "folder": str(self._run.root)}  # renamed or moved since
        if not started and isinstance(total := ppo.get("iterations"), int):
            changes["iterations"] = total  # a resumption that is not among the events may have changed it
        return [(at, dataclasses.replace(e, **changes) if isinstance(e, RunStarted) else e) for at, e in events]

    def _note(self, event: Event) -> None:
        """Record what `event` says about those before it."""
        match event:
            case Iteration() | RewardModelStep():
                self._iteration = event.iteration
                self._older_count_to = min(self._older_count_to, event.iteration - 1)
            case RunStarted():
                self._iteration = max(event.resumed_at or 0, 0)
                self._older_count_to = min(self._older_count_to, self._iteration)

    def _exchange(self) -> None:
        """Pass the answers that have arrived on to who asked."""
        if not self._asked:
            return
        live = self._run.is_live()  # checked first: then all answers of a trainer that has ended are there
        for path, future in list(self._asked.items()):
            answer: Answer | StorageError | None
            if future.cancelled():
                del self._asked[path]
                inbox.withdraw(path)
                continue
            waits = inbox.waits(path)  # looked for first: a question is removed once its answer is there
            try:
                answer = inbox.read_answer(path)
            except StorageError as error:
                answer = error
            if answer is None and not waits:
                answer = StorageError(f"run '{self._run.name}' lost the question: ask again")
            if answer is not None:
                del self._asked[path]
                give(future, answer)
        if not live:
            self._fail(f"run '{self._run.name}' ended before it answered: ask again")

    def _fail(self, reason: str) -> None:
        while self._asked:
            path, future = self._asked.popitem()
            inbox.withdraw(path)
            give(future, UsageError(reason))


def whole_run(folder: Path) -> RunView:
    """Read the run in `folder` with all its iterations at once. Call it in a thread: a long run takes seconds."""
    run, view = RunOnDisk(folder), RunView()
    for event in run.take():
        view.take(event)
    while (chunk := run.earlier()) is not None:
        view.history.prepend(chunk)
    return view
