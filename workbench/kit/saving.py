"""Files that the user writes: their names, and the question for one before a pane saves something in it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from trainer.config.fields import PATTERNS, RUN_NAME
from trainer.errors import TrainerError, cannot_write
from trainer.files import PRIVATE, open_file, unused
from workbench.kit.dialog import TextPromptScreen
from workbench.kit.pane import Pane


def path_problem(text: str) -> str:
    """Return why no file can be written to the path `text`, in one line; empty when it can."""
    if problem := no_name(text):
        return problem
    try:
        path = Path(text).expanduser()
        return f"{path} is a folder: enter a file name" if path.is_dir() else ""
    except (OSError, RuntimeError) as error:  # the name is too long; ~ of an unknown user
        return f"Invalid file name: {getattr(error, 'strerror', None) or error}"


def no_name(text: str) -> str:
    """Return that a name is missing if `text` is blank, else nothing. Unlike `path_problem`, it looks at no file."""
    return "" if text.strip() else "Enter a file name"


def run_name_problem(name: str) -> str:
    """Return why `name` is not a valid name of a run; empty if its form is valid."""
    if not name:
        return "Enter a name"
    return "" if re.fullmatch(RUN_NAME, name) else f"the name {PATTERNS[RUN_NAME]}"


def ask_and_save(pane: Pane, question: str, suggested: str, save: Callable[[Path], object]) -> None:
    """Ask for a file, and save something in it; the question stays open with the reason if that fails.

    suggested: name of the file; numbered if it exists. save: called on a thread; raises TrainerError.
    """

    async def ask() -> None:
        name = await asyncio.to_thread(unused, Path(suggested))
        pane.app.push_screen(TextPromptScreen(question, str(name), no_name, write))

    async def write(text: str) -> str:
        if problem := await asyncio.to_thread(path_problem, text):
            return problem
        try:
            await asyncio.to_thread(save, Path(text).expanduser())
        except TrainerError as error:
            return str(error)
        pane.confirm(f"Saved '{text}'")
        return ""

    pane.run_worker(ask(), group="dialog", exclusive=True)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write the lines to a new file that only the user can read. Raises StorageError."""
    try:
        with os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise cannot_write(f"'{path}'", error) from None
