"""Questions on their way to the trainer's thread, none of which may stay without an answer."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from trainer.control.questions import Dropped, Question, Reply, never, unanswered

ENDED = "the run ended before it was answered"


class Waiting(NamedTuple):
    """A question, whom to give the answer, and whether they still wait for it."""

    question: Question
    reply: Reply
    dropped: Dropped = never


class QuestionQueue:
    """Keeps questions in the order they came; may be used by any thread, but not in a signal handler.

    Once closed, every question is answered at once by the problem that nobody is there to answer it.
    """

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._closed = False
        self._lock = threading.Lock()  # a question must not slip in behind the last look into the queue

    def put(self, waiting: Waiting) -> None:
        """Let the question wait for its turn."""
        with self._lock:
            if not self._closed:
                self._waiting.append(waiting)
                return
        waiting.reply(unanswered(waiting.question, ENDED))

    def take(self) -> Waiting | None:
        """The question whose turn it is, None when there is none. Who takes it replies."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def open(self) -> None:
        """Let questions wait again."""
        self._closed = False

    def close(self) -> None:
        """Answer all that wait, and all that come from now on, by a problem."""
        with self._lock:
            self._closed = True
            left = list(self._waiting)
            self._waiting.clear()
        for waiting in left:
            waiting.reply(unanswered(waiting.question, ENDED))
