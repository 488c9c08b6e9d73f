"""The runs of a folder as the screen lists them: read only when something changed, with the sign of each state."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder, run_folders
from trainer.runs.listing import RunSummary, summary_of
from workbench.run.sentences import SIGNS as LEVELS
from workbench.run.sentences import errors

SIGNS = {"training": "●", "done": "✓", "stopped": "■", "failed": "✖", "interrupted": "!"}

Stamp = tuple[object, ...]
"""Value that changes when a run comes or goes, starts or ends, or writes to its journal or configuration."""


class RunListing(NamedTuple):
    """The runs of a folder at one time."""

    runs: list[RunSummary]
    problem: str  # why the folder cannot be read; empty if it can
    stamp: Stamp


def read_runs(runs_dir: Path, known: Stamp = ()) -> RunListing | None:
    """Read the runs in `runs_dir`; None if nothing has changed since the listing with the stamp `known`.

    Per run, a check for changes costs three system calls, and reading a changed one about 1 ms.
    """
    try:
        # Before reading: the next call then notices what changes meanwhile. A killed trainer changes no file, so
        # whether the run is locked counts too.
        stamps = {f.root: (_state(f.events), _state(f.config), f.is_live()) for f in run_folders(runs_dir)}
    except StorageError as error:
        return RunListing([], str(error), ())
    stamp = ("runs", *stamps.items())
    if stamp == known:
        return None
    return RunListing([_summary(root, state) for root, state in stamps.items()], "", stamp)


@lru_cache(maxsize=4096)
def _summary(root: Path, _state: Stamp) -> RunSummary:
    """Return the summary of the run in `root`, read again when its state is another one."""
    return summary_of(RunFolder(root))


def _state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def state_sign(run: RunSummary) -> str:
    """Return the sign of the run's state: a warning if the run is done with an unresolved error."""
    return LEVELS["warning"] if is_alarmed(run) else SIGNS.get(run.state, "●")


def is_alarmed(run: RunSummary) -> bool:
    """Return whether the run is done with an unresolved error."""
    return run.state == "done" and bool(errors(run.alarms))


def age(started: float | None, now: float) -> str:
    """Return how long ago `started` was, in the largest whole unit: 40s, 5m, 3h, 12d; - if unknown."""
    if started is None:
        return "-"
    seconds = max(now - started, 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}" if seconds >= 10 * size else f"{int(seconds / size)}{unit}"
    return f"{int(seconds)}s"
