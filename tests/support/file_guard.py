"""Guard of the screen's promise that its thread waits for no file: reports each place that reads, writes or stats."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import workbench

_SOURCES = tuple(f"{Path(workbench.__file__).parents[1] / name}{os.sep}" for name in ("workbench", "trainer"))
_TESTS = f"{Path(__file__).parents[1]}{os.sep}"
_EVENTS = {"open", "sqlite3.connect", "fcntl.flock", "subprocess.Popen"}
_EXCUSED = ("<frozen importlib", "linecache.py", "/textual/css/")
"""Imports, lines of source for a traceback, and stylesheets, all read once."""
_PASSING_ON = {"ThemedApp.on_event"}  # of each event, to what handles it
_ALLOWED = {
    "workbench/system/output.py:log_bug": "a bug is on disk before anything else can go wrong",
}

_found: list[str] | None = None  # what to add to; None while nothing is guarded
_thread = 0


@contextmanager
def files_on_this_thread() -> Iterator[list[str]]:
    """Collect the places in our own source from which this thread uses the file system inside the block.

    A place is `module.py:function, what it did`. What a test itself does is not counted.
    """
    global _found, _thread
    _install()
    before, _found, _thread = _found, [], threading.get_ident()
    try:
        yield _found
    finally:
        _found = before


_installed = False


def _install() -> None:
    """Install the hook, which cannot be removed, and watch `stat`, which Python does not report."""
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_hear)
        for name in ("stat", "lstat", "access"):
            setattr(os, name, _watched(name, getattr(os, name)))


def _watched(name: str, call: Any) -> Any:
    def watched(*arguments: Any, **options: Any) -> Any:
        if not arguments or not isinstance(arguments[0], int):  # a descriptor is open already
            _note(name)
        return call(*arguments, **options)

    return watched


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _EVENTS or event.startswith(("os.", "shutil.")):
        if event == "open" and isinstance(arguments[0], int):
            return
        if event in ("os.putenv", "os.unsetenv", "os.fork", "os.posix_spawn"):
            return
        _note(event)


def _note(what: str) -> None:
    if _found is None or threading.get_ident() != _thread:
        return
    place, frame = "", sys._getframe(2)
    caller: FrameType | None = frame
    while caller is not None:
        name = caller.f_code.co_filename
        if any(excused in name for excused in _EXCUSED) or name.startswith(_TESTS):
            return
        is_ours = name.startswith(_SOURCES[0] if place else _SOURCES) and caller.f_code.co_qualname not in _PASSING_ON
        if is_ours and not place.startswith("workbench"):
            place = f"{Path(name).relative_to(Path(_SOURCES[0]).parent)}:{caller.f_code.co_qualname}, {what}"
        caller = caller.f_back
    if place and place.partition(",")[0] not in _ALLOWED and place not in _found:
        _found.append(place)
