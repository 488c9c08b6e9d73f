"""Files of configurations: finding, reading and writing them."""

from __future__ import annotations

import codecs
import contextlib
import os
import stat
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from trainer.config import PRESETS, Config, preset_names
from trainer.config.loading import read_source
from trainer.errors import StorageError, UsageError, writing
from trainer.files import TOML_BYTES, parse_toml, read_regular, whole_file

_MOST = 50  # files of a folder that are looked into


class OverwriteError(StorageError):
    """Error if saving would overwrite what another program or an earlier save wrote; `overwrite=True` allows it."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


class Source(NamedTuple):
    """A preset or a file that can be opened."""

    source: str
    name: str
    folder: Path | None
    """None for a preset."""
    purpose: str


def read_text(path: Path, source: str) -> tuple[str, bytes]:
    """Return the text of `path`, with plain newlines and no byte-order mark, and its bytes.

    Raises UsageError, which calls the file `source`.
    """
    content = read_source(path, source, preset_names())
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n"), content
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise UsageError(f"{source}:{line}: byte 0x{byte:02x} is not UTF-8: save the file as UTF-8") from None


def sources(*folders: Path) -> list[Source]:
    """Return the presets, then the configurations in `folders`, with the purpose that their first comment gives."""
    found: list[Source] = []
    places = [*({folder.resolve(): folder for folder in reversed(folders)}.values()), None]
    for folder in reversed(places):
        with contextlib.suppress(OSError):
            for path in sorted(PRESETS.glob("*.toml") if folder is None else folder.glob("[!.]*.toml"))[:_MOST]:
                with contextlib.suppress(OSError, ValueError, UsageError):
                    text, content = read_text(path, str(path))
                    if parse_toml(content).keys() & Config.model_fields.keys():
                        comment = takewhile(lambda line: line.startswith("#"), text.split("\n"))
                        purpose = " ".join(line.strip("# \t") for line in comment)
                        shown = (path.stem, path.stem) if folder is None else (str(path), path.name)
                        found.append(Source(*shown, folder, purpose))
    return found


def write(path: Path, text: str, own: Path | None, on_disk: bytes, *, overwrite: bool) -> tuple[Path, str, bytes]:
    """Write `text`, completely or not at all, as `ConfigDocument.to_save` describes.

    own: file of the document, which may be another; on_disk: its content when it was read or written last, whose line
    ends and byte-order mark are kept.
    """
    path = expanded(path)
    target = path.resolve()  # a link stays a link
    if target.is_relative_to(PRESETS.resolve()):
        raise UsageError(f"{path} is a preset that ships with the program: choose another folder")
    own = own if own is not None and own.resolve() == target else None
    path = own or path
    if not overwrite:
        if own is None and path.is_file():
            raise OverwriteError(f"{path} exists", path)
        with contextlib.suppress(OSError):
            if own is not None and read_regular(path, TOML_BYTES, given=True) != on_disk:
                raise OverwriteError(f"{path} was changed by another program since it was read", path)
    content = text.replace("\n", "\r\n" if b"\r\n" in on_disk else "\n").encode("utf-8", "replace")
    if on_disk.startswith(codecs.BOM_UTF8):
        content = codecs.BOM_UTF8 + content
    advice = ", or save it elsewhere; nothing was changed"
    with writing(f"'{path}'", advice), whole_file(target, sync=True) as file:
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
        file.write(content)
    return path, text, content


def expanded(path: Path) -> Path:
    """Return `path` with ~ expanded. Raises UsageError for an unknown home."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise UsageError(f"'{path}': no such home folder; write the path out") from None
