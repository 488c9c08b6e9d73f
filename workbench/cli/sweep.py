"""`ppo-workbench sweep`: every combination of some values of settings on several seeds, as runs of their own."""

from __future__ import annotations

import argparse
import shlex
import time
from collections import deque
from collections.abc import Iterator

from trainer.config import config_warnings
from trainer.config.schema import RewardConfig
from trainer.errors import TrainerError, UsageError
from trainer.plurals import counted
from trainer.ppo_run.sweep_file import check_folders, check_same, held, save_sweep, saved_sweep, sweep_names
from trainer.ppo_run.sweeping import SUFFIX, Sweep, SweepRun, plan_sweep, short_keys, with_more_seeds
from trainer.runs.checkpoint_files import newest_checkpoint
from trainer.runs.folder import create_run
from trainer.runs.listing import RunSummary, summary_of
from workbench.cli.config import runs_dir
from workbench.cli.parser import add_configuration, add_dir, add_trust_code, dir_override
from workbench.cli.sweep_comparison import compare
from workbench.columns import aligned
from workbench.numbers import duration, gigabytes, number
from workbench.run.detached import LOG, continue_headless
from workbench.run.side_by_side import End, Process, SideBySide, TrainedElsewhere
from workbench.system import output
from workbench.system.children import last_error, with_share_of_cores
from workbench.system.code_trust import is_given, require_trust
from workbench.system.signals import INTERRUPTED, stop_on_signals
from workbench.text import visible

_DESCRIPTION = """\
Train every combination of some values of settings, each on the same seeds, as ordinary runs without the screen:

  ppo-workbench sweep --config quickstart --vary ppo.kl_coef=0.02,0.05 --seeds 3 --name kl --jobs 2

The plan is in NAME.sweep.json beside the runs. The same command again, or sweep --resume NAME, finishes what is
missing. See docs/experiments.md.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(execute=run)
    add_configuration(parser, "PRESET_OR_FILE", "preset or file of all runs")
    parser.add_argument(
        "--vary",
        metavar="KEY=VALUE,...",
        action="append",
        default=[],
        help="values of one setting: a comma between two, or an array in TOML; may be repeated",
    )
    parser.add_argument(
        "--seeds", metavar="K", type=int, help="number of runs of each combination, with a seed each (default: 1)"
    )
    parser.add_argument(
        "--name", default=argparse.SUPPRESS, help="name of the sweep, which those of its runs begin with"
    )
    parser.add_argument("--jobs", metavar="N", type=int, help="runs that train at once (default: 1)")
    parser.add_argument(
        "--resume",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="finish the sweep of that name; with --seeds K, with more seeds than it has, K in all",
    )
    parser.add_argument("--dry-run", action="store_true", help="list the runs and their states, but train nothing")
    add_trust_code(parser)
    add_dir(parser)


def run(args: argparse.Namespace) -> int:
    """Train the runs that are not done, compare the combinations, and return the first exit code that is not 0.

    A run that fails does not keep the others from training; an interruption does. Raises TrainerError for what a user
    can fix.
    """
    _check(args)
    sweep, saved = _planned(args)
    check_folders(sweep)
    jobs = min(args.jobs or sweep.jobs, len(sweep.runs))
    if args.dry_run:
        output.data("\n".join(_listing(sweep, jobs)))
        return 0
    _require_trust(args, sweep)
    for warning in dict.fromkeys(_warnings(sweep, jobs)):
        output.warning(warning)
    if saved is None:
        save_sweep(sweep)
    elif saved != sweep:
        with held(saved):
            save_sweep(sweep)
    with held(sweep):
        under_way = _UnderWay(sweep, jobs)
        code = under_way.train()
    where = _where(args, sweep)
    if not under_way.is_interrupted:
        compare(sweep, where)
    if left := under_way.left:
        option = "" if where is None else f" --dir {shlex.quote(where)}"
        are = "1 run is" if left == 1 else f"{left} runs are"
        output.note(f"{are} not done; to go on: {output.PROGRAM} sweep --resume {sweep.name}{option}")
    return code


def _check(args: argparse.Namespace) -> None:
    """Raise UsageError for options that do not fit."""
    for option, value in (("--seeds", args.seeds), ("--jobs", args.jobs)):
        if value is not None and value < 1:
            raise UsageError(f"{option} {value}: must be at least 1")
    if args.resume is None:
        return
    given = {"--config": args.config_given, "--name": args.name}
    given |= {"--set": args.overrides[-1] if args.overrides else None, "--vary": args.vary[-1] if args.vary else None}
    for option, value in given.items():
        if value is not None:
            raise UsageError(
                f"{option} {value} cannot be used with --resume, which finishes the sweep as it was planned"
            )


def _planned(args: argparse.Namespace) -> tuple[Sweep, Sweep | None]:
    """Return the sweep of the command line, and its plan as an earlier command has saved it."""
    if args.resume is not None:
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


def _where(args: argparse.Namespace, sweep: Sweep) -> str | None:
    """Return the folder that later commands need as --dir; None if they find the runs without it."""
    given: str | None = args.dir
    if given is None and runs_dir(args).resolve() != sweep.runs_dir:  # --set run.dir, or the configuration's
        return str(sweep.runs_dir)
    return given


def _require_trust(args: argparse.Namespace, sweep: Sweep) -> None:
    """Check that the user trusts the code of all rewards. Raises UntrustedCodeError, RewardError, StorageError."""
    given = is_given(args) or any(text.partition("=")[0].strip() == "reward.sources" for text in args.vary)
    rewards: list[RewardConfig] = []
    for first, *_ in sweep.combinations.values():
        if first.config.reward not in rewards:
            rewards.append(first.config.reward)
    for reward in rewards:
        require_trust(reward, given=given)


def _listing(sweep: Sweep, jobs: int) -> Iterator[str]:
    """Yield lines: what the sweep is, and a table of its runs."""
    yield _in_words(sweep, jobs)
    peak, most = _memory(sweep)
    if peak:
        together = f", {gigabytes(peak * jobs)} at a time" if jobs > 1 else ""
        yield f"memory of a run about {gigabytes(peak)}{together}, of {gigabytes(most)}"
    yield ""
    keys = [*sweep.runs[0].settings]
    rows = [("run", "state", *short_keys(keys), "seed")]
    for one in sweep.runs:
        values = (_value(one.settings[key]) for key in keys)
        rows.append((one.name, _state(sweep, one), *values, str(one.config.run.seed)))
    yield from aligned(rows, left=(0, 1))


def _in_words(sweep: Sweep, jobs: int) -> str:
    size = f"{counted(len(sweep.combinations), 'combination')} on {counted(len(sweep.seeds), 'seed')}"
    at_once = "one after the other" if jobs == 1 else f"{jobs} at a time"
    return (
        f"sweep {sweep.name}: {size}, {counted(len(sweep.runs), 'run')}, {at_once}, in {visible(str(sweep.runs_dir))}"
    )


def _warnings(sweep: Sweep, jobs: int) -> Iterator[str]:
    """Yield what a user should know before the runs train, one line each, some of them repeatedly."""
    for first, *_ in sweep.combinations.values():
        yield from config_warnings(first.config)
    peak, most = _memory(sweep)
    if peak and jobs > 1 and peak * jobs > most:
        yield (
            f"{jobs} runs at a time take about {gigabytes(peak * jobs)} of {gigabytes(most)}: lower --jobs, or see "
            f"{output.PROGRAM} estimate for what makes a run smaller"
        )


def _memory(sweep: Sweep) -> tuple[int | None, int]:
    """Return the bytes of the largest run, None if the size of its model is not known, and those of the machine."""
    from workbench.config.estimates import estimate
    from workbench.system.machine import this_machine

    peaks = [estimate(first.config).memory_bytes or 0 for first, *_ in sweep.combinations.values()]
    return max(peaks) or None, this_machine().most


def _value(value: object) -> str:
    return visible(str(value).lower() if isinstance(value, bool) else str(value))


def _state(sweep: Sweep, run: SweepRun) -> str:
    folder = sweep.folder(run)
    if not folder.config.is_file():
        return "new"
    summary = summary_of(folder)
    return f"{summary.state}, {summary.iteration}/{summary.iterations}"


class _UnderWay:
    """A sweep that trains: which runs are next, and what to print about each."""

    def __init__(self, sweep: Sweep, jobs: int) -> None:
        self._sweep = sweep
        self._jobs = jobs
        self._runs = {one.name: one for one in sweep.runs}
        self._numbers = {name: number for number, name in enumerate(self._runs, 1)}
        self._processes = SideBySide()
        self._next: deque[SweepRun] = deque()
        self._elsewhere = set[str]()  # runs that other processes train
        self._began = time.monotonic()
        self._done_before = 0  # iterations of the runs when this command began
        self._code = 0

    def train(self) -> int:
        """Train what is not done, and return the first exit code that is not 0."""
        states = {name: self._summary(name) for name in self._runs}
        self._next.extend(one for one in self._sweep.runs if not _is_done(states[one.name]))
        self._done_before = sum(state.iteration for state in states.values() if state)
        output.note(_in_words(self._sweep, self._jobs))
        output.note(f"to follow a run: {output.PROGRAM} watch RUN, or {LOG} in its folder")
        if done := len(self._runs) - len(self._next):
            output.note(f"{counted(done, 'run')} {'is' if done == 1 else 'are'} done already")
        environment = with_share_of_cores(self._jobs)
        with stop_on_signals(self._processes.stop, self._processes.kill):
            while (self._next and not self._processes.stop_reason) or self._processes:
                while self._next and len(self._processes) < self._jobs and not self._processes.stop_reason:
                    self._start(self._next.popleft(), environment)
                if self._processes:
                    self._take(self._processes.wait())
        return INTERRUPTED if self.is_interrupted else self._code

    @property
    def is_interrupted(self) -> bool:
        """Return whether a signal has ended the training."""
        return bool(self._processes.stop_reason)

    @property
    def left(self) -> int:
        """Return the number of runs that are not done."""
        return sum(not _is_done(self._summary(name)) for name in self._runs)

    def _start(self, one: SweepRun, environment: dict[str, str]) -> None:
        folder = self._sweep.folder(one)
        before = self._summary(one.name)
        if before and before.state == "training":
            self._note(one.name, "another process trains it: waiting for its end")
            self._elsewhere.add(one.name)
            self._processes.add(one.name, TrainedElsewhere(folder))
            return
        checkpoint, damaged = newest_checkpoint(folder) if before else (None, [])
        try:
            if before is None:
                create_run(one.config, one.name)
            process: Process = continue_headless(folder.root, environment=environment)
        except TrainerError as error:
            self._failed(one.name, str(error), error.exit_code)
            return
        self._note(one.name, "; ".join([f"resumed from {checkpoint.name}" if checkpoint else "started", *damaged]))
        self._processes.add(one.name, process)

    def _take(self, end: End | None) -> None:
        """Report the end of a process, or that a signal has come."""
        if end is None:
            saving = f"{counted(len(self._processes), 'run')} {'saves' if len(self._processes) == 1 else 'save'}"
            output.note(f"{self._processes.stop_reason}: {saving} a checkpoint; Ctrl+C ends at once without one")
            return
        summary = self._summary(end.name)
        after = f"after iteration {summary.iteration if summary else 0}"
        is_ours = end.name not in self._elsewhere
        self._elsewhere.discard(end.name)
        if summary and summary.state == "done":
            took = f", {duration(end.seconds)}" if is_ours else ""
            self._note(end.name, f"score {number(summary.score)}, KL {number(summary.kl, 2)}{took}{self._left()}")
        elif self._processes.stop_reason:
            self._note(end.name, f"stopped {after}" if is_ours else "another process goes on with it")
        elif not is_ours:
            self._next.appendleft(self._runs[end.name])
        elif end.code < 0:
            self._failed(end.name, f"was killed by signal {-end.code}, {after}", 128 - end.code)
        elif end.code == INTERRUPTED:
            self._failed(end.name, f"was stopped {after}", end.code)
        else:
            self._failed(end.name, self._reason(end), end.code or 1)

    def _left(self) -> str:
        """Return about how long the rest takes, judged by the iterations of all runs since this command began."""
        states = {name: self._summary(name) for name in self._runs}
        trained = sum(state.iteration for state in states.values() if state) - self._done_before
        left = sum(
            one.config.ppo.iterations - (state.iteration if state else 0)
            for one in self._sweep.runs
            if not _is_done(state := states[one.name])
        )
        if trained < 1 or left < 1:
            return ""
        return f"; about {duration((time.monotonic() - self._began) * left / trained)} left"

    def _reason(self, end: End) -> str:
        """Return why a run failed, from what its process printed."""
        log = self._sweep.folder(self._runs[end.name]).root / LOG
        reason = ""
        try:
            with log.open("rb") as file:
                reason = last_error(file)
        except OSError:
            pass
        return f"{reason or f'failed with exit code {end.code}'} (all that it printed: {log})"

    def _failed(self, name: str, reason: str, code: int) -> None:
        self._code = self._code or code
        output.error(f"{self._place(name)}: {' '.join(reason.split())}")

    def _note(self, name: str, text: str) -> None:
        output.note(f"{self._place(name)}: {text}")

    def _place(self, name: str) -> str:
        return f"{self._numbers[name]}/{len(self._runs)} {name}"

    def _summary(self, name: str) -> RunSummary | None:
        """Return the state of a run; None if it does not exist yet."""
        folder = self._sweep.folder(self._runs[name])
        return summary_of(folder) if folder.config.is_file() else None


def _is_done(summary: RunSummary | None) -> bool:
    return summary is not None and summary.state == "done"
