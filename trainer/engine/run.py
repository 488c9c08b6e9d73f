"""A run under way in its folder: lock, journal, checkpoints, requests of others, and its end, whatever it trains."""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import mlx.core as mx

from trainer.arrays import leaves
from trainer.config import AnyConfig, Config
from trainer.distributed.ranks import HUNG, Ranks
from trainer.engine.control import Control, Steered
from trainer.engine.inbox import Inbox
from trainer.engine.trainable import Hooks
from trainer.errors import Interrupted, StorageError, TrainerError, UsageError
from trainer.events import (
    Alert,
    EndState,
    Event,
    HumanEvaluation,
    PhaseProgress,
    Report,
    RunEnded,
    RunStarted,
    State,
    StateChanged,
)
from trainer.files import TOML_BYTES, read_regular
from trainer.models.backbone import LoadedModel
from trainer.monitoring import Monitor
from trainer.questions import Answer, Question
from trainer.runs.branch_folder import origin
from trainer.runs.checkpoint_files import CheckpointWriter, checkpoints
from trainer.runs.folder import RunFolder, check_name_is_free, create_run, open_to_train, versions, write_config
from trainer.runs.journal import Journal
from trainer.runs.sinks import ProgressFile, Sinks, build_trackers


@contextlib.contextmanager
def closing(out: Sinks, control: Control) -> Iterator[None]:
    """Detach `control` and close `out` after the block; a full disk does not hide the error of the block."""
    try:
        yield
    except BaseException:
        control.detach()
        with contextlib.suppress(TrainerError):
            out.close()
        raise
    control.detach()
    out.close()


def hooks_of(emit: Report, control: Control, ranks: Ranks) -> Hooks:
    """Return hooks that handle requests by `control`, which may end the run, and emit what is reported.

    Several ranks handle requests only at the start of a phase, where they wait for each other.
    """

    def report(event: Event) -> None:
        if isinstance(event, PhaseProgress):
            if event.done == 0:
                ranks.meet(control.check)
            elif ranks.alone:
                control.check()
        emit(event)

    return Hooks(report, control.clock, control.check if ranks.alone else lambda: None)


class Trained(Protocol):
    """The part of a run that trains: its configuration, how far it is, and how it handles requests."""

    config: Any

    @property
    def iteration(self) -> int:
        """Number of the last whole iteration, or of the last step in a run without iterations."""

    def save(self) -> None:
        """Save the last whole iteration, unless it is saved already. Raises StorageError."""

    def rollback(self, to: int | None, reason: str) -> None:
        """Continue from an older checkpoint before the next iteration."""

    def set(self, key: str, value: Any) -> None:
        """Change a live setting before the next iteration."""

    def answer(self, question: Question, check: Callable[[], None]) -> Answer | None:
        """Answer with the model; None if this kind of run cannot."""


class Run(Steered):
    """Life of one run in its folder: lock, journal, checkpoints, requests, and the end.

    resume: folder of the run to continue, None for a new one. watch: reports alerts on the events; None reports none.
    iterations: those of the whole run, once `in_folder` knows them.
    """

    folder: RunFolder
    checkpoints: CheckpointWriter
    iterations: int

    def __init__(self, trained: Trained, resume: Path | None, out: Sinks, control: Control, ranks: Ranks) -> None:
        self.resume = resume
        self.control = control
        self.warnings: list[str] = []
        self.watch: Monitor | None = None
        self.now: State = "loading"
        self._trained = trained
        self._ranks = ranks
        self._out = out
        self._found: bytes | None = None  # config.toml of the run to continue, before it is locked
        self._started = time.perf_counter()
        self._before_pause: State = "loading"

    def emit(self, event: Event) -> None:
        """Pass an event to every sink, followed by the alerts that it causes."""
        if isinstance(event, StateChanged):
            self.now = event.state
        elif isinstance(event, RunStarted):
            self.now = "loading"  # as readers take it, whatever came before
        self._out.emit(event)
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
        number = min(self._trained.iteration + 1, self.iterations) if iteration is None else iteration
        self.emit(Alert(iteration=number, level=level, code=code, message=message))

    def paused(self) -> None:
        """Report that the run is paused."""
        self._before_pause = self.now
        self.state("paused")

    def resumed(self) -> None:
        """Report the state that the run was in before the pause."""
        self.state(self._before_pause)

    def checkpoint(self) -> None:
        """Save the last whole iteration, in the middle of the next one."""
        if self._trained.iteration == self.checkpoints.saved_at:
            self.alert("info", "checkpoint_there", f"iteration {self._trained.iteration} already has a checkpoint")
        self.save_within()

    def save_within(self) -> None:
        """Save the last whole iteration, unless it is saved, and report again the state that the run is in."""
        if self._trained.iteration != self.checkpoints.saved_at:
            now = self.now
            self._trained.save()
            self.state(now)

    def rollback(self, to: int | None, reason: str) -> None:
        """Continue from an older checkpoint before the next iteration."""
        self._trained.rollback(to, reason)

    def set(self, key: str, value: Any) -> None:
        """Change a live setting before the next iteration."""
        self._trained.set(key, value)

    def answer(self, question: Question, check: Callable[[], None]) -> Answer:
        """Answer with the model, if this kind of run can."""
        return self._trained.answer(question, check) or super().answer(question, check)

    def report(self, event: HumanEvaluation) -> None:
        """Emit an event that another process has found out about the run."""
        self.emit(event)

    def find_folder(self) -> None:
        """Open the folder of the run to continue, or check that the name of a new one is free."""
        config: AnyConfig = self._trained.config
        self.state("loading")
        if self.resume:
            self.folder = open_to_train(self.resume, Path(config.run.dir))
            self._found = self._content()
        else:
            check_name_is_free(config)

    def in_folder(self, preset: str, loop: Callable[[], str], iterations: int, *, pairs: str = "") -> RunEnded:
        """Create a new run's folder, as `create_run` does, and run `loop` under its lock; return how that ended.

        However `loop` ends, a checkpoint is saved if possible and an `end` event emitted. loop: returns why it is done.
        """
        self.iterations = iterations
        if not self.resume:
            self.folder = create_run(self._trained.config, preset, pairs=pairs)
        with self.folder.lock():
            if self.resume and self._content() != self._found:
                what = f"another process changed run '{self.folder.name}' while this one loaded its model"
                raise UsageError(f"{what}: resume it again")
            try:
                self._open()
            except TrainerError:
                if not self.resume:
                    shutil.rmtree(self.folder.root, ignore_errors=True)
                raise
            try:
                return self._end(*self._ended(loop))
            except Exception as error:
                self._failed(error)
                raise

    def _content(self) -> bytes | None:
        """Return the content of the run's config.toml; None if it cannot be read."""
        try:
            return read_regular(self.folder.config, TOML_BYTES)
        except OSError:
            return None

    def _open(self) -> None:
        """Listen to requests, begin the journal, and add the other sinks of the run."""
        folder, config = self.folder, self._trained.config
        inbox = Inbox(folder.control, self.control, functools.partial(self.alert, "warning", "request_broken"))
        self._out.insert(0, Journal(folder.events, shared=config.run.shared))
        self.checkpoints = CheckpointWriter(folder, config.checkpoint.keep, self.emit)
        self.control.attach(self, inbox.take)
        self._ranks.on_hang = self._hung
        trackers = build_trackers(config.run.trackers, folder.name, folder.root, config.model_dump())
        self._out.extend([ProgressFile(folder.progress, shared=config.run.shared), *trackers])

    def begin(self, model: LoadedModel, *, trainable: Sequence[mx.array], prompts: int, eval_prompts: int) -> None:
        """Report what is trained, once it is known which iteration the run continues after.

        The settings of a resumed run are written only now: a start that fails leaves the earlier ones.
        """
        config = self._trained.config
        if self.resume:
            write_config(self.folder, config)
        self.emit(
            RunStarted(
                name=self.folder.name,
                folder=str(self.folder.root),
                model=config.model.path,
                device="GPU" if mx.default_device() == mx.Device(mx.gpu) else "CPU",
                dtype=str(model.dtype).removeprefix("mlx.core."),
                parameters=sum(array.size for array in leaves(model.backbone.parameters())),
                trainable=sum(array.size for array in trainable),
                prompts=prompts,
                eval_prompts=eval_prompts,
                iterations=self.iterations,
                seed=config.run.seed,
                versions=versions(),
                warnings=self.warnings,
                resumed_at=self.checkpoints.saved_at if self.resume else None,
                run_kind="ppo" if isinstance(config, Config) else config.kind,
                branched_from=origin(self.folder) if self.resume else None,
            )
        )

    def _ended(self, loop: Callable[[], str]) -> tuple[EndState, int, str]:
        """Run `loop` and save; return the run's final state, its exit code and the reason."""
        try:
            reason = loop()
        except Interrupted as interruption:
            if interruption.save:
                self._trained.save()
            return "stopped", 130, interruption.reason
        self._trained.save()
        return "done", 0, reason

    def _failed(self, error: Exception) -> None:
        """Save the last good state and report why the run ended; a full disk must not hide `error`."""
        with contextlib.suppress(StorageError):
            if not isinstance(error, StorageError):
                self._trained.save()
        with contextlib.suppress(StorageError):
            if isinstance(error, TrainerError):
                self._end("failed", error.exit_code, str(error))
            else:
                self._end("failed", 1, f"{type(error).__name__}: {error}")

    def _hung(self, message: str) -> None:
        """Report a rank that does not answer, on another thread: this one waits for it and will never go on."""
        with contextlib.suppress(StorageError):
            self._end("failed", HUNG, message)

    def _end(self, state: EndState, exit_code: int, reason: str) -> RunEnded:
        with contextlib.suppress(StorageError):
            self.control.take_rest()  # events that arrived while the last checkpoint was saved
        self.control.detach()  # answers waiting questions while the folder is still ours
        saved = checkpoints(self.folder).paths
        event = RunEnded(
            state=state,
            exit_code=exit_code,
            reason=reason,
            iteration=self._trained.iteration,
            checkpoint=str(saved[-1].relative_to(self.folder.root)) if saved else "",
            seconds=time.perf_counter() - self._started,
            alarms=self.watch.unresolved_alarms if self.watch else {},
        )
        self.emit(event)
        return event
