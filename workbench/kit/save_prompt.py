"""The question for a new file, before a pane saves something in it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from trainer.errors import TrainerError, cannot_write
from trainer.files import PRIVATE, open_file
from workbench.kit.dialog import TextPromptScreen
from workbench.kit.file_names import no_name, path_to_write, unused
from workbench.kit.pane import Pane


def ask_and_save(pane: Pane, question: str, suggested: str, save: Callable[[Path], object]) -> None:
    """Ask for a file, and save something in it; the question stays open with the reason if that fails.

    suggested: name of the file; numbered if it exists. save: called on a thread; raises TrainerError.
    """

    async def ask() -> None:
        name = await asyncio.to_thread(unused, Path(suggested))
        pane.app.push_screen(TextPromptScreen(question, str(name), no_name, write))

    async def write(text: str) -> str:
        try:
            await asyncio.to_thread(lambda: save(path_to_write(text)))
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
