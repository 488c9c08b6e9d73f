"""Runs to compare, alone or in groups of seeds, with everything that is read from their folders."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from trainer.errors import StorageError
from trainer.events import Alert, Decision, Event, RolledBack
from trainer.runs.folder import RunFolder, read_config
from trainer.runs.journal import read_journal
from trainer.runs.listing import PPO
from trainer.runs.samples import kept_iterations
from workbench.run.sample_reader import read_batch
from workbench.run.sample_table import Sample
from workbench.run.view import RunView
from workbench.text import Piece, visible

LETTERS = string.ascii_uppercase
"""Letters of the groups, in the order in which they were named. No more can be compared at once."""
PROMPTS = 3  # answered by several runs, that are shown
_LEAST, _SHARE = 5, 20
_COMMON = 3  # characters at the front of names that are not worth shortening
_FILES = 50  # most of each run that are searched for shared prompts: about 0.3 s


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the compared runs. Texts are as on disk, not made safe to print."""

    name: str  # the shortest end of the folder's path that no other run has
    folder: Path
    kind: str
    state: str  # training, done, stopped, failed or interrupted
    view: RunView
    alarms: int = 0  # including other warnings and errors
    rollbacks: int = 0
    config: Mapping[str, Any] | None = None  # None if config.toml cannot be read
    samples: Sequence[Sample] = ()  # newest iteration first
    problems: Sequence[str] = ()  # what could not be read

    @property
    def window(self) -> int:
        """Iterations per mean; see `mean_of`."""
        return mean_of(len(self.view.history))

    @property
    def seed(self) -> int | None:
        """Seed of the run; None if neither journal nor config.toml has it."""
        if self.view.started:
            return self.view.started.seed
        section = (self.config or {}).get("run")
        seed = section.get("seed") if isinstance(section, Mapping) else None
        return seed if isinstance(seed, int) else None

    def column(self, name: str) -> Sequence[float]:
        """Return the metric `name` of every iteration; empty if runs of this kind do not have it."""
        history = self.view.history
        return history.column(name) if name in history.names else ()


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs of one method that differ in their seeds, or a single run. name: as given, not made safe to print."""

    letter: str
    name: str
    runs: Sequence[ComparedRun]

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs, ascending; a run whose seed cannot be read has none."""
        return sorted(run.seed for run in self.runs if run.seed is not None)

    @property
    def role(self) -> str:
        """Role of what belongs to the group in a line."""
        return f"run-{self.letter}"


def read_runs(folders: Sequence[RunFolder]) -> list[RunGroup]:
    """Read the runs in `folders`, which differ, each as a group of one; see `read_groups`."""
    names = distinct_names([folder.root for folder in folders])
    return read_groups({name: [folder] for name, folder in zip(names, folders, strict=True)})


def read_configs(folders: Sequence[RunFolder]) -> list[RunGroup]:
    """Read only the configurations of the first 26 runs in `folders`, each as a group of one."""
    groups = []
    for letter, folder in zip(LETTERS, folders, strict=False):
        config, problems = _read_config(folder)
        kind = str((config or {}).get("kind", PPO))
        run = ComparedRun(folder.name, folder.root, kind, "", RunView(), config=config, problems=problems)
        groups.append(RunGroup(letter, folder.name, [run]))
    return groups


def read_groups(named: Mapping[str, Sequence[RunFolder]]) -> list[RunGroup]:
    """Read groups of runs; damaged parts are left out and reported in their `problems`.

    Of each group, the samples of the first run are read.
    """
    names = iter(distinct_names([folder.root for folders in named.values() for folder in folders]))
    samples = _read_samples([folders[0] for folders in named.values()])
    groups = []
    for letter, (name, folders), (of_first, unread) in zip(LETTERS, named.items(), samples, strict=False):
        first, *others = folders
        runs = [_read_run(next(names), first, of_first, unread), *(_read_run(next(names), one) for one in others)]
        groups.append(RunGroup(letter, name, runs))
    return groups


def shared_prompts(runs: Sequence[Sequence[Sample]], most: int = PROMPTS) -> list[tuple[str, list[Sample | None]]]:
    """Return at most `most` prompts that two runs answered: those of most runs first, then those answered latest.

    Each is with one answer per run, None for a run that has none. runs: the samples of each run, newest iteration
    first. The first of several answers of a run counts.
    """
    answers: list[dict[str, Sample]] = []
    for samples in runs:
        first: dict[str, Sample] = {}
        for sample in samples:
            first.setdefault(sample.prompt, sample)
        answers.append(first)
    newest = [samples[0].key.iteration if samples else 0 for samples in runs]
    found = []
    for prompt in dict.fromkeys(prompt for of_run in answers for prompt in of_run):
        of_runs = [of_run.get(prompt) for of_run in answers]
        ages = [last - one.key.iteration for last, one in zip(newest, of_runs, strict=True) if one is not None]
        if len(ages) > 1:
            found.append((-len(ages), sum(ages), prompt, of_runs))
    return [(prompt, of_runs) for *_, prompt, of_runs in sorted(found, key=lambda one: one[:2])[:most]]


def mean_of(iterations: int) -> int:
    """Return the iterations per mean, because one batch is mostly noise: a twentieth of all, but at least five."""
    return max(_LEAST, iterations // _SHARE)


def mean(values: Iterable[float]) -> float:
    """Return the mean of the finite values; NaN if there is none, infinite if their sum exceeds all floats."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def columns(groups: Sequence[RunGroup]) -> list[Piece]:
    """Return the headings of a table's columns, one for each group."""
    names = short_names([visible(group.name) for group in groups])
    return [(f"{group.letter} {name}", group.role) for group, name in zip(groups, names, strict=True)]


def short_names(names: Sequence[str]) -> list[str]:
    """Return `names` with … in place of the words at the front that all of them share."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    common = re.sub(r"[^-_/= ]*$", "", "".join(letter for letter, *_ in alike)) if len(names) > 1 else ""
    return [f"…{name[len(common) :]}" if len(common) > _COMMON else name for name in names]


def windows_text(runs: Sequence[ComparedRun]) -> str:
    """Return over how many iterations the means of `runs` go: 5, or 5 to 12."""
    windows = sorted({run.window for run in runs})
    return str(windows[0]) if len(windows) == 1 else f"{windows[0]} to {windows[-1]}"


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return for each of `folders`, which must differ, the shortest end of its path that no other has."""
    names = []
    for folder in folders:
        others = [other.parts for other in folders if other != folder]
        ends = (folder.parts[-depth:] for depth in range(1, len(folder.parts)))
        own = next((end for end in ends if all(other[-len(end) :] != end for other in others)), None)
        names.append("/".join(own) if own else str(folder))
    return names


def _read_run(name: str, folder: RunFolder, samples: Sequence[Sample] = (), unread: Sequence[str] = ()) -> ComparedRun:
    """Read a run but for its samples. unread: why some of these are missing."""
    live = folder.is_live()  # before reading: a run that ends meanwhile counts as training, not interrupted
    events, problems = list[Event](), list[str]()
    try:
        journal = read_journal(folder.events)
        events, problems = journal.events, [*journal.problems]
    except StorageError as error:
        problems.append(str(error))
    config, unread_config = _read_config(folder)
    view = RunView()
    for event in events:
        view.take(event)
    return ComparedRun(
        name=name,
        folder=folder.root,
        kind=view.started.run_kind if view.started else str((config or {}).get("kind", PPO)),
        state="training" if live else view.ended.state if view.ended else "interrupted",
        view=view,
        alarms=sum(isinstance(e, Alert) and not isinstance(e, Decision) and e.level != "info" for e in events),
        rollbacks=sum(isinstance(e, RolledBack) for e in events),
        config=config,
        samples=samples,
        problems=[*problems, *unread_config, *unread],
    )


def _read_config(folder: RunFolder) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the configuration of a run, or None and why it cannot be read."""
    try:
        return read_config(folder), []
    except StorageError as error:
        return None, [str(error)]


def _read_samples(folders: Sequence[RunFolder]) -> list[tuple[list[Sample], list[str]]]:
    """Read each run's newest samples, file by file, until all runs share as many prompts as are shown.

    Returns for each run the samples, newest first, and why files were left out.
    """
    iterations = [kept_iterations(folder)[::-1][:_FILES] for folder in folders]
    found: list[tuple[list[Sample], list[str]]] = [([], []) for _ in folders]
    having = sum(map(bool, iterations))
    for place in range(max(map(len, iterations))):
        for folder, of_run, (samples, problems) in zip(folders, iterations, found, strict=True):
            if place < len(of_run):
                try:
                    samples += read_batch(folder, of_run[place])
                except StorageError as error:
                    problems.append(str(error))
        shared = shared_prompts([samples for samples, _ in found])
        if having < 2 or sum(len(answers) - answers.count(None) == having for _, answers in shared) == PROMPTS:
            break
    return found
