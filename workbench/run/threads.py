"""Threads of this process that use a model: one trains a run, one asks saved policies.

MLX ties arrays, streams and random keys to a thread, so each gets one of its own, never one of a pool. It is imported
on that thread. Nothing here depends on a display: the headless commands and the workbench use the same classes.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import AnyConfig
from trainer.engine.control import Control
from trainer.engine.inbox import Command
from trainer.errors import Interrupted, TrainerError, UsageError
from trainer.events import Event, RunEnded, RunStarted
from trainer.questions import Answer, Question, QuestionDroppedError, unanswered
from trainer.runs.folder import RunFolder

if TYPE_CHECKING:
    from trainer.engine.answers import SavedPolicy

_STUCK_SECONDS = 3.0  # that a trainer gets to end before its run has begun


def give(future: Future[Answer], answer: Answer | Exception) -> None:
    """Set the result of `future`, or the exception that it raises, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


Train = Callable[..., RunEnded]
"""The trainer's entry point, `trainer.engine.training.train`."""


class TrainingThread:
    """The thread that trains a run of any kind; its events, its control and its result.

    It is the sink of its run: start it, `take` events until `finished`, then call `result`. As a context manager it
    starts on entry and leaves no thread behind: at the end of the block it stops a run that is still going, and waits
    for it. train: replaces the trainer in tests.
    """

    def __init__(
        self,
        config: AnyConfig,
        *,
        resume: Path | None = None,
        preset: str = "",
        train: Train | None = None,
        accept_data: bool = False,
    ) -> None:
        self._control = Control()
        self._events: deque[Event] = deque()
        self._lock = threading.Lock()
        # Separate from the events: of these calls, a signal handler may make only SimpleQueue.put.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._began = False  # whether the run has
        self._executor = ThreadPoolExecutor(1, "trainer")
        self._ended = Future[RunEnded]()  # replaced when it starts
        self._train = partial(
            train or _train, config, resume=resume, preset=preset, sinks=[self], accept_data=accept_data
        )
        self.stop_reason = ""  # why the run was asked to stop; empty before that
        self._stopped_at = math.inf  # seconds on the monotonic clock

    def start(self) -> None:
        """Start the trainer's thread."""
        self._ended = self._executor.submit(self._run)
        self._ended.add_done_callback(lambda _: self._wakeups.put(None))

    def emit(self, event: Event) -> None:
        """Receive an event of the trainer, which never waits.

        While the reader lags, only the newest of consecutive transient events is kept, so they stay few.
        """
        self._began = self._began or isinstance(event, RunStarted)
        with self._lock:
            if event.transient and self._events and self._events[-1].transient:
                self._events[-1] = event
                return
            waiting = bool(self._events)
            self._events.append(event)
        if not waiting:
            self._wakeups.put(None)

    def close(self) -> None:
        """Do nothing: events can still be taken."""

    def take(self, timeout: float | None = 0) -> list[Event]:
        """Return the events since the last call, after waiting at most `timeout` seconds for one (None: forever)."""
        with contextlib.suppress(queue.Empty):
            self._wakeups.get(block=timeout != 0, timeout=timeout)
        with self._lock:
            events = list(self._events)
            self._events.clear()
        return events

    @property
    def finished(self) -> bool:
        """Return whether the run is over and all its events were taken."""
        return self._ended.done() and not self._events

    @property
    def stuck(self) -> bool:
        """Return whether the process should end without the trainer.

        It has not heard for seconds that it is to stop, because it loads a model or is inside a chat template without
        an end. No run has begun yet, so nothing is lost.
        """
        return time.monotonic() - self._stopped_at > _STUCK_SECONDS and not (self._began or self._ended.done())

    def stop(self, reason: str) -> None:
        """Ask the run to save a checkpoint and end. Returns at once, also in a signal handler."""
        self.stop_reason = self.stop_reason or reason
        self.send("stop", reason=reason)
        self._wakeups.put(None)

    def send(self, command: Command, **values: Any) -> None:
        """Call the method of the run's `Control` that is named like the command. Returns at once."""
        if command in ("stop", "abort"):
            self._stopped_at = min(self._stopped_at, time.monotonic())
        getattr(self._control, command)(**values)

    def ask(self, question: Question) -> Future[Answer]:
        """Ask the run's model to write. If the run ends first, the Answer's `problem` says so.

        Cancelling the future ends the writing within a token step.
        """
        future: Future[Answer] = Future()
        self._control.ask(question, partial(give, future), future.cancelled)
        return future

    def result(self) -> RunEnded:
        """Wait for the end of the run and return it. Raises what the trainer raised."""
        self._executor.shutdown()
        return self._ended.result()

    def __enter__(self) -> TrainingThread:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended.done():
            self.stop("the program is ending")
        self._executor.shutdown()

    def _run(self) -> RunEnded:
        try:
            return self._train(control=self._control)
        except BaseException as failure:
            cause: BaseException | None = failure
            while cause is not None:  # the run's model is among the local variables in their tracebacks
                traceback.clear_frames(cause.__traceback__)
                cause = cause.__cause__ or cause.__context__
            raise
        finally:
            self._control.detach()  # also answers questions to a trainer that failed to start


def _train(config: AnyConfig, **options: Any) -> RunEnded:
    from trainer.distributed import join, rank_of_process
    from trainer.engine.training import release_thread, train
    from workbench.system.code_trust import trusted_code

    try:
        if rank_of_process() is not None:
            options["ranks"] = join()
        return train(config, trust=trusted_code().check, **options)
    finally:
        release_thread()


class PolicyThread:
    """A thread that answers questions in order, with the policies of the run in `folder`.

    Its methods are called on one thread, and all but `join` return at once. load: replaces the loading in tests.
    """

    def __init__(self, folder: Path, load: Callable[[RunFolder, str], SavedPolicy] | None = None) -> None:
        self.folder, self._load = folder.absolute(), load
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
        from trainer.engine.answers import SavedPolicy
        from trainer.engine.training import release_thread
        from workbench.system.code_trust import trusted_code

        load = self._load or partial(SavedPolicy, trust=trusted_code().check)
        policy: SavedPolicy | None = None
        try:
            while (asked := self._asked.get()) is not None:
                question, checkpoint, future = asked
                if future.cancelled():
                    continue
                try:
                    self._check(future)
                    if policy is None:
                        policy = load(RunFolder(self.folder), checkpoint)
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
        finally:
            del policy
            release_thread()

    def _check(self, future: Future[Answer]) -> None:
        if self._closing.is_set():
            raise Interrupted("the model was unloaded before it answered", save=False)
        if future.cancelled():
            raise QuestionDroppedError
