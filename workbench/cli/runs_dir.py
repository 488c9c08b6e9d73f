"""The option --dir: the folder in which a command finds runs by name and creates new ones."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_dir(parser: argparse.ArgumentParser) -> None:
    """Add the option to `parser`. It has no default, which would override one given before the command."""
    parser.add_argument("--dir", metavar="DIR", default=argparse.SUPPRESS, help="folder of the runs (default: runs)")


def runs_dir(args: argparse.Namespace) -> Path:
    """Return the folder of the runs. Raises UsageError if --dir does not exist."""
    from trainer.config.schema import RunConfig
    from trainer.errors import UsageError

    default = RunConfig().dir
    given = getattr(args, "dir", None)
    if given is not None and not Path(given).is_dir():
        raise UsageError(f"--dir {given}: no such folder; runs lie in '{default}' by default")
    return Path(given or default)


def dir_override(args: argparse.Namespace) -> list[str]:
    """Return the assignment that puts a new run into the folder of --dir; empty without that option."""
    given = getattr(args, "dir", None)
    return [] if given is None else [f"run.dir={json.dumps(given)}"]
