"""The command line. Each command is a module of `workbench.cli`, imported when it is given."""

from __future__ import annotations

import argparse
import errno
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.cli.parser import OPTIONS, Parser
from workbench.system import output

PRESET = "quickstart"

COMMANDS = {  # what adds the options of each, and its line in --help
    "new": ("config:add_new", "make a workspace: configuration, prompts, an example of a reward"),
    "config": ("config:add_config", "show, check and explain configurations"),
    "estimate": ("machine:add_estimate", "say how much memory a configuration needs, and what makes it fit"),
    "runs": ("runs:add_runs", "list the runs"),
    "samples": ("runs:add_samples", "print or export the samples of a run"),
    "evaluate": ("evaluate:add_options", "compare a checkpoint of a run with its reference"),
    "reward-bench": ("reward_bench:add_options", "say what a reward makes of a run's samples, and what games it"),
    "compare": ("compare:add_options", "compare runs: numbers, score against KL, curves, settings, texts"),
    "branch": ("experiments:add_branch", "go on from a checkpoint of a run with settings changed, as new runs"),
    "sweep": ("experiments:add_sweep", "train every combination of some settings on several seeds, and compare them"),
    "preferences": ("preferences:add_options", "import, export and describe preferences"),
    "reward-model": ("reward_model:add_options", "train, evaluate and apply a reward model"),
    "judge": ("judge:add_options", "hold a judge against the labels of people"),
    "dpo": ("train:add_options", "train a policy on preferences directly, as a baseline for PPO"),
    "launch": ("launch:add_options", "train one run in several processes on this machine"),
    "export": ("runs:add_export", "write a run for other trainers: policy, reward model, prompts, settings of TRL"),
    "label": ("label:add_options", "choose the better completion, one key per decision"),
    "watch": ("ui:add_options", "show a run that another process trains, or one that has ended"),
    "doctor": ("machine:add_doctor", "check what training would run on here and what would slow it down"),
}

EXIT_CODES = {
    0: "done",
    1: "a bug: see the run's crash.log",
    2: "wrong usage or configuration",
    3: "unusable data, model, reward or storage",
    4: "training diverged",
    75: "a rank did not answer",
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
    for stream in (sys.stdout, sys.stderr):  # characters that the encoding lacks are written as escapes
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        args = parse(argv)
        code = int(args.execute(args))
        print(end="", flush=True)  # noqa: T201 - here a full disk is still an error of ours
        return code
    except BrokenPipeError:  # `| head` has read enough
        output.discard_stdout()
        return 0
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # of --help and --version
        return int(end.code or 0)
    except Exception as error:  # noqa: BLE001 - the last line of defence
        from trainer.errors import TrainerError  # only now: the screen's first frame needs nothing of the trainer

        if isinstance(error, TrainerError):
            output.error(str(error))
            return error.exit_code
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            output.discard_stdout()
            output.error(f"cannot write: {error.strerror}")
            return 3
        output.crash(error)
        return 1


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line. The result has the command's function as `execute`, and all --set as `overrides`."""
    words = sys.argv[1:] if argv is None else [*argv]
    if words[:1] == ["launch"]:  # what follows is another command line
        from workbench.cli import launch

        return launch.parse(words[1:], parse)
    root = parser(words)
    root.check_options(words)
    args = root.parse_args(words)
    # A workspace has config.toml and runs/. The folder of a run has a config.toml too, but no runs.
    is_workspace = Path("config.toml").is_file() and Path("runs").is_dir()
    args.config = args.config_given or ("config.toml" if is_workspace else PRESET)
    args.overrides = args.overrides_given + getattr(args, "overrides_after", [])
    return args


def parser(words: Sequence[str]) -> Parser:
    """Build the parser of the command line `words`: only the commands that it names have their options."""
    root = Parser(
        prog=output.PROGRAM,
        description="Reinforcement learning from human feedback on one machine, in one terminal.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    root.set_defaults(execute=_train_or_open)
    version = _version() if "--version" in words else ""
    root.add_argument("--version", action="version", version=version, help="print the version and exit")
    root.add_argument("--no-ui", action="store_true", help="train without the screen, for scripts and remote machines")
    of_a_run: dict[str, dict[str, Any]] = {
        "--config": {
            "metavar": "PRESET_OR_FILE",
            "help": f"preset or TOML file (default: config.toml of a workspace, else {PRESET})",
        },
        "--set": {"dest": "overrides_given", "default": []},
        "--name": {"help": "name of the run's folder (default: the preset's and a number)"},
    }
    for name, options in OPTIONS.items():
        root.add_argument(name, **options | of_a_run.get(name, {}))
    commands = root.add_subparsers(dest="command", title="commands", metavar="")
    for name, (where, help_text) in COMMANDS.items():
        command = commands.add_parser(name, help=help_text)
        if name in words:
            pkgutil.resolve_name(f"workbench.cli.{where}")(command)
    return root


def _train_or_open(args: argparse.Namespace) -> int:
    """Run the command without a name: train headless with --no-ui, else open the workbench."""
    if args.no_ui:
        from workbench.cli import train

        return train.train(args)[0]
    from workbench.cli import ui

    return ui.run(args)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # here, because they take a while

    try:
        return f"{output.PROGRAM} {version(output.PROGRAM)}"
    except PackageNotFoundError:  # run from the source tree
        return f"{output.PROGRAM} (not installed)"
