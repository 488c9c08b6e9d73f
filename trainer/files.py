"""Access to files: the program's own are written whole or not at all, never through a link; reading has a limit.

A file that others may have left or damaged is opened without waiting for a pipe.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import platformdirs

from trainer.errors import StorageError

SHARED = 0o666
"""Permissions of a file that others may read, as far as the umask allows."""

PRIVATE = 0o600
"""Permissions of a file that only its owner may read."""

TOML_BYTES = 256 << 10
"""Largest TOML file that is parsed: ten times a configuration with every option. The worst takes about 2 s."""

JSON_BYTES = 16 << 20
"""Largest JSON file that is parsed."""

DEEPEST = 32
"""Deepest nesting that is parsed."""

_MOST_BITS = 14_000  # of an integer: Python writes none of more than 4300 digits

_DESCRIPTOR = re.compile(r"/dev/(stdin|fd/\d+)|/proc/(self|\d+)/fd/\d+")
_STRING_OR_COMMENT = re.compile(  # an unclosed one extends to the end of the line or text, so that one pass is enough
    r'"""(?:\\.|[^\\])*?(?:"""|\Z)' r"|'''.*?(?:'''|\Z)" r'|"(?:\\.|[^"\\\n])*+"?' r"|'[^'\n]*+'?" r"|#[^\n]*+",
    re.DOTALL,
)
_DEEP_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEEPEST}}}")


_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


def lock(descriptor: int, operation: int) -> None:
    """Lock an open file as `fcntl.flock` does. Raises OSError; its message says so if the file system has no locks."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise OSError(error.errno, "its file system has no file locks") from None
        raise


def has_locks(folder: Path) -> bool:
    """Return whether parts of files in `folder` can be locked, as SQLite does; True if that cannot be tried."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _NO_LOCKS
    return True


def cache_folder() -> Path:
    """Return the folder of what can be made again: `$PPO_WORKBENCH_CACHE`, or else the user's on this platform."""
    root = os.environ.get("PPO_WORKBENCH_CACHE") or platformdirs.user_cache_dir("ppo-workbench")
    return Path(root).expanduser()


@contextlib.contextmanager
def whole_file(path: Path, *, mode: int = SHARED, sync: bool = False) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` when the block ends, or is removed if the block raises.

    mode: permissions before the umask. sync: wait for the disk before the file replaces the previous one. A link at
    `path` is replaced, not followed; so is a half-written file that a killed process left. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor, so that no link can be followed
            yield file
            file.flush()
            if sync:
                os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_whole(path: Path, content: str | bytes, *, mode: int = SHARED) -> None:
    """Write `content` to `path`, UTF-8 if it is text, as `whole_file` does. Raises OSError."""
    with whole_file(path, mode=mode) as file:
        file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)


def replace_folder(folder: Path, new: Path, aside: Path) -> None:
    """Rename `new` to `folder`, and remove what was there, which is at `aside` meanwhile.

    At every moment the old or the new folder is there whole. Sync the files in `new` before: the rename must not reach
    the disk before their content. Raises OSError.
    """
    remove(aside)
    if had_one := os.path.lexists(folder):
        folder.rename(aside)
    try:
        new.rename(folder)
    except OSError:
        if had_one:
            aside.rename(folder)
        raise
    with contextlib.suppress(OSError):  # some file systems refuse to sync a folder
        sync(folder.parent)
    with contextlib.suppress(OSError):  # whoever replaces the folder next removes what is left
        remove(aside)


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_file(path: Path, flags: int = os.O_RDONLY, mode: int = SHARED) -> int:
    """Open a regular file and return its descriptor, never through a link, and without waiting for a pipe.

    flags: as for os.open. mode: permissions before the umask, if it is created. Raises OSError, also if a link or
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


def unused(path: Path) -> Path:
    """Return `path` if nothing exists there, else with the first free number after its name: text-2.md, text-3.md..."""
    names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
    return path if not path.exists() else next(name for name in names if not name.exists())


def own_folder(path: Path, *, mode: int = 0o777) -> None:
    """Create the folder `path` if there is none. Raises OSError, also if a link or a file is in its place."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode)
    if not is_folder(path):
        message = "a link or a file blocks a folder that the program needs"
        raise NotADirectoryError(errno.ENOTDIR, message, str(path))


def is_folder(path: Path) -> bool:
    """Return whether `path` is a folder itself, not a link to one."""
    return stat.S_ISDIR(_mode(path))


def may_exist(path: Path) -> bool:
    """Return whether there is something at `path`, or it cannot be looked for: opening it then says why."""
    try:
        return path.exists()
    except OSError:
        return True


def is_file(path: Path) -> bool:
    """Return whether `path` is a regular file itself, not a link, a pipe or a device."""
    return stat.S_ISREG(_mode(path))


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def remove(path: Path) -> None:
    """Remove a file, a link (never what it points to) or a whole folder. Raises OSError."""
    if is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def open_regular(path: Path) -> BufferedReader:
    """Open the regular file `path`, or the one that a link there leads to, for reading.

    Raises OSError, also for a pipe, a device or a folder: reading one might never end.
    """
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: PTH123, SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def read_regular(path: Path, most: int = JSON_BYTES, *, given: bool = False) -> bytes:
    """Return the bytes of the regular file `path`. Raises OSError, also if there are more than `most`.

    given: a user names it, and it may also be /dev/stdin or another descriptor.
    """
    with path.open("rb") if given and _DESCRIPTOR.fullmatch(str(path)) else open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 10} KiB", str(path))
    return content


def read_json(path: Path, most: int = JSON_BYTES) -> Any:
    """Return what the regular JSON file `path` holds.

    Raises OSError, also if it has more than `most` bytes, and ValueError, also if it is nested too deeply.
    """
    try:
        return json.loads(read_regular(path, most))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of the regular file `path`. Raises OSError and ValueError."""
    return parse_toml(read_regular(path, TOML_BYTES))


def parse_toml(content: bytes | str) -> dict[str, Any]:
    """Return the tables of a TOML document, with or without a byte-order mark.

    Raises ValueError for what is not TOML in UTF-8, and for keys and values nested deeper than `DEEPEST`, whose parsing
    time grows with the square of their length.
    """
    text = content.decode("utf-8-sig") if isinstance(content, bytes) else content.removeprefix("\ufeff")
    # No string holds a key, and outside of strings only keys have many dots.
    if _DEEP_KEY.search(_STRING_OR_COMMENT.sub(lambda match: "" if match[0].startswith("#") else "_", text)):
        raise ValueError(f"a key has more than {DEEPEST} parts")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST}") from None
    _check_values(values, DEEPEST)
    return values


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield entries by dotted name, in order: TOML reads an unquoted `run.pause` as a table in a table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _check_values(value: Any, depth: int) -> None:
    """Raise ValueError for tables and lists nested deeper than `depth`, and for integers that Python cannot write."""
    if depth < 0:
        raise ValueError(f"nested deeper than {DEEPEST}")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_values(inner, depth - isinstance(inner, dict | list))
    elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError("a number has thousands of digits")


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
