"""Sources of a configuration: a preset or file with --set on top, or the run that is resumed."""

from __future__ import annotations

import argparse

from trainer.config import Config, load_config, parse_overrides
from trainer.config.reference import reference_rows
from trainer.errors import UsageError
from trainer.runs.folder import RunFolder, open_run
from workbench.cli.runs_dir import dir_override, runs_dir

# May change when a run is resumed, besides the live fields.
RESUMABLE = ("ppo.iterations", "checkpoint.every", "eval.every", "run.trackers")


def configuration(args: argparse.Namespace) -> Config:
    """Load the configuration of --config with --set, --name and --dir on top. Raises UsageError and ConfigError."""
    name = getattr(args, "name", None)
    named = [f"run.name={name}"] if name is not None else []
    return load_config(args.config, parse_overrides(args.overrides + named + dir_override(args)))


def resumed(args: argparse.Namespace) -> tuple[Config, RunFolder]:
    """Load configuration and folder of the run that --resume names, by its path or its name among the runs.

    Raises UsageError if there is no such run, or if an option would change what must stay as it is.
    """
    for option, value in (("--config", args.config_given), ("--name", args.name)):
        if value is not None:
            raise UsageError(f"{option} {value} does not go with --resume, which uses the run's own config.toml")
    folder = open_run(args.resume, runs_dir(args))
    _check_resumable(args.overrides)
    return load_config(folder.config, parse_overrides(args.overrides)), folder


def _check_resumable(assignments: list[str]) -> None:
    """Raise UsageError if a --set would change a field that shapes the run from its first iteration on."""
    allowed = [row.key for row in reference_rows() if row.live or row.key in RESUMABLE]
    for assignment in assignments:
        key = assignment.partition("=")[0].strip()
        if key not in allowed:
            raise UsageError(f"--set {key} cannot change in a resumed run; what can: {', '.join(allowed)}")
