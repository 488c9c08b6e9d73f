"""The option --dir: the folder of the runs, where a command looks for those that are named and makes new ones."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_dir(parser: argparse.ArgumentParser) -> None:
    """Add the option to `parser`. It may stand before the command as well, so an absent one does not hide the other."""
    parser.add_argument("--dir", metavar="DIR", default=argparse.SUPPRESS, help="folder of the runs (default: runs)")


def runs_dir(args: argparse.Namespace) -> Path:
    """Return the folder of the runs. Raises UsageError where the one that is named is not there."""
    from trainer.config.schema import RunConfig
    from trainer.errors import UsageError

    default = RunConfig().dir
    given = getattr(args, "dir", None)
    if given is not None and not Path(given).is_dir():
        raise UsageError(f"--dir {given}: no such folder; runs lie in '{default}' by default")
    return Path(given or default)


def dir_override(args: argparse.Namespace) -> list[str]:
    """Return the assignment that puts a new run into the folder of --dir; none where that is not given."""
    given = getattr(args, "dir", None)
    return [] if given is None else [f"run.dir={json.dumps(given)}"]
