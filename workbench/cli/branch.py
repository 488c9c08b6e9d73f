"""`ppo-workbench branch`: go on from a checkpoint of a run with settings changed, as new runs."""

from __future__ import annotations

import argparse
import gc

from trainer.config import load_config
from trainer.engine.branching import BranchPlan, BranchRequest, plan_branches, plan_warnings
from trainer.errors import TrainerError, UsageError
from trainer.plurals import counted
from trainer.runs.folder import RunFolder, open_run
from trainer.runs.listing import summary_of
from workbench.cli.config import runs_dir
from workbench.cli.parser import add, compare_command
from workbench.cli.train import choose_display, headless
from workbench.run.threads import TrainingThread
from workbench.system import output
from workbench.system.code_trust import is_given, require_trust
from workbench.system.signals import INTERRUPTED
from workbench.text import visible

_MOST = 1024  # branches of one command

_DESCRIPTION = """\
Go on from a checkpoint of a PPO run with settings changed, as new runs beside it. The run itself is not changed.

  ppo-workbench branch cheerful --at 20 --set ppo.kl_coef=0.1
  ppo-workbench branch cheerful --at 20 --set ppo.kl_coef=0.1 --seeds 3 --control --iterations 10

The first branch goes on with the seed of the run, the others with the seeds after it. The same command again finishes
what is missing. See docs/experiments.md.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(execute=run)
    add(parser, "run", help="the folder or name of a PPO run")
    parser.add_argument("--at", metavar="N", type=int, required=True, help="iteration of the checkpoint to go on from")
    add(parser, "--set")
    parser.add_argument(
        "--seeds", metavar="K", type=int, default=1, help="number of branches, each with a seed of its own (default: 1)"
    )
    parser.add_argument(
        "--iterations", metavar="M", type=int, help="iterations to train after N (default: as many as the run has left)"
    )
    parser.add_argument("--control", action="store_true", help="also train the same seeds without the changes")
    named = "name of the branch; with --seeds, a number follows (default: RUN-branch and a number)"
    add(parser, "--name", help=named)
    add(parser, "--accept-data", "--trust-code", "--display", "--dir")


def run(args: argparse.Namespace) -> int:
    """Train the branches one after the other and return the first exit code that is not 0.

    A branch that fails does not keep the others from training; an interruption does. Raises TrainerError for what a
    user can fix.
    """
    _check(args)
    parent = open_run(args.run, runs_dir(args))
    plan = plan_branches(
        parent,
        BranchRequest(
            at=args.at,
            overrides=args.overrides,
            seeds=args.seeds,
            iterations=args.iterations,
            control=args.control,
            name=args.name or "",
        ),
    )
    for branch in plan.branches:
        is_own = bool(branch.branched_from.changes)  # the command line says nothing about the reward of a control
        require_trust(branch.config.reward, given=is_given(args) if is_own else bool(args.trust_code))
    for warning in plan_warnings(plan):
        output.warning(warning)
    folders = [plan.create(branch) for branch in plan.branches]  # now: the run may delete the checkpoint meanwhile
    code = 0
    for number, (branch, folder) in enumerate(zip(plan.branches, folders, strict=True), 1):
        exists = "" if branch.is_new else ", which exists already"
        output.note(f"{visible(folder.name)}, {number} of {counted(len(folders), 'branch', 'branches')}{exists}")
        ended = _train(folder, args.display, accept_data=args.accept_data)
        gc.collect()  # frees the model of this run before the next one loads its own
        if ended == INTERRUPTED:
            return ended
        code = code or ended
    output.note(f"compare them: {visible(_comparison(plan, args.dir))}")
    return code


def _check(args: argparse.Namespace) -> None:
    """Raise UsageError for options that do not fit."""
    for option, value in (("--config", args.config_given), ("--resume", args.resume)):
        if value is not None:
            raise UsageError(f"{option} {value} cannot be used with branch, which uses the configuration of the run")
    for option, value, least in (
        ("--at", args.at, 0),
        ("--seeds", args.seeds, 1),
        ("--iterations", args.iterations, 1),
    ):
        if value is not None and value < least:
            raise UsageError(f"{option} {value}: must be at least {least}")
    if args.seeds > _MOST:
        raise UsageError(f"--seeds {args.seeds}: must be at most {_MOST}")


def _comparison(plan: BranchPlan, where: str | None) -> str:
    """Return the command that compares the branches: their pairs if there are several, else every run."""
    names = [branch.name for branch in plan.branches]
    changed = [branch.name for branch in plan.branches if branch.branched_from.changes]
    controls = [name for name in names if name not in changed]
    if len(changed) < 2 or not controls:
        return compare_command(where, plan.parent.name, *names)
    return compare_command(where, groups={"control": ",".join(controls), "branch": ",".join(changed)})


def _train(folder: RunFolder, display: str | None, *, accept_data: bool) -> int:
    """Train a branch to its end, unless it was already, and return the exit code."""
    summary = summary_of(folder)
    if summary.state in ("done", "training"):
        how = "is done" if summary.state == "done" else "is being trained by another process"
        output.note(f"{visible(folder.name)} {how}, after {counted(summary.iteration, 'iteration')}")
        return 0
    try:
        thread = TrainingThread(load_config(folder.config), resume=folder.root, accept_data=accept_data)
        return headless(thread, choose_display(display))[0]
    except TrainerError as error:
        output.error(f"{folder.name}: {error}")
        return error.exit_code
