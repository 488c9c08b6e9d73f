"""Reader that follows one reward-model run: its journal and its predictions on held-out pairs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trainer.errors import StorageError
from trainer.events import PhaseProgress
from trainer.reward_model.predictions import HELD_OUT, Predictions, read_predictions
from trainer.runs.folder import RunFolder
from workbench.reward_model.course import Course
from workbench.run.journal_source import JournalSource

PAIRS = 1000  # pairs whose texts are read: those that the model gets most wrong


class Look(NamedTuple):
    """State of a run at one time."""

    folder: RunFolder
    course: Course
    predictions: Predictions | None  # None before the first evaluation, and for a run of an older version
    live: bool
    problems: list[str]  # what cannot be read, one line each


class RunFollower:
    """Reader of one run; each `look` reads only what is new. For one thread at a time."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._source = JournalSource(folder.root)
        self._course = Course()
        self._predictions: Predictions | None = None
        self._stamp: tuple[int, ...] | None = None
        self._problem = ""
        self._live: bool | None = None

    @property
    def finished(self) -> bool:
        """Whether no process trains the run and the last look found nothing new."""
        return self._source.finished

    def look(self) -> Look | None:
        """Return the current state of the run; None if nothing has changed since the last look.

        Imports pyarrow, which takes about 0.3 s the first time.
        """
        events = [event for event in self._source.take() if not isinstance(event, PhaseProgress)]
        for event in events:
            self._course.take(event)
        was, self._live = self._live, self._source.live
        if not (self._read_predictions() or events or self._live != was):
            return None
        problems = [*self._source.problems, *([self._problem] if self._problem else [])]
        return Look(self.folder, self._course.copy(), self._predictions, self._live, problems)

    def _read_predictions(self) -> bool:
        """Read the file of the newest evaluation if it was replaced, and return whether it was."""
        path = self.folder.root / HELD_OUT
        stamp = _stamp(path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self._predictions, self._problem = None, ""
        if stamp is not None:
            try:
                self._predictions = read_predictions(path, PAIRS)
            except StorageError as error:
                self._problem = str(error)
        return True


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return a stamp that differs when the file has been replaced as a whole; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
