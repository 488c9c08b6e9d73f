"""Files that the user writes, and the question for their names before a pane saves something."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from trainer.errors import TrainerError, writing
from trainer.files import PRIVATE, open_file, unused
from workbench.kit.dialog import TextPromptScreen
from workbench.kit.pane import Pane


def given_path(text: str) -> Path:
    """Return the path that a user typed; ~ of an unknown user stays as it is."""
    return Path(os.path.expanduser(text))  # noqa: PTH111  pathlib's raises for such a user


def ask_and_save(pane: Pane, question: str, suggested: str, save: Callable[[Path], object]) -> None:
    """Ask for a file, and save something in it; the question stays open with the reason if that fails.

    suggested: name of the file; numbered if it exists. save: called on a thread; raises TrainerError.
    """

    async def ask() -> None:
        name = await asyncio.to_thread(unused, Path(suggested))
        pane.app.push_screen(TextPromptScreen(question, str(name), submit=write))

    async def write(text: str) -> str:
        try:
            await asyncio.to_thread(save, given_path(text))
        except TrainerError as error:
            return str(error)
        pane.confirm(f"Saved '{text}'")
        return ""

    pane.run_worker(ask(), group="dialog", exclusive=True)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write the lines to a new file that only the user can read. Raises StorageError."""
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with writing(f"'{path}'"), os.fdopen(open_file(path, new, PRIVATE), "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
