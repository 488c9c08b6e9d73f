"""Files of configurations: those that can be opened, and reading and writing one. All of it blocks on the disk."""

from __future__ import annotations

import codecs
import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from trainer.config import PRESETS, Config, preset_names
from trainer.errors import StorageError, UsageError, cannot_write
from trainer.files import parse_toml, read_given, whole_file

_MOST = 50  # files of a folder that are looked into


class OverwriteError(StorageError):
    """Error if saving would overwrite what another program or an earlier save wrote; `overwrite=True` allows it."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


class Saved(NamedTuple):
    """A text that a `Save` has written."""

    path: Path
    text: str
    content: bytes


class Save(NamedTuple):
    """A text to be written to a file; the document may change meanwhile."""

    path: Path
    text: str
    own: Path | None
    """File of the document, which may be another."""
    on_disk: bytes
    """Content of that file when it was read or written last: its line ends and its byte-order mark are kept."""

    def write(self, *, overwrite: bool = False) -> Saved:
        """Write the file, completely or not at all.

        Raises OverwriteError if another program has changed the document's own file since it was read, or if another
        file exists; StorageError if it cannot be written; UsageError for a shipped preset. Then nothing has changed.
        """
        path = expanded(self.path)
        target = path.resolve()  # a link stays a link
        if target.is_relative_to(PRESETS.resolve()):
            raise UsageError(f"{path} is a preset that ships with the program: choose another folder")
        own = self.own if self.own is not None and self.own.resolve() == target else None
        path = own or path
        if not overwrite:
            if own is None and path.is_file():
                raise OverwriteError(f"{path} exists", path)
            with contextlib.suppress(OSError):
                if own is not None and read_given(path) != self.on_disk:
                    raise OverwriteError(f"{path} was changed by another program since it was read", path)
        content = self.text.replace("\n", "\r\n" if b"\r\n" in self.on_disk else "\n").encode("utf-8", "replace")
        if self.on_disk.startswith(codecs.BOM_UTF8):
            content = codecs.BOM_UTF8 + content
        try:
            with whole_file(target, sync=True) as file:
                with contextlib.suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                file.write(content)
        except OSError as error:
            raise cannot_write(f"'{path}'", error, ", or save it elsewhere; nothing was changed") from None
        return Saved(path, self.text, content)


class Source(NamedTuple):
    """A preset or a file that can be opened."""

    source: str
    name: str
    folder: Path | None
    """None for a preset."""
    purpose: str


def sources(*folders: Path) -> list[Source]:
    """Return the presets, then the configurations in `folders`, with the purpose that their first comment gives."""
    found = [Source(name, name, None, _purpose(PRESETS / f"{name}.toml")) for name in preset_names()]
    seen = set[Path]()
    for folder in folders:
        if (real := folder.resolve()) not in seen:
            seen.add(real)
            paths = [path for path in _toml_files(folder) if _is_configuration(path)]
            found += [Source(str(path), path.name, folder, _purpose(path)) for path in paths]
    return found


def _toml_files(folder: Path) -> Iterable[Path]:
    try:
        paths = [path for path in folder.iterdir() if path.suffix == ".toml" and not path.name.startswith(".")]
    except OSError:
        return ()
    return sorted(paths)[:_MOST]


def _is_configuration(path: Path) -> bool:
    try:
        return bool(parse_toml(read_given(path)).keys() & Config.model_fields.keys())
    except (OSError, ValueError):
        return False


def _purpose(path: Path) -> str:
    """Return the comment at the start of the file, in one line; empty if there is none."""
    with contextlib.suppress(UsageError):
        return " ".join(_first_comment(read_text(path, str(path))[0]))
    return ""


def _first_comment(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        if not line.startswith("#"):
            return
        yield line.strip("# \t")


def expanded(path: Path) -> Path:
    """Expand ~ in `path`. Raises UsageError if the home folder is not known."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise UsageError(f"'{path}': no such home folder; write the path out") from None


def read_text(path: Path, source: str) -> tuple[str, bytes]:
    """Return the text of `path`, with plain newlines and no byte-order mark, and its bytes.

    Raises UsageError, which calls the file `source`.
    """
    try:
        content = read_given(path)
        return content.decode("utf-8-sig").replace("\r\n", "\n"), content
    except FileNotFoundError:
        raise UsageError(f"no preset or file '{source}': the presets are {', '.join(preset_names())}") from None
    except OSError as error:
        raise UsageError(f"cannot read configuration '{source}': {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise UsageError(f"{source}:{line}: byte 0x{byte:02x} is not UTF-8: save the file as UTF-8") from None
