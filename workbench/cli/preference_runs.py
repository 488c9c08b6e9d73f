"""The configuration of a run that learns from preferences, from the command line."""

from __future__ import annotations

import argparse
from typing import TypeVar

from trainer.config.fields import Section
from trainer.config.loading import load_config_as, parse_overrides
from trainer.config.problems import validate_as
from trainer.errors import UsageError
from trainer.runs.folder import RunFolder, open_run
from workbench.cli.runs_dir import dir_override, runs_dir

Schema = TypeVar("Schema", bound=Section)

# May change when a run is resumed.
_RESUMABLE = ("checkpoint.every", "checkpoint.keep", "eval.every", "run.trackers")


def configuration(args: argparse.Namespace, schema: type[Schema]) -> Schema:
    """Load the configuration of a new run. Raises UsageError, ConfigError."""
    given = [f"run.name={args.name}"] * (args.name is not None) + [f"data.preferences={args.data}"] * bool(args.data)
    overrides = parse_overrides(args.overrides + given + dir_override(args), schema)
    if args.config_given:
        return load_config_as(schema, args.config_given, overrides)
    return validate_as(schema, overrides)


def resumed(args: argparse.Namespace, schema: type[Schema]) -> tuple[Schema, RunFolder]:
    """Load configuration and folder of the run to resume. Raises UsageError for options that do not go with it."""
    for option, value in (("--config", args.config_given), ("--name", args.name), ("--data", args.data)):
        if value is not None:
            raise UsageError(f"{option} {value} does not go with --resume, which uses the run's own config.toml")
    for assignment in args.overrides:
        key = assignment.partition("=")[0].strip()
        if key not in _RESUMABLE:
            raise UsageError(f"--set {key} cannot change in a resumed run; what can: {', '.join(_RESUMABLE)}")
    folder = open_run(args.resume, runs_dir(args))
    return load_config_as(schema, folder.config, parse_overrides(args.overrides, schema)), folder
