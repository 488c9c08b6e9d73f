"""Branches of a PPO run: new runs that continue from one of its checkpoints, with other settings or another seed.

A resumed run continues bit for bit. So a branch without changes and with the run's own seed is what the run did next,
and one with changes is what it would have done. Imports no tensor library.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainer.config import Config, config_warnings, load_config, parse_overrides, resolve_paths, with_later_seed
from trainer.config.fields import PATTERNS, RUN_NAME
from trainer.config.loading import differences, with_overrides
from trainer.errors import UsageError
from trainer.events import BranchedFrom, Event, RunStarted, SettingChanged, plain
from trainer.runs.branch_folder import checkpoint_at, create_branch, identity, name_in_use, start_of
from trainer.runs.checkpoint_files import checkpoints, iteration_of
from trainer.runs.folder import TRASH, RunFolder, read_config, run_folders
from trainer.runs.journal import read_journal
from trainer.runs.listing import PPO

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


class BranchRequest(NamedTuple):
    """Request for branches, as a command line has it, or with a whole configuration, as the Config pane has it."""

    at: int  # iteration of the checkpoint
    overrides: Sequence[str] = ()  # assignments as of --set
    seeds: int = 1  # number of branches, each with its own
    iterations: int | None = None  # to train after `at`; None: those that the run has left
    control: bool = False  # also branches with the same seeds and without changes
    name: str = ""  # of the branches, before their number; empty: the run's name and "branch"
    config: Config | None = None  # in place of the run's with `overrides`; its name is that of the branch


class Branch(NamedTuple):
    """A branch that exists or is to be created."""

    name: str
    config: Config
    branched_from: BranchedFrom
    is_new: bool


class BranchPlan(NamedTuple):
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


def plan_branches(parent: RunFolder, request: BranchRequest) -> BranchPlan:
    """Plan the branches of the run `parent`. A branch that an earlier request created is found, whatever its name.

    Nothing is written. Raises UsageError for a run of another kind, a checkpoint that does not exist, a name in use and
    settings that cannot change; ConfigError for settings that break a rule; StorageError for damaged files.
    """
    _check_kind(parent)
    checkpoint = checkpoint_at(parent, request.at)
    past = read_journal(parent.events).events
    base = resolve_paths(load_config(parent.config, later_changes(past, request.at)), Path.cwd())  # as it was then
    if request.config:
        request = request._replace(name=request.config.run.name)
    new = _changed(base, request)
    changes = {key: values for key, values in differences(base, new) if key != _COUNT}
    for key in changes:
        if key in _REFUSED:
            raise UsageError(f"{key} cannot change in a branch: {_REFUSED[key]}")
        if key.startswith("model.") and key not in _FREE_OF_STATE:
            raise UsageError(
                f"{key} cannot change in a branch: the checkpoint is of this model and its adapters; begin a new run, "
                f"with model.policy_init = '{checkpoint / 'policy'}' to begin as this policy"
            )
    if request.control and not changes:
        raise UsageError("--control trains without the changes, and there are none: give --set KEY=VALUE")
    if request.name and not re.fullmatch(RUN_NAME, request.name):
        raise UsageError(f"--name {request.name!r}: {PATTERNS[RUN_NAME]}")
    control = base.model_copy(update={"ppo": base.ppo.model_copy(update={"iterations": new.ppo.iterations})})
    values = {key: plain(value) for key, (_, value) in changes.items()}
    since = [
        BranchedFrom(run=parent.name, iteration=request.at, checkpoint=identity(checkpoint), changes=of_role)
        for of_role in (values, {})
    ]
    taken = {folder.name: start_of(folder) for folder in run_folders(parent.root.parent)}
    names: set[str] = set()
    branches = []
    for number in range(request.seeds):
        for role, config, branched_from in zip(("branch", "control"), (new, control), since, strict=True):
            if role == "branch" or request.control:
                branch = _branch(parent, request, role, with_later_seed(config, number), branched_from, taken, names)
                names.add(branch.name)
                branches.append(branch)
    return BranchPlan(parent, past, changes, branches)


def branch_points(parent: RunFolder) -> list[int]:
    """Return the iterations of the whole checkpoints of a run, the newest one with iterations left to train first.

    Raises UsageError for a run that cannot be branched from the screen, StorageError.
    """
    if parent.root.parent.name == TRASH:
        raise UsageError(f"{parent.name} is in the trash: restore it, then branch it")
    _check_kind(parent)
    if parent.is_live():
        raise UsageError(
            f"{parent.name} is being trained by another process: branch it once it has ended, or in a terminal with "
            "ppo-workbench branch"
        )
    found = checkpoints(parent)
    if not found.paths:
        why = "; ".join(found.problems.values()) or "it has no checkpoint yet"
        raise UsageError(f"cannot branch {parent.name}: {why}; resume it, and save one")
    points = [iteration_of(path) for path in reversed(found.paths)]
    iterations = load_config(parent.config).ppo.iterations
    return sorted(points, key=lambda point: (point >= iterations, -point))


def later_changes(past: Sequence[Event], iteration: int) -> dict[str, dict[str, Any]]:
    """Return the tables of settings that undo the changes that a run made after the checkpoint of `iteration`.

    past: its journal.
    """
    tables: dict[str, dict[str, Any]] = {}
    for event in past:
        if isinstance(event, SettingChanged) and event.iteration > iteration + 1:
            table, _, name = event.key.partition(".")
            tables.setdefault(table, {}).setdefault(name, event.old)
    return tables


def plan_warnings(plan: BranchPlan) -> list[str]:
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


def _branch(
    parent: RunFolder,
    request: BranchRequest,
    role: str,
    config: Config,
    branched_from: BranchedFrom,
    taken: Mapping[str, RunStarted | None],
    names: set[str],
) -> Branch:
    """Return the branch with `config`, by its own name if it exists. taken: runs beside it. names: of this request."""
    for name, start in taken.items():
        same = start and (start.seed, start.iterations) == (config.run.seed, config.ppo.iterations)
        if same and start and plain(start.branched_from) == plain(branched_from):
            return Branch(name, config, branched_from, is_new=False)
    if not request.name:
        numbered = (f"{parent.name}-{role}-{number}" for number in itertools.count(1))
        return Branch(
            next(n for n in numbered if n not in taken and n not in names), config, branched_from, is_new=True
        )
    stem = request.name if role == "branch" else f"{request.name}-{role}"
    wanted = [f"{stem}-{number}" for number in range(1, request.seeds + 1)] if request.seeds > 1 else [stem]
    free = next((name for name in wanted if name not in names), stem)
    if free in taken or free in names:
        raise name_in_use(RunFolder(parent.root.with_name(free)))
    return Branch(free, config, branched_from, is_new=True)


def _check_kind(parent: RunFolder) -> None:
    kind = str(read_config(parent).get("kind", PPO))
    if kind != PPO:
        raise UsageError(f"run '{parent.name}' is of kind '{kind}': only PPO runs can be branched")


def _changed(base: Config, request: BranchRequest) -> Config:
    """Return the configuration of the branches. Raises UsageError, ConfigError."""
    overrides = list(request.overrides)
    if request.iterations is not None:
        if any(assignment.partition("=")[0].strip() == _COUNT for assignment in overrides):
            raise UsageError(f"--iterations {request.iterations} and --set {_COUNT}: give only one of them")
        overrides.append(f"{_COUNT}={request.at + request.iterations}")
    new = request.config or with_overrides(base, parse_overrides(overrides))
    if request.config:
        place = new.run.model_copy(update={"name": base.run.name, "dir": base.run.dir})
        new = new.model_copy(update={"run": place})
    new = resolve_paths(new, Path.cwd())
    if new.ppo.iterations <= request.at:
        raise UsageError(
            f"{_COUNT} = {new.ppo.iterations}: nothing is left to train after iteration {request.at}; choose more, as "
            "with --iterations M"
        )
    return new
