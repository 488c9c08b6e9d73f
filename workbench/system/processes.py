"""The program's own processes, which it starts beside itself."""

from __future__ import annotations

import sys


def own_command(*arguments: str) -> list[str]:
    """Return the command line of `ppo-workbench` with `arguments`.

    -P keeps the working folder out of the module path, so that a `random.py` or `trainer.py` there is not imported.
    """
    return [sys.executable, "-P", "-m", "workbench", *arguments]
