"""Record of the code that a user trusts, by path and SHA-256, in a file of that user."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from trainer.errors import StorageError
from trainer.rewards.code import Code, refuse

_MAX_BYTES = 16 * 1024 * 1024


class TrustedCode:
    """Trusted code: what `file` lists, one JSON object per line, and what was trusted in this process.

    Deleting a line revokes trust. The file is read each time, because another process may have added to it.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._here: set[tuple[str, str]] = set()

    def untrusted(self, codes: Sequence[Code]) -> list[Code]:
        """Return those of `codes` that may not run, each once. Raises StorageError."""
        unknown = {code.name: code for code in codes if (code.name, code.sha256) not in self._here}
        trusted = self._read() if unknown else set()
        return [code for code in unknown.values() if (code.name, code.sha256) not in trusted]

    def check(self, codes: Sequence[Code]) -> None:
        """Raise UntrustedCodeError unless all of `codes` may run."""
        refuse(self.untrusted(codes))

    def remember(self, codes: Sequence[Code]) -> None:
        """Trust `codes` from now on; code without a hash is trusted in this process only.

        Raises StorageError if the file cannot be read or written; the code is then trusted in this process only.
        """
        self._here |= {(code.name, code.sha256) for code in codes}
        known = self._read()
        new = {code.name: code.sha256 for code in codes if code.sha256 and (code.name, code.sha256) not in known}
        if not new:
            return
        lines = [json.dumps({"code": name, "sha256": sha256}) for name, sha256 in new.items()]
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self.file, flags, 0o600)
            try:
                # A single write, so that lines of two processes never mix. It begins with a newline, because the last
                # line may have been left half-written.
                os.write(descriptor, "".join(f"\n{line}" for line in lines).encode() + b"\n")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StorageError(
                f"cannot write '{self.file}': {error.strerror}; the code is trusted in this process only"
            ) from None

    def _read(self) -> set[tuple[str, str]]:
        try:
            descriptor = os.open(self.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except OSError as error:
            raise StorageError(f"cannot read '{self.file}': {error.strerror}; mend or remove it") from None
        with open(descriptor, "rb") as file:  # noqa: PTH123  a descriptor, so that no link can be followed
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise StorageError(f"'{self.file}' must be a file that only you can write: chmod 600, or remove it")
            return {pair for line in file.read(_MAX_BYTES).splitlines() if (pair := _pair(line)) is not None}


def _pair(line: bytes) -> tuple[str, str] | None:
    """Return path and hash in a line; None for any other line."""
    try:
        values = json.loads(line)
        name, sha256 = values["code"], values["sha256"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return (name, sha256) if isinstance(name, str) and isinstance(sha256, str) and sha256 else None
