"""Branches of a PPO run: new runs that continue from one of its checkpoints, with other settings or another seed.

A resumed run continues bit for bit. So a branch without changes and with the run's own seed is what the run did next,
and one with changes is what it would have done. Imports no tensor library.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainer.config import (
    Config,
    config_warnings,
    load_config,
    parse_overrides,
    resolve_paths,
    validate,
    with_later_seed,
)
from trainer.config.fields import PATTERNS, RUN_NAME
from trainer.config.loading import differences, with_overrides
from trainer.errors import UsageError
from trainer.events import BranchedFrom, Event, RunStarted, SettingChanged, plain
from trainer.files import read_json
from trainer.plurals import counted
from trainer.runs.branch_folder import checkpoint_at, create_branch, identity, name_in_use, start_of
from trainer.runs.checkpoint_files import STATE
from trainer.runs.folder import RunFolder, read_config, run_folders
from trainer.runs.journal import read_journal

_HELD_OUT = "it would hold out prompts that the run has trained on"
_REFUSED = {
    "run.name": "use --name",
    "run.dir": "a branch is made beside its run",
    "run.seed": "the first branch has the seed of the run, and --seeds adds others",
    "data.eval_seed": _HELD_OUT,
    "data.eval_fraction": _HELD_OUT,
}
_FREE_OF_STATE = ("model.memory_limit",)  # of [model]
_COUNT = "ppo.iterations"


class Wanted(NamedTuple):
    """Request for branches, as a command line has it."""

    at: int  # iteration of the checkpoint
    overrides: Sequence[str] = ()  # assignments as of --set
    seeds: int = 1  # number of branches, each with its own
    iterations: int | None = None  # to train after `at`; None: those that the run has left
    control: bool = False  # also branches with the same seeds and without changes
    name: str = ""  # of the branches, before their number; empty: the run's name and "branch"


class Branch(NamedTuple):
    """A branch that exists or is to be created."""

    name: str
    config: Config
    branched_from: BranchedFrom
    is_new: bool


class Plan(NamedTuple):
    """All branches of a request, in the order in which they train, each control after its branch."""

    parent: RunFolder
    past: Sequence[Event]
    changes: Mapping[str, tuple[Any, Any]]  # old and new values by dotted key
    branches: Sequence[Branch]

    def create(self, branch: Branch) -> RunFolder:
        """Return the folder of `branch`, which is created if it does not exist. Raises as `create_branch`."""
        if not branch.is_new:
            return RunFolder(self.parent.root.with_name(branch.name))
        number = branch.branched_from.iteration + 1
        changed = [
            SettingChanged(iteration=number, key=key, old=old, value=new)
            for key, (old, new) in self.changes.items()
            if key in branch.branched_from.changes
        ]
        measured = any(key.startswith(("data.", "eval.")) for key in branch.branched_from.changes)
        return create_branch(
            self.parent,
            self.past,
            branch.name,
            branch.config,
            branch.branched_from,
            changed,
            with_best=not measured,  # else its evaluation cannot be compared with the branch's
        )


def plan_branches(parent: RunFolder, wanted: Wanted) -> Plan:
    """Plan the branches of the run `parent`. A branch that an earlier request created is found, whatever its name.

    Nothing is written. Raises UsageError for a run of another kind, a checkpoint that does not exist, a name in use and
    settings that cannot change; ConfigError for settings that break a rule; StorageError for damaged files.
    """
    kind = str(read_config(parent).get("kind", "ppo"))
    if kind != "ppo":
        raise UsageError(f"run '{parent.name}' is of kind '{kind}': only PPO runs can be branched")
    checkpoint = checkpoint_at(parent, wanted.at)
    past = read_journal(parent.events).events
    base = config_at(parent, past, wanted.at)
    new = _changed(base, wanted)
    changes = {key: values for key, values in differences(base, new) if key != _COUNT}
    base = base.model_copy(update={"ppo": base.ppo.model_copy(update={"iterations": new.ppo.iterations})})
    _check_changes(base, new, changes, checkpoint, wanted.at)
    if wanted.control and not changes:
        raise UsageError("--control trains without the changes, and there are none: give --set KEY=VALUE")
    since = BranchedFrom(run=parent.name, iteration=wanted.at, checkpoint=identity(checkpoint))
    values = {key: plain(value) for key, (_, value) in changes.items()}
    changed = BranchedFrom(run=since.run, iteration=since.iteration, checkpoint=since.checkpoint, changes=values)
    names = _Names(parent, wanted)
    branches = []
    for number in range(wanted.seeds):
        branches.append(names.branch(with_later_seed(new, number), changed, "branch"))
        if wanted.control:
            branches.append(names.branch(with_later_seed(base, number), since, "control"))
    return Plan(parent, past, changes, branches)


class _Names:
    """Names of the branches: of those that exist, and free ones for the others."""

    def __init__(self, parent: RunFolder, wanted: Wanted) -> None:
        if wanted.name and not re.fullmatch(RUN_NAME, wanted.name):
            raise UsageError(f"--name {wanted.name!r}: {PATTERNS[RUN_NAME]}")
        self._parent = parent
        self._wanted = wanted
        self._found = set[str]()  # of the branches of this request
        self._taken = {folder.name for folder in run_folders(parent.root.parent)}
        self._starts = {
            name: start
            for name in sorted(self._taken)
            if (start := start_of(RunFolder(parent.root.with_name(name)))) and start.branched_from
        }

    def branch(self, config: Config, branched_from: BranchedFrom, role: str) -> Branch:
        """Return the branch with `config`, by its own name if it exists. role: branch or control."""
        for name, start in self._starts.items():
            if _is_branch(start, config, branched_from):
                self._found.add(name)
                return Branch(name, config, branched_from, is_new=False)
        name = next(self._free(role))
        self._taken.add(name)
        self._found.add(name)
        return Branch(name, config, branched_from, is_new=True)

    def _free(self, role: str) -> Iterator[str]:
        given = self._wanted.name
        if not given:
            names = (f"{self._parent.name}-{role}-{number}" for number in itertools.count(1))
            yield from (name for name in names if name not in self._taken)
            return
        stem = given if role == "branch" else f"{given}-{role}"
        for number in range(1, self._wanted.seeds + 1):
            name = f"{stem}-{number}" if self._wanted.seeds > 1 else stem
            if name not in self._taken:
                yield name
            elif name not in self._found:
                raise name_in_use(RunFolder(self._parent.root.with_name(name)))
        raise name_in_use(RunFolder(self._parent.root.with_name(stem)))


def _is_branch(start: RunStarted, config: Config, branched_from: BranchedFrom) -> bool:
    """Return whether a run that began with `start` is the branch that begins with `config`."""
    same = (start.seed, start.iterations) == (config.run.seed, config.ppo.iterations)
    return same and plain(start.branched_from) == plain(branched_from)


def config_at(parent: RunFolder, past: Sequence[Event], iteration: int) -> Config:
    """Return the configuration that a run had for the iteration after `iteration`.

    past: its journal, whose later changes are undone. Raises UsageError, ConfigError.
    """
    raw = load_config(parent.config).model_dump()
    for event in reversed(past):
        if isinstance(event, SettingChanged) and event.iteration > iteration + 1:
            table, _, name = event.key.partition(".")
            if name in raw.get(table, {}):  # not a setting of an earlier version
                raw[table][name] = event.old
    return resolve_paths(validate(raw), Path.cwd())


def can_change(key: str) -> bool:
    """Return whether a branch can differ from its run in the setting `key`."""
    return key not in _REFUSED and (not key.startswith("model.") or key in _FREE_OF_STATE)


def plan_warnings(plan: Plan) -> list[str]:
    """Return what a user should know before the branches of `plan` train, one line each. Raises as `load_config`."""
    config = plan.branches[0].config
    found = config_warnings(config)
    before = load_config(plan.parent.config).ppo.iterations
    if config.optim.schedule != "constant" and config.ppo.iterations != before:
        found.append(
            f"optim.schedule = '{config.optim.schedule}' ends with ppo.iterations = {config.ppo.iterations}, and in "
            f"run '{plan.parent.name}' with {before}: the learning rates differ from its own from the start"
        )
    return found


def _changed(base: Config, wanted: Wanted) -> Config:
    """Return `base` with the settings and the number of iterations of a request. Raises UsageError, ConfigError."""
    overrides = list(wanted.overrides)
    keys = [assignment.partition("=")[0].strip() for assignment in overrides]
    for key in keys:
        if key in _REFUSED:
            raise UsageError(f"--set {key} cannot change in a branch: {_REFUSED[key]}")
    if wanted.iterations is not None:
        if _COUNT in keys:
            raise UsageError(f"--iterations {wanted.iterations} and --set {_COUNT}: give only one of them")
        overrides.append(f"{_COUNT}={wanted.at + wanted.iterations}")
    new = resolve_paths(with_overrides(base, parse_overrides(overrides)), Path.cwd())
    if new.ppo.iterations <= wanted.at:
        raise UsageError(
            f"{_COUNT} = {new.ppo.iterations}: nothing is left to train after iteration {wanted.at}; use --iterations M"
        )
    return new


def _check_changes(
    base: Config, new: Config, changes: Mapping[str, tuple[Any, Any]], checkpoint: Path, iteration: int
) -> None:
    """Raise UsageError for changes that do not fit the checkpoint, or would change nothing after it."""
    for key in changes:
        if key.startswith("model.") and not can_change(key):
            raise UsageError(
                f"--set {key} cannot change in a branch: the checkpoint is of this model and its adapters; begin a new "
                f"run, with model.policy_init = '{checkpoint / 'policy'}' to begin as this policy"
            )
    warmup = max(base.ppo.critic_warmup, new.ppo.critic_warmup)
    if "ppo.critic_warmup" in changes and warmup <= iteration:
        raise UsageError(
            f"--set ppo.critic_warmup = {new.ppo.critic_warmup} changes nothing: it is about the first "
            f"{counted(warmup, 'iteration')}, and the branch begins after iteration {iteration}"
        )
    warmup, steps = max(base.optim.warmup_steps, new.optim.warmup_steps), _steps(checkpoint)
    if "optim.warmup_steps" in changes and warmup <= steps and new.optim.schedule == "constant":
        raise UsageError(
            f"--set optim.warmup_steps = {new.optim.warmup_steps} changes nothing: it is about the first "
            f"{counted(warmup, 'step')}, and the checkpoint is after step {steps}"
        )


def _steps(checkpoint: Path) -> int:
    """Return the optimiser steps of a checkpoint, 0 if that cannot be read: resuming says what is wrong."""
    try:
        return int(read_json(checkpoint / STATE)["optimizer_steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
