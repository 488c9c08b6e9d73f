"""Files that others may have left or damaged: opened without waiting for a pipe, read up to a limit."""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, BinaryIO

TOML_BYTES = 256 << 10
"""Most of a TOML file that is parsed, ten times a configuration with every option: the worst takes some 2 s."""

JSON_BYTES = 16 << 20
"""Most of a JSON file that is parsed."""

DEEPEST = 32
"""Most tables within tables."""

_DESCRIPTOR = re.compile(r"/dev/(stdin|fd/\d+)|/proc/(self|\d+)/fd/\d+")
_STRING_OR_COMMENT = (
    re.compile(  # one without its end goes to the end of the line or text: a single pass, whatever comes
        r'"""(?:\\.|[^\\])*?(?:"""|\Z)' r"|'''.*?(?:'''|\Z)" r'|"(?:\\.|[^"\\\n])*+"?' r"|'[^'\n]*+'?" r"|#[^\n]*+",
        re.DOTALL,
    )
)
_DEEP_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEEPEST}}}")


def open_regular(path: Path) -> BinaryIO:
    """Open the regular file `path`, or the one that a link there leads to, to be read.

    Raises OSError, also for a pipe, a device or a folder: reading one might never end.
    """
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: PTH123, SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def read_regular(path: Path, most: int = JSON_BYTES) -> bytes:
    """Return the bytes of the regular file `path`. Raises OSError, also where there are more than `most`."""
    with open_regular(path) as file:
        return _bounded(file, path, most)


def read_given(path: Path, most: int = TOML_BYTES) -> bytes:
    """Return the bytes of a file that a user names: a regular one, or /dev/stdin and other descriptors.

    Raises OSError, also where there are more than `most`.
    """
    if not _DESCRIPTOR.fullmatch(str(path)):
        return read_regular(path, most)
    with path.open("rb") as file:
        return _bounded(file, path, most)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of the regular file `path`. Raises OSError and ValueError."""
    return parse_toml(read_regular(path, TOML_BYTES))


def parse_toml(content: bytes | str) -> dict[str, Any]:
    """Return the tables of a TOML document, with or without a byte-order mark.

    Raises ValueError for what is not TOML in UTF-8, and for keys and values nested deeper than `DEEPEST`, on which
    the time of parsing grows with the square of the length.
    """
    text = content.decode("utf-8-sig") if isinstance(content, bytes) else content.removeprefix("\ufeff")
    # No string holds a key, and outside of strings only keys have many dots.
    if _DEEP_KEY.search(_STRING_OR_COMMENT.sub(_placeholder, text)):
        raise ValueError(f"a key has more than {DEEPEST} parts")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST}") from None
    if _depth_exceeds(values, DEEPEST):
        raise ValueError(f"nested deeper than {DEEPEST}")
    return values


def _bounded(file: BinaryIO, path: Path, most: int) -> bytes:
    content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 10} KiB", str(path))
    return content


def _placeholder(match: re.Match[str]) -> str:
    return "" if match[0].startswith("#") else "_"


def _depth_exceeds(values: Any, most: int) -> bool:
    """Return whether tables and lists lie deeper within each other than `most`; without recursion."""
    level = [values]
    for _ in range(most + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
