"""`ppo-workbench config`: show, validate, schema."""

from __future__ import annotations

import argparse
import json
import sys

import tomli_w

from trainer.config import config_warnings
from trainer.config.reference import ReferenceRow, json_schema, reference_markdown, reference_rows
from workbench import output
from workbench.commands.sources import configuration


def show(args: argparse.Namespace) -> int:
    """Print the whole configuration as TOML, every default spelt out; warnings go to stderr."""
    config = configuration(args)
    for warning in config_warnings(config):
        output.warning(warning)
    sys.stdout.write(tomli_w.dumps(config.model_dump()))
    return 0


def validate(args: argparse.Namespace) -> int:
    """Print ok; warnings go to stderr. Raises ConfigError with every problem."""
    config = configuration(args)
    for warning in config_warnings(config):
        output.warning(warning)
    output.data("ok")
    return 0


def schema(args: argparse.Namespace) -> int:
    """Print every field: as a list to read, as a table in Markdown, or as JSON Schema."""
    if args.format == "json":
        output.data(json.dumps(json_schema(), indent=2))
    elif args.format == "markdown":
        output.data(reference_markdown().rstrip())
    else:
        output.data("\n".join(_listing(reference_rows())))
    return 0


def _listing(rows: list[ReferenceRow]) -> list[str]:
    """Two lines an option: what it may be, then what it does; `live` marks what may change during a run."""
    lines = []
    for row in rows:
        rule = ", ".join(filter(None, (row.type, row.rule)))
        default = f"default {row.default} {row.unit}".rstrip() if row.default else ""
        lines.append("  ".join(filter(None, (row.key, rule, default, "live" * row.live))))
        lines.append(f"    {row.help}")
    return lines
