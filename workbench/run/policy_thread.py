"""The saved policies of a run that is not being trained, on a thread that loads one at the first question."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Protocol

from trainer.errors import Interrupted, TrainerError, UsageError
from trainer.questions import Answer, Question, QuestionDroppedError, unanswered
from trainer.runs.folder import RunFolder
from workbench.run.training_thread import give


class Policy(Protocol):
    """A loaded policy: `trainer.engine.answers.SavedPolicy`, or a stand-in for it."""

    def use(self, checkpoint: str) -> None: ...
    def answer(self, question: Question, progress: Callable[[], None]) -> Answer: ...


class PolicyThread:
    """A thread that answers questions in order, with the policies of the run in `folder`.

    Its methods are called on one thread, and all but `join` return at once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._asked: queue.SimpleQueue[tuple[Question, str, Future[Answer]] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="saved policy")

    def ask(self, question: Question, checkpoint: str = "") -> Future[Answer]:
        """Ask the policy of a checkpoint ("": the newest) to write.

        The future fails with a TrainerError if the policy cannot be loaded; if the thread is closed first, the Answer's
        `problem` says so. Cancelling the future ends the writing within a token step.
        """
        if self._closing.is_set():
            raise UsageError("the model was unloaded: ask again")
        if self._thread.ident is None:
            self._thread.start()
        future: Future[Answer] = Future()
        self._asked.put((question, checkpoint, future))
        return future

    def close(self) -> None:
        """Release the model within a token step, or when its loading is over. Returns at once."""
        self._closing.set()
        self._asked.put(None)

    def join(self) -> None:
        """Wait until the thread has ended after `close`."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            from trainer.engine.training import release_thread  # not above, as in `_load`

            release_thread()

    def _serve(self) -> None:
        policy: Policy | None = None
        while (asked := self._asked.get()) is not None:
            question, checkpoint, future = asked
            if future.cancelled():
                continue
            try:
                self._check(future)
                if policy is None:
                    policy = _load(RunFolder(self.folder), checkpoint)
                else:
                    policy.use(checkpoint)
                give(future, policy.answer(question, partial(self._check, future)))
            except Interrupted as interruption:
                give(future, unanswered(question, interruption.reason))
            except TrainerError as error:
                # Without its traceback: its frames would keep the model alive as long as anyone keeps the error.
                give(future, error.with_traceback(None))
            except Exception as bug:  # noqa: BLE001  the asker gets the error; the next question may succeed
                give(future, bug)

    def _check(self, future: Future[Answer]) -> None:
        if self._closing.is_set():
            raise Interrupted("the model was unloaded before it answered", save=False)
        if future.cancelled():
            raise QuestionDroppedError


def _load(folder: RunFolder, checkpoint: str) -> Policy:
    # Imported here, because that imports mlx, and only the thread that asks the model may use it.
    from trainer.engine.answers import SavedPolicy
    from workbench.system.code_trust import trusted_code

    return SavedPolicy(folder, checkpoint, trust=trusted_code().check)
