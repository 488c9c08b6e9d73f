"""State of the runs in a folder, read from the ends of their journals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trainer.errors import StorageError, counted
from trainer.events import BranchedFrom, Iteration, RewardModelStep, RunEnded, RunStarted
from trainer.monitoring.monitor import active_alarms
from trainer.runs.checkpoint_files import checkpoints
from trainer.runs.folder import RunFolder, read_config, run_folders
from trainer.runs.journal import JournalView, read_journal

PPO = "ppo"
RECENT = 5
"""Number of last iterations that the score and KL of a run are averaged over."""

RunState = Literal["training", "done", "stopped", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """State of a run; numbers that it does not have, or that are not finite, are None."""

    folder: RunFolder
    state: RunState
    iteration: int  # the last that counts; 0 before the first
    iterations: int  # of the whole run
    score: float | None  # `last_mean` of score_mean
    kl: float | None  # of kl, nats per sequence
    model: str
    started: float | None  # unix seconds
    problem: str  # what is damaged, or why the run failed; empty if neither
    damaged: bool = False  # the end of the journal, so that the numbers are older
    alarms: dict[str, str] = field(default_factory=dict)  # code and level of `active_alarms`, worst first
    kind: str = PPO  # "reward-model": its iterations are optimiser steps
    reward: str = ""  # its sources, as configured
    branched_from: BranchedFrom | None = None

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.folder.name


def last_mean(values: Sequence[float]) -> float:
    """Return the mean of those of the last five values that are finite; NaN if none is.

    Every screen and table uses it for the current state of a run, because one batch is mostly noise.
    """
    finite = [value for value in values[-RECENT:] if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def list_runs(runs_dir: Path) -> list[RunSummary]:
    """Return the state of each run in `runs_dir`, by name; a damaged one has a `problem`.

    Reads only the ends of the journals. Raises StorageError if `runs_dir` itself cannot be read.
    """
    return [summary_of(folder) for folder in run_folders(runs_dir)]


def is_complete(folder: RunFolder, iterations: int) -> bool:
    """Return whether the PPO run in `folder` ended after `iterations`, with its checkpoint.

    Resuming such a run does nothing.
    """
    run = summary_of(folder)
    is_done = run.kind == PPO and run.state == "done" and run.iteration >= iterations
    return is_done and checkpoints(folder).paths[-1:] == [folder.checkpoint(run.iteration)]


def summary_of(folder: RunFolder) -> RunSummary:
    """Return the state of the run in `folder`, from the end of its journal."""
    view, live, problems = JournalView([], [], [], 0, cut=False), folder.is_live(), []
    try:
        view = read_journal(folder.events, RECENT)
        problems += [] if view.events else [f"journal '{folder.events}' has no events"]
    except StorageError as error:
        problems.append(str(error))
    reward = ""
    starts = [event for event in view.events if isinstance(event, RunStarted)]
    marks = [event for event in view.events if isinstance(event, RunStarted | RunEnded)]
    end = marks[-1] if marks and isinstance(marks[-1], RunEnded) else None
    steps = [event for event in view.events if isinstance(event, Iteration | RewardModelStep)]
    if end is not None:  # one that ended within an evaluation repeats the iteration before it
        steps = [event for event in steps if event.iteration <= end.iteration]
    iteration = steps[-1].iteration if steps else 0
    lines = view.damaged + (view.cut and not live)
    if lines:
        where = f"up to iteration {iteration}" if iteration else "which have no iteration"
        problems.append(
            f"journal damaged near its end: {counted(lines, 'line')} cannot be read; state and numbers are from the "
            f"others, {where}"
        )
    last = [event for event in steps if isinstance(event, Iteration)][-RECENT:]
    score, kl = last_mean([event.score_mean for event in last]), last_mean([event.kl for event in last])
    try:
        config = read_config(folder)
        kind, model = str(config.get("kind", PPO)), str(config["model"]["path"])
        if isinstance(section := config.get("reward"), Mapping):
            sources = section.get("sources")
            kinds = [one.get("kind", "") if isinstance(one, Mapping) else one for one in sources or ()]
            reward = "" if isinstance(sources, str) else ", ".join(map(str, kinds))
        # The number of steps of another kind depends on its data.
        iterations = int(config["ppo"]["iterations"]) if kind == PPO else starts[-1].iterations if starts else 0
    except (StorageError, ValueError, KeyError, TypeError, OverflowError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        problems.append(reason if isinstance(error, StorageError) else f"cannot read '{folder.config}': {reason}")
        kind, iterations, model = PPO, starts[-1].iterations if starts else 0, ""
    if end is not None and end.state == "failed":
        problems.append(end.reason)
    return RunSummary(
        folder=folder,
        state="training" if live else end.state if end is not None else "interrupted",
        iteration=iteration,
        iterations=iterations,
        score=score if math.isfinite(score) else None,
        kl=kl if math.isfinite(kl) else None,
        model=starts[-1].model if starts else model,
        started=view.times[0] if view.times else None,
        problem="; ".join(problems),
        damaged=lines > 0,
        alarms=active_alarms(view.events),
        kind=kind,
        reward=reward,
        branched_from=starts[0].branched_from if starts else None,
    )
