"""`ppo-workbench sweep` and `branch`: many runs of one configuration, and new runs from a checkpoint of one."""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import shlex
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from trainer.confidence import mean_interval
from trainer.config import config_warnings, load_config
from trainer.engine.branching import BranchRequest, plan_branches, plan_warnings
from trainer.engine.sweeping import (
    SUFFIX,
    Sweep,
    SweepRun,
    check_folders,
    check_same,
    held,
    plan_sweep,
    save_sweep,
    saved_sweep,
    short_keys,
    sweep_names,
    with_more_seeds,
)
from trainer.errors import StorageError, TrainerError, UsageError, counted
from trainer.runs.checkpoint_files import newest_checkpoint
from trainer.runs.folder import RunFolder, create_run, open_run
from trainer.runs.listing import RunSummary, summary_of
from workbench.cli.config import runs_dir
from workbench.cli.parser import add, compare_command, dir_override, whole_number
from workbench.cli.train import choose_display, headless
from workbench.run.threads import TrainingThread
from workbench.system import output
from workbench.system.children import LOG, continue_headless, last_error, with_share_of_cores
from workbench.system.code_trust import is_given, require_trust
from workbench.system.signals import INTERRUPTED, stop_on_signals
from workbench.text import aligned, duration, gigabytes, number, visible

_MOST = 1024  # branches of one command
_LOOK = 0.2  # seconds between two looks at the processes
_LONGEST_GROUP = 40  # characters of a group's name; `compare` allows no more
_SWEEP = """\
Train every combination of some values of settings, each on the same seeds, as ordinary runs without the screen:

  ppo-workbench sweep --config quickstart --vary ppo.kl_coef=0.02,0.05 --seeds 3 --name kl --jobs 2

The plan is in NAME.sweep.json beside the runs. The same command again, or sweep --resume NAME, finishes what is
missing. See docs/experiments.md.
"""


_BRANCH = """\
Go on from a checkpoint of a PPO run with settings changed, as new runs beside it. The run itself is not changed.

  ppo-workbench branch cheerful --at 20 --set ppo.kl_coef=0.1
  ppo-workbench branch cheerful --at 20 --set ppo.kl_coef=0.1 --seeds 3 --control --iterations 10

The first branch goes on with the seed of the run, the others with the seeds after it. The same command again finishes
what is missing. See docs/experiments.md.
"""


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """Add the options of `sweep`."""
    parser.description = _SWEEP
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(execute=run_sweep)
    add(parser, "--config", metavar="PRESET_OR_FILE", help="preset or file of all runs")
    add(parser, "--set")
    parser.add_argument(
        "--vary",
        metavar="KEY=VALUE,...",
        action="append",
        default=[],
        help="values of one setting: a comma between two, or an array in TOML; may be repeated",
    )
    add(parser, "--seeds", help="number of runs of each combination, with a seed each (default: 1)")
    add(parser, "--name", help="name of the sweep, which those of its runs begin with")
    parser.add_argument("--jobs", metavar="N", type=whole_number(1), help="runs that train at once (default: 1)")
    resumed = "finish the sweep of that name; with --seeds K, with more seeds than it has, K in all"
    add(parser, "--resume", metavar="NAME", help=resumed)
    parser.add_argument("--dry-run", action="store_true", help="list the runs and their states, but train nothing")
    add(parser, "--trust-code", "--dir")


def run_sweep(args: argparse.Namespace) -> int:
    """Train the runs that are not done, compare the combinations, and return the first exit code that is not 0.

    A run that fails does not keep the others from training; an interruption does. Raises TrainerError for what a user
    can fix.
    """
    sweep, saved = _planned(args)
    check_folders(sweep)
    jobs = min(args.jobs or sweep.jobs, len(sweep.runs))
    from workbench.config.estimates import estimate
    from workbench.system.machine import this_machine

    peak = max(estimate(first.config).memory_bytes or 0 for first, *_ in sweep.combinations.values())
    most = this_machine().most
    if args.dry_run:
        output.data("\n".join(_listing(sweep, jobs, peak, most)))
        return 0
    given = is_given(args) or any(text.partition("=")[0].strip() == "reward.sources" for text in args.vary)
    for first, *_ in sweep.combinations.values():
        require_trust(first.config.reward, given=given)
    warnings = [text for first, *_ in sweep.combinations.values() for text in config_warnings(first.config)]
    if peak and jobs > 1 and peak * jobs > most:
        warnings.append(
            f"{jobs} runs at a time take about {gigabytes(peak * jobs)} of {gigabytes(most)}: lower --jobs, or see "
            f"{output.PROGRAM} estimate for what makes a run smaller"
        )
    for warning in dict.fromkeys(warnings):
        output.warning(warning)
    if saved is None:
        save_sweep(sweep)
    elif saved != sweep:
        with held(saved):
            save_sweep(sweep)
    pool = _Pool(sweep, jobs)
    with held(sweep):
        code = pool.train()
    where: str | None = args.dir
    if where is None and runs_dir(args).resolve() != sweep.runs_dir:  # --set run.dir, or the configuration's
        where = str(sweep.runs_dir)
    if not pool.stop_reason:
        _compare(sweep, where)
    if left := sum(not _is_done(_summary(sweep, one)) for one in sweep.runs):
        option = "" if where is None else f" --dir {shlex.quote(where)}"
        are = "1 run is" if left == 1 else f"{left} runs are"
        output.note(f"{are} not done; to go on: {output.PROGRAM} sweep --resume {sweep.name}{option}")
    return code


def _planned(args: argparse.Namespace) -> tuple[Sweep, Sweep | None]:
    """Return the sweep of the command line, and its plan as an earlier command has saved it."""
    if args.resume is not None:
        given = {"--config": args.config_given, "--name": args.name, "--vary": next(iter(args.vary), None)}
        for option, value in (given | {"--set": next(iter(args.overrides), None)}).items():
            if value is not None:
                end = "cannot be used with --resume, which finishes the sweep as it was planned"
                raise UsageError(f"{option} {value} {end}")
        name, where = args.resume.removesuffix(SUFFIX), runs_dir(args)
        if (saved := saved_sweep(name, where)) is None:
            others = ", ".join(f"'{other}'" for other in sweep_names(where))
            raise UsageError(f"no sweep '{name}' in '{where}': there is {others or 'none'}")
        return with_more_seeds(saved, args.seeds) if args.seeds else saved, saved
    overrides = args.overrides + dir_override(args)
    wanted = plan_sweep(
        args.config, overrides, args.vary, seeds=args.seeds or 1, name=args.name or "", jobs=args.jobs or 1
    )
    saved = saved_sweep(wanted.name, wanted.runs_dir)
    if saved is None:
        return wanted, None
    check_same(wanted, saved)
    return saved, saved


def _listing(sweep: Sweep, jobs: int, peak: int, most: int) -> Iterator[str]:
    """Yield lines: what the sweep is, and a table of its runs."""
    yield _in_words(sweep, jobs)
    if peak:
        together = f", {gigabytes(peak * jobs)} at a time" if jobs > 1 else ""
        yield f"memory of a run about {gigabytes(peak)}{together}, of {gigabytes(most)}"
    yield ""
    rows = [("run", "state", *short_keys([*sweep.vary]), "seed")]
    for one in sweep.runs:
        values = (str(value).lower() if isinstance(value, bool) else str(value) for value in one.settings.values())
        summary = _summary(sweep, one)
        state = f"{summary.state}, {summary.iteration}/{summary.iterations}" if summary else "new"
        rows.append((one.name, state, *map(visible, values), str(one.config.run.seed)))
    yield from aligned(rows, left=(0, 1))


def _in_words(sweep: Sweep, jobs: int) -> str:
    size = f"{counted(len(sweep.combinations), 'combination')} on {counted(sweep.seeds, 'seed')}"
    at_once = "one after the other" if jobs == 1 else f"{jobs} at a time"
    return (
        f"sweep {sweep.name}: {size}, {counted(len(sweep.runs), 'run')}, {at_once}, in {visible(str(sweep.runs_dir))}"
    )


class _Pool:
    """Processes that train the runs of a sweep, some at a time, and what to print about each."""

    def __init__(self, sweep: Sweep, jobs: int) -> None:
        self._sweep = sweep
        self._jobs = jobs
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # by the place of the run, from 1
        self._code = 0
        self.stop_reason = ""  # the signal that has ended the training

    def train(self) -> int:
        """Train what is not done, and return the first exit code that is not 0."""
        runs = dict(enumerate(self._sweep.runs, 1))
        left = deque(place for place, one in runs.items() if not _is_done(_summary(self._sweep, one)))
        began, before, is_reported = time.monotonic(), self._iterations(), False
        started: dict[int, float] = {}
        output.note(_in_words(self._sweep, self._jobs))
        output.note(f"to follow a run: {output.PROGRAM} watch RUN, or {LOG} in its folder")
        if done := len(runs) - len(left):
            output.note(f"{counted(done, 'run')} {'is' if done == 1 else 'are'} done already")
        with stop_on_signals(self._stop, lambda: self._send(signal.SIGKILL)):
            while self._processes or (left and not self.stop_reason):
                while left and len(self._processes) < self._jobs and not self.stop_reason:
                    started[left[0]] = time.monotonic()
                    self._start(left.popleft())
                if self.stop_reason and not is_reported:
                    is_reported = True
                    count = len(self._processes)
                    saving = f"{counted(count, 'run')} {'saves' if count == 1 else 'save'}"
                    output.note(f"{self.stop_reason}: {saving} a checkpoint; Ctrl+C ends at once without one")
                for place, process in [*self._processes.items()]:
                    if (code := process.poll()) is not None:
                        del self._processes[place]
                        now, trained = time.monotonic(), self._iterations() - before
                        total = sum(one.config.ppo.iterations for one in self._sweep.runs)
                        rest = (now - began) * (total - before - trained) / trained if trained > 0 else 0
                        self._report_end(place, code, now - started[place], rest)
                if self._processes:
                    time.sleep(_LOOK)
        return INTERRUPTED if self.stop_reason else self._code

    def _stop(self, reason: str) -> None:
        """Ask all runs to save a checkpoint and end. Runs in a signal handler."""
        self.stop_reason = self.stop_reason or reason
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for process in [*self._processes.values()]:
            process.send_signal(number)

    def _start(self, place: int) -> None:
        one = self._sweep.runs[place - 1]
        folder, before = self._sweep.folder(one), _summary(self._sweep, one)
        try:
            if before and before.state == "training":
                raise StorageError("another process trains it")
            checkpoint, damaged = newest_checkpoint(folder) if before else (None, [])
            if before is None:
                create_run(one.config, one.name)
            process = continue_headless(folder.root, environment=with_share_of_cores(self._jobs))
        except TrainerError as error:
            self._report(place, str(error), error.exit_code)
            return
        self._processes[place] = process
        if self.stop_reason:  # a signal came while it was started
            process.send_signal(signal.SIGTERM)
        self._report(place, "; ".join([f"resumed from {checkpoint.name}" if checkpoint else "started", *damaged]))

    def _report_end(self, place: int, code: int, took: float, rest: float) -> None:
        """Report the end of a process. took: its seconds. rest: the expected ones of all that is left."""
        one = self._sweep.runs[place - 1]
        summary = _summary(self._sweep, one)
        after = f"after iteration {summary.iteration if summary else 0}"
        if summary and summary.state == "done":
            left = f"; about {duration(rest)} left" if rest > 0 else ""
            self._report(place, f"score {number(summary.score)}, KL {number(summary.kl, 2)}, {duration(took)}{left}")
        elif self.stop_reason:
            self._report(place, f"stopped {after}")
        elif code < 0:
            self._report(place, f"was killed by signal {-code}, {after}", 128 - code)
        elif code == INTERRUPTED:
            self._report(place, f"was stopped {after}", code)
        else:
            log, reason = self._sweep.folder(one).root / LOG, ""
            with contextlib.suppress(OSError), log.open("rb") as file:
                reason = last_error(file)
            reason = reason or f"failed with exit code {code}"
            self._report(place, f"{reason} (all that it printed: {log})", code or 1)

    def _iterations(self) -> int:
        """Return the iterations that all runs have finished."""
        found = (_summary(self._sweep, one) for one in self._sweep.runs)
        return sum(summary.iteration for summary in found if summary)

    def _report(self, place: int, text: str, code: int = 0) -> None:
        """Print a line about a run. code: not 0 if it failed."""
        self._code = self._code or code
        say = output.error if code else output.note
        say(f"{place}/{len(self._sweep.runs)} {self._sweep.runs[place - 1].name}: {' '.join(text.split())}")


def _summary(sweep: Sweep, one: SweepRun) -> RunSummary | None:
    """Return the state of a run; None if it does not exist yet."""
    folder = sweep.folder(one)
    return summary_of(folder) if folder.config.is_file() else None


def _is_done(summary: RunSummary | None) -> bool:
    return summary is not None and summary.state == "done"


def _compare(sweep: Sweep, where: str | None) -> None:
    """Print the comparison of the combinations that have begun, and the command that prints it again."""
    begun = {
        combination: folders
        for combination, runs in sweep.combinations.items()
        if (folders := [sweep.folder(one) for one in runs if sweep.folder(one).events.is_file()])
    }
    if len(begun) < 2:
        output.note("nothing to compare: fewer than two combinations have begun")
        return
    from workbench.cli.compare import checked_groups, print_report  # here, because it takes a second
    from workbench.compare.compared_run import LETTERS

    if len(begun) > len(LETTERS):
        what = f"{len(begun)} combinations are too many to compare one by one"
        output.note(f"{what}: the best are first; compare some of them with {output.PROGRAM} compare --group")
        output.data("\n".join(_ranking(begun)))
        return
    is_short = max(map(len, begun)) <= _LONGEST_GROUP
    names = {one: one if is_short else str(place) for place, one in enumerate(begun, 1)}
    print_report(checked_groups({names[combination]: folders for combination, folders in begun.items()}))
    patterns = {names[combination]: f"{sweep.name}_{combination}_seed-*" for combination in begun}
    output.note(f"compare them again: {compare_command(where, groups=patterns)}")


def _ranking(begun: Mapping[str, Sequence[RunFolder]]) -> Iterator[str]:
    """Yield a table of combinations by the mean score of their runs' last iterations, with its 95% interval."""
    import numpy as np  # here, because it takes a while

    rows = []
    for combination, folders in begun.items():
        found = [summary for folder in folders if (summary := summary_of(folder)).score is not None]
        score = mean_interval(np.array([one.score for one in found], dtype=np.float64))
        kl = mean_interval(np.array([one.kl for one in found if one.kl is not None], dtype=np.float64))
        interval = f"{number(score.low)} to {number(score.high)}" if math.isfinite(score.low) else ""
        rows.append((score.value, (combination, str(len(found)), number(score.value), interval, number(kl.value, 2))))
    rows.sort(key=lambda row: -math.inf if math.isnan(row[0]) else row[0], reverse=True)
    heads = ("combination", "runs", "score last 5", "95% interval", "KL last 5")
    yield from aligned([heads, *(row for _, row in rows)], left=(0,))


def add_branch(parser: argparse.ArgumentParser) -> None:
    """Add the options of `branch`."""
    parser.description = _BRANCH
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(execute=run_branch)
    add(parser, "run", help="the folder or name of a PPO run")
    start = "iteration of the checkpoint to go on from"
    parser.add_argument("--at", metavar="N", type=whole_number(0), required=True, help=start)
    add(parser, "--set")
    seeds = "number of branches, each with a seed of its own (default: 1)"
    add(parser, "--seeds", type=whole_number(1, _MOST), default=1, help=seeds)
    left = "iterations to train after N (default: as many as the run has left)"
    parser.add_argument("--iterations", metavar="M", type=whole_number(1), help=left)
    parser.add_argument("--control", action="store_true", help="also train the same seeds without the changes")
    named = "name of the branch; with --seeds, a number follows (default: RUN-branch and a number)"
    add(parser, "--name", help=named)
    add(parser, "--accept-data", "--trust-code", "--display", "--dir")


def run_branch(args: argparse.Namespace) -> int:
    """Train the branches one after the other and return the first exit code that is not 0.

    A branch that fails does not keep the others from training; an interruption does. Raises TrainerError for what a
    user can fix.
    """
    for option, value in (("--config", args.config_given), ("--resume", args.resume)):
        if value is not None:
            raise UsageError(f"{option} {value} cannot be used with branch, which uses the configuration of the run")
    parent = open_run(args.run, runs_dir(args))
    asked = BranchRequest(
        args.at, args.overrides, args.seeds, args.iterations, control=args.control, name=args.name or ""
    )
    plan = plan_branches(parent, asked)
    for branch in plan.branches:
        is_own = bool(branch.branched_from.changes)  # the command line says nothing about the reward of a control
        require_trust(branch.config.reward, given=is_given(args) if is_own else bool(args.trust_code))
    for warning in plan_warnings(plan):
        output.warning(warning)
    folders = [plan.create(branch) for branch in plan.branches]  # now: the run may delete the checkpoint meanwhile
    code = 0
    for place, (branch, folder) in enumerate(zip(plan.branches, folders, strict=True), 1):
        exists = "" if branch.is_new else ", which exists already"
        output.note(f"{visible(folder.name)}, {place} of {counted(len(folders), 'branch', 'branches')}{exists}")
        ended = _train_branch(folder, args.display, accept_data=args.accept_data)
        gc.collect()  # frees the model of this run before the next one loads its own
        if ended == INTERRUPTED:
            return ended
        code = code or ended
    names = [branch.name for branch in plan.branches]
    changed = [branch.name for branch in plan.branches if branch.branched_from.changes]
    controls = [name for name in names if name not in changed]
    if len(changed) > 1 and controls:
        groups = {"control": ",".join(controls), "branch": ",".join(changed)}
        command = compare_command(args.dir, groups=groups)
    else:
        command = compare_command(args.dir, plan.parent.name, *names)
    output.note(f"compare them: {visible(command)}")
    return code


def _train_branch(folder: RunFolder, display: str | None, *, accept_data: bool) -> int:
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
