"""Files and folders that the program owns: written whole or not at all, and never through a symbolic link."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import sys
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


def open_file(path: Path, flags: int = os.O_RDONLY, mode: int = SHARED) -> int:
    """Open a regular file and return its descriptor; never through a link, and without waiting for a pipe.

    flags: as for os.open. mode: permissions before the umask, where it is created. Raises OSError, also where a link or
    anything but a file is at `path`.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return descriptor


def own_folder(path: Path, *, mode: int = 0o777) -> None:
    """Make the folder `path` where there is none. Raises OSError, also where a link or a file stands in its place."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode)
    if not is_folder(path):
        message = "a link or a file is where the program keeps a folder of its own"
        raise NotADirectoryError(errno.ENOTDIR, message, str(path))


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


def is_same(path: Path, descriptor: int) -> bool:
    """Return whether `path` leads to what `descriptor` has open. Only what is surely gone or another counts as not."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a disk that does not answer now, a folder above that may not be entered
        return True


def path_of(descriptor: int) -> Path | None:
    """Return where the open folder `descriptor` is now, however it was moved; None where it is deleted or not found."""
    try:
        if sys.platform == "darwin":
            name = fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0").decode()
        else:
            name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except (OSError, ValueError):
        return None
    path = Path(name)
    return path if is_folder(path) and is_same(path, descriptor) else None
