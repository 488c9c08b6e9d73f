"""Parts that all command parsers use: lazy loading, suggestions for misspelt names, and common options."""

from __future__ import annotations

import argparse
import difflib
import importlib
import itertools
import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from workbench.system import output

PREFERENCES = "preferences.db, a .jsonl, .jsonl.gz, .json, .csv or .parquet file, a folder or a datasets name"

_LONGEST = 60  # characters shown of a wrong argument
_MANY = 20  # most choices that are listed


class Parser(argparse.ArgumentParser):
    """A parser of a command line or of one of its commands. It reports a mistake in one line.

    module: adds the options of the command with its function `add_options(parser)`. It is imported once a command
    line names the command, so that `--help` and `--version` are quick.
    """

    def __init__(self, *args: Any, module: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._module = module

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: "):  # of commands, which have no name
            message = f"a command is missing; choose from {', '.join(self._commands())}"
        see = " See" if message.endswith("?") else ": see"
        output.error(f"{message}{see} '{self.prog} --help'")
        sys.exit(2)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the whole command line, after a look for unknown long options."""
        words = sys.argv[1:] if args is None else list(args)
        self._check_options(words)
        return super().parse_args(words, namespace)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse what is known, once the options of the command have been added."""
        self._load()
        return super().parse_known_args(args, namespace)

    def _load(self) -> None:
        module, self._module = self._module, ""
        if module:
            importlib.import_module(module).add_options(self)

    def _check_options(self, words: Sequence[str]) -> None:
        """Report a long option that neither this parser nor a command among `words` has."""
        given = [word.partition("=")[0] for word in itertools.takewhile(lambda word: word != "--", words)]
        unknown = [name for name in given if name.startswith("--") and name not in self._option_string_actions]
        if not unknown:
            return
        commands = self._commands()
        named = [commands[word] for word in words if word in commands] or commands.values()
        known = set(self._option_string_actions).union(*(command._all_options() for command in named))
        for name in unknown:
            if name not in known:
                self.error(f"unknown option '{name[:_LONGEST]}'{_meant(name, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        shown, hint = f"'{str(value)[:_LONGEST]}'", _meant(str(value), action.choices)
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"unknown command {shown}{hint}")
        self.error(f"{'/'.join(action.option_strings) or action.dest} {shown}: invalid choice{hint}")

    def _commands(self) -> dict[str, Parser]:
        actions = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return dict(actions[0].choices) if actions else {}

    def _all_options(self) -> set[str]:
        """Return the options of this command and of all its subcommands."""
        self._load()
        return set(self._option_string_actions).union(*(each._all_options() for each in self._commands().values()))


def _meant(word: str, choices: Iterable[Any]) -> str:
    """Return a hint for an unknown `word`: the choice probably meant, or all choices if they are few."""
    names = sorted(map(str, choices))
    if near := difflib.get_close_matches(word[:_LONGEST], names, n=1):
        return f"; did you mean '{near[0]}'?"
    return f"; choose from {', '.join(names)}" if len(names) <= _MANY else ""


OPTIONS: dict[str, dict[str, Any]] = {
    "run": {"metavar": "RUN", "help": "the run's folder, or its name"},
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
"""Arguments that several commands have, or that also come before a command."""


def add(parser: argparse.ArgumentParser, *names: str, **changes: Any) -> None:
    """Add some of `OPTIONS` to the parser of a command. changes: of what `OPTIONS` has about all of them.

    They have no default, which would override what was given before the command; --set has a list of its own.
    """
    for name in names:
        own = {"dest": "overrides_after", "default": []} if name == "--set" else {"default": argparse.SUPPRESS}
        parser.add_argument(name, **OPTIONS[name] | (own if name.startswith("--") else {}) | changes)


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
