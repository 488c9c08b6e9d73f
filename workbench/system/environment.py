"""The surroundings of the process: the user's folders, the terminal, and the command of the program itself."""

from __future__ import annotations

import locale
import os
import sys
from pathlib import Path

import platformdirs

VARIABLE = "PPO_WORKBENCH_CONFIG_DIR"

_TRUE_COLOR = 2**24
_CANNOT_PLACE = ("dumb", "unknown")


def config_dir() -> Path:
    """Return the folder of the user's themes/ and keys.toml, or `PPO_WORKBENCH_CONFIG_DIR`. It need not exist."""
    return Path(os.environ.get(VARIABLE) or platformdirs.user_config_path("ppo-workbench"))


def state_dir() -> Path:
    """Return the folder of the screen's logs and the list of trusted code. It need not exist."""
    return platformdirs.user_state_path("ppo-workbench")


def own_command(*arguments: str) -> list[str]:
    """Return the command line of `ppo-workbench` with `arguments`.

    -P keeps the working folder out of the module path, so that a `random.py` or `trainer.py` there is not imported.
    """
    return [sys.executable, "-P", "-m", "workbench", *arguments]


def can_place_text() -> bool:
    """Return whether text can be put anywhere on the screen, which an editor's shell cannot do, for example."""
    return os.environ.get("TERM", "").lower() not in _CANNOT_PLACE


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
