"""`ppo-workbench compare`: runs side by side, as a report or as one JSON object."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from trainer.errors import StorageError, UsageError
from trainer.runs.folder import RunFolder, open_run
from workbench.cli.compare_reading import read_runs
from workbench.cli.runs_dir import runs_dir
from workbench.compare.lines import Line, plain
from workbench.compare.plain import plain_values
from workbench.compare.report import report
from workbench.compare.run import LETTERS
from workbench.system import output

_LEAST, _MOST = 60, 400  # columns
_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")  # of runs, repeated if there are more
_STYLES = {
    "text": "",
    "strong": "bold",
    "muted": "dim",
    **{f"run-{letter}": _COLOURS[number % len(_COLOURS)] for number, letter in enumerate(LETTERS)},
}


def run(args: argparse.Namespace) -> int:
    """Print the comparison; problems go to stderr, or into the JSON object. Raises UsageError and StorageError."""
    width = _width(args.width)
    runs = read_runs(_folders(args.runs, runs_dir(args)))
    if not any(one.view.started or one.view.history for one in runs):
        raise StorageError("none of these runs has an event in its journal: there is nothing to compare yet")
    if args.json:
        output.data(json.dumps(plain_values(runs), allow_nan=False, default=str))
    else:
        _print(report(runs, width))
        for one in runs:
            for problem in one.problems:
                output.warning(f"{one.letter} {one.name}: {problem}")
    return 0


def _folders(named: list[str], where: Path) -> list[RunFolder]:
    """Open the runs, each once. Raises UsageError for fewer than two, or for more than there are letters."""
    folders: dict[Path, RunFolder] = {}
    for name in named:
        folder = open_run(name, where)
        if folder.root in folders:
            output.warning(f"'{name}' is named twice: it is compared once")
        folders[folder.root] = folder
    if len(folders) < 2:
        raise UsageError(f"compare needs two runs or more, and there is only '{named[0]}': name another one")
    if len(folders) > len(LETTERS):
        raise UsageError(f"{len(folders)} runs are too many to compare at once: name at most {len(LETTERS)}")
    return list(folders.values())


def _width(asked: int | None) -> int:
    if asked is None:
        return min(max(shutil.get_terminal_size().columns, _LEAST), _MOST)
    if not _LEAST <= asked <= _MOST:
        raise UsageError(f"--width {asked}: give {_LEAST} to {_MOST} columns, or leave it out")
    return asked


def _print(lines: Iterable[Line]) -> None:
    if not sys.stdout.isatty():
        output.data("\n".join(map(plain, lines)))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for line in lines:
        console.print(Text.assemble(*((text, _STYLES[role]) for text, role in line)))
