"""Options of `ppo-workbench dpo`, defined without importing the command itself."""

from __future__ import annotations

import argparse
from typing import Any

from workbench.cli.evaluate_arguments import TRUST_CODE
from workbench.cli.runs_dir import add_dir


def add_dpo(commands: Any) -> None:
    """Add the command to `commands`."""
    dpo = commands.add_parser("dpo", help="train a policy on preferences directly, as a baseline for PPO")
    dpo.add_argument(
        "--data",
        metavar="SOURCE",
        help="preferences.db, a .jsonl, .jsonl.gz, .json, .csv or .parquet file, a folder or a datasets name "
        "(default: preferences.db)",
    )
    # Also accepted before the command: an absent one here must not override the one there.
    dpo.add_argument(
        "--config", dest="config_given", metavar="FILE", default=argparse.SUPPRESS, help="TOML file (default: none)"
    )
    dpo.add_argument(
        "--set", dest="overrides_after", metavar="KEY=VALUE", action="append", default=[], help="change one field"
    )
    dpo.add_argument("--name", default=argparse.SUPPRESS, help="name of the run's folder (default: dpo and a number)")
    dpo.add_argument("--resume", metavar="RUN", default=argparse.SUPPRESS, help="go on with a run: folder or name")
    dpo.add_argument("--trust-code", action="store_true", default=argparse.SUPPRESS, help=TRUST_CODE)
    add_dir(dpo)
    dpo.add_argument(
        "--display",
        choices=("rich", "plain", "json"),
        default=argparse.SUPPRESS,
        help="how to show the run (default: rich on a terminal, plain elsewhere)",
    )
