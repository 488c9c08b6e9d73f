"""`ppo-workbench evaluate`: a checkpoint of a run against its reference, with intervals."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainer.errors import counted
from trainer.events import Event, PhaseProgress, plain
from trainer.runs.folder import open_run
from workbench.cli.config import runs_dir
from workbench.cli.parser import add, whole_number
from workbench.system import output
from workbench.system.code_trust import require_trust, trusted_code
from workbench.text import aligned, number, percent, visible

if TYPE_CHECKING:
    from trainer.confidence import Interval
    from trainer.evaluation.held_out import EvaluationReport

_MOST = 1024  # responses to a prompt
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
    add(parser, "--checkpoint")
    prompts = "number of held-out prompts (default: eval.prompts), or a file of prompts"
    parser.add_argument("--prompts", metavar="N_OR_FILE", type=_number_or_file, help=prompts)
    count = whole_number(1, _MOST)
    samples = "responses to each prompt (default: %(default)s)"
    parser.add_argument("--samples", metavar="K", type=count, default=1, help=samples)
    best = "responses of the reference for best-of-n (default: eval.best_of)"
    parser.add_argument("--best-of", metavar="N", type=count, help=best)
    add(parser, "--average", help="evaluate the moving average of the policy instead of the policy")
    seed = "seed of the sampling (default: that of the run)"
    parser.add_argument("--seed", metavar="N", type=whole_number(0, 2**32 - 1), help=seed)
    reward = "score by 'file.py:function', 'lexicon' or a list for reward.sources instead"
    parser.add_argument("--reward", metavar="SOURCE", help=reward)
    add(parser, "--trust-code", "--dir", "--json")


def _number_or_file(text: str) -> int | str:
    return whole_number(1)(text) if re.fullmatch(r"-?[0-9]+", text) else text


def run(args: argparse.Namespace) -> int:
    """Print the evaluation; warnings and progress go to stderr."""
    folder = open_run(args.run, runs_dir(args))
    # Imported here, because this imports mlx: mistakes in the command line are reported first.
    from trainer.engine.checkpoint_evaluation import EvaluationOptions, config_of, evaluate_checkpoint
    from trainer.runs.checkpoint_files import find_checkpoint

    options = EvaluationOptions(
        prompts=args.prompts if isinstance(args.prompts, int) else None,
        file=args.prompts if isinstance(args.prompts, str) else "",
        samples=args.samples,
        best_of=args.best_of,
        average=args.average,
        seed=args.seed,
        reward=args.reward or "",
    )
    path, damaged = find_checkpoint(folder, args.checkpoint)
    output.note(f"evaluating '{path.name}' of run '{folder.name}'")
    require_trust(config_of(folder, options.reward).reward, given=args.trust_code or bool(options.reward))
    with _progress() as emit:
        report, warnings = evaluate_checkpoint(folder, path, options, emit, trust=trusted_code().check)
    for warning in [*damaged, *warnings]:
        output.warning(warning)
    output.data(json.dumps(plain(report), allow_nan=False) if args.json else "\n".join(report_lines(report)))
    return 0


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
