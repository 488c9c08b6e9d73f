"""Reader of a folder's runs for a screen that polls: reads them only if something has changed."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import NamedTuple

from trainer.errors import StorageError
from trainer.runs.checkpoint_index import best_checkpoint, checkpoints
from trainer.runs.folder import RunFolder, run_folders
from trainer.runs.listing import RunSummary, list_runs
from workbench.run.config_differences import read_config

Stamp = tuple[object, ...]
"""Value that changes when a run comes or goes, starts or ends, or writes to its journal or configuration."""


class Listing(NamedTuple):
    """The runs of a folder at one time."""

    runs_dir: Path
    runs: list[RunSummary]
    problem: str  # why the folder cannot be read; empty if it can
    stamp: Stamp
    seconds: float  # of processor time, which the trainer did not get


class Detail(NamedTuple):
    """Details of one run for which the table has no room."""

    folder: RunFolder
    seed: object  # None if unknown
    checkpoints: int  # complete ones
    newest: str  # name of the newest checkpoint; empty if there is none
    problems: list[str]  # checkpoints that are left out, and why
    best: str = ""  # name of the checkpoint of the best evaluation; empty if none is kept


def read_runs(runs_dir: Path, known: Stamp = ()) -> Listing | None:
    """Read the runs in `runs_dir`; None if nothing has changed since the listing with the stamp `known`.

    Per run, a check for changes costs three system calls, and a listing about 0.5 ms.
    """
    began = time.thread_time()
    try:
        stamp = _stamp(runs_dir)  # before reading: the next call then notices what changes meanwhile
        if stamp == known:
            return None
        return Listing(runs_dir, list_runs(runs_dir), "", stamp, time.thread_time() - began)
    except StorageError as error:
        return Listing(runs_dir, [], str(error), (), time.thread_time() - began)


def read_detail(folder: RunFolder) -> Detail:
    """Read the seed and the checkpoints of a run; what cannot be read stays unknown."""
    seed = None
    with contextlib.suppress(StorageError):  # the listing reports it
        section = read_config(folder).get("run")
        seed = section.get("seed") if isinstance(section, dict) else None
    whole, problems = checkpoints(folder)
    best = best_checkpoint(folder)
    return Detail(folder, seed, len(whole), whole[-1].name if whole else "", problems, best.name if best else "")


def _stamp(runs_dir: Path) -> Stamp:
    # A killed trainer changes no file, so whether the run is locked counts too.
    return ("runs", *((f.name, _state(f.events), _state(f.config), f.is_live()) for f in run_folders(runs_dir)))


def _state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
