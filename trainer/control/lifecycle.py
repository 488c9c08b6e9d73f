"""Life cycle of a run of any kind: events, requests, checkpoints on the way, and its end."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from trainer.arrays import leaves
from trainer.config import AnyConfig, Config
from trainer.control.control import Control, Interrupted, Steered
from trainer.control.inbox import Inbox
from trainer.errors import StorageError, TrainerError, UsageError
from trainer.events import Alert, EndState, Event, HumanEvaluation, RunEnded, RunStarted, State, StateChanged
from trainer.files import TOML_BYTES, is_same, path_of, read_regular
from trainer.models.backbone import LoadedModel
from trainer.runs.checkpoint_files import CheckpointWriter
from trainer.runs.checkpoint_index import newest_checkpoint
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


class RunUnderWay(Steered):
    """One run under way in `folder`. A subclass defines what it trains and how it is saved.

    config: as it is active now; resume: the run to continue, None for a new one.
    """

    folder: RunFolder
    guard: RunGuard
    checkpoints: CheckpointWriter

    def __init__(self, config: AnyConfig, resume: Path | None, out: Sinks, control: Control) -> None:
        self.config = config
        self.resume = resume
        self.out = out
        self.control = control
        self.warnings: list[str] = []
        self._found: bytes | None = None  # config.toml of the run to continue, before it is locked
        self.started = time.perf_counter()
        self.now: State = "loading"
        self._before_pause: State = "loading"

    @property
    @abstractmethod
    def iteration(self) -> int:
        """Number of the last whole iteration, or of the last step in a run without iterations."""

    @abstractmethod
    def save(self) -> None:
        """Save the last whole iteration, unless it is saved already. Raises StorageError, also for a lost folder."""

    @property
    def open_alarms(self) -> dict[str, str]:
        """Code and level of the open alarms; empty unless a subclass watches the run."""
        return {}

    def stopped(self) -> None:
        """Act on a stop, after the run is saved; does nothing unless overridden."""

    def emit(self, event: Event) -> None:
        """Pass an event to every sink."""
        if isinstance(event, StateChanged):
            self.now = event.state
        self.out.emit(event)

    def state(self, state: State) -> None:
        """Report the run's state."""
        self.emit(StateChanged(state=state))

    def alert(self, level: Literal["info", "warning"], code: str, message: str) -> None:
        """Report something that a user should know."""
        self.emit(Alert(iteration=self.iteration, level=level, code=code, message=message))

    def paused(self) -> None:
        """Report that the run is paused."""
        self._before_pause = self.now
        self.state("paused")

    def resumed(self) -> None:
        """Report the state that the run was in before the pause."""
        self.state(self._before_pause)

    def checkpoint(self) -> None:
        """Save the last whole iteration, in the middle of the next one."""
        now = self.now
        self.save()
        self.state(now)

    def rollback(self, to: int | None, reason: str) -> None:
        """Report that this kind of run cannot be rolled back."""
        self.alert("warning", "rollback_refused", "this kind of run cannot be rolled back")

    def set(self, key: str, value: Any) -> None:
        """Report that this kind of run has no settings to change."""
        self.alert("warning", "setting_refused", f"{key} cannot change in this kind of run")

    def tell(self, event: HumanEvaluation) -> None:
        """Emit an event that another process has found out about the run."""
        self.emit(event)

    def find_folder(self) -> None:
        """Open the folder of the run to continue, or check that the name of a new one is free."""
        self.state("loading")
        if self.resume:
            self.folder = open_to_train(self.resume, Path(self.config.run.dir))
            self._found = _content_of(self.folder.config)
        else:
            check_name_is_free(self.config)

    def in_folder(self, preset: str, loop: Callable[[], str], *, pairs: str = "") -> RunEnded:
        """Create a new run's folder, as `create_run` does, and run `loop` under its lock, `guarded`."""
        if not self.resume:
            self.folder = create_run(self.config, preset, pairs=pairs)
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
        folder, config, shared = self.folder, self.config, self.config.run.shared
        inbox = Inbox(folder.control, self.control, functools.partial(self.alert, "warning", "request_broken"))
        journal = Journal(folder.events, shared=shared)
        self.out.add_first(journal)
        self.guard = RunGuard(folder, lock, journal)
        self.checkpoints = CheckpointWriter(folder, config.checkpoint.keep, self.emit, self.guard.check)

        def look_into_inbox() -> None:
            self.guard.check()  # several times a second, so that no iteration is wasted
            inbox.take()

        self.control.attach(self, look_into_inbox)
        trackers = build_trackers(config.run.trackers, folder.name, folder.root, config.model_dump())
        self.out.add([ProgressFile(folder.progress, shared=shared), *trackers])

    def begin(
        self, model: LoadedModel, *, trainable: Sequence[mx.array], prompts: int, eval_prompts: int, iterations: int
    ) -> None:
        """Report what is trained, once it is known which iteration the run continues after.

        The settings of a resumed run are written only now: a start that fails leaves the earlier ones.
        """
        config = self.config
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
                iterations=iterations,
                seed=config.run.seed,
                versions=versions(),
                warnings=self.warnings,
                resumed_at=self.iteration if self.resume else None,
                run_kind="ppo" if isinstance(config, Config) else config.kind,
            )
        )

    def tell_damaged(self, problems: Sequence[str]) -> None:
        """Report newer checkpoints that could not be used."""
        for problem in problems:
            message = f"{problem}: resumed after iteration {self.iteration} instead"
            self.emit(Alert(iteration=self.iteration, level="warning", code="checkpoint_damaged", message=message))

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
                self.save()
                self.stopped()
            return "stopped", 130, interruption.reason
        self.save()
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
                self.save()
        with contextlib.suppress(StorageError):
            if isinstance(error, TrainerError):
                self._end("failed", error.exit_code, str(error))
            else:
                self._end("failed", 1, f"{type(error).__name__}: {error}")
        return error

    def _recovered(self) -> str:
        """Save the last whole iteration where the folder is now; return how that went."""
        try:
            self.folder = self.guard.recover()
            self.checkpoints.move_to(self.folder)
            write_config(self.folder, self.config)
            self.save()
        except StorageError as error:
            return str(error)
        newest = newest_checkpoint(self.folder)
        what = f"saved as {newest.name}" if newest else "there is no checkpoint yet"
        return f"{what}; continue with --resume {self.folder.root}"

    def _end(self, state: EndState, exit_code: int, reason: str) -> RunEnded:
        with contextlib.suppress(StorageError):  # a lost folder has no inbox
            self.control.take_rest()  # what was told while the last checkpoint was saved
        self.control.detach()  # answers waiting questions while the folder is still ours
        newest = newest_checkpoint(self.folder)
        event = RunEnded(
            state=state,
            exit_code=exit_code,
            reason=reason,
            iteration=self.iteration,
            checkpoint=str(newest.relative_to(self.folder.root)) if newest else "",
            seconds=time.perf_counter() - self.started,
            alarms=self.open_alarms,
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
