"""Abilities of the terminal, according to the environment."""

from __future__ import annotations

import curses
import os
import sys

_TRUE_COLOR = 2**24
_CANNOT_PLACE = ("dumb", "unknown")


def can_place_text() -> bool:
    """Return whether text can be put anywhere on the screen, which an editor's shell cannot do, for example."""
    return os.environ.get("TERM", "").lower() not in _CANNOT_PLACE


def colors() -> int:
    """Return the number of colours: from COLORTERM, else the name in TERM, else terminfo; 16 if unknown."""
    if os.environ.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit"):
        return _TRUE_COLOR
    name = os.environ.get("TERM", "")
    if name.endswith(("-256color", "-kitty")):  # also where terminfo does not know it, as on many servers
        return 256
    try:
        curses.setupterm(name, sys.__stdout__.fileno() if sys.__stdout__ else -1)
        return max(curses.tigetnum("colors"), 0)
    except (curses.error, OSError, TypeError, ValueError):  # terminfo does not know it
        return 16
