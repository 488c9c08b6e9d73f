"""The run that the screen is attached to: in this process, in another one, or ended. All are steered alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from trainer import inbox
from workbench.event_source import EventSource
from workbench.history import History
from workbench.journal_source import JournalSource
from workbench.run_view import RunView


class AttachedRun(EventSource, Protocol):
    """Events of a run, and what may be asked of it. Every method returns at once.

    The requests raise UsageError where nobody trains the run any more, StorageError where they cannot be left.
    """

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def step(self) -> None: ...
    def checkpoint(self) -> None: ...
    def set(self, key: str, value: Any) -> None: ...
    def stop(self, reason: str) -> None: ...
    def abort(self) -> None: ...


class RunOnDisk(JournalSource):
    """A run that is read from its folder, and steered through its inbox while another process trains it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder

    def pause(self) -> None:
        inbox.send(self.folder, "pause")

    def resume(self) -> None:
        inbox.send(self.folder, "resume")

    def step(self) -> None:
        inbox.send(self.folder, "step")

    def checkpoint(self) -> None:
        inbox.send(self.folder, "checkpoint")

    def set(self, key: str, value: Any) -> None:
        inbox.send(self.folder, "set", key=key, value=value)

    def stop(self, reason: str) -> None:
        inbox.send(self.folder, "stop", reason=reason)

    def abort(self) -> None:
        inbox.send(self.folder, "abort")


def whole_history(folder: Path) -> History:
    """All iterations of the run in `folder`, read at once: for a thread, a long run takes seconds."""
    source, view = JournalSource(folder), RunView()
    for event in source.take():
        view.take(event)
    while (chunk := source.earlier()) is not None:
        view.history.prepend(chunk)
    return view.history
