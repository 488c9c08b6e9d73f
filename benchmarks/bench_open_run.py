"""Measure opening a long run from disk: time to its newest iterations, for each piece of the older ones, and to all.

A script writes the journal as the trainer does, with samples, checkpoints and states of every iteration. The charts'
buckets are timed on the whole history.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles

import psutil

from workbench.run.journal_source import JournalSource
from workbench.run.view import RunView

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from long_journal import write_long_journal

COLUMNS = 120  # width of a chart
CHARTS = (
    "score_mean",
    "kl",
    "entropy",
    "policy_loss",
    "value_loss",
    "clip_fraction",
    "explained_variance",
    "grad_norm",
)


def main() -> None:
    """Write a journal, open it and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=100_000, help="iterations of the run (default: %(default)s)")
    iterations = parser.parse_args().iterations
    with tempfile.TemporaryDirectory(prefix="bench-open-run-") as folder:
        path = Path(folder) / "events.jsonl"
        write_long_journal(path, iterations)
        print(f"journal: {iterations} iterations, {path.stat().st_size / 1e6:.0f} MB, load {os.getloadavg()[0]:.1f}")
        open_run(Path(folder))


def open_run(folder: Path) -> None:
    """Open the run in `folder` as the screen does, and print time and memory."""
    memory = psutil.Process().memory_info
    before, began = memory().rss, time.perf_counter()
    source, view = JournalSource(folder), RunView()
    for event in source.take():
        view.take(event)
    opened = time.perf_counter()
    print(f"first read:  {opened - began:8.3f} s  ({len(view.history)} iterations, {growth(before)})")
    calls = []
    while True:
        call = time.perf_counter()
        chunk = source.earlier()
        calls.append(time.perf_counter() - call)
        if chunk is None:
            break
        view.history.prepend(chunk)
    took = time.perf_counter() - opened
    cuts = quantiles(calls, n=100) if len(calls) > 1 else calls * 99
    print(
        f"earlier():   {1e3 * cuts[49]:8.1f} ms p50, {1e3 * cuts[98]:.1f} ms p99, {1e3 * max(calls):.1f} ms at most, "
        f"{len(calls)} calls"
    )
    print(f"all loaded:  {took:8.1f} s  ({len(view.history)} iterations, {growth(before)})")
    for label in ("first draw", "next draws"):
        draw = time.perf_counter()
        for name in CHARTS:
            view.history.buckets(name, COLUMNS)
        print(f"{label}:  {1e3 * (time.perf_counter() - draw):8.1f} ms for {len(CHARTS)} charts of {COLUMNS} columns")
    print(f"memory:      {growth(before)}")


def growth(before: int) -> str:
    """Return the change in resident memory since `before`, in bytes, as text."""
    return f"+{(psutil.Process().memory_info().rss - before) / 1e6:.0f} MB resident"


if __name__ == "__main__":
    main()
