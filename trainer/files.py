"""Files and folders that the program owns: written whole or not at all, and never through a symbolic link."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

SHARED = 0o666
"""Permissions of a file that whoever the umask admits may read."""

PRIVATE = 0o600
"""Permissions of a file that only its owner may read."""


@contextlib.contextmanager
def whole_file(path: Path, *, mode: int = SHARED, sync: bool = False) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` when the block ends, or is removed when the block raises.

    mode: permissions before the umask. sync: wait for the disk before the file takes the place of the one before.
    A link at `path` is replaced, not followed; so is a file that a killed process left half-written. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor, so that no link can be followed
            yield file
            if sync:
                file.flush()
                os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_whole(path: Path, content: str | bytes, *, mode: int = SHARED, sync: bool = False) -> None:
    """Write `content` to `path`, UTF-8 if it is text, as `whole_file` does. Raises OSError."""
    with whole_file(path, mode=mode, sync=sync) as file:
        file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)


def own_folder(path: Path, *, mode: int = 0o777) -> None:
    """Make the folder `path` where there is none. Raises OSError, also where a link or a file stands in its place."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode)
    if not is_folder(path):
        raise NotADirectoryError(20, "a link or a file is where the program keeps a folder of its own", str(path))


def is_folder(path: Path) -> bool:
    """Return whether `path` is a folder itself, not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """Return whether `path` is a regular file itself, not a link, a pipe or a device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def remove(path: Path) -> None:
    """Remove a file, a link (never what it points to) or a whole folder. Raises OSError."""
    if is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
