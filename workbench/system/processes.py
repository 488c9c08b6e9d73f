"""Processes of the program's own, that are started beside it."""

from __future__ import annotations

import sys


def own_command(*arguments: str) -> list[str]:
    """Return the command line of `ppo-workbench` with `arguments`.

    -P keeps the working folder out of the module path: a `random.py` or `trainer.py` that lies there is not imported.
    """
    return [sys.executable, "-P", "-m", "workbench", *arguments]
