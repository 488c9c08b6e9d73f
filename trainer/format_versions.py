"""Versions of the files that we write as JSON or TOML."""

from __future__ import annotations

from typing import Any, NamedTuple

from trainer.errors import StorageError


class FileFormat(NamedTuple):
    """Format of a file whose number `key` gives its version; content without the number is of version 1."""

    key: str
    version: int = 1  # that is written

    def current(self, content: Any, what: str) -> dict[str, Any]:
        """Return the content of a file, with its number.

        what: names the file. Raises StorageError for a newer version, ValueError for something that is not a table or
        has no version.
        """
        if not isinstance(content, dict):
            raise ValueError("not a table of names and values")
        version = content.get(self.key, 1)
        if type(version) is not int or version < 1:
            raise ValueError(f"{self.key} = {version!r}: must be a whole number from 1 to {self.version}")
        if version > self.version:
            raise StorageError(
                f"{what} was written by a newer version ({self.key} {version}, this one knows up to {self.version}): "
                "update ppo-workbench"
            )
        return {**content, self.key: self.version}
