"""`ppo-workbench runs`: what lies in the folder of runs."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trainer.config.schema import RunConfig
from trainer.errors import UsageError
from trainer.events import event_from_dict
from workbench import diagnostics
from workbench.run_view import RunView
from workbench.text import duration, visible

_JOURNAL = "events.jsonl"
_HEADINGS = ("run", "state", "iteration", "score", "KL", "checkpoint", "changed")
_UNITS = ("", "", "", "", "nats/seq", "", "ago")
_NUMBERS = (2, 3, 4, 6)  # columns that are aligned to the right


class RunRow(NamedTuple):
    """One run as its journal tells it; numbers are None where there are none."""

    name: str
    folder: str
    state: str  # a run without an end in its journal is under way, or was killed
    iteration: int
    iterations: int
    score: float | None  # mean of the last five iterations
    kl: float | None  # the same, nats a sequence
    checkpoint: str
    changed: float  # seconds since 1970, of the journal


def run(args: argparse.Namespace) -> int:
    """List the runs, the newest last: as a table, or with --json one object a line."""
    folder = Path(args.dir or RunConfig().dir)
    if args.dir and not folder.is_dir():
        raise UsageError(f"--dir {folder}: no such folder; runs lie in run.dir, '{RunConfig().dir}' by default")
    rows = run_rows(folder)
    if args.json:
        for row in rows:
            print(json.dumps(row._asdict()))
    elif rows:
        print("\n".join(_table(rows, time.time())))
    else:
        diagnostics.note(f"no runs in '{folder}': start one with ppo-workbench --no-ui")
    return 0


def run_rows(folder: Path) -> list[RunRow]:
    """The runs in `folder`, the one whose journal changed last at the end; folders without a journal are left out."""
    journals = [path for path in folder.glob(f"*/{_JOURNAL}") if path.is_file()]
    return sorted((_row(path) for path in journals), key=lambda row: row.changed)


def read_journal(path: Path) -> RunView:
    """The state of the run whose journal lies at `path`; lines that are cut or unknown are passed over."""
    view = RunView()
    for values in _objects(path):
        try:
            event = event_from_dict(values)
        except TypeError:  # a field is missing: written by another version
            continue
        if event is not None:
            view.take(event)
    return view


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                values = json.loads(line)
            except ValueError:  # the line that is being written right now
                continue
            if isinstance(values, dict):
                yield values


def _row(path: Path) -> RunRow:
    view = read_journal(path)
    ended = view.ended
    return RunRow(
        name=path.parent.name,
        folder=str(path.parent),
        state=view.state if ended else "unfinished",
        iteration=view.iteration,
        iterations=view.total,
        score=_finite(view.first_and_last("score_mean")[1]),
        kl=_finite(view.first_and_last("kl")[1]),
        checkpoint=(ended.checkpoint if ended else "") or (view.checkpoint.path if view.checkpoint else ""),
        changed=path.stat().st_mtime,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _table(rows: list[RunRow], now: float) -> list[str]:
    cells = [_HEADINGS, _UNITS] + [
        (
            visible(row.name),
            row.state,
            f"{row.iteration}/{row.iterations}",
            "-" if row.score is None else f"{row.score:.3f}",
            "-" if row.kl is None else f"{row.kl:.2f}",
            visible(row.checkpoint) or "-",
            duration(max(now - row.changed, 0)),
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_HEADINGS))]
    return [
        "  ".join(
            text.rjust(width) if i in _NUMBERS else text.ljust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
