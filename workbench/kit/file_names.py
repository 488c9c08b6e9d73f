"""Names of files that the user writes to, and of runs."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

from trainer.config.fields import PATTERNS, RUN_NAME


def unused(path: Path) -> Path:
    """Return `path` if nothing exists there, else with the first free number after its name: text-2.md, text-3.md..."""
    names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
    return path if not path.exists() else next(name for name in names if not name.exists())


def path_problem(text: str) -> str:
    """Return why no file can be written to the path `text`, in one line; empty when it can."""
    if not text.strip():
        return "Enter a file name"
    try:
        path = Path(text).expanduser()
        return f"{path} is a folder: enter a file name" if path.is_dir() else ""
    except (OSError, RuntimeError) as error:  # the name is too long; ~ of an unknown user
        return f"Invalid file name: {getattr(error, 'strerror', None) or error}"


def path_note(text: str) -> str:
    """Return a note that names the file to be written because the path `text` is taken; empty when it is free.

    `text` must have no `path_problem`.
    """
    path = Path(text).expanduser()
    free = unused(path)
    return "" if free == path else f"File exists; {free.name} will be written"


def run_name_problem(name: str) -> str:
    """Return why `name` is not a valid name of a run; empty if its form is valid."""
    if not name:
        return "Enter a name"
    return "" if re.fullmatch(RUN_NAME, name) else f"the name {PATTERNS[RUN_NAME]}"
