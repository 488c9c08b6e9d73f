"""Claims on the comparisons shown in open sessions, so that a labeller's sessions do not show the same one at once."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
from pathlib import Path

from trainer.files import is_file

_MARK = "-claim-"
_BYTES = 64  # length of a claim: a SHA-256 in hex


class Claim:
    """A session's claim on the one comparison that it shows, for its labeller's other sessions on the store at `path`.

    The claim is a small file beside the store, NAME-claim-PID-RANDOM, locked as long as the claim is held. When its
    process ends, for whatever reason, the system releases the lock, and the next session that looks removes the file.
    Where files cannot be written or locked, there are no claims; a label is then refused if its comparison was labelled
    in the meantime.
    """

    def __init__(self, path: Path, labeller: str) -> None:
        self._store = path.resolve()
        self._labeller = labeller
        self._path = self._store.with_name(f"{self._store.name}{_MARK}{os.getpid()}-{secrets.token_hex(4)}")
        self._file: int | None = None  # locked

    def take(self, key: str) -> bool:
        """Claim the comparison with this key in place of the previous one; return False if another session shows it."""
        claim = hashlib.sha256(f"{self._labeller}\n{key}".encode(errors="backslashreplace")).hexdigest().encode()
        if claim in self._others():
            return False
        try:
            if self._file is None:
                self._file = self._opened()
            os.pwrite(self._file, claim, 0)
        except OSError:
            self.release()
        return claim not in self._others()  # of two sessions that claim at once, at least one sees the other

    def release(self) -> None:
        """Release the claim, so that other sessions can show the comparison."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._file)
        self._file = None

    def _opened(self) -> int:
        """Create a new file, locked before others can find it. Raises OSError."""
        part = self._path.with_name(f".{self._path.name}")
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.replace(self._path)
        except OSError:
            os.close(file)
            part.unlink()
            raise
        return file

    def _others(self) -> set[bytes]:
        """Return the claims of other sessions, and remove files that nobody holds."""
        claims, found = re.compile(re.escape(f"{self._store.name}{_MARK}") + "[0-9]+-[0-9a-f]{8}"), set[bytes]()
        try:
            names = os.listdir(self._store.parent)  # noqa: PTH208  a workspace may hold many names
        except OSError:  # no claims can be read here
            return found
        for name in names:
            path = self._store.with_name(name)
            if claims.fullmatch(name) and path != self._path and is_file(path):
                with contextlib.suppress(OSError):
                    found.add(_claim_in(path))
        return found


def _claim_in(path: Path) -> bytes:
    """Return the claim in a file; if nobody holds it, remove the file and return no bytes. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(file, _BYTES)
    else:
        path.unlink()
        return b""
    finally:
        os.close(file)
