"""`ppo-workbench evaluate`: a checkpoint of a run against its reference, with intervals."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainer.config.problems import short
from trainer.errors import UsageError
from trainer.events import Event, PhaseProgress
from trainer.plurals import counted
from trainer.runs.folder import open_run
from workbench.cli.config import runs_dir
from workbench.cli.parser import add
from workbench.numbers import number, percent
from workbench.system import output
from workbench.system.code_trust import require_trust, trusted_code
from workbench.text import aligned, visible

if TYPE_CHECKING:
    from trainer.confidence import Interval
    from trainer.engine.checkpoint_evaluation import EvaluationOptions
    from trainer.evaluation.held_out import EvaluationReport

_MOST = 1024  # responses to a prompt
_DIGITS = 18  # of a number of prompts; Python reads no number of more than 4300
_ROWS = (
    ("score", "score", 3),
    ("reward", "reward: score less KL penalty", 3),
    ("kl", "KL, nats a sequence", 2),
    ("length", "length, tokens", 1),
)
_PART = "parts."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.set_defaults(execute=run)
    add(parser, "run", help="the folder or name of a PPO or DPO run")
    parser.add_argument(
        "--checkpoint", metavar="N", default="last", help="number of an iteration, best, or last (default: last)"
    )
    parser.add_argument(
        "--prompts",
        metavar="N_OR_FILE",
        help="number of held-out prompts (default: eval.prompts), or a file of prompts",
    )
    parser.add_argument(
        "--samples", metavar="K", type=int, default=1, help="responses to each prompt (default: %(default)s)"
    )
    parser.add_argument(
        "--best-of", metavar="N", type=int, help="responses of the reference for best-of-n (default: eval.best_of)"
    )
    parser.add_argument(
        "--average", action="store_true", help="evaluate the moving average of the policy instead of the policy"
    )
    parser.add_argument("--seed", metavar="N", type=int, help="seed of the sampling (default: that of the run)")
    parser.add_argument(
        "--reward", metavar="SOURCE", help="score by 'file.py:function', 'lexicon' or a list for reward.sources instead"
    )
    add(parser, "--trust-code", "--dir")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the evaluation; warnings and progress go to stderr."""
    folder = open_run(args.run, runs_dir(args))
    options = _options(args)
    # Imported here, because this imports mlx: mistakes in the command line are reported first.
    from trainer.engine.checkpoint_evaluation import evaluate_checkpoint, reward_of
    from trainer.runs.checkpoint_files import find_checkpoint

    path, damaged = find_checkpoint(folder, args.checkpoint)
    output.note(f"evaluating '{path.name}' of run '{folder.name}'")
    require_trust(reward_of(folder, options), given=args.trust_code or bool(options.reward))
    with _progress() as emit:
        report, warnings = evaluate_checkpoint(folder, path, options, emit, trust=trusted_code().check)
    for warning in [*damaged, *warnings]:
        output.warning(warning)
    output.data(json.dumps(report.as_dict(), allow_nan=False) if args.json else "\n".join(report_lines(report)))
    return 0


def _options(args: argparse.Namespace) -> EvaluationOptions:
    """Return the options of the evaluation. Raises UsageError for numbers out of range."""
    for option, value in (("--samples", args.samples), ("--best-of", args.best_of)):
        if value is not None and not 1 <= value <= _MOST:
            raise UsageError(f"{option} {value}: must be 1 to {_MOST}")
    if args.seed is not None and not 0 <= args.seed < 2**32:
        raise UsageError(f"--seed {args.seed}: must be 0 to 4294967295")
    count = None
    if args.prompts and re.fullmatch(r"-?[0-9]+", args.prompts):
        if len(args.prompts) > _DIGITS:
            raise UsageError(f"--prompts {short(args.prompts)}: must be a smaller number, or the name of a file")
        count = int(args.prompts)
        if count < 1:
            raise UsageError(f"--prompts {count}: must be at least 1, or the name of a file")
    from trainer.engine.checkpoint_evaluation import EvaluationOptions

    return EvaluationOptions(
        prompts=count,
        file="" if count else args.prompts or "",
        samples=args.samples,
        best_of=args.best_of,
        average=args.average,
        seed=args.seed,
        reward=args.reward or "",
    )


@contextmanager
def _progress() -> Iterator[Callable[[Event], None]]:
    """Show a progress bar on stderr if that is a terminal; yield the function that takes its events."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    columns, console = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn()), Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=1.0)

        def emit(event: Event) -> None:
            if isinstance(event, PhaseProgress):
                progress.update(task, completed=event.done / event.total)

        yield emit


def report_lines(report: EvaluationReport) -> Iterator[str]:
    """Yield the lines of the tables."""
    policy, reference = report.policy, report.reference
    names = [name for name in policy if name.startswith(_PART)]
    parts = [(name, f"  {visible(name.removeprefix(_PART))}", 3) for name in names] if len(names) > 1 else []
    average = ", moving average" if report.averaged else ""
    yield (
        f"{visible(report.run)}, {report.checkpoint}{average}: {counted(report.prompts, 'prompt')}, "
        f"{counted(report.samples, 'response')} to each, seed {report.seed}, kl_coef {report.kl_coef:g}"
    )
    yield ""
    yield from aligned(
        [
            ("", "policy", "95% interval", "reference", "95% interval"),
            *(
                (label, *_numbers(policy[name], digits), *_numbers(reference[name], digits))
                for name, label, digits in (_ROWS[0], *parts, *_ROWS[1:])
            ),
            *(
                (label, *_numbers(policy[name], 1, percent), *_numbers(reference[name], 1, percent))
                for name, label in (("truncated", "cut short"), ("unscored", "not scored"))
                if name == "truncated" or policy[name].value or reference[name].value
            ),
        ]
    )
    yield ""
    yield from aligned(
        [
            ("policy against reference", "", "95% interval"),
            ("gain in score", *_numbers(report.gain, 3)),
            (f"win rate, {counted(report.pairs, 'pair')}", *_numbers(report.win_rate, 1, percent)),
        ]
    )
    if report.best_of:
        yield ""
        yield from aligned(
            [
                ("best of n of the reference", "score", "95% interval", "KL at most"),
                *((f"n = {best.n}", *_numbers(best.score, 3), number(best.kl, 2)) for best in report.best_of),
            ]
        )
    if report.critic:
        yield ""
        yield from aligned(
            [
                ("critic on these rollouts", "", "95% interval"),
                ("explained variance", *_numbers(report.critic["explained_variance"], 3)),
                ("error (root mean square)", *_numbers(report.critic["error"], 3)),
            ]
        )


def _numbers(interval: Interval, digits: int, show: Callable[[float, int], str] = number) -> tuple[str, str]:
    value, low, high = (show(bound, digits) for bound in interval)
    return value, f"{low} to {high}"
