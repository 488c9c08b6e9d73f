"""The comparison of runs as a Markdown file."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from pathlib import Path

from trainer.errors import StorageError, TrainerError, cannot_write
from trainer.files import PRIVATE, open_file
from trainer.runs.folder import RunFolder
from workbench.compare.compared_run import LETTERS, read_runs
from workbench.compare.report import report_lines
from workbench.kit.dialog import TextPromptScreen
from workbench.kit.file_names import no_name, path_to_write, unused
from workbench.kit.lines import plain
from workbench.kit.pane import Pane
from workbench.text import visible

WIDTH = 120  # columns of the report


async def ask_and_write(pane: Pane, folders: Sequence[RunFolder]) -> None:
    """Ask for a file, and save the comparison of the runs in it."""
    name = await asyncio.to_thread(unused, Path("comparison.md"))

    async def write(text: str) -> str:
        try:
            path = await asyncio.to_thread(lambda: write_comparison(folders, path_to_write(text)))
        except TrainerError as error:
            return str(error)
        pane.confirm(f"Saved '{path}'")
        return ""

    pane.app.push_screen(TextPromptScreen("Save the comparison as", str(name), no_name, write))


def write_comparison(folders: Sequence[RunFolder], path: Path) -> Path:
    """Write the report of `ppo-workbench compare` on two or more runs to a new file; return its path.

    Raises StorageError if there is nothing to compare or the file cannot be written.
    """
    if len(folders) > len(LETTERS):
        raise StorageError(f"{len(folders)} runs are too many to compare at once: mark at most {len(LETTERS)}")
    runs = read_runs(folders)
    if not any(one.view.started or one.view.history for one in runs):
        raise StorageError("the journals of these runs are still empty: compare them later")
    names = ", ".join(visible(one.name).replace("`", "'") for one in runs)
    report = "\n".join(plain(line).rstrip() for line in report_lines(runs, WIDTH))
    problems = [f"- {one.letter} {visible(one.name)}: {visible(problem)}" for one in runs for problem in one.problems]
    # A fence longer than any run of backquotes in a response, so that no response ends it.
    fence = "`" * (3 + max(map(len, re.findall("`+", report)), default=0))
    parts = [f"# {names}", f"{fence}text\n{report}\n{fence}", "\n".join(problems)]
    try:
        with os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w", encoding="utf-8") as file:
            file.write("\n\n".join(filter(None, parts)) + "\n")
    except OSError as error:
        raise cannot_write(f"'{path}'", error) from None
    return path
