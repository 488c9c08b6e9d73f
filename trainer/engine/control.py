"""Steering of the trainer: stop, pause, steps, checkpoints, rollbacks, live settings, questions, human evaluations."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from trainer.errors import Interrupted
from trainer.events import HumanEvaluation
from trainer.questions import DROPPED, Answer, Dropped, Question, QuestionDroppedError, Reply, unanswered

INBOX_SECONDS = 0.2
"""Shortest time between two looks into the inbox."""
ENDED = "the run ended before it was answered"
NO_ANSWERS = "this trainer takes no questions"


class Waiting(NamedTuple):
    """A waiting question, who gets the answer, and whether they still wait for it."""

    question: Question
    reply: Reply
    dropped: Dropped


class Steered(Protocol):
    """A run as requests steer it, on the trainer's thread in `Control.check`."""

    def handle(self, request: str, *values: Any) -> None:
        """Handle a request: "checkpoint", "rollback" (to, reason), "set" (key, value), "report" (event).

        "paused" and "resumed" report what has just happened.
        """

    def answer(self, question: Question, check: Callable[[], None]) -> Answer:
        """Answer with the model. Between its smallest steps, `check` raises Interrupted if the run is to end.

        It raises QuestionDroppedError if nobody waits for the answer any more, which is this answer's `problem`.
        """


class Control:
    """Requests to a running trainer, from any thread, and all but `ask` from a signal handler; each returns at once.

    The trainer calls `attach`, `detach`, `check`, `check_end`, `between_iterations` and `clock`, all on its own thread.
    While no run is attached, as at the start of one, requests other than those to pause and to end are lost.
    """

    def __init__(self) -> None:
        # Takes no lock that the thread interrupted by a signal handler could hold.
        self._requests: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()  # an empty one wakes a paused trainer
        self._ends: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()  # reasons, and whether to save
        self._questions: deque[Waiting] = deque()
        self._takes_questions = True
        self._lock = threading.Lock()  # no question may slip in while `detach` empties the queue
        # Used by the trainer's thread alone:
        self._run: Steered | None = None
        self._look_into_inbox: Callable[[], None] = lambda: None
        self._inbox_due = 0.0
        self._paused = False
        self._stepping = False
        self._end: tuple[str, bool] | None = None
        self._held = 0.0

    def stop(self, reason: str = "stopped by the user") -> None:
        """End the run, within a token step or micro-batch, after a checkpoint of the last whole iteration."""
        self._ends.put((reason, True))
        self._requests.put(())

    def abort(self, reason: str = "aborted by the user") -> None:
        """End the run at once, without a checkpoint."""
        self._ends.put((reason, False))
        self._requests.put(())

    def pause(self) -> None:
        """Pause the run within a token step or micro-batch. Other requests are still handled."""
        self._requests.put(("pace", True, False))

    def resume(self) -> None:
        """Continue, and do not stop after a single step."""
        self._requests.put(("pace", False, False))

    def step(self) -> None:
        """Continue, and pause after the current iteration, or after the next one if none is under way."""
        self._requests.put(("pace", False, True))

    def checkpoint(self) -> None:
        """Save a checkpoint of the last whole iteration now."""
        self._requests.put(("checkpoint",))

    def rollback(self, to: int | None = None, reason: str = "requested by the user") -> None:
        """Continue from the checkpoint after iteration `to` before the next iteration, which keeps its number.

        None: the best checkpoint, or the oldest if none is kept as the best. If the run refuses, an Alert says why.
        """
        self._requests.put(("rollback", to, reason))

    def set(self, key: str, value: Any) -> None:
        """Change a live setting before the next iteration. If the run refuses, an Alert says why."""
        self._requests.put(("set", key, value))

    def report(self, event: HumanEvaluation) -> None:
        """Emit `event` as one of the run's own; a run that has ended ignores it."""
        self._requests.put(("report", event))

    def ask(self, question: Question, reply: Reply, dropped: Dropped = lambda: False) -> None:
        """Ask the model to write, within a token step or micro-batch and after earlier questions.

        `reply` always gets an answer, on the trainer's thread, or on this one if the run has ended. If the run has
        ended, or ends first, the Answer's `problem` says so. It also does if `dropped` becomes true before the end: the
        writing then stops within a token step.
        """
        with self._lock:
            if self._takes_questions:
                self._questions.append(Waiting(question, reply, dropped))
                self._requests.put(())
                return
        reply(unanswered(question, ENDED))

    def attach(self, run: Steered, look_into_inbox: Callable[[], None] = lambda: None) -> None:
        """Make `run` the one that handles requests. look_into_inbox: makes those of other processes."""
        self._run = run
        self._look_into_inbox = look_into_inbox
        self._takes_questions = True

    def detach(self) -> None:
        """Release the run, and with it its model, on the thread that the model belongs to.

        Every unanswered question gets an answer that says so.
        """
        with self._lock:
            self._takes_questions = False
            left = list(self._questions)
            self._questions.clear()
        for waiting in left:
            waiting.reply(unanswered(waiting.question, ENDED))
        self._run = None
        self._look_into_inbox = lambda: None

    def check(self) -> None:
        """Handle requests: answer questions, wait while paused, raise Interrupted if the run is to end.

        The trainer calls it between its smallest steps, so it returns at once if there is nothing to handle.
        """
        began = time.perf_counter()
        if began < self._inbox_due and self._requests.empty() and self._end is None and not self._paused:
            return
        self._handle_waiting()
        if not self._paused:
            self._answer()
        if self._paused:  # perhaps only since the answers
            self._hold()
        self._held += time.perf_counter() - began

    def check_end(self) -> None:
        """Raise Interrupted if the run is to end, here and in each later check; leave other requests for `check`.

        The trainer calls it while no run is attached that could handle them.
        """
        with contextlib.suppress(queue.Empty):
            while True:
                end = self._ends.get_nowait()
                if self._end is None or not end[1]:  # the first reason to stop counts, and an abort overrules it
                    self._end = end
        if self._end is not None:
            reason, save = self._end
            raise Interrupted(reason, save=save)

    def between_iterations(self) -> None:
        """Call `check` before an iteration begins, which is where a single step ends."""
        self._paused = self._paused or self._stepping
        self.check()

    def take_rest(self) -> None:
        """Handle what was requested since the last `check`, never waiting or interrupting: the run is ending."""
        self._inbox_due = 0.0
        with contextlib.suppress(Interrupted):
            self._handle_waiting()

    def clock(self) -> float:
        """Return seconds on a clock that stops while the trainer handles requests: paused, or answering."""
        return time.perf_counter() - self._held

    def _hold(self) -> None:
        self._handle("paused")
        self._answer()
        while self._paused:
            self._handle_waiting(INBOX_SECONDS)
            self._answer()
        self._handle("resumed")

    def _handle(self, request: str, *values: Any) -> None:
        if request == "pace":
            self._paused, self._stepping = values
        elif self._run is not None:
            self._run.handle(request, *values)

    def _answer(self) -> None:
        """Answer waiting questions one after the other. Other requests are handled meanwhile."""
        while self._questions:
            waiting = self._questions.popleft()
            answer = unanswered(waiting.question, ENDED)

            def check(waiting: Waiting = waiting) -> None:
                self._handle_waiting()
                if waiting.dropped():
                    raise QuestionDroppedError

            try:
                if waiting.dropped():
                    answer = unanswered(waiting.question, DROPPED)
                elif self._run is None:
                    answer = unanswered(waiting.question, NO_ANSWERS)
                else:
                    answer = self._run.answer(waiting.question, check)
            finally:
                waiting.reply(answer)

    def _handle_waiting(self, wait: float = 0.0) -> None:
        """Handle requests, after waiting for at most `wait` seconds."""
        if (now := time.perf_counter()) >= self._inbox_due:
            self._inbox_due = now + INBOX_SECONDS
            self._look_into_inbox()
        with contextlib.suppress(queue.Empty):
            request = self._requests.get(wait > 0, wait)
            while True:
                if request:
                    self._handle(*request)
                request = self._requests.get_nowait()
        self.check_end()
