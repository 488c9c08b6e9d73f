"""`ppo-workbench config`: show, validate, schema."""

from __future__ import annotations

import argparse
import json
import sys

import tomli_w

from trainer.config import config_warnings
from trainer.config.fields import Section
from trainer.config.kinds import SCHEMAS
from trainer.config.loading import load_config_as, parse_overrides
from trainer.config.problems import validate_as
from trainer.config.reference import ReferenceRow, json_schema, reference_markdown, reference_rows
from workbench.cli.sources import configuration
from workbench.system import output


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
    """Print every field: as a list to read, as JSON Schema, or as the Markdown page of all kinds of run."""
    if args.format == "json":
        output.data(json.dumps(json_schema(SCHEMAS[args.kind]), indent=2))
    elif args.format == "markdown":
        output.data(reference_markdown().rstrip())
    else:
        output.data("\n".join(_listing(reference_rows(SCHEMAS[args.kind]))))
    return 0


def _checked(args: argparse.Namespace) -> Section:
    """Load the configuration of the command line and print its warnings. Raises UsageError and ConfigError."""
    if args.kind == "ppo":
        config = configuration(args)
        for warning in config_warnings(config):
            output.warning(warning)
        return config
    schema = SCHEMAS[args.kind]
    overrides = parse_overrides(args.overrides, schema)
    return load_config_as(schema, args.config_given, overrides) if args.config_given else validate_as(schema, overrides)


def _listing(rows: list[ReferenceRow]) -> list[str]:
    """Return two lines for each option: its type and default, then its help; `live` marks what may change in a run."""
    lines = []
    for row in rows:
        rule = ", ".join(filter(None, (row.type, row.rule)))
        default = f"default {row.default} {row.unit}".rstrip() if row.default else ""
        lines.append("  ".join(filter(None, (row.key, rule, default, "live" * row.live))))
        lines.append(f"    {row.help}")
    return lines
