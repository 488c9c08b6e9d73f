"""The parser of the command line; the commands are in `workbench.cli` and imported when called."""

from __future__ import annotations

import argparse
import difflib
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from workbench.cli.compare_arguments import add_compare
from workbench.cli.dpo_arguments import add_dpo
from workbench.cli.evaluate_arguments import TRUST_CODE, add_evaluate
from workbench.cli.label_arguments import add_label
from workbench.cli.preferences_arguments import add_preferences
from workbench.cli.reward_model_arguments import add_reward_model
from workbench.cli.runs_dir import add_dir
from workbench.system import output

PRESET = "quickstart"

_LONGEST = 60  # characters shown of a wrong argument
_MANY = 15  # most choices that are listed

EXIT_CODES = {
    0: "done",
    1: "a bug: see the run's crash.log",
    2: "wrong usage or configuration",
    3: "data, model, reward or storage that cannot be used",
    4: "training diverged",
    130: "interrupted by a signal, or because the reader of the output went away",
}

_EPILOG = """\
Data goes to stdout; progress, warnings and errors go to stderr.

SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 end a headless run after a checkpoint; a second Ctrl+C ends it at
once, without one. They end the workbench in the same way, except that a run outlives its terminal (SIGHUP).

exit codes:
""" + "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's) and return its exit code, one of `EXIT_CODES`."""
    output.make_streams_safe()
    args = parser().parse_args(argv)
    from trainer.errors import TrainerError

    try:
        return _command(args)(args)
    except TrainerError as error:
        output.error(str(error))
        return error.exit_code
    except BrokenPipeError:  # `| head` has read enough
        output.discard_stdout()
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as bug:  # noqa: BLE001 - the last line of defence
        output.crash(bug)
        return 1


def parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    root = _Parser(
        prog=output.PROGRAM,
        description="Reinforcement learning from human feedback on one machine, in one terminal.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    root.add_argument("--version", action=_Version, help="print the version and exit")
    root.add_argument("--no-ui", action="store_true", help="train without the workbench: by SSH, in scripts")
    root.add_argument(
        "--config",
        dest="config_given",
        metavar="PRESET_OR_FILE",
        help=f"preset or TOML file (default: {PRESET})",
    )
    root.add_argument(
        "--set",
        dest="overrides_given",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change one field",
    )
    root.add_argument("--name", help="name of the run's folder (default: the preset's and a number)")
    root.add_argument(
        "--display",
        choices=("rich", "plain", "json"),
        help="how to show the run (default: rich on a terminal, else plain)",
    )
    root.add_argument("--resume", metavar="RUN", help="go on with a run: its folder, or its name")
    root.add_argument("--trust-code", action="store_true", help=TRUST_CODE)
    root.add_argument("--dir", metavar="DIR", help="folder of the runs (default: runs)")
    commands = root.add_subparsers(dest="command", title="commands", metavar="", parser_class=_Parser)
    _add_config(commands)
    runs = commands.add_parser("runs", help="list the runs")
    runs.add_argument("--json", action="store_true", help="one JSON object a line")
    add_dir(runs)
    _add_samples(commands)
    add_evaluate(commands)
    add_compare(commands)
    add_preferences(commands, _Parser)
    add_reward_model(commands, _Parser)
    add_dpo(commands)
    add_label(commands)
    watch = commands.add_parser("watch", help="show a run that another process trains, or one that has ended")
    watch.add_argument("run", metavar="RUN", help="the run's folder, or its name")
    add_dir(watch)
    commands.add_parser("doctor", help="tell what training would run on here, and what is slow about it")
    return root


def _add_samples(commands: Any) -> None:
    samples = commands.add_parser("samples", help="print or export what a run has written")
    samples.add_argument("run", metavar="RUN", help="the run's folder, or its name")
    add_dir(samples)
    samples.add_argument(
        "--iteration", metavar="N", default="newest", help="number of an iteration, newest, or all (default: newest)"
    )
    samples.add_argument(
        "--filter",
        metavar="QUERY",
        help="words and conditions that must all hold, as in 'joy score>0.5 kl<=10 len>20 stop:length is:marked'",
    )
    samples.add_argument("--sort", choices=("score", "kl", "length"), help="highest first (default: as in the batch)")
    samples.add_argument("--limit", metavar="N", type=int, help="at most so many (default: 20 printed, all exported)")
    files = samples.add_mutually_exclusive_group()
    files.add_argument("--jsonl", metavar="FILE", help="write everything that is known of each, a JSON object a line")
    files.add_argument("--markdown", metavar="FILE", help="write texts, scores and tables of the tokens")


def _add_config(commands: Any) -> None:
    config = commands.add_parser("config", help="show, check and explain configurations")
    actions = config.add_subparsers(dest="action", required=True, title="commands", metavar="", parser_class=_Parser)
    for name, help_text in (
        ("show", "print the configuration as TOML, every default spelt out"),
        ("validate", "report every problem of a configuration"),
    ):
        action = actions.add_parser(name, help=help_text)
        # Also accepted before the command: an absent one here must not override the one there.
        action.add_argument(
            "--config",
            dest="config_given",
            metavar="PRESET_OR_FILE",
            default=argparse.SUPPRESS,
            help="preset or file",
        )
        action.add_argument(
            "--set",
            dest="overrides_after",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help="change one field",
        )
    schema = actions.add_parser("schema", help="list every field: type, range, default, unit, help")
    schema.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="default: text")
    for action in actions.choices.values():
        action.add_argument(
            "--kind", choices=("ppo", "reward-model", "dpo"), default="ppo", help="kind of run (default: %(default)s)"
        )


def _command(args: argparse.Namespace) -> Callable[[argparse.Namespace], int]:
    args.config = args.config_given or PRESET
    args.overrides = args.overrides_given + getattr(args, "overrides_after", [])
    match args.command:
        case "config":
            from workbench.cli import config

            return {"show": config.show, "validate": config.validate, "schema": config.schema}[args.action]
        case "runs":
            from workbench.cli import runs

            return runs.run
        case "samples":
            from workbench.cli import samples

            return samples.run
        case "evaluate":
            from workbench.cli import evaluate

            return evaluate.run
        case "compare":
            from workbench.cli import compare

            return compare.run
        case "preferences":
            from workbench.cli import preferences

            return preferences.ACTIONS[args.action]
        case "label":
            from workbench.cli import label

            return label.run
        case "reward-model":
            from workbench.cli import reward_model

            return reward_model.ACTIONS[args.action]
        case "dpo":
            from workbench.cli import dpo

            return dpo.run
        case "doctor":
            from workbench.cli import doctor

            return doctor.run
        case "watch":
            from workbench.cli import ui

            return ui.watch
    if args.no_ui:
        from workbench.cli import train

        return train.run
    from workbench.cli import ui

    return ui.run


class _Parser(argparse.ArgumentParser):
    """A parser that reports a wrong command line in one line, with what was probably meant."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: "):  # of commands, which have no name
            message = f"a command is missing; choose from {', '.join(self._commands())}"
        output.error(f"{message}{'' if message.endswith('?') else ':'} '{self.prog} --help' shows what is possible")
        sys.exit(2)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the whole command line, once all of its long options are known."""
        words = sys.argv[1:] if args is None else list(args)
        known = self._all_options()
        for word in itertools.takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known:
                self.error(f"unknown option '{name[:_LONGEST]}'{_meant(name, known)}")
        return super().parse_args(words, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        shown, hint = f"'{str(value)[:_LONGEST]}'", _meant(str(value), action.choices)
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"unknown command {shown}{hint}")
        self.error(f"{'/'.join(action.option_strings) or action.dest} {shown}: no such choice{hint}")

    def _commands(self) -> dict[str, _Parser]:
        actions = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return dict(actions[0].choices) if actions else {}

    def _all_options(self) -> set[str]:
        """Return the options of this command and of all its subcommands."""
        return set(self._option_string_actions).union(*(each._all_options() for each in self._commands().values()))


def _meant(word: str, choices: Iterable[Any]) -> str:
    """Return a hint for an unknown `word`: the choice probably meant, or all choices if they are few."""
    names = sorted(map(str, choices))
    if near := difflib.get_close_matches(word[:_LONGEST], names, n=1):
        return f"; did you mean '{near[0]}'?"
    return f"; choose from {', '.join(names)}" if len(names) <= _MANY else ""


class _Version(argparse.Action):
    """An option that looks up the version only when it is given."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            output.data(f"{output.PROGRAM} {version(output.PROGRAM)}")
        except PackageNotFoundError:  # run from the source tree
            output.data(f"{output.PROGRAM} (not installed)")
        sys.exit(0)
