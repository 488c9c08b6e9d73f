"""Steering of the trainer: stop, pause, steps, checkpoints, rollbacks, live settings, questions, human evaluations."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from trainer.errors import Interrupted
from trainer.events import HumanEvaluation
from trainer.questions import DROPPED, Answer, Dropped, Question, QuestionDroppedError, Reply, unanswered

INBOX_SECONDS = 0.2
"""Shortest time between two looks into the inbox."""
ENDED = "the run ended before it was answered"
NO_ANSWERS = "this trainer takes no questions"


class Steered(Protocol):
    """A run as requests steer it, on the trainer's thread in `Control.check`."""

    def handle(self, request: str, *values: Any) -> None:
        """Handle a request: "checkpoint", "rollback" (to, reason), "set" (key, value), "report" (event).

        "paused", "resumed" and "stopped" (after the last checkpoint) report what has just happened.
        """

    def answer(self, question: Question, check: Callable[[], None]) -> Answer:
        """Answer with the model. Between its smallest steps, `check` raises Interrupted if the run is to end.

        It raises QuestionDroppedError if nobody waits for the answer any more, which is this answer's `problem`.
        """


class Control:
    """Requests to a running trainer, from any thread, and all but `ask` from a signal handler; each returns at once.

    The trainer calls `attach`, `detach`, `check`, `take_rest` and `clock`, all on its own thread. While no run is
    attached, as at the start of one, requests other than those to pause and to end are lost.
    """

    def __init__(self) -> None:
        # Takes no lock that the thread interrupted by a signal handler could hold.
        self._requests: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()  # an empty one wakes a paused trainer
        self._ends: dict[bool, str] = {}  # the first reason to end, by whether to save
        self._questions: deque[tuple[Question, Reply, Dropped]] = deque()
        self._takes_questions = True
        self._lock = threading.Lock()  # no question may slip in while `detach` empties the queue
        # Used by the trainer's thread alone:
        self._run: Steered | None = None
        self._look_into_inbox: Callable[[], None] = lambda: None
        self._inbox_due = 0.0
        self._paused = False
        self._stepping = False
        self._is_over: Callable[[], bool] | None = None  # ends the pause that `hold` began
        self._held = 0.0

    def stop(self, reason: str = "stopped by the user") -> None:
        """End the run, within a token step or micro-batch, after a checkpoint of the last whole iteration."""
        self._ends.setdefault(True, reason)
        self._requests.put(())

    def abort(self, reason: str = "aborted by the user") -> None:
        """End the run at once, without a checkpoint."""
        self._ends.setdefault(False, reason)
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
                self._questions.append((question, reply, dropped))
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
        for question, reply, _ in left:
            reply(unanswered(question, ENDED))
        self._run = None
        self._look_into_inbox = lambda: None

    def check(self, *, step_done: bool = False) -> None:
        """Handle requests: answer questions, wait while paused, raise Interrupted if the run is to end.

        The trainer calls it between its smallest steps, so it returns at once if there is nothing to handle.
        step_done: an iteration is complete, which is where a single step ends.
        """
        began = time.perf_counter()
        if step_done and self._stepping:
            self._paused = True
        if began < self._inbox_due and self._requests.empty() and not self._ends and not self._paused:
            return
        is_held = False  # and reported to be paused
        while True:
            self._handle_waiting(INBOX_SECONDS if is_held else 0.0)
            if self._paused and not is_held:
                is_held = True
                self._handle("paused")
            while self._questions:
                self._answer(*self._questions.popleft())
            if self._is_over and self._is_over():
                self._paused, self._is_over = False, None
            if not self._paused:
                break
        if is_held:
            self._handle("resumed")
        self._held += time.perf_counter() - began

    def hold(self, is_over: Callable[[], bool]) -> None:
        """Pause until `is_over`, or until somebody resumes the run; one who pauses it meanwhile keeps it paused."""
        self._paused, self._is_over = True, is_over
        self.check()

    def take_rest(self) -> None:
        """Handle what was requested since the last `check`, never waiting or interrupting: the run is ending."""
        self._inbox_due = 0.0
        with contextlib.suppress(Interrupted):
            self._handle_waiting()

    def clock(self) -> float:
        """Return seconds on a clock that stops while the trainer handles requests: paused, or answering."""
        return time.perf_counter() - self._held

    def _handle(self, request: str, *values: Any) -> None:
        if request == "pace":
            self._paused, self._stepping = values
            self._is_over = None
        elif self._run is not None:
            self._run.handle(request, *values)

    def _answer(self, question: Question, reply: Reply, dropped: Dropped) -> None:
        """Answer a question. Other requests are handled meanwhile."""
        answer = unanswered(question, ENDED)

        def check() -> None:
            self._handle_waiting()
            if dropped():
                raise QuestionDroppedError

        try:
            if dropped():
                answer = unanswered(question, DROPPED)
            elif self._run is None:
                answer = unanswered(question, NO_ANSWERS)
            else:
                answer = self._run.answer(question, check)
        finally:
            reply(answer)

    def _handle_waiting(self, wait: float = 0.0) -> None:
        """Handle requests, after waiting for at most `wait` seconds. Raises Interrupted if the run is to end."""
        if (now := time.perf_counter()) >= self._inbox_due:
            self._inbox_due = now + INBOX_SECONDS
            self._look_into_inbox()
        with contextlib.suppress(queue.Empty):
            request = self._requests.get(wait > 0, wait)
            while True:
                if request:
                    self._handle(*request)
                request = self._requests.get_nowait()
        for save in (False, True):  # an abort overrules a stop
            if save in self._ends:
                raise Interrupted(self._ends[save], save=save)
