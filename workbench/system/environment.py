"""The surroundings of the process: the user's folders and saved settings, and what the terminal is and shows."""

from __future__ import annotations

import locale
import os
import re
import select
import sys
import termios
import time
import tty
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import platformdirs
import tomli_w

from trainer.files import read_toml, write_whole

VARIABLE = "PPO_WORKBENCH_CONFIG_DIR"
SETTINGS = "workbench.toml"

_TRUE_COLOR = 2**24
_QUESTION = b"\x1b]11;?\x1b\\\x1b[c"  # the colour, then what every terminal answers, which ends the waiting
_COLOR = re.compile(rb"\x1b\]11;(?:rgba?:([0-9a-fA-F]+)/([0-9a-fA-F]+)/([0-9a-fA-F]+)[^\x07\x1b]*)?(?:\x07|\x1b\\)")
_FENCE = re.compile(rb"\x1b\[\?[0-9;]*c")
PATIENCE = 1.0  # seconds, for a slow line; an answer that comes later would be taken for keys
_MIDDLE = 0.5  # luma from which a background is light


def config_dir() -> Path:
    """Return the folder of the user's themes/ and keys.toml, or `PPO_WORKBENCH_CONFIG_DIR`. It need not exist."""
    return Path(os.environ.get(VARIABLE) or platformdirs.user_config_path("ppo-workbench"))


def state_dir() -> Path:
    """Return the folder of the screen's logs and the list of trusted code. It need not exist."""
    return platformdirs.user_state_path("ppo-workbench")


def needs_ascii() -> bool:
    """Return whether the terminal may show only ASCII: by PPO_WORKBENCH_ASCII (0: no), else Linux console or locale."""
    if chosen := os.environ.get("PPO_WORKBENCH_ASCII"):
        return chosen != "0"
    return os.environ.get("TERM") == "linux" or locale.getencoding().lower().replace("-", "") not in ("utf8", "cp65001")


def colors() -> int:
    """Return the number of colours: from COLORTERM, else the name in TERM, else terminfo; 16 if unknown."""
    if os.environ.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit"):
        return _TRUE_COLOR
    name = os.environ.get("TERM", "")
    if name.endswith(("-256color", "-kitty")):  # also where terminfo does not know it, as on many servers
        return 256
    import curses  # not before the first frame on a terminal that says what it has

    try:
        curses.setupterm(name, sys.__stdout__.fileno() if sys.__stdout__ else -1)
        return max(curses.tigetnum("colors"), 0)
    except (curses.error, OSError, TypeError, ValueError):  # terminfo does not know it
        return 16


def is_light(reader: int, writer: int) -> tuple[bool | None, bytes]:
    """Ask the terminal at these file descriptors whether it is light, and fall back on COLORFGBG; None if unknown.

    Keys that are typed meanwhile are returned, not lost.
    """
    before, received = termios.tcgetattr(reader), b""
    try:
        tty.setcbreak(reader, termios.TCSANOW)  # TCSAFLUSH would drop what is typed
        os.write(writer, _QUESTION)
        end = time.monotonic() + PATIENCE
        while not _FENCE.search(received) and (left := end - time.monotonic()) > 0:
            if select.select([reader], [], [], left)[0]:
                if not (data := os.read(reader, 1024)):
                    break
                received += data
    finally:
        termios.tcsetattr(reader, termios.TCSANOW, before)
    light = None
    ground = os.environ.get("COLORFGBG", "").rpartition(";")[2]  # such as "0;15" for black on white
    if (found := _COLOR.search(received)) and found[1]:
        red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
        light = bool(0.299 * red + 0.587 * green + 0.114 * blue >= _MIDDLE)
    elif ground.isdecimal():
        light = int(ground) in (7, 15)
    return light, _FENCE.sub(b"", _COLOR.sub(b"", received))


@dataclass
class ScreenSettings:
    """Settings that the screen keeps from one start to the next. Entries of the file that it cannot use are ignored."""

    theme: str = ""
    metrics: list[str] = field(default_factory=list)  # shown, in order; empty for the default ones
    label_facts: bool = True  # the Label pane shows authors, scores and lengths after the choice
    all_settings: bool = False  # the Config pane shows all settings, not only the basic ones

    @classmethod
    def load(cls, folder: Path) -> ScreenSettings:
        """Read the file in `folder`; missing settings have their defaults."""
        try:
            raw = read_toml(folder / SETTINGS)
        except (OSError, ValueError):
            return cls()
        settings = cls()
        for name, kind in (("theme", str), ("label_facts", bool), ("all_settings", bool)):
            if isinstance(raw.get(name), kind):
                setattr(settings, name, raw[name])
        if isinstance(metrics := raw.get("metrics"), list) and all(isinstance(name, str) for name in metrics):
            settings.metrics = metrics
        return settings

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all; do nothing if the folder cannot be written."""
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / SETTINGS, tomli_w.dumps(asdict(self)))
