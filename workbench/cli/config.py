"""The configuration of a command line, and `ppo-workbench config`: show, validate, schema."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.config import SCHEMAS, Config, config_warnings
from trainer.config.fields import Section
from trainer.config.loading import config_text, load_config_as, parse_overrides, preset_names
from trainer.config.problems import Schema, validate_as
from trainer.config.reference import Setting, json_schema, reference_markdown, reference_rows
from trainer.config.schema import RunConfig
from trainer.errors import UsageError
from trainer.files import read_toml
from trainer.runs.folder import RunFolder, open_run
from workbench.cli.parser import add, dir_override
from workbench.run.metrics import training_command
from workbench.system import output

# May change when a run is resumed: in a PPO run besides the live settings, and in a run on preferences.
RESUMABLE = ("ppo.iterations", "checkpoint.every", "eval.every", "run.trackers")
_RESUMABLE_ON_PREFERENCES = ("checkpoint.every", "checkpoint.keep", "eval.every", "run.trackers")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    actions = parser.add_subparsers(required=True, title="commands", metavar="")
    for name, execute, help_text in (
        ("show", show, "print the configuration as TOML, defaults included"),
        ("validate", validate, "report every problem of a configuration"),
    ):
        action = actions.add_parser(name, help=help_text)
        action.set_defaults(execute=execute)
        add(action, "--config", metavar="PRESET_OR_FILE", help="preset or file")
        add(action, "--set")
    action = actions.add_parser("schema", help="list every setting: type, range, default, unit, help")
    action.set_defaults(execute=schema)
    action.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="default: text")
    for action in actions.choices.values():
        action.add_argument("--kind", choices=tuple(SCHEMAS), default="ppo", help="kind of run (default: %(default)s)")


def show(args: argparse.Namespace) -> int:
    """Print the whole configuration as TOML, defaults included; warnings go to stderr."""
    sys.stdout.write(config_text(_checked(args)))
    return 0


def validate(args: argparse.Namespace) -> int:
    """Print ok; warnings go to stderr. Raises ConfigError with every problem."""
    _checked(args)
    output.data("ok")
    return 0


def schema(args: argparse.Namespace) -> int:
    """Print every setting: as a list to read, as JSON Schema, or as the Markdown page of all kinds of run."""
    if args.format == "json":
        output.data(json.dumps(json_schema(SCHEMAS[args.kind]), indent=2))
    elif args.format == "markdown":
        output.data(reference_markdown().rstrip())
    else:
        output.data("\n".join(_listing(reference_rows(SCHEMAS[args.kind]))))
    return 0


def _checked(args: argparse.Namespace) -> Section:
    """Load the configuration of the command line and print its warnings. Raises UsageError and ConfigError."""
    config = configuration(args, SCHEMAS[args.kind])
    for warning in config_warnings(config):
        output.warning(warning)
    return config


def _listing(rows: list[Setting]) -> list[str]:
    """Return two lines for each setting: its type and default, then its help; `live` marks what may change in a run."""
    lines = []
    for row in rows:
        rule = ", ".join(filter(None, (row.type, row.rule)))
        default = f"default {row.default} {row.unit}".rstrip() if row.default else ""
        lines.append("  ".join(filter(None, (row.key, rule, default, "live" * row.live))))
        lines.append(f"    {row.help}")
    return lines


def configuration(args: argparse.Namespace, schema: type[Schema]) -> Schema:
    """Load the configuration of a new run. Raises UsageError and ConfigError.

    Only PPO has presets and one of them as its default; other kinds of run need no file.
    """
    given = [f"run.name={args.name}"] if args.name is not None else []
    if data := getattr(args, "data", None):  # an option of the commands that train on preferences
        given.append(f"data.preferences={data}")
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
            raise UsageError(f"{option} {value} cannot be used with --resume, which uses the run's own config.toml")
    allowed: Sequence[str] = _RESUMABLE_ON_PREFERENCES
    if issubclass(schema, Config):
        allowed = [row.key for row in reference_rows() if row.live or row.key in RESUMABLE]
    for assignment in args.overrides:
        key = assignment.partition("=")[0].strip()
        if key not in allowed:
            raise UsageError(f"--set {key} cannot change in a resumed run; choose from {', '.join(allowed)}")
    folder = open_run(args.resume, runs_dir(args))
    kind = kind_of(folder.config)
    if kind and SCHEMAS[kind] is not schema:
        command = f"{training_command(kind)} --resume {args.resume}"
        raise UsageError(f"'{folder.name}' is a run of kind {kind}: resume it with {command}")
    return load_config_as(schema, folder.config, parse_overrides(args.overrides, schema)), folder


def kind_of(source: str | Path | None) -> str:
    """Return the kind of run that the file `source` configures; empty if it names none that is known."""
    try:
        kind = read_toml(Path(source or "")).get("kind", "ppo")
    except (OSError, ValueError):  # a preset, or a file whose loading reports what is wrong
        return ""
    return kind if isinstance(kind, str) and kind in SCHEMAS else ""


def runs_dir(args: argparse.Namespace) -> Path:
    """Return the folder of the runs. Raises UsageError if --dir does not exist."""
    default = RunConfig().dir
    if args.dir is not None and not Path(args.dir).is_dir():
        raise UsageError(f"--dir {args.dir}: no such folder; the default is '{default}'")
    return Path(args.dir or default)
