"""The run that the screen is attached to: in this process, in another one, or ended. All are steered the same way."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from trainer.control import inbox
from trainer.control.questions import Answer, Question
from trainer.errors import StorageError, UsageError
from trainer.evaluation.human import add_event
from trainer.events import Event, HumanEvaluation
from trainer.files import read_toml
from trainer.runs.folder import RunFolder
from workbench.run.history import History
from workbench.run.journal_source import JournalSource
from workbench.run.session import give
from workbench.run.view import RunView


class EventSource(Protocol):
    """A source that returns the events of a run in order, each once."""

    def take(self) -> list[Event]:
        """Return the events since the last call, at once."""

    @property
    def finished(self) -> bool:
        """Whether the run is over and all its events were taken."""


class AttachedRun(EventSource, Protocol):
    """The events of a run, and requests to it. Every method returns at once.

    The requests raise UsageError if no process trains the run any more, StorageError if they cannot be delivered.
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
        self._asked: dict[Path, Future[Answer]] = {}  # by the path of the answer

    def take(self) -> list[Event]:
        """Return what is new in the journal, and pass on the answers that have arrived."""
        if self._asked:
            self._take_answers()
        return super().take()

    def close(self) -> None:
        """Fail the open questions with UsageError, because nobody takes answers any more."""
        self._fail("the question was cancelled: ask again")

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
        """Add `event` to the events of the run, even if it has ended."""
        add_event(self.folder, event)

    def ask(self, question: Question) -> Future[Answer]:
        """Ask the model to write. The answer arrives by `take`.

        The future fails with UsageError if the run ends first. Once it is cancelled, the next `take` ends the writing.
        """
        future: Future[Answer] = Future()
        self._asked[inbox.ask(self.folder, question)] = future
        return future

    def stop(self, reason: str) -> None:
        inbox.send(self.folder, "stop", reason=reason)

    def abort(self) -> None:
        inbox.send(self.folder, "abort")

    def _take_answers(self) -> None:
        live = RunFolder(self.folder).is_live()  # checked first: then all answers of a trainer that has ended are there
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
            self._fail(f"run '{RunFolder(self.folder).name}' ended before it answered: ask again")

    def _fail(self, reason: str) -> None:
        asked, self._asked = self._asked, {}
        for path, future in asked.items():
            inbox.withdraw(path)
            if future.set_running_or_notify_cancel():
                future.set_exception(UsageError(reason))


def kl_target(folder: Path) -> float | None:
    """Return the target KL of the run in `folder`, nats a sequence; None for a fixed kl_coef, or if unknown."""
    try:
        ppo = read_toml(RunFolder(folder).config)["ppo"]
        return float(ppo["kl_target"]) if ppo["kl_controller"] == "adaptive" else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def whole_run(folder: Path) -> RunView:
    """Read the run in `folder` with all its iterations at once. Call it in a thread: a long run takes seconds."""
    source, view = JournalSource(folder), RunView()
    for event in source.take():
        view.take(event)
    while (chunk := source.earlier()) is not None:
        view.history.prepend(chunk)
    return view


def whole_history(folder: Path) -> History:
    """Read all iterations of the run in `folder`, as `whole_run` does."""
    return whole_run(folder).history
