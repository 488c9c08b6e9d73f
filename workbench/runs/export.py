"""The comparison of runs as a Markdown file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder
from workbench.compare.compared_run import LETTERS, read_runs
from workbench.compare.report import report_lines
from workbench.kit.lines import plain
from workbench.kit.saving import write_lines
from workbench.text import visible

WIDTH = 120  # columns of the report


def write_comparison(folders: Sequence[RunFolder], path: Path) -> Path:
    """Write the report of `ppo-workbench compare` on two or more runs to a new file; return its path.

    Raises StorageError if there is nothing to compare or the file cannot be written.
    """
    if len(folders) > len(LETTERS):
        raise StorageError(f"{len(folders)} runs are too many to compare at once: mark at most {len(LETTERS)}")
    groups = read_runs(folders)
    runs = [run for group in groups for run in group.runs]
    if not any(run.view.started or run.view.history for run in runs):
        raise StorageError("the journals of these runs are still empty: compare them later")
    names = ", ".join(visible(one.name).replace("`", "'") for one in runs)
    report = "\n".join(plain(line).rstrip() for line in report_lines(groups, WIDTH))
    problems = [f"- {one.letter} {visible(one.name)}: {visible(problem)}" for one in runs for problem in one.problems]
    # A fence longer than any run of backquotes in a response, so that no response ends it.
    fence = "`" * (3 + max(map(len, re.findall("`+", report)), default=0))
    parts = [f"# {names}", f"{fence}text\n{report}\n{fence}", "\n".join(problems)]
    write_lines(path, ["\n\n".join(filter(None, parts))])
    return path
