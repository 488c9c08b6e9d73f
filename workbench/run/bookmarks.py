"""The samples that a user has marked in a run."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from trainer.errors import StorageError, writing
from trainer.files import read_regular, write_whole
from trainer.runs.folder import RunFolder
from workbench.run.sample_table import SampleKey

_VERSION = 1  # of bookmarks.json
_MOST = 2**31  # iterations and rows are 32-bit numbers


class Bookmarks(Collection[SampleKey]):
    """The marked samples of a run, sorted by iteration and row.

    bookmarks.json contains {"version": 1, "samples": [[iteration, row], ...]}. A file that cannot be used counts as
    empty, and `problem` says why; it is never overwritten.
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

        Keeps what another process marked meanwhile. Raises StorageError when the file cannot be used or written;
        nothing changes then.
        """
        keys, self.problem = self._read()
        if self.problem:
            raise StorageError(self.problem)
        keys ^= {key}
        with writing(f"bookmarks '{self._path}'", ", or move the run to a writable folder"):
            write_whole(self._path, f"{json.dumps({'version': _VERSION, 'samples': sorted(keys)})}\n")
        self._keys = keys
        return key in keys

    def _read(self) -> tuple[set[SampleKey], str]:
        """Return the marked samples in the file, and why it cannot be used, if it cannot."""
        problem = "are damaged or cannot be read: move the file away to mark samples"
        try:
            document = json.loads(read_regular(self._path))
            if document["version"] > _VERSION:
                problem = "were written by a newer version: update ppo-workbench"
            else:
                keys = {SampleKey(iteration, row) for iteration, row in document["samples"]}
                if all(type(number) is int and 0 <= number < _MOST for key in keys for number in key):
                    return keys, ""
        except FileNotFoundError:
            return set(), ""
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        return set(), f"bookmarks '{self._path}' {problem}"
