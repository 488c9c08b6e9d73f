"""`ppo-workbench config`: show, validate, schema."""

from __future__ import annotations

import argparse
import json
import sys

import tomli_w

from trainer.config import SCHEMAS, Config, config_warnings
from trainer.config.fields import Section
from trainer.config.reference import ReferenceRow, json_schema, reference_markdown, reference_rows
from workbench.cli.configuration import configuration
from workbench.cli.parser import add_configuration
from workbench.system import output


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    actions = parser.add_subparsers(required=True, title="commands", metavar="")
    for name, execute, help_text in (
        ("show", show, "print the configuration as TOML, defaults included"),
        ("validate", validate, "report every problem of a configuration"),
    ):
        action = actions.add_parser(name, help=help_text)
        action.set_defaults(execute=execute)
        add_configuration(action, "PRESET_OR_FILE", "preset or file")
    action = actions.add_parser("schema", help="list every setting: type, range, default, unit, help")
    action.set_defaults(execute=schema)
    action.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="default: text")
    for action in actions.choices.values():
        action.add_argument("--kind", choices=tuple(SCHEMAS), default="ppo", help="kind of run (default: %(default)s)")


def show(args: argparse.Namespace) -> int:
    """Print the whole configuration as TOML, defaults included; warnings go to stderr."""
    sys.stdout.write(tomli_w.dumps(_checked(args).model_dump()))
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
    if isinstance(config, Config):
        for warning in config_warnings(config):
            output.warning(warning)
    return config


def _listing(rows: list[ReferenceRow]) -> list[str]:
    """Return two lines for each setting: its type and default, then its help; `live` marks what may change in a run."""
    lines = []
    for row in rows:
        rule = ", ".join(filter(None, (row.type, row.rule)))
        default = f"default {row.default} {row.unit}".rstrip() if row.default else ""
        lines.append("  ".join(filter(None, (row.key, rule, default, "live" * row.live))))
        lines.append(f"    {row.help}")
    return lines
