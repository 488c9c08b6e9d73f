"""The runs of a folder as the screen lists them: read only when something changed, and each at a glance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from trainer.errors import StorageError
from trainer.events import Evaluation, Iteration, RewardModelEvaluation
from trainer.runs.folder import RunFolder, run_folders
from trainer.runs.journal import JournalReader, without_superseded
from trainer.runs.listing import PPO, RunSummary, summary_of
from workbench.run.sentences import SIGNS as LEVELS
from workbench.run.sentences import errors

SIGNS = {"training": "●", "done": "✓", "stopped": "■", "failed": "✖", "interrupted": "!"}

MOST = 50  # runs whose curves are read, the newest
_ITERATIONS = 500  # newest ones of a curve

State = tuple[object, ...]
"""Value that changes when a run starts or ends, or writes to its journal or configuration."""


class RunListing(NamedTuple):
    """The runs of a folder at one time."""

    runs: list[RunSummary]
    problem: str  # why the folder cannot be read; empty if it can
    states: Mapping[Path, State] | None  # of the runs; None for a folder that cannot be read


def read_runs(runs_dir: Path, known: Mapping[Path, State] | None = None) -> RunListing | None:
    """Read the runs in `runs_dir`; None if nothing has changed since the listing with the states `known`.

    Per run, a check for changes costs three system calls, and reading a changed one about 1 ms.
    """
    try:
        # Before reading: the next call then notices what changes meanwhile. A killed trainer changes no file, so
        # whether the run is locked counts too.
        states = {f.root: (_stamp(f.events), _stamp(f.config), f.is_live()) for f in run_folders(runs_dir)}
    except StorageError as error:
        return RunListing([], str(error), None)
    if states == known:
        return None
    return RunListing([_summary(root, state) for root, state in states.items()], "", states)


@lru_cache(maxsize=4096)
def _summary(root: Path, _state: State) -> RunSummary:
    """Return the summary of the run in `root`, read again when its state is another one."""
    return summary_of(RunFolder(root))


def _stamp(path: Path) -> tuple[int, int] | None:
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


class Glance(NamedTuple):
    """A run at a glance. scores and kls: one number for each iteration, NaN where it has none."""

    run: RunSummary
    scores: Sequence[float] = ()
    kls: Sequence[float] = ()
    first: int = 1  # iteration of the first number
    held_out: RewardModelEvaluation | None = None  # the newest, of a run on comparisons
    seconds: float = math.nan  # mean of an iteration
    evaluations: Sequence[Evaluation] = ()


def glance_at(run: RunSummary) -> Glance:
    """Read the newest iterations of a run; what cannot be read is left out."""
    reader = JournalReader(run.folder.events, _ITERATIONS)
    try:
        events = without_superseded(reader.poll())
    except StorageError:  # the listing reports it
        events = []
    steps = [event for _, event in events if isinstance(event, Iteration) and event.iteration <= run.iteration]
    seconds = [sum(step.seconds.values()) for step in steps]
    held_out = [event for _, event in events if isinstance(event, RewardModelEvaluation)]
    return Glance(
        run,
        [step.score_mean for step in steps],
        [step.kl for step in steps],
        first=steps[0].iteration if steps else 1,
        held_out=held_out[-1] if held_out and run.kind != PPO else None,
        seconds=sum(seconds) / len(seconds) if seconds else math.nan,
        evaluations=[event for _, event in events if isinstance(event, Evaluation)],
    )


class Workspace(NamedTuple):
    """The runs of a folder at a glance, the newest first; those beyond the newest `MOST` without curves."""

    glances: list[Glance]
    problem: str  # as those of the `RunListing`
    states: Mapping[Path, State] | None = None


def read_workspace(runs_dir: Path, known: Mapping[Path, State] | None = None) -> Workspace | None:
    """Read the runs of `runs_dir`; None if nothing has changed since the one with the states `known`."""
    if (listing := read_runs(runs_dir, known)) is None:
        return None
    runs = sorted(listing.runs, key=lambda run: (run.started or 0.0, run.name), reverse=True)
    states = listing.states or {}
    glances = [_glance(run.folder.root, states[run.folder.root]) for run in runs[:MOST]]
    return Workspace([*glances, *map(Glance, runs[MOST:])], listing.problem, listing.states)


@lru_cache(maxsize=4 * MOST)
def _glance(root: Path, state: State) -> Glance:
    return glance_at(_summary(root, state))
