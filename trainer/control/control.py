"""How others steer the trainer: stop, pause, steps, checkpoints, rollbacks, live settings, questions, news."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from trainer.control.question_queue import ENDED, QuestionQueue, Waiting
from trainer.control.questions import DROPPED, Answer, Dropped, Question, QuestionDroppedError, Reply, never, unanswered
from trainer.events import HumanEvaluation

INBOX_SECONDS = 0.2
"""How often the inbox is looked into, at most."""

Command = Literal["pause", "resume", "step", "checkpoint", "rollback", "set", "ask", "tell", "stop", "abort"]


class Interrupted(Exception):  # noqa: N818  nothing went wrong
    """Raised inside the trainer, between two token steps or micro-batches, when it was told to stop."""

    def __init__(self, reason: str, *, save: bool) -> None:
        self.reason = reason
        self.save = save
        super().__init__(reason)


class Request(NamedTuple):
    """Something asked of a running trainer."""

    command: Command
    reason: str = ""  # of stop, abort and rollback
    key: str = ""  # of set, dotted
    value: Any = None  # of set
    question: Question | None = None  # of ask
    reply: Reply | None = None  # of ask
    dropped: Dropped = never  # of ask
    event: HumanEvaluation | None = None  # of tell
    to: int | None = None  # of rollback


class Steered:
    """What a run does about requests, on the trainer's thread, within `Control.check`; nothing unless overridden."""

    def paused(self) -> None:
        """The trainer is held from now on."""

    def resumed(self) -> None:
        """The trainer goes on."""

    def checkpoint(self) -> None:
        """Save a checkpoint now."""

    def rollback(self, to: int | None, reason: str) -> None:
        """Go on from the checkpoint after iteration `to` before the next iteration."""

    def set(self, key: str, value: Any) -> None:
        """Let the live setting `key` be `value` from the next iteration on."""

    def tell(self, event: HumanEvaluation) -> None:
        """Take up among the run's events what others found out about it."""

    def answer(self, question: Question, heed: Callable[[], None]) -> Answer:
        """Let the model write; `heed` between its smallest steps raises Interrupted if the run is to end.

        It raises QuestionDroppedError where nobody waits for the answer any more, which is this answer's `problem`.
        """
        return unanswered(question, "this trainer takes no questions")


class Control:
    """Requests to a running trainer, from any thread, and all but `ask` from a signal handler; each returns at once.

    The trainer calls `attach`, `detach`, `check`, `between_iterations` and `clock`, all on its own thread.
    """

    def __init__(self) -> None:
        # Takes no lock that a signal handler could find held by the thread which it interrupts.
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()  # None: a question waits
        self._questions = QuestionQueue()
        # Of the trainer's thread alone:
        self._run = Steered()
        self._inbox: Callable[[], Sequence[Request]] = tuple
        self._inbox_due = 0.0
        self._paused = False
        self._stepping = False
        self._end: tuple[str, bool] | None = None
        self._held = 0.0

    def stop(self, reason: str = "stopped by the user") -> None:
        """End the run after a checkpoint of the last whole iteration; honoured within a token step or micro-batch."""
        self._requests.put(Request("stop", reason))

    def abort(self, reason: str = "aborted by the user") -> None:
        """End the run at once, without a checkpoint."""
        self._requests.put(Request("abort", reason))

    def pause(self) -> None:
        """Hold the run where it is, within a token step or micro-batch. Other requests are heard meanwhile."""
        self._requests.put(Request("pause"))

    def resume(self) -> None:
        """Go on, and do not stop for a single step."""
        self._requests.put(Request("resume"))

    def step(self) -> None:
        """Go on, and pause when the iteration under way is done, or the next one where none is under way."""
        self._requests.put(Request("step"))

    def checkpoint(self) -> None:
        """Save a checkpoint of the last whole iteration now."""
        self._requests.put(Request("checkpoint"))

    def rollback(self, to: int | None = None, reason: str = "asked for by the user") -> None:
        """Go on from the checkpoint after iteration `to` before the next iteration; its number stays what it is.

        None: the best checkpoint, or the oldest where none is kept as the best. The run tells in an Alert why it does
        not.
        """
        self._requests.put(Request("rollback", reason, to=to))

    def set(self, key: str, value: Any) -> None:
        """Change a live setting before the next iteration; the run tells in an Alert why it does not."""
        self._requests.put(Request("set", key=key, value=value))

    def tell(self, event: HumanEvaluation) -> None:
        """Let the run emit `event` as one of its own; a run that has ended does not hear it."""
        self._requests.put(Request("tell", event=event))

    def ask(self, question: Question, reply: Reply, dropped: Dropped = never) -> None:
        """Let the model write within a token step or micro-batch, after what was asked before.

        `reply` gets the answer in any case, on the trainer's thread, or on this one when the run has ended: then, and
        when it ends first, the Answer's `problem` says so. So it does where `dropped` is true before the end: the
        writing ends within a token step.
        """
        self._questions.put(Waiting(question, reply, dropped))
        self._requests.put(None)

    def attach(self, run: Steered, inbox: Callable[[], Sequence[Request]] = tuple) -> None:
        """Let `run` answer to requests, those that `inbox` returns among them."""
        self._run = run
        self._inbox = inbox
        self._questions.open()

    def detach(self) -> None:
        """Let go of the run, and with it of its model, on the thread that the model belongs to.

        Every question without an answer gets one that says so.
        """
        self._questions.close()
        self._run = Steered()
        self._inbox = tuple

    def check(self) -> None:
        """Heed requests: answer questions, hold while paused, raise Interrupted if the run is to end.

        Called by the trainer between its smallest steps.
        """
        began = time.perf_counter()
        self._hear()
        if not self._paused:
            self._answer()
        if self._paused:  # maybe only since then
            self._hold()
        self._held += time.perf_counter() - began

    def between_iterations(self) -> None:
        """`check` before an iteration begins, which is where a single step ends."""
        self._paused = self._paused or self._stepping
        self.check()

    def clock(self) -> float:
        """Seconds on a clock that stands still while the trainer heeds requests: paused, or answering."""
        return time.perf_counter() - self._held

    def _hold(self) -> None:
        self._run.paused()
        self._answer()
        while self._paused:
            self._hear(INBOX_SECONDS)
            self._answer()
        self._run.resumed()

    def _answer(self) -> None:
        """Answer the questions that wait, one after the other. Other requests are heard meanwhile."""
        while (waiting := self._questions.take()) is not None:
            answer = unanswered(waiting.question, ENDED)
            try:
                answer = self._answered(waiting)
            finally:
                waiting.reply(answer)

    def _answered(self, waiting: Waiting) -> Answer:
        def heed() -> None:
            self._hear()
            if waiting.dropped():
                raise QuestionDroppedError

        if waiting.dropped():
            return unanswered(waiting.question, DROPPED)
        return self._run.answer(waiting.question, heed)

    def _hear(self, wait: float = 0.0) -> None:
        """Heed what was requested, after waiting for at most `wait` seconds."""
        with contextlib.suppress(queue.Empty):
            self._heed(self._requests.get(wait > 0, wait))
            while True:
                self._heed(self._requests.get_nowait())
        if (now := time.perf_counter()) >= self._inbox_due:
            self._inbox_due = now + INBOX_SECONDS
            for request in self._inbox():
                self._heed(request)
        if self._end is not None:
            reason, save = self._end
            raise Interrupted(reason, save=save)

    def _heed(self, request: Request | None) -> None:
        if request is None:
            return
        match request.command:
            case "pause":
                self._paused = True
            case "resume":
                self._paused, self._stepping = False, False
            case "step":
                self._paused, self._stepping = False, True
            case "checkpoint":
                self._run.checkpoint()
            case "rollback":
                self._run.rollback(request.to, request.reason)
            case "set":
                self._run.set(request.key, request.value)
            case "tell":
                assert request.event is not None
                self._run.tell(request.event)
            case "ask":
                assert request.question is not None
                assert request.reply is not None
                self._questions.put(Waiting(request.question, request.reply, request.dropped))
            case "stop":
                self._end = self._end or (request.reason, True)
            case "abort":
                self._end = (request.reason, False)
