"""Files that the user writes, and the question for their names before a pane saves something."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from textual.suggester import Suggester

from trainer.errors import TrainerError, writing
from trainer.files import PRIVATE, open_file, unused
from workbench.kit.dialog import TextPromptScreen
from workbench.kit.pane import Pane


def given_path(text: str) -> Path:
    """Return the path that a user typed; ~ of an unknown user stays as it is."""
    return Path(os.path.expanduser(text))  # noqa: PTH111  pathlib's raises for such a user


class PathSuggester(Suggester):
    """Suggester of the first file or folder that begins with the typed text."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        return await asyncio.to_thread(completed, value)  # a folder may hold many files, or be far away


def completed(text: str) -> str | None:
    """Complete `text` to the first existing path, folders with a slash; None if there is none."""
    if not text or "\0" in text:
        return None
    head, slash, tail = text.rpartition("/")
    try:
        folder = Path(head + slash).expanduser() if slash else Path()
        names = sorted(
            f"{path.name}/" if path.is_dir() else path.name
            for path in folder.iterdir()
            if path.name.startswith(tail) and path.name.isprintable() and (tail or not path.name.startswith("."))
        )
    except (OSError, RuntimeError):  # no such folder, or unknown home
        return None
    return f"{head}{slash}{names[0]}" if names else None


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
