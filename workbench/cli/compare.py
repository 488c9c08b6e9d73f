"""`ppo-workbench compare`: runs, or groups of runs, side by side, as a report or as one JSON object."""

from __future__ import annotations

import argparse
import glob
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.errors import StorageError, UsageError
from trainer.runs.folder import RunFolder, open_run
from trainer.runs.listing import PPO
from workbench.cli.config import runs_dir
from workbench.cli.parser import add, whole_number
from workbench.compare.compared_run import LETTERS, RunGroup, read_groups, read_runs
from workbench.compare.report import plain_values, report_lines
from workbench.system import output
from workbench.text import plain

_LEAST, _MOST = 60, 400  # columns
_NAME = 40  # characters of a group's name, at most
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
    parser.add_argument("runs", metavar="RUN", nargs="*", help="folders or names of two or more runs")
    parser.add_argument(
        "--group",
        metavar="NAME=RUN,...",
        dest="groups",
        action="append",
        default=[],
        help="PPO runs of one method, one for each seed: folders, names or patterns such as 'a-*'; two or more groups",
    )
    add(parser, "--dir")
    add(parser, "--json", help="print one JSON object (see docs/experiments.md)")
    columns = "columns of the report (default: the terminal's)"
    parser.add_argument("--width", metavar="N", type=whole_number(_LEAST, _MOST), help=columns)


def run(args: argparse.Namespace) -> int:
    """Print the comparison; problems go to stderr, or into the JSON object. Raises UsageError and StorageError."""
    if args.groups and args.runs:
        raise UsageError(f"'{args.runs[0]}' is in no group: compare either runs or groups")
    where = runs_dir(args)
    groups = checked_groups(_named(args.groups, where)) if args.groups else read_runs(_folders(args.runs, where))
    if not any(run.view.started or run.view.history for group in groups for run in group.runs):
        raise StorageError("the journals of these runs are still empty: compare them later")
    if args.json:
        output.data(json.dumps(plain_values(groups), allow_nan=False, default=str))
    else:
        print_report(groups, args.width)
    return 0


def print_report(groups: Sequence[RunGroup], width: int | None = None) -> None:
    """Print the comparison; problems go to stderr. width: columns; None for those of the terminal."""
    lines = report_lines(groups, width or min(max(shutil.get_terminal_size().columns, _LEAST), _MOST))
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        for line in lines:
            console.print(Text.assemble(*((text, _STYLES[role]) for text, role in line)))
    else:
        output.data("\n".join(plain(line).rstrip() for line in lines))
    for group in groups:
        for run in group.runs:
            for problem in run.problems:
                output.warning(f"{group.letter} {run.name}: {problem}")


def _folders(named: list[str], where: Path) -> list[RunFolder]:
    """Open the runs, each once. Raises UsageError for fewer than two, or for more than there are letters."""
    folders: dict[Path, RunFolder] = {}
    for name in named:
        if Path(name).is_file() and not (where / name).is_dir():  # the plan of a sweep, in runs/*
            output.warning(f"'{name}' is a file and not a run: left out")
            continue
        folder = open_run(name, where)
        if folder.root in folders:
            output.warning(f"'{name}' is named twice and compared once")
        folders[folder.root] = folder
    if len(folders) < 2:
        only = f", not only '{named[0]}': name another one" if named else ": name them, or groups of them with --group"
        raise UsageError(f"compare needs at least two runs{only}")
    if len(folders) > len(LETTERS):
        raise UsageError(f"{len(folders)} runs are too many to compare at once: name at most {len(LETTERS)}")
    return list(folders.values())


def _named(given: list[str], where: Path) -> dict[str, list[RunFolder]]:
    """Return the runs of each group that the options --group name. Raises UsageError."""
    named: dict[str, list[RunFolder]] = {}
    owners: dict[Path, str] = {}
    for text in given:
        name, equals, runs = text.partition("=")
        name = name.strip()
        if not (equals and name and len(name) <= _NAME):
            raise UsageError(f"--group {text}: must be NAME=RUN,RUN,... with a name of at most {_NAME} characters")
        if name in named:
            raise UsageError(f"--group {name} is given twice: name all its runs in one, separated by commas")
        named[name] = []
        for run in filter(None, map(str.strip, runs.split(","))):
            for folder in _matching(name, run, where) if set(run) & set("*?[") else [open_run(run, where)]:
                owner = owners.setdefault(folder.root, name)
                if owner != name:
                    raise UsageError(
                        f"run '{folder.name}' is in the groups {owner} and {name}: it belongs to one group"
                    )
                if folder in named[name]:
                    output.warning(f"'{folder.name}' is named twice in group {name} and counts once")
                else:
                    named[name].append(folder)
        if not named[name]:
            raise UsageError(f"--group {text}: names no run")
    return named


def checked_groups(named: Mapping[str, Sequence[RunFolder]]) -> list[RunGroup]:
    """Read the runs of each group. Raises UsageError for too few or too many groups, and for runs that do not fit.

    A group has PPO runs, one for each seed.
    """
    if len(named) < 2:
        raise UsageError(f"compare needs at least two groups, not only '{next(iter(named))}': add another --group")
    if len(named) > len(LETTERS):
        raise UsageError(f"{len(named)} groups are too many to compare at once: name at most {len(LETTERS)}")
    groups = read_groups(named)
    for group in groups:
        of_seeds: dict[int, str] = {}
        for run in group.runs:
            if run.kind != PPO:
                raise UsageError(f"'{run.name}' of group {group.name} is a {run.kind} run: groups are of PPO runs")
            seed = run.seed
            if seed is not None and (other := of_seeds.setdefault(seed, run.name)) != run.name:
                raise UsageError(
                    f"'{other}' and '{run.name}' of group {group.name} both have seed {seed}: a group has one run for "
                    "each seed"
                )
    return groups


def _matching(group: str, pattern: str, where: Path) -> list[RunFolder]:
    """Open the runs that a pattern matches. Raises UsageError if there is none."""
    found = {}
    for root in (where, Path()):
        for path in sorted(glob.glob(pattern, root_dir=root)):  # noqa: PTH207  Path.glob refuses a pattern with a root
            folder = RunFolder((root / path).resolve())
            if folder.config.is_file() or folder.events.is_file():
                found[folder.root] = folder
    if not found:
        raise UsageError(f"--group {group}: no run matches '{pattern}', neither in '{where}' nor as a path")
    return list(found.values())
