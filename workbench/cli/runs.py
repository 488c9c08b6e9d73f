"""`ppo-workbench runs`: the runs in their folder."""

from __future__ import annotations

import argparse
import json
from typing import Any

from trainer.events import plain
from trainer.runs.listing import RECENT, RunSummary, list_runs
from workbench.cli.config import runs_dir
from workbench.cli.parser import add
from workbench.numbers import moment, number
from workbench.run.sentences import state_text
from workbench.system import output
from workbench.text import aligned, visible

_HEADINGS = ("run", "state", "iteration", "score", "KL", "started", "model")
_UNITS = ("", "", "", f"last {RECENT}", f"nats/seq, last {RECENT}", "", "")
_TEXTS = (0, 1, 5, 6, 7)  # columns aligned to the left


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.set_defaults(execute=run)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    add(parser, "--dir")


def run(args: argparse.Namespace) -> int:
    """List the runs by name, as a table with problems on stderr, or as one JSON object per line."""
    folder = runs_dir(args)
    runs = list_runs(folder)
    if args.json:
        for summary in runs:
            output.data(json.dumps(_plain(summary), allow_nan=False))
        return 0
    if runs:
        rows = [_HEADINGS, _UNITS, *map(_cells, runs)]
        if any(summary.branched_from for summary in runs):
            origins = "branched from", "run, iteration", *map(_origin, runs)
            rows = [(*row, cell) for row, cell in zip(rows, origins, strict=True)]
        output.data("\n".join(aligned(rows, left=_TEXTS)))
    else:
        output.note(f"no runs in '{folder}' yet: start one with {output.PROGRAM} --no-ui")
    for summary in runs:
        if summary.problem:
            output.warning(f"{summary.name}: {summary.problem}")
    return 0


def _plain(summary: RunSummary) -> dict[str, Any]:
    """Return `summary` as plain values; `started` in unix seconds, `kl` in nats a sequence.

    `score` and `kl` are means of the last five iterations; `alarms` is the level of each active one by its code.
    """
    return {
        "name": summary.name,
        "folder": str(summary.folder.root),
        "state": summary.state,
        "iteration": summary.iteration,
        "iterations": summary.iterations,
        "score": summary.score,
        "kl": summary.kl,
        "model": summary.model,
        "started": summary.started,
        "alarms": summary.alarms,
        "damaged": summary.damaged,
        "problem": summary.problem,
        "kind": summary.kind,
        "branched_from": plain(summary.branched_from),
    }


def _cells(summary: RunSummary) -> tuple[str, ...]:
    return (
        visible(summary.name),
        state_text(summary),
        f"{summary.iteration}/{summary.iterations}",
        number(summary.score),
        number(summary.kl, 2),
        moment(summary.started),
        visible(summary.model),
    )


def _origin(summary: RunSummary) -> str:
    origin = summary.branched_from
    return f"{visible(origin.run)}, {origin.iteration}" if origin else ""
