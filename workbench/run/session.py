"""A training run inside this process: the one thread that it runs on, its events, its end.

MLX ties arrays, streams and random keys to a thread, so the trainer gets one of its own, never one of a pool.
Nothing here knows of a display: the headless commands and the workbench use the same session.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from trainer.config import Config
from trainer.control.control import Control
from trainer.control.questions import Answer, Question
from trainer.events import Event, HumanEvaluation, RunEnded
from trainer.runs.sinks import Sink


def give(future: Future[Answer], answer: Answer) -> None:
    """Set the result of `future`, unless it was cancelled."""
    if future.set_running_or_notify_cancel():
        future.set_result(answer)


class Train(Protocol):
    """The trainer's entry: a whole run on the calling thread, every event to every sink."""

    def __call__(
        self, config: Config, *, resume: Path | None, preset: str, sinks: Sequence[Sink], control: Control
    ) -> RunEnded:
        """Run to the end; raises TrainerError for what a user can mend."""


class EventQueue:
    """A sink that hands events from the trainer's thread to another one; it never makes the trainer wait.

    While its reader lags, only the newest of consecutive transient events is kept, so it stays small.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._lock = threading.Lock()
        # Apart from the events: SimpleQueue.put is the one call of these that a signal handler may make.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def emit(self, event: Event) -> None:
        with self._lock:
            if event.transient and self._events and self._events[-1].transient:
                self._events[-1] = event
                return
            waiting = bool(self._events)
            self._events.append(event)
        if not waiting:
            self._wakeups.put(None)

    def close(self) -> None:
        """Nothing to release: what is queued can still be taken."""

    def wake(self) -> None:
        """Make a `take` that waits return now. May be called from a signal handler."""
        self._wakeups.put(None)

    def take(self, timeout: float | None = 0) -> list[Event]:
        """All queued events in order, after waiting `timeout` seconds (None: without limit) for a wake-up."""
        with contextlib.suppress(queue.Empty):
            self._wakeups.get(block=timeout != 0, timeout=timeout)
        with self._lock:
            events = list(self._events)
            self._events.clear()
        return events

    def __len__(self) -> int:
        return len(self._events)


class Session:
    """Owns the trainer's thread, its events, its control and its outcome.

    Start it, `take` events until `finished`, then ask for the `result`. As a context manager it starts on
    entry and leaves no thread behind: a run that is still going at the end of the block is told to stop, and
    waited for.
    """

    def __init__(
        self,
        config: Config,
        *,
        resume: Path | None = None,
        preset: str = "run",
        train: Train | None = None,
        control: Control | None = None,
    ) -> None:
        self._config = config
        self._resume = resume
        self._preset = preset
        self._train = train or _train_on_this_thread
        self._control = control or Control()
        self._events = EventQueue()
        self._ended: RunEnded | None = None
        self._failure: BaseException | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainer")
        self.stop_reason = ""  # why the run was told to stop; empty while it was not

    def start(self) -> None:
        """Start the trainer's thread."""
        self._thread.start()

    def take(self, timeout: float | None = 0) -> list[Event]:
        """Events since the last call, after waiting `timeout` seconds at most for one (None: forever)."""
        return self._events.take(timeout)

    @property
    def finished(self) -> bool:
        """Whether the run is over and all its events were taken."""
        return self._done.is_set() and not self._events

    def stop(self, reason: str) -> None:
        """Ask for the end of the run after a checkpoint; returns at once, also in a signal handler."""
        self.stop_reason = self.stop_reason or reason
        self._control.stop(reason)
        self._events.wake()

    def abort(self) -> None:
        """Ask for the end of the run without a checkpoint; returns at once."""
        self.stop_reason = self.stop_reason or "aborted"
        self._control.abort()
        self._events.wake()

    def pause(self) -> None:
        """Hold the run where it is; like all that follows it returns at once."""
        self._control.pause()

    def resume(self) -> None:
        """Let a paused run go on."""
        self._control.resume()

    def step(self) -> None:
        """Let the run go on to the end of its iteration under way, or of the next one, and pause there."""
        self._control.step()

    def checkpoint(self) -> None:
        """Save a checkpoint of the last whole iteration now."""
        self._control.checkpoint()

    def rollback(self, to: int | None, reason: str) -> None:
        """Go on from the checkpoint after iteration `to`, None for the best; an Alert tells why that cannot be."""
        self._control.rollback(to, reason)

    def set(self, key: str, value: Any) -> None:
        """Change a live setting before the next iteration; an Alert tells why where that cannot be."""
        self._control.set(key, value)

    def tell(self, event: HumanEvaluation) -> None:
        """Let the run emit `event` as one of its own; one that has ended does not hear it."""
        self._control.tell(event)

    def ask(self, question: Question) -> Future[Answer]:
        """What the run's model writes; where the run ends first, the Answer's `problem` says so.

        To cancel it ends the writing within a token step.
        """
        future: Future[Answer] = Future()
        self._control.ask(question, partial(give, future), future.cancelled)
        return future

    def result(self) -> RunEnded:
        """How the run ended; waits for it. Raises what the trainer raised."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        if self._ended is None:
            raise RuntimeError("the trainer returned no end of the run")
        return self._ended

    def __enter__(self) -> Session:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._done.is_set():
            self.stop("the program is ending")
        self._thread.join()

    def _run(self) -> None:
        try:
            self._ended = self._train(
                self._config,
                resume=self._resume,
                preset=self._preset,
                sinks=[self._events],
                control=self._control,
            )
        except BaseException as failure:  # noqa: BLE001 - raised again by `result`, on the thread that asks
            self._failure = failure
        finally:
            self._control.detach()  # what was asked of a trainer that failed to begin gets its answer too
            self._done.set()
            self._events.wake()


def _train_on_this_thread(
    config: Config, *, resume: Path | None, preset: str, sinks: Sequence[Sink], control: Control
) -> RunEnded:
    # Imported here, because that imports mlx, and only the thread that trains may use it.
    from trainer.session.training import release_thread, train
    from workbench.system.code_trust import trusted_code

    try:
        trust = trusted_code().check
        return train(config, resume=resume, preset=preset, sinks=sinks, control=control, trust=trust)
    finally:
        release_thread()
