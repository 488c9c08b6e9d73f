"""`ppo-workbench export`: a run in the forms that other trainers read."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainer.runs.folder import open_run
from workbench.cli.config import runs_dir
from workbench.cli.parser import add
from workbench.system import output
from workbench.text import visible


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.set_defaults(execute=run)
    add(parser, "run", "--dir")
    parser.add_argument("--output", metavar="FOLDER", help="folder to write (default: exports and the run's name)")
    parser.add_argument(
        "--checkpoint", metavar="N", default="last", help="number of an iteration, best, or last (default: last)"
    )
    parser.add_argument("--average", action="store_true", help="export the moving average of the policy")
    parser.add_argument("--base", metavar="MODEL", default="", help="name of the base model, for another machine")
    parser.add_argument("--copy-base", action="store_true", help="write the base model too, for another machine")
    parser.add_argument("--force", action="store_true", help="replace FOLDER if an earlier export wrote all of it")


def run(args: argparse.Namespace) -> int:
    """Write the export and print its folder; what is lost goes to stderr."""
    folder = open_run(args.run, runs_dir(args))
    # Imported here, because this imports mlx: mistakes in the command line are reported first.
    from trainer.exchange.run_export import ExportOptions, export_run

    options = ExportOptions(
        checkpoint=args.checkpoint,
        average=args.average,
        base=args.base,
        copy_base=args.copy_base,
        overwrite=args.force,
    )
    found = export_run(folder, Path(args.output or Path("exports") / folder.name), options)
    output.data(visible(str(found.folder), joined=True))
    output.note(f"exported {visible(found.source)}")
    for warning in found.warnings:
        output.warning(warning)
    if found.settings is None:
        output.note("TRL has no trainer for this run's estimator")
    elif found.settings:
        lost = [row.key for row in found.settings if row.kind == "lost"]
        there = sum(len(row.there) for row in found.settings)
        output.note(f"{there} settings for TRL; lost: {', '.join(lost) or 'none'}")
    output.note(f"what went over and what did not: {visible(str(found.folder / 'README.md'))}")
    return 0
