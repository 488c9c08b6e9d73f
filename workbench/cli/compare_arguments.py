"""Options of `ppo-workbench compare`, defined without importing the command itself."""

from __future__ import annotations

import argparse
from typing import Any

from workbench.cli.runs_dir import add_dir


def add_compare(commands: Any) -> None:
    """Add the command to `commands`."""
    compare: argparse.ArgumentParser = commands.add_parser(
        "compare", help="compare runs: numbers, score against KL, curves, settings, texts"
    )
    compare.add_argument("runs", metavar="RUN", nargs="+", help="the folders of two runs or more, or their names")
    add_dir(compare)
    compare.add_argument("--json", action="store_true", help="one JSON object (docs/compare.md lists its fields)")
    compare.add_argument("--width", metavar="N", type=int, help="columns of the report (default: the terminal's)")
