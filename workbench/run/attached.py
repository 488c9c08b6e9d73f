"""The run that the screen is attached to: in this process, in another one, or ended. All are steered alike."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from trainer.control import inbox
from trainer.control.questions import Answer, Question
from trainer.errors import StorageError, UsageError
from trainer.evaluation.human import tell_run
from trainer.events import Event, HumanEvaluation
from trainer.files import read_toml
from trainer.runs.folder import RunFolder
from workbench.run.event_source import EventSource
from workbench.run.history import History
from workbench.run.journal_source import JournalSource
from workbench.run.session import give
from workbench.run.view import RunView


class AttachedRun(EventSource, Protocol):
    """Events of a run, and what may be asked of it. Every method returns at once.

    The requests raise UsageError where nobody trains the run any more, StorageError where they cannot be left.
    """

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def step(self) -> None: ...
    def checkpoint(self) -> None: ...
    def rollback(self, to: int | None, reason: str) -> None: ...
    def set(self, key: str, value: Any) -> None: ...
    def tell(self, event: HumanEvaluation) -> None: ...
    def ask(self, question: Question) -> Future[Answer]: ...
    def stop(self, reason: str) -> None: ...
    def abort(self) -> None: ...


class RunOnDisk(JournalSource):
    """A run that is read from its folder, and steered through its inbox while another process trains it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self._asked: dict[Path, Future[Answer]] = {}  # by where the answer will be

    def take(self) -> list[Event]:
        """What is new in the journal; the answers that have come go to who asked."""
        if self._asked:
            self._take_answers()
        return super().take()

    def close(self) -> None:
        """Nobody takes from here any more: what was asked and is open fails with UsageError."""
        self._fail("nobody waits for the answer any more: ask again")

    def pause(self) -> None:
        inbox.send(self.folder, "pause")

    def resume(self) -> None:
        inbox.send(self.folder, "resume")

    def step(self) -> None:
        inbox.send(self.folder, "step")

    def checkpoint(self) -> None:
        inbox.send(self.folder, "checkpoint")

    def rollback(self, to: int | None, reason: str) -> None:
        inbox.send(self.folder, "rollback", to=to, reason=reason)

    def set(self, key: str, value: Any) -> None:
        inbox.send(self.folder, "set", key=key, value=value)

    def tell(self, event: HumanEvaluation) -> None:
        """Let `event` stand among the run's, also of one that has ended."""
        tell_run(self.folder, event)

    def ask(self, question: Question) -> Future[Answer]:
        """What the model writes; comes by `take`, or fails with UsageError where the run ends first.

        Once it is cancelled, the next `take` ends the writing.
        """
        future: Future[Answer] = Future()
        self._asked[inbox.ask(self.folder, question)] = future
        return future

    def stop(self, reason: str) -> None:
        inbox.send(self.folder, "stop", reason=reason)

    def abort(self) -> None:
        inbox.send(self.folder, "abort")

    def _take_answers(self) -> None:
        live = RunFolder(self.folder).is_live()  # asked first: what the trainer answered before it ended is there then
        for path, future in list(self._asked.items()):
            if future.cancelled():
                del self._asked[path]
                inbox.withdraw(path)
                continue
            try:
                answer = inbox.read_answer(path)
            except StorageError as error:
                del self._asked[path]
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
                continue
            if answer is not None:
                del self._asked[path]
                give(future, answer)
        if not live:
            self._fail(f"run '{RunFolder(self.folder).name}' ended before it was answered: ask again")

    def _fail(self, reason: str) -> None:
        asked, self._asked = self._asked, {}
        for path, future in asked.items():
            inbox.withdraw(path)
            if future.set_running_or_notify_cancel():
                future.set_exception(UsageError(reason))


def kl_target(folder: Path) -> float | None:
    """What the run in `folder` aims its KL at, nats a sequence; None for a fixed kl_coef, or where nothing tells."""
    try:
        ppo = read_toml(RunFolder(folder).config)["ppo"]
        return float(ppo["kl_target"]) if ppo["kl_controller"] == "adaptive" else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def whole_run(folder: Path) -> RunView:
    """The run in `folder` with all of its iterations, read at once: for a thread, a long run takes seconds."""
    source, view = JournalSource(folder), RunView()
    for event in source.take():
        view.take(event)
    while (chunk := source.earlier()) is not None:
        view.history.prepend(chunk)
    return view


def whole_history(folder: Path) -> History:
    """All iterations of the run in `folder`, read as by `whole_run`."""
    return whole_run(folder).history
