"""The configuration of a command line: a preset or file with --set on top, or that of the run to resume."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trainer.config.loading import load_config_as, parse_overrides, preset_names
from trainer.config.problems import Schema, validate_as
from trainer.config.reference import reference_rows
from trainer.config.schema import Config, RunConfig
from trainer.errors import UsageError
from trainer.runs.folder import RunFolder, open_run

# May change when a run is resumed: in a PPO run besides the live settings, and in a run on preferences.
RESUMABLE = ("ppo.iterations", "checkpoint.every", "eval.every", "run.trackers")
_RESUMABLE_ON_PREFERENCES = ("checkpoint.every", "checkpoint.keep", "eval.every", "run.trackers")


def configuration(args: argparse.Namespace, schema: type[Schema]) -> Schema:
    """Load the configuration of a new run. Raises UsageError and ConfigError.

    Only PPO has presets and one of them as its default; other kinds of run need no file.
    """
    name, data = getattr(args, "name", None), getattr(args, "data", None)
    given = [f"run.name={name}"] * (name is not None) + [f"data.preferences={data}"] * bool(data)
    overrides = parse_overrides(args.overrides + given + dir_override(args), schema)
    if issubclass(schema, Config):
        return load_config_as(schema, args.config, overrides, preset_names())
    return load_config_as(schema, args.config_given, overrides) if args.config_given else validate_as(schema, overrides)


def resumed(args: argparse.Namespace, schema: type[Schema]) -> tuple[Schema, RunFolder]:
    """Load configuration and folder of the run that --resume names, by its path or its name among the runs.

    Raises UsageError if there is no such run, or if an option would change what shapes it from its start on.
    """
    for option, value in (
        ("--config", args.config_given),
        ("--name", args.name),
        ("--data", getattr(args, "data", None)),
    ):
        if value is not None:
            raise UsageError(f"{option} {value} does not go with --resume, which uses the run's own config.toml")
    allowed = _resumable(schema)
    for assignment in args.overrides:
        key = assignment.partition("=")[0].strip()
        if key not in allowed:
            raise UsageError(f"--set {key} cannot change in a resumed run; choose from {', '.join(allowed)}")
    folder = open_run(args.resume, runs_dir(args))
    return load_config_as(schema, folder.config, parse_overrides(args.overrides, schema)), folder


def runs_dir(args: argparse.Namespace) -> Path:
    """Return the folder of the runs. Raises UsageError if --dir does not exist."""
    default = RunConfig().dir
    given = getattr(args, "dir", None)
    if given is not None and not Path(given).is_dir():
        raise UsageError(f"--dir {given}: no such folder; the default is '{default}'")
    return Path(given or default)


def dir_override(args: argparse.Namespace) -> list[str]:
    """Return the assignment that puts a new run into the folder of --dir; empty without that option."""
    given = getattr(args, "dir", None)
    return [] if given is None else [f"run.dir={json.dumps(given)}"]


def _resumable(schema: type[Schema]) -> list[str]:
    if not issubclass(schema, Config):
        return [*_RESUMABLE_ON_PREFERENCES]
    return [row.key for row in reference_rows() if row.live or row.key in RESUMABLE]
