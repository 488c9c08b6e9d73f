"""Versions of the files that we write as JSON or TOML, and the way from each version to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from trainer.errors import StorageError

Migration = Callable[[dict[str, Any]], dict[str, Any]]


class FileFormat(NamedTuple):
    """Format of a file whose number `key` tells its version, from 1.

    migrations: from version 1 to 2, from 2 to 3, and so on. Each must leave alone what is not there. unnumbered:
    returns the version of content without a number.
    """

    key: str
    migrations: tuple[Migration, ...] = ()
    unnumbered: Callable[[dict[str, Any]], int] = lambda content: 1

    @property
    def version(self) -> int:
        """Version that is written."""
        return 1 + len(self.migrations)

    def current(self, content: Any, what: str) -> dict[str, Any]:
        """Return the content of a file as this version would have written it.

        what: names the file. Raises StorageError for a newer version, ValueError for something that is not a table or
        has no version.
        """
        if not isinstance(content, dict):
            raise ValueError("not a table of names and values")
        version = content[self.key] if self.key in content else self.unnumbered(content)
        if type(version) is not int or version < 1:
            raise ValueError(f"{self.key} = {version!r}: must be a whole number from 1 to {self.version}")
        if version > self.version:
            raise StorageError(
                f"{what} was written by a newer version ({self.key} {version}, this one knows up to {self.version}): "
                "update ppo-workbench"
            )
        for migration in self.migrations[version - 1 :]:
            content = migration(content)
        return {**content, self.key: self.version}
