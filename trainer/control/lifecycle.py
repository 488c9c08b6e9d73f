"""Life cycle of a run of any kind: events, requests, checkpoints on the way, and its end."""

from __future__ import annotations

import contextlib
import shutil
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from trainer.arrays import leaves
from trainer.config import AnyConfig
from trainer.control.control import Control, Interrupted, Request, Steered
from trainer.control.inbox import Inbox
from trainer.errors import StorageError, TrainerError
from trainer.events import Alert, EndState, Event, HumanEvaluation, RunEnded, RunStarted, State, StateChanged
from trainer.models.loading import LoadedModel
from trainer.runs.checkpoint_index import newest_checkpoint
from trainer.runs.folder import RunFolder, versions
from trainer.runs.guard import RunGuard
from trainer.runs.journal import Journal
from trainer.runs.lock import Lock
from trainer.runs.progress import ProgressFile
from trainer.runs.sinks import Sink, Sinks


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

    resume: the run to continue; None for a new one.
    """

    folder: RunFolder
    lock: Lock
    guard: RunGuard

    def __init__(self, resume: Path | None, out: Sinks, control: Control) -> None:
        self.resume = resume
        self.out = out
        self.control = control
        self.warnings: list[str] = []
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

    @abstractmethod
    def move_to(self, folder: RunFolder) -> None:
        """Use `folder` as the run's own from now on: write config.toml, and let `save` write the checkpoint again."""

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
        """Emit what others found out about the run."""
        self.emit(event)

    def open(self, more: Callable[[], Sequence[Sink]] = tuple, *, shared: bool) -> None:
        """Listen to requests, begin the journal, and add `more` sinks. If that fails, a new run's folder is removed.

        shared: other users may read journal and progress.
        """
        try:
            inbox = Inbox(self.folder.control, self._complain)
            journal = Journal(self.folder.events, shared=shared)
            self.out.add_first(journal)
            self.guard = RunGuard(self.folder, self.lock, journal)
            self.control.attach(self, lambda: self._requests(inbox))
            self.out.add([ProgressFile(self.folder.progress, shared=shared), *more()])
        except TrainerError:
            if not self.resume:
                shutil.rmtree(self.folder.root, ignore_errors=True)
            raise

    def begin(
        self,
        config: AnyConfig,
        model: LoadedModel,
        *,
        trainable: Sequence[mx.array],
        prompts: int,
        eval_prompts: int,
        iterations: int,
        kind: str = "ppo",
    ) -> None:
        """Report what is trained, once it is known which iteration the run continues after."""
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
                run_kind=kind,
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
            told = self._failed(error)
            if told is error:
                raise
            raise told from error
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
            self.move_to(self.guard.recover())
            self.save()
        except StorageError as error:
            return str(error)
        newest = newest_checkpoint(self.folder)
        what = f"saved as {newest.name}" if newest else "there is no checkpoint yet"
        return f"{what}; go on with --resume {self.folder.root}"

    def _requests(self, inbox: Inbox) -> list[Request]:
        self.guard.check()  # several times a second, so that no iteration is wasted
        return inbox.take()

    def _complain(self, message: str) -> None:
        self.alert("warning", "request_broken", message)

    def _end(self, state: EndState, exit_code: int, reason: str) -> RunEnded:
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
