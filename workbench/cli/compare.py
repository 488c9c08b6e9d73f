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
from workbench.cli.config import runs_dir
from workbench.cli.parser import add_dir
from workbench.compare.compared_run import LETTERS, read_runs
from workbench.compare.report import plain_values, report_lines
from workbench.kit.lines import Line, plain
from workbench.system import output

_LEAST, _MOST = 60, 400  # columns
_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")  # of runs, repeated if there are more
_STYLES = {
    "text": "",
    "strong": "bold",
    "muted": "dim",
    **{f"run-{letter}": _COLOURS[number % len(_COLOURS)] for number, letter in enumerate(LETTERS)},
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.set_defaults(execute=run)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folders or names of two or more runs")
    add_dir(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/compare.md lists its fields)")
    parser.add_argument("--width", metavar="N", type=int, help="columns of the report (default: the terminal's)")


def run(args: argparse.Namespace) -> int:
    """Print the comparison; problems go to stderr, or into the JSON object. Raises UsageError and StorageError."""
    width = _width(args.width)
    runs = read_runs(_folders(args.runs, runs_dir(args)))
    if not any(one.view.started or one.view.history for one in runs):
        raise StorageError("the journals of these runs are still empty: compare them later")
    if args.json:
        output.data(json.dumps(plain_values(runs), allow_nan=False, default=str))
    else:
        _print(report_lines(runs, width))
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
            output.warning(f"'{name}' is named twice and compared once")
        folders[folder.root] = folder
    if len(folders) < 2:
        raise UsageError(f"compare needs at least two runs, not only '{named[0]}': name another one")
    if len(folders) > len(LETTERS):
        raise UsageError(f"{len(folders)} runs are too many to compare at once: name at most {len(LETTERS)}")
    return list(folders.values())


def _width(given: int | None) -> int:
    if given is None:
        return min(max(shutil.get_terminal_size().columns, _LEAST), _MOST)
    if not _LEAST <= given <= _MOST:
        raise UsageError(f"--width {given}: must be {_LEAST} to {_MOST} columns")
    return given


def _print(lines: Iterable[Line]) -> None:
    if not sys.stdout.isatty():
        output.data("\n".join(plain(line).rstrip() for line in lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for line in lines:
        console.print(Text.assemble(*((text, _STYLES[role]) for text, role in line)))
