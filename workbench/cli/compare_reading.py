"""Reader of `ppo-workbench compare`: journal, config.toml, and samples until runs share enough prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainer.errors import StorageError
from trainer.events import Event
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.listing import PPO
from workbench.compare.report import PROMPTS
from workbench.compare.run import LETTERS, ComparedRun, distinct_names, troubles
from workbench.compare.same_prompts import shared_prompts
from workbench.run.config_differences import read_config
from workbench.run.sample_reader import kept_iterations, read_batch
from workbench.run.sample_records import Sample
from workbench.run.view import RunView

_FILES = 50  # most of each run that are searched for shared prompts: about 0.3 s


class _Samples(NamedTuple):
    """Samples of one run, newest first, and why files were left out."""

    samples: list[Sample]
    problems: list[str]


def read_runs(folders: Sequence[RunFolder]) -> list[ComparedRun]:
    """Read the runs in `folders`, which differ; damaged parts are left out and reported in their `problems`."""
    samples = _read_samples(folders)
    names = distinct_names([folder.root for folder in folders])
    return [
        _read(letter, name, folder, of_run)
        for letter, name, folder, of_run in zip(LETTERS, names, folders, samples, strict=False)
    ]


def _read(letter: str, name: str, folder: RunFolder, samples: _Samples) -> ComparedRun:
    problems: list[str] = []
    live = folder.is_live()  # before reading: a run that ends meanwhile counts as training, not interrupted
    events: list[Event] = []
    try:
        events, _, damages = read_journal(folder.events)
        problems += damages
    except StorageError as error:
        problems.append(str(error))
    config: Mapping[str, Any] | None = None
    try:
        config = read_config(folder)
    except StorageError as error:
        problems.append(str(error))
    view = RunView()
    for event in events:
        view.take(event)
    alarms, rollbacks = troubles(events)
    return ComparedRun(
        letter=letter,
        name=name,
        folder=folder.root,
        kind=view.started.run_kind if view.started else str((config or {}).get("kind", PPO)),
        state="training" if live else view.ended.state if view.ended else "interrupted",
        view=view,
        alarms=alarms,
        rollbacks=rollbacks,
        config=config,
        samples=samples.samples,
        problems=[*problems, *samples.problems],
    )


def _read_samples(folders: Sequence[RunFolder]) -> list[_Samples]:
    """Read each run's newest samples, file by file, until all runs share as many prompts as are shown."""
    iterations = [kept_iterations(folder)[::-1][:_FILES] for folder in folders]
    found = [_Samples([], []) for _ in folders]
    having = sum(map(bool, iterations))
    for place in range(max(map(len, iterations))):
        for folder, of_run, (samples, problems) in zip(folders, iterations, found, strict=True):
            if place < len(of_run):
                try:
                    samples += read_batch(folder, of_run[place])
                except StorageError as error:
                    problems.append(str(error))
        shared = shared_prompts([samples for samples, _ in found], PROMPTS)
        if having < 2 or sum(len([a for a in one.answers if a]) == having for one in shared) == PROMPTS:
            break
    return found
