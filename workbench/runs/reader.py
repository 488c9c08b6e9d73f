"""The runs of a folder for a screen that asks again and again: read only when something changed."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import NamedTuple

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder, best_checkpoint, checkpoints, run_folders
from trainer.runs.listing import RunSummary, list_runs
from workbench.run.config_differences import read_config

Stamp = tuple[object, ...]
"""Changes when a run comes or goes, starts or ends, or writes to its journal or configuration."""


class Listing(NamedTuple):
    """The runs of a folder as they stood at one time."""

    runs_dir: Path
    runs: list[RunSummary]
    problem: str  # why the folder cannot be read; empty when it can
    stamp: Stamp
    seconds: float  # of processor time, which the trainer went without


class Detail(NamedTuple):
    """What is worth knowing of one run and too much for a table."""

    folder: RunFolder
    seed: object  # None when it is not known
    checkpoints: int  # whole ones
    newest: str  # name of the newest checkpoint; empty when there is none
    problems: list[str]  # checkpoints that are left out, and why
    best: str = ""  # name of the checkpoint of the best evaluation; empty when none is kept


def read_runs(runs_dir: Path, known: Stamp = ()) -> Listing | None:
    """The runs in `runs_dir`; None when nothing changed since the listing with the stamp `known`.

    Looking for a change costs three system calls a run, a listing some 0.5 ms.
    """
    began = time.thread_time()
    try:
        stamp = _stamp(runs_dir)  # before reading: what changes meanwhile is seen the next time
        if stamp == known:
            return None
        return Listing(runs_dir, list_runs(runs_dir), "", stamp, time.thread_time() - began)
    except StorageError as error:
        return Listing(runs_dir, [], str(error), (), time.thread_time() - began)


def read_detail(folder: RunFolder) -> Detail:
    """What config.toml and the checkpoints of a run tell; what cannot be read is left open."""
    seed = None
    with contextlib.suppress(StorageError):  # the listing tells of it
        section = read_config(folder).get("run")
        seed = section.get("seed") if isinstance(section, dict) else None
    whole, problems = checkpoints(folder)
    best = best_checkpoint(folder)
    return Detail(folder, seed, len(whole), whole[-1].name if whole else "", problems, best.name if best else "")


def _stamp(runs_dir: Path) -> Stamp:
    # A trainer that is killed changes no file, so who holds the lock counts as well.
    return ("runs", *((f.name, _state(f.events), _state(f.config), f.is_live()) for f in run_folders(runs_dir)))


def _state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
