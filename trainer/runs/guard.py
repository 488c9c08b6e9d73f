"""Detection of a run that has lost its folder, journal or lock, and of where it can still be saved."""

from __future__ import annotations

import os

from trainer.errors import StorageError, TrainerError
from trainer.files import is_same, path_of
from trainer.runs.folder import RunFolder
from trainer.runs.journal import Journal
from trainer.runs.lock import Lock


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
