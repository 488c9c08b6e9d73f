"""`ppo-workbench config`: show, validate, schema."""

from __future__ import annotations

import argparse
import json
import sys

import tomli_w

from trainer.config import config_warnings
from trainer.config.reference import ReferenceRow, json_schema, reference_markdown, reference_rows
from workbench import diagnostics
from workbench.commands.sources import configuration


def show(args: argparse.Namespace) -> int:
    """Print the whole configuration as TOML, every default spelt out; warnings go to stderr."""
    config = configuration(args)
    for warning in config_warnings(config):
        diagnostics.warning(warning)
    sys.stdout.write(tomli_w.dumps(config.model_dump()))
    return 0


def validate(args: argparse.Namespace) -> int:
    """Print ok; warnings go to stderr. Raises ConfigError with every problem."""
    config = configuration(args)
    for warning in config_warnings(config):
        diagnostics.warning(warning)
    print("ok")
    return 0


def schema(args: argparse.Namespace) -> int:
    """Print every field: as a list to read, as a table in Markdown, or as JSON Schema."""
    if args.format == "json":
        print(json.dumps(json_schema(), indent=2))
    elif args.format == "markdown":
        print(reference_markdown())
    else:
        print("\n".join(_listing(reference_rows())))
    return 0


def _listing(rows: list[ReferenceRow]) -> list[str]:
    """Two lines a field: what it may be, then what it does; `live` marks what may change during a run."""
    widths = [max(len(row.key) for row in rows), max(len(_rule(row)) for row in rows if len(_rule(row)) <= 40)]
    lines: list[str] = []
    for row in rows:
        live = "  live" if row.live else ""
        lines.append(f"{row.key:<{widths[0]}}  {_rule(row):<{widths[1]}}  default {row.default}{live}".rstrip())
        lines.append(f"    {row.help}")
    return lines


def _rule(row: ReferenceRow) -> str:
    return " ".join(part for part in (row.type, row.rule, row.unit) if part)
