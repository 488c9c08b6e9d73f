"""A run under way in its folder: lock, journal, checkpoints, and its end, whatever it trains."""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from trainer.arrays import leaves
from trainer.config import Config
from trainer.distributed.ranks import HUNG, Ranks
from trainer.engine.control import Control, Steered
from trainer.engine.inbox import Inbox
from trainer.engine.trainable import Trainable
from trainer.errors import Interrupted, StorageError, TrainerError
from trainer.events import Alert, EndState, Event, PhaseProgress, RunEnded, RunStarted, State, StateChanged
from trainer.monitoring import Monitor
from trainer.runs.branch_folder import start_of
from trainer.runs.checkpoint_files import CheckpointWriter, checkpoints
from trainer.runs.folder import RunFolder, create_run, versions, write_config
from trainer.runs.journal import Journal
from trainer.runs.sinks import ProgressFile, Sink, build_trackers


class Run:
    """Folder, journal, checkpoints and end of one run, which `kind` trains.

    resume: folder of the run to continue, None for a new one. sinks: receive every event; the run adds its own. watch:
    reports alerts on the events; None reports none. snapshot: state after the last whole iteration.
    """

    folder: RunFolder
    checkpoints: CheckpointWriter
    kind: Trainable
    snapshot: Any

    def __init__(self, config: Any, resume: Path | None, sinks: list[Sink], control: Control, ranks: Ranks) -> None:
        self.config = config
        self.resume = resume
        self.control = control
        self.warnings: list[str] = []
        self.watch: Monitor | None = None
        self.now: State = "loading"
        self._ranks = ranks
        self._sinks = sinks
        self._started = time.perf_counter()

    @property
    def iteration(self) -> int:
        """Number of the last whole iteration."""
        return int(self.snapshot.iteration)

    def emit(self, event: Event) -> None:
        """Pass an event to every sink, followed by the alerts that it causes.

        At a progress event, requests are handled, which may end the run. Several ranks do so only at the start of a
        phase, where they wait for each other.
        """
        if isinstance(event, PhaseProgress):
            if self._ranks.alone:
                self.control.check()
            elif event.done == 0:
                self._ranks.meet(self.control.check)
        elif isinstance(event, StateChanged):
            self.now = event.state
        elif isinstance(event, RunStarted):
            self.now = "loading"  # as readers take it, whatever came before
        for sink in self._sinks:
            if not (event.transient and isinstance(sink, Journal)):
                sink.emit(event)
        if event.transient or self.watch is None:
            return
        for alert in self.watch.take(event):
            self.emit(alert)
            if self.watch.pauses(alert):
                self.control.pause()
                message = f"paused by alarm '{alert.code}' (health.pause = true): deal with it, then resume"
                self.alert("warning", "paused", message)

    def state(self, state: State) -> None:
        """Report the run's state."""
        self.emit(StateChanged(state=state))

    def alert(self, level: Literal["info", "warning"], code: str, message: str, iteration: int | None = None) -> None:
        """Report something that a user should know, by default for the current iteration."""
        number = min(self.iteration + 1, self.kind.total) if iteration is None else iteration
        self.emit(Alert(iteration=number, level=level, code=code, message=message))

    def wait(self, why: str, is_over: Callable[[], bool]) -> None:
        """Pause the run until `is_over`, or until somebody resumes it to have what it waits for tried at once."""
        self.alert("warning", "judge_down", f"paused: {why}; the run goes on when it answers")
        self.control.hold(is_over)

    def save(self) -> None:
        """Save the last whole iteration, unless it is saved already. Raises StorageError."""
        if isinstance(self.config, Config) or self.kind.opening() is None:
            self.checkpoints.save(self.iteration, lambda path: self.kind.write(path, self.snapshot))

    def save_within(self) -> None:
        """Save the last whole iteration, unless it is saved, and report again the state that the run is in."""
        if self.iteration != self.checkpoints.saved_at:
            now = self.now
            self.save()
            self.state(now)

    def in_folder(self, preset: str, steered: Steered, loop: Callable[[], str]) -> RunEnded:
        """Create a new run's folder, as `create_run` does, and lock it; run `loop` and return how that ended.

        However `loop` ends, a checkpoint is saved if possible and an `end` event emitted. steered: handles requests;
        loop: returns why it is done.
        """
        if not self.resume:
            self.folder = create_run(self.config, preset, pairs=self.kind.fingerprint)
        with contextlib.nullcontext() if self.resume else self.folder.lock():  # that of a resumed run is locked
            try:
                self._open(steered)
            except TrainerError:
                if not self.resume:
                    shutil.rmtree(self.folder.root, ignore_errors=True)
                raise
            try:
                try:
                    reason = loop()
                except Interrupted as interruption:
                    if interruption.save:
                        self.save()
                        steered.handle("stopped")
                    return self._end("stopped", 130, interruption.reason)
                self.save()
                return self._end("done", 0, reason)
            except Exception as error:
                with contextlib.suppress(StorageError):  # a full disk must not hide `error`
                    if not isinstance(error, StorageError):
                        self.save()
                known = isinstance(error, TrainerError)
                reason = str(error) if known else f"{type(error).__name__}: {error}"
                with contextlib.suppress(StorageError):
                    self._end("failed", error.exit_code if isinstance(error, TrainerError) else 1, reason)
                raise

    def _open(self, steered: Steered) -> None:
        """Listen to requests, begin the journal, and add the other sinks of the run."""
        folder, config = self.folder, self.config
        inbox = Inbox(folder.control, self.control, functools.partial(self.alert, "warning", "request_broken"))
        self._sinks.insert(
            0, Journal(folder.events, shared=config.run.shared)
        )  # it has an event before anyone shows it
        self.checkpoints = CheckpointWriter(folder, config.checkpoint.keep, self.emit)
        self.control.attach(steered, inbox.take)
        # Called on another thread: this one waits for the rank that does not answer, and will never go on.
        self._ranks.on_hang = functools.partial(self._end, "failed", HUNG)
        trackers = build_trackers(config.run.trackers, folder.name, folder.root, config.model_dump())
        self._sinks += [ProgressFile(folder.progress, shared=config.run.shared), *trackers]

    def begin(self) -> None:
        """Report what is trained, once it is known which iteration the run continues after.

        The settings of a resumed run are written only now: a start that fails leaves the earlier ones.
        """
        config, kind, before = self.config, self.kind, None
        if self.resume:
            write_config(self.folder, config)
            before = start_of(self.folder)
        self.emit(
            RunStarted(
                name=self.folder.name,
                folder=str(self.folder.root),
                model=config.model.path,
                device="GPU" if mx.default_device() == mx.Device(mx.gpu) else "CPU",
                dtype=str(kind.model.dtype).removeprefix("mlx.core."),
                parameters=sum(array.size for array in leaves(kind.model.backbone.parameters())),
                trainable=kind.trainable,
                prompts=kind.prompts,
                eval_prompts=kind.eval_prompts,
                iterations=kind.total,
                seed=config.run.seed,
                versions=versions(),
                warnings=self.warnings,
                resumed_at=self.checkpoints.saved_at if self.resume else None,
                run_kind="ppo" if isinstance(config, Config) else config.kind,
                branched_from=before.branched_from if before else None,
            )
        )

    def _end(self, state: EndState, exit_code: int, reason: str) -> RunEnded:
        with contextlib.suppress(StorageError):
            self.control.take_rest()  # events that arrived while the last checkpoint was saved
        self.control.detach()  # answers waiting questions while the folder is still ours
        saved = checkpoints(self.folder).paths
        event = RunEnded(
            state=state,
            exit_code=exit_code,
            reason=reason,
            iteration=self.iteration,
            checkpoint=str(saved[-1].relative_to(self.folder.root)) if saved else "",
            seconds=time.perf_counter() - self._started,
            alarms=self.watch.unresolved_alarms if self.watch else {},
        )
        self.emit(event)
        return event
