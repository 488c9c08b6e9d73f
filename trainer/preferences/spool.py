"""Preferences in a temporary file, so that a source is read to its end and checked before any of it is stored."""

from __future__ import annotations

import contextlib
import pickle
import weakref
from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO

from trainer.errors import StorageError
from trainer.preferences.records import Preference

_BATCH = 1000  # preferences in memory at once
_IN_MEMORY = 32 << 20  # bytes that need no file


class Spool:
    """Preferences that are appended and then read, as often as needed.

    A large spool is a file without a name in `folder`, which the system removes when the spool is freed or the process
    ends. Methods raise StorageError if it cannot be written or read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = SpooledTemporaryFile(_IN_MEMORY, "w+b", dir=str(folder))  # noqa: SIM115  closed when it is freed
        weakref.finalize(self, _close, self._file)
        self._batch: list[Preference] = []  # not in the file yet
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, preference: Preference) -> None:
        """Add a preference."""
        self._batch.append(preference)
        self._count += 1
        if len(self._batch) == _BATCH:
            try:
                pickle.dump(self._batch, self._file)
            except OSError as error:
                raise self._failed(error) from None
            self._batch = []

    def __iter__(self) -> Iterator[Preference]:
        """Yield the preferences in their order. None may be appended meanwhile."""
        place = 0
        for _ in range(self._count // _BATCH):
            try:
                self._file.seek(place)
                batch = pickle.load(self._file)  # noqa: S301  our own bytes
                place = self._file.tell()
            except OSError as error:
                raise self._failed(error) from None
            yield from batch
        yield from self._batch

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot keep the preferences in a temporary file in '{self._folder}' ({error.strerror}): free space "
            "there, or make the folder writable"
        )


def _close(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # of a full disk, which `append` has reported
        file.close()
