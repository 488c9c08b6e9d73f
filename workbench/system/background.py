"""The terminal's background, dark or light: asked of the terminal itself, else taken from COLORFGBG."""

from __future__ import annotations

import os
import re
import select
import termios
import time
import tty
from typing import NamedTuple

_QUESTION = b"\x1b]11;?\x1b\\\x1b[c"  # the colour, then what every terminal answers, which ends the waiting
_COLOR = re.compile(rb"\x1b\]11;(?:rgba?:([0-9a-fA-F]+)/([0-9a-fA-F]+)/([0-9a-fA-F]+)[^\x07\x1b]*)?(?:\x07|\x1b\\)")
_FENCE = re.compile(rb"\x1b\[\?[0-9;]*c")
_PATIENCE = 1.0  # seconds, for a slow line; an answer that comes later would be taken for keys
_MIDDLE = 0.5  # luma from which a background is light


class Asked(NamedTuple):
    """The terminal's answer: whether it is light (None if it does not say), and what was typed meanwhile."""

    light: bool | None
    typed: bytes


def is_light(reader: int, writer: int) -> Asked:
    """Ask the terminal at these file descriptors, and fall back on COLORFGBG. Typed keys are returned, not lost."""
    answer, typed = _ask(reader, writer)
    light = parse_color(answer)
    return Asked(_by_environment() if light is None else light, typed)


def parse_color(answer: bytes) -> bool | None:
    """Return whether the colour in an answer to OSC 11 is light; None without one."""
    found = _COLOR.search(answer)
    if found is None or found[1] is None:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
    return bool(0.299 * red + 0.587 * green + 0.114 * blue >= _MIDDLE)


def _by_environment() -> bool | None:
    """Return what COLORFGBG says, such as "0;15" for black on white; None if it says nothing."""
    ground = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return int(ground) in (7, 15) if ground.isdecimal() else None


def _ask(reader: int, writer: int) -> tuple[bytes, bytes]:
    """Return the terminal's answer, and what else it sent: keys."""
    try:
        before = termios.tcgetattr(reader)
    except termios.error:
        return b"", b""
    received = b""
    try:
        tty.setcbreak(reader, termios.TCSANOW)  # TCSAFLUSH would drop what is typed
        os.write(writer, _QUESTION)
        end = time.monotonic() + _PATIENCE
        while not _FENCE.search(received) and (left := end - time.monotonic()) > 0:
            if select.select([reader], [], [], left)[0]:
                if not (data := os.read(reader, 1024)):
                    break
                received += data
    except OSError:
        pass
    finally:
        termios.tcsetattr(reader, termios.TCSANOW, before)
    return received, _FENCE.sub(b"", _COLOR.sub(b"", received))
