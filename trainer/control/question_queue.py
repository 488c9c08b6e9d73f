"""Queue of questions to the trainer's thread; each of them gets an answer."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from trainer.control.questions import Dropped, Question, Reply, never, unanswered

ENDED = "the run ended before it was answered"


class Waiting(NamedTuple):
    """A waiting question, who gets the answer, and whether they still wait for it."""

    question: Question
    reply: Reply
    dropped: Dropped = never


class QuestionQueue:
    """Questions in the order they came, for any thread, but not for a signal handler.

    Once closed, the queue answers every question at once with the problem that the run has ended.
    """

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._closed = False
        self._lock = threading.Lock()  # no question may slip in while `close` empties the queue

    def put(self, waiting: Waiting) -> None:
        """Add a question to the queue, or answer it with a problem if the queue is closed."""
        with self._lock:
            if not self._closed:
                self._waiting.append(waiting)
                return
        waiting.reply(unanswered(waiting.question, ENDED))

    def take(self) -> Waiting | None:
        """Return the next question, None if there is none. The caller must reply to it."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def open(self) -> None:
        """Accept questions again."""
        self._closed = False

    def close(self) -> None:
        """Answer all waiting questions, and all that come from now on, with a problem."""
        with self._lock:
            self._closed = True
            left = list(self._waiting)
            self._waiting.clear()
        for waiting in left:
            waiting.reply(unanswered(waiting.question, ENDED))
