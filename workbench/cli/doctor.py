"""`ppo-workbench doctor`: what training would run on here, what slows it down, and what to do."""

from __future__ import annotations

import argparse

from workbench.system import output
from workbench.text import visible


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add nothing but the function: there are no options."""
    parser.set_defaults(execute=run)


def run(_: argparse.Namespace) -> int:
    """Print one line for each check; return 3 if one failed, because training would fail too."""
    from trainer.doctor import checks

    failed = False
    for check in checks():
        failed = failed or check.status == "fail"
        way_out = f": {visible(check.advice)}" if check.advice else ""
        output.data(f"{check.status:<4}  {check.name:<9}  {visible(check.detail)}{way_out}")
    return 3 if failed else 0
