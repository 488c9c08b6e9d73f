"""`ppo-workbench runs`: the runs in their folder."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from typing import Any

from trainer.runs.listing import RECENT, RunSummary, list_runs
from workbench.cli.runs_dir import runs_dir
from workbench.run.alarms import state_text
from workbench.system import output
from workbench.text import visible

_HEADINGS = ("run", "state", "iteration", "score", "KL", "started", "model")
_UNITS = ("", "", "", f"last {RECENT}", f"nats/seq, last {RECENT}", "", "")
_NUMBERS = (2, 3, 4)  # right-aligned columns


def run(args: argparse.Namespace) -> int:
    """List the runs by name, as a table with problems on stderr, or as one JSON object a line."""
    folder = runs_dir(args)
    runs = list_runs(folder)
    if args.json:
        for summary in runs:
            output.data(json.dumps(_plain(summary), allow_nan=False))
        return 0
    if runs:
        output.data("\n".join(_table(runs)))
    else:
        output.note(f"no runs in '{folder}': start one with ppo-workbench --no-ui")
    for summary in runs:
        if summary.problem:
            output.warning(f"{summary.name}: {summary.problem}")
    return 0


def _plain(summary: RunSummary) -> dict[str, Any]:
    """Return `summary` as plain values; `started` in unix seconds, `kl` in nats a sequence.

    `score` and `kl` are means of the last five iterations; `alarms` is the level of each open one by its code.
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
    }


def _table(runs: list[RunSummary]) -> list[str]:
    lines = [_HEADINGS, _UNITS, *(_cells(summary) for summary in runs)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADINGS))]
    return [
        "  ".join(
            text.rjust(width) if i in _NUMBERS else text.ljust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def _cells(summary: RunSummary) -> tuple[str, ...]:
    started = "-" if summary.started is None else f"{datetime.fromtimestamp(summary.started).astimezone():%F %R}"
    return (
        visible(summary.name),
        state_text(summary),
        f"{summary.iteration}/{summary.iterations}",
        "-" if summary.score is None else f"{summary.score:.3f}",
        "-" if summary.kl is None else f"{summary.kl:.2f}",
        started,
        visible(summary.model),
    )
