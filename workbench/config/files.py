"""Reading and writing of configuration files; a file is written completely or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from trainer.config import preset_names
from trainer.errors import UsageError, cannot_write
from trainer.files import read_given


def expanded(path: Path) -> Path:
    """Expand ~ in `path`. Raises UsageError if the home folder is not known."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise UsageError(f"'{path}': there is no such home folder: write it out") from None


def read_text(path: Path, source: str) -> str:
    """Read the text of `path`, with its original line ends and byte-order mark. Errors call the file `source`.

    Raises UsageError.
    """
    try:
        return read_given(path).decode("utf-8")
    except FileNotFoundError:
        raise UsageError(f"no preset or file '{source}': the presets are {', '.join(preset_names())}") from None
    except OSError as error:
        raise UsageError(f"cannot read configuration '{source}': {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise UsageError(f"{source}:{line}: byte 0x{byte:02x} is not UTF-8: save the file as UTF-8") from None


def bytes_of(path: Path) -> bytes | None:
    """Return the bytes of the file at `path`; None if it cannot be read."""
    try:
        return read_given(path)
    except OSError:
        return None


def write_whole(path: Path, content: bytes) -> None:
    """Replace `path` atomically and keep its permissions. Raises StorageError; then nothing has changed."""
    target = path.resolve()  # a link stays a link
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            temporary.chmod(target.stat().st_mode)
        temporary.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise cannot_write(f"'{path}'", error, ", or save it elsewhere; nothing was changed") from None
