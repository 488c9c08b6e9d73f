"""Samples that the user marked, saved in the run's folder."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from trainer.errors import StorageError
from trainer.files import lock, read_regular, whole_file
from trainer.runs.folder import RunFolder
from workbench.run.sample_table import SampleKey

_VERSION = 1
_MOST = 2**31  # iterations and rows are 32-bit numbers


class Bookmarks(Collection[SampleKey]):
    """The marked samples of a run, sorted by iteration and row.

    bookmarks.json contains {"version": 1, "samples": [[iteration, row], ...]}. A file that cannot be used counts as
    empty, and `problem` says why. It stays as it is until a sample is marked; then it is renamed and a new file is
    written.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.root / "bookmarks.json"
        self._keys, self.problem = self._read()

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[SampleKey]:
        return iter(sorted(self._keys))

    def __len__(self) -> int:
        return len(self._keys)

    def toggle(self, key: SampleKey) -> bool:
        """Mark the sample `key`, or remove its mark; return whether it is marked now.

        Keeps what another process marked meanwhile. Raises StorageError when the file cannot be written; nothing
        changes then.
        """
        try:
            with self._lock():
                before, problem = self._read()
                keys = before ^ {key}
                self._write(keys, rename=bool(problem))
        except OSError as error:
            raise StorageError(
                f"cannot write bookmarks '{self._path}': {error.strerror or error}; "
                "move the run to a local, writable folder"
            ) from None
        self._keys, self.problem = keys, ""
        return key in keys

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock the bookmarks against other processes; the lock is on the folder, so no lock file is left behind."""
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            lock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _read(self) -> tuple[set[SampleKey], str]:
        """Return the marked samples in the file, and why it cannot be used, if it cannot."""
        problem = ""
        try:
            return _keys_in(read_regular(self._path)), ""
        except FileNotFoundError:
            pass
        except OSError as error:
            problem = f"cannot read bookmarks '{self._path}': {error.strerror}; marking a sample renames the file"
        except ValueError as error:
            problem = f"bookmarks '{self._path}' {error}; marking a sample renames the file"
        return set(), problem

    def _write(self, keys: set[SampleKey], *, rename: bool) -> None:
        with whole_file(self._path) as file:
            file.write(f"{json.dumps({'version': _VERSION, 'samples': sorted(keys)})}\n".encode())
            if rename:
                self._path.rename(self._free_name())

    def _free_name(self) -> Path:
        """Return an unused path to move a file to that cannot be used."""
        names = itertools.chain([".broken"], (f".broken.{number}" for number in itertools.count(2)))
        return next(path for name in names if not (path := self._path.with_name(self._path.name + name)).exists())


def _keys_in(content: bytes) -> set[SampleKey]:
    """Parse a bookmarks file. Raises ValueError with the end of a sentence about a file that cannot be used."""
    damaged = ValueError("are damaged")
    try:
        document = json.loads(content)
        newer = document["version"] > _VERSION
        keys = set() if newer else {SampleKey(iteration, row) for iteration, row in document["samples"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damaged from None
    if newer:
        raise ValueError("were written by a newer version: update ppo-workbench")
    if not all(type(number) is int and 0 <= number < _MOST for key in keys for number in key):
        raise damaged
    return keys
