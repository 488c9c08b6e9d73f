"""Parts that all command parsers use: mistakes in one line, suggestions for misspelt names, and common options."""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from workbench.system import output

PREFERENCES = "preferences.db, a .jsonl, .jsonl.gz, .json, .csv or .parquet file, a folder or a datasets name"

_LONGEST = 60  # characters shown of a wrong argument
_MANY = 20  # most choices that are listed
_OPTION = re.compile(r"^  (?:-\w, )?(--[\w-]+)", re.MULTILINE)  # in a help
_WORD = re.compile(r"[\w.-]+")
_CHOICE = re.compile(r"argument (\S*): invalid choice: .(.*). \(choose from (.*)\)", re.DOTALL)  # argparse's words


class Parser(argparse.ArgumentParser):
    """A parser of a command line or of one of its commands. It reports a mistake in one line."""

    commands: Mapping[str, Parser] = {}

    def add_subparsers(self, **options: Any) -> Any:
        """Add commands, which `commands` then has by name."""
        actions: Any = super().add_subparsers(**options)
        self.commands = actions.choices
        return actions

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: "):  # of commands, which have no name
            message = f"a command is missing; choose from {', '.join(self.commands)}"
        elif found := _CHOICE.fullmatch(message):
            name, value, choices = found.groups()
            what, wrong = (name, ": invalid choice") if name else ("unknown command", "")
            message = f"{what} '{value[:_LONGEST]}'{wrong}{_meant(value, _WORD.findall(choices))}"
        else:
            message = re.sub(r"^argument (\S+):(?! invalid)", r"\1", message).removeprefix("argument ")
        from trainer.errors import UsageError  # here, because `--help` needs nothing of the trainer

        see = " See" if message.endswith("?") else ": see"
        raise UsageError(f"{message}{see} '{self.prog} --help'")

    def check_options(self, words: Sequence[str]) -> None:
        """Report a long option that neither this parser nor a command among `words` has."""
        named = [command for name, command in self.commands.items() if name in words]
        known = {*_OPTION.findall(self.format_help())}.union(*(command.options() for command in named))
        before = ""
        for word in itertools.takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known:
                self.error(f"unknown option '{name[:_LONGEST]}'{_meant(name, known)}")
            if not (named or word.startswith("-") or before.startswith("-")):
                return  # a misspelt command: argparse reports it
            before = word

    def options(self) -> set[str]:
        """Return the long options of this command and of all its subcommands."""
        return {*_OPTION.findall(self.format_help())}.union(*(each.options() for each in self.commands.values()))


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a type of options: a whole number from `least` to `most`."""

    def convert(text: str) -> int:
        if not re.fullmatch("[+-]?[0-9]{1,18}", text):
            raise argparse.ArgumentTypeError(f"{text[:_LONGEST]}: must be a whole number of at most 18 digits")
        if least <= (value := int(text)) and (most is None or value <= most):
            return value
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        raise argparse.ArgumentTypeError(f"{text}: must be {bounds}")

    return convert


def _meant(word: str, choices: Iterable[str]) -> str:
    """Return a hint for an unknown `word`: the choice probably meant, or all choices if they are few."""
    names = sorted(choices)
    if near := difflib.get_close_matches(word[:_LONGEST], names, n=1):
        return f"; did you mean '{near[0]}'?"
    return f"; choose from {', '.join(names)}" if len(names) <= _MANY else ""


OPTIONS: dict[str, dict[str, Any]] = {
    "--config": {"dest": "config_given", "metavar": "FILE", "help": "TOML file (default: none)"},
    "--set": {"metavar": "KEY=VALUE", "action": "append", "help": "change one setting, as in ppo.kl_coef=0.1"},
    "--name": {"metavar": "NAME"},
    "--display": {
        "choices": ("rich", "plain", "json"),
        "help": "output while it trains without the screen (default: rich on a terminal, plain elsewhere)",
    },
    "--resume": {"metavar": "RUN", "help": "resume a run: its folder or name"},
    "--accept-data": {
        "action": "store_true",
        "help": "with --resume and branch: go on although the prompts have changed, with a new series of evaluations",
    },
    "--trust-code": {
        "action": "store_true",
        "help": "run the Python files of the reward, and trust this version of them from now on",
    },
    "--dir": {"metavar": "DIR", "help": "folder of the runs (default: runs)"},
}
"""Options of a run, which may also come before a command."""

_SHARED: dict[str, dict[str, Any]] = {
    "run": {"metavar": "RUN", "help": "the run's folder, or its name"},
    "--json": {"action": "store_true", "help": "print one JSON object"},
    "--checkpoint": {
        "metavar": "N",
        "default": "last",
        "help": "number of an iteration, best, or last (default: last)",
    },
    "--average": {"action": "store_true"},
    "--seeds": {"metavar": "K", "type": whole_number(1)},
    "--limit": {"metavar": "N", "type": whole_number(1)},
}
"""Other arguments of several commands."""


def add(parser: argparse.ArgumentParser, *names: str, **changes: Any) -> None:
    """Add arguments that several commands have to the parser of one. changes: of what is set for all of them.

    `OPTIONS` have no default, which would override what was given before the command; --set has a list of its own.
    """
    for name in names:
        own = {"dest": "overrides_after", "default": []} if name == "--set" else {"default": argparse.SUPPRESS}
        parser.add_argument(name, **(OPTIONS[name] | own if name in OPTIONS else _SHARED[name]) | changes)


def add_preference_training(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of a command that trains on preferences. name: of its runs, before the number."""
    parser.add_argument("--data", metavar="SOURCE", help=f"{PREFERENCES} (default: preferences.db)")
    add(parser, "--config", "--set", "--resume", "--dir", "--display")
    add(parser, "--name", help=f"name of the run's folder (default: {name} and a number)")


def dir_override(args: argparse.Namespace) -> list[str]:
    """Return the assignment that puts a new run into the folder of --dir; empty without that option."""
    return [] if args.dir is None else [f"run.dir={json.dumps(args.dir)}"]


def compare_command(where: str | None, *runs: str, groups: Mapping[str, str] | None = None) -> str:
    """Return the command line that compares runs, or groups of them.

    where: the folder that --dir names, if any. groups: by name, their runs with commas between, or a pattern.
    """
    named = [word for name, of_group in (groups or {}).items() for word in ("--group", f"{name}={of_group}")]
    folder = [] if where is None else ["--dir", where]
    return shlex.join([output.PROGRAM, "compare", *runs, *named, *folder])
