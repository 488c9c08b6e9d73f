"""Life cycle of a run of any kind: events, requests, checkpoints on the way, and its end."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import mlx.core as mx

from trainer.arrays import leaves
from trainer.config import AnyConfig, Config
from trainer.distributed.ranks import ALONE, HUNG, Ranks
from trainer.engine.control import Control, Steered
from trainer.engine.inbox import Inbox
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
from trainer.files import TOML_BYTES, is_same, path_of, read_regular
from trainer.models.backbone import LoadedModel
from trainer.monitoring import Monitor
from trainer.questions import Answer, Question
from trainer.runs.branch_folder import origin
from trainer.runs.checkpoint_files import CheckpointWriter
from trainer.runs.checkpoint_index import checkpoints
from trainer.runs.folder import RunFolder, check_name_is_free, create_run, open_to_train, versions, write_config
from trainer.runs.journal import Journal
from trainer.runs.lock import Lock
from trainer.runs.sinks import ProgressFile, Sinks
from trainer.runs.trackers import build_trackers


def _content_of(path: Path) -> bytes | None:
    """Return the content of a file; None if it cannot be read."""
    try:
        return read_regular(path, TOML_BYTES)
    except OSError:
        return None


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


def reporting(emit: Callable[[Event], None], control: Control, ranks: Ranks) -> Report:
    """Return the report of an algorithm: it handles requests, which may end the run, and emits what is reported.

    Several ranks handle requests only at the start of a phase, where they wait for each other.
    """

    def report(event: Event) -> None:
        if isinstance(event, PhaseProgress):
            if event.done == 0:
                ranks.meet(control.check)
            elif ranks.alone:
                control.check()
        emit(event)

    return report


class Trained(Protocol):
    """The part of a run that trains: its configuration, how far it is, and how to save it."""

    @property
    def config(self) -> AnyConfig:
        """Active configuration."""

    @property
    def iteration(self) -> int:
        """Number of the last whole iteration, or of the last step in a run without iterations."""

    def save(self) -> None:
        """Save the last whole iteration, unless it is saved already. Raises StorageError, also for a lost folder."""


class Steerable(Protocol):
    """Handlers of the requests that only some kinds of run can handle, as `Steered` describes them."""

    def rollback(self, to: int | None, reason: str) -> None:
        """Continue from an older checkpoint."""

    def set(self, key: str, value: Any) -> None:
        """Change a live setting."""

    def answer(self, question: Question, check: Callable[[], None]) -> Answer:
        """Answer with the model."""


class RunUnderWay(Steered):
    """Life of one run in its folder: lock, journal, checkpoints, requests, and the end.

    resume: folder of the run to continue, None for a new one. steering: None refuses such requests. watch: reports
    alerts on the events; None reports none. iterations: those of the whole run, once `in_folder` knows them.
    """

    folder: RunFolder
    guard: RunGuard
    checkpoints: CheckpointWriter
    iterations: int

    def __init__(
        self,
        trained: Trained,
        resume: Path | None,
        out: Sinks,
        control: Control,
        *,
        steering: Steerable | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.resume = resume
        self.control = control
        self.warnings: list[str] = []
        self.watch: Monitor | None = None
        self.now: State = "loading"
        self._trained = trained
        self._ranks = ranks
        self._steering = steering
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
        for alert in self.watch.take(event) if self.watch else ():
            self.emit(alert)
            if self.watch and self.watch.pauses(alert):
                self.control.pause()
                message = f"paused by alarm '{alert.code}' (health.pause = true): deal with it, then resume"
                self.alert("warning", "paused", message)

    def hooks(self) -> dict[str, Any]:
        """Return `report` and `clock` of an algorithm that this run trains."""
        return {"report": reporting(self.emit, self.control, self._ranks), "clock": self.control.clock}

    def state(self, state: State) -> None:
        """Report the run's state."""
        self.emit(StateChanged(state=state))

    def alert(self, level: Literal["info", "warning"], code: str, message: str) -> None:
        """Report something that a user should know, for the current iteration."""
        number = min(self._trained.iteration + 1, self.iterations)
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
        """Roll back, or report that this kind of run cannot."""
        if self._steering:
            self._steering.rollback(to, reason)
        else:
            self.alert("warning", "rollback_refused", "this kind of run cannot be rolled back")

    def set(self, key: str, value: Any) -> None:
        """Change a setting, or report that this kind of run has none to change."""
        if self._steering:
            self._steering.set(key, value)
        else:
            self.alert("warning", "setting_refused", f"{key} cannot change in this kind of run")

    def answer(self, question: Question, check: Callable[[], None]) -> Answer:
        """Answer with the model, if this kind of run can."""
        answer = self._steering.answer if self._steering else super().answer
        return answer(question, check)

    def report(self, event: HumanEvaluation) -> None:
        """Emit an event that another process has found out about the run."""
        self.emit(event)

    def find_folder(self) -> None:
        """Open the folder of the run to continue, or check that the name of a new one is free."""
        self.state("loading")
        if self.resume:
            self.folder = open_to_train(self.resume, Path(self._trained.config.run.dir))
            self._found = _content_of(self.folder.config)
        else:
            check_name_is_free(self._trained.config)

    def in_folder(self, preset: str, loop: Callable[[], str], iterations: int, *, pairs: str = "") -> RunEnded:
        """Create a new run's folder, as `create_run` does, and run `loop` under its lock, `guarded`."""
        self.iterations = iterations
        if not self.resume:
            self.folder = create_run(self._trained.config, preset, pairs=pairs)
        with self.folder.lock() as lock:
            if self.resume and _content_of(self.folder.config) != self._found:
                what = f"another process changed run '{self.folder.name}' while this one loaded its model"
                raise UsageError(f"{what}: resume it again")
            try:
                self._open(lock)
            except TrainerError:
                if not self.resume:
                    shutil.rmtree(self.folder.root, ignore_errors=True)
                raise
            return self.guarded(loop)

    def _open(self, lock: Lock) -> None:
        """Listen to requests, begin the journal, and add the other sinks of the run."""
        folder, config = self.folder, self._trained.config
        inbox = Inbox(folder.control, self.control, functools.partial(self.alert, "warning", "request_broken"))
        journal = Journal(folder.events, shared=config.run.shared)
        self._out.add_first(journal)
        self.guard = RunGuard(folder, lock, journal)
        self.checkpoints = CheckpointWriter(folder, config.checkpoint.keep, self.emit, self.guard.check)

        def look_into_inbox() -> None:
            self.guard.check()  # several times a second, so that no iteration is wasted
            inbox.take()

        self.control.attach(self, look_into_inbox)
        self._ranks.on_hang = self._hung
        trackers = build_trackers(config.run.trackers, folder.name, folder.root, config.model_dump())
        self._out.add([ProgressFile(folder.progress, shared=config.run.shared), *trackers])

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

    def report_damaged(self, problems: Sequence[str]) -> None:
        """Report newer checkpoints that could not be used."""
        for problem in problems:
            number = self._trained.iteration
            message = f"{problem}: resumed after iteration {number} instead"
            self.emit(Alert(iteration=number, level="warning", code="checkpoint_damaged", message=message))

    def guarded(self, loop: Callable[[], str]) -> RunEnded:
        """Run `loop`; however it ends, save a checkpoint if possible and emit an `end` event.

        loop: returns why it is done.
        """
        try:
            ended = self._ended(loop)
        except Exception as error:
            reported = self._failed(error)
            if reported is error:
                raise
            raise reported from error
        return self._end(*ended)

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

    def _failed(self, error: Exception) -> Exception:
        """Save the last good state and report why the run ended; a full disk must not hide `error`.

        Returns the error to raise: what the folder has lost, if that is the cause.
        """
        if lost := self.guard.lost():
            found = self._recovered()
            error = StorageError(f"{lost}: {found}") if isinstance(error, StorageError) else error
        elif not isinstance(error, StorageError):
            with contextlib.suppress(StorageError):
                self._trained.save()
        with contextlib.suppress(StorageError):
            if isinstance(error, TrainerError):
                self._end("failed", error.exit_code, str(error))
            else:
                self._end("failed", 1, f"{type(error).__name__}: {error}")
        return error

    def _hung(self, message: str) -> None:
        """Report a rank that does not answer, on another thread: this one waits for it and will never go on."""
        with contextlib.suppress(StorageError):
            self._end("failed", HUNG, message)

    def _recovered(self) -> str:
        """Save the last whole iteration where the folder is now; return how that went."""
        try:
            self.folder = self.guard.recover()
            self.checkpoints.move_to(self.folder)
            write_config(self.folder, self._trained.config)
            self._trained.save()
        except StorageError as error:
            return str(error)
        saved = checkpoints(self.folder).paths
        what = f"saved as {saved[-1].name}" if saved else "there is no checkpoint yet"
        return f"{what}; continue with --resume {self.folder.root}"

    def _end(self, state: EndState, exit_code: int, reason: str) -> RunEnded:
        with contextlib.suppress(StorageError):  # a lost folder has no inbox
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


class RunGuard:
    """Comparison of a run's folder, journal and lock with those that it began with, by device and inode."""

    def __init__(self, folder: RunFolder, lock: Lock, journal: Journal) -> None:
        self.folder = folder
        self._lock = lock
        self._journal: Journal | None = journal  # None: replaced by someone else, and left alone

    def check(self) -> None:
        """Raise StorageError if something is lost; nothing may be written before `recover`."""
        if lost := self.lost():
            raise StorageError(lost)

    def lost(self) -> str:
        """Return what is lost, as the beginning of a sentence; empty if nothing is."""
        folder, name = self.folder, f"run '{self.folder.name}'"
        if not is_same(folder.root, self._lock.folder):
            if moved := path_of(self._lock.folder):
                return f"the folder of {name} was moved to '{moved}' while it trained"
            return f"the folder of {name}, '{folder.root}', was deleted or moved to another disk while it trained"
        if not self._lock.is_in(folder.root):
            return f"the lock of {name} was deleted or replaced while it trained"
        if self._journal and not self._journal.is_there:
            what = "replaced" if os.path.lexists(folder.events) else "deleted"
            return f"the journal of {name}, '{folder.events}', was {what} while it trained"
        return ""

    def recover(self) -> RunFolder:
        """Find the run's folder again, lock it, restore its journal, and return the folder to save the run in.

        A journal that was replaced is left as it is. Raises StorageError with the reason if nothing may be written.
        """
        if not is_same(self.folder.root, self._lock.folder):
            moved = path_of(self._lock.folder)
            if moved is None:
                raise StorageError("nothing could be saved; start it again")
            self.folder = RunFolder(moved)
        try:
            if not self._lock.is_in(self.folder.root):
                self._lock.take_again(self.folder.root)
            if self._journal:
                self._journal.path = self.folder.events
                if not os.path.lexists(self.folder.events):
                    self._journal.write_again()
                elif not self._journal.is_there:
                    self._journal = None
        except TrainerError as error:
            raise StorageError(f"nothing was saved, because {error}") from None
        return self.folder
