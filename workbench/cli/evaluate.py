"""`ppo-workbench evaluate`: a checkpoint of a run against its reference, with intervals."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainer.errors import UsageError
from trainer.events import Event, PhaseProgress
from trainer.runs.folder import open_run
from workbench.cli.evaluate_table import table
from workbench.cli.runs_dir import runs_dir
from workbench.system import output
from workbench.system.code_trust import require_trust, trusted_code

if TYPE_CHECKING:
    from trainer.session.checkpoint_evaluation import Wanted

_MOST = 1024  # responses to a prompt


def run(args: argparse.Namespace) -> int:
    """Print the evaluation; warnings and progress go to stderr."""
    folder = open_run(args.run, runs_dir(args))
    wanted = _wanted(args)
    # Imported here, because this imports mlx: mistakes in the command line are reported first.
    from trainer.session.checkpoint_evaluation import evaluate_checkpoint, find_checkpoint, reward_of

    output.note(f"evaluating '{find_checkpoint(folder, wanted.checkpoint).name}' of run '{folder.name}'")
    require_trust(reward_of(folder, wanted), given=args.trust_code or bool(wanted.reward))
    with _progress() as emit:
        found = evaluate_checkpoint(folder, wanted, emit, trust=trusted_code().check)
    for warning in found.warnings:
        output.warning(warning)
    report = found.report
    output.data(json.dumps(report.as_dict(), allow_nan=False) if args.json else "\n".join(table(report)))
    return 0


def _wanted(args: argparse.Namespace) -> Wanted:
    """Return the evaluation asked for. Raises UsageError for numbers out of range."""
    for option, value in (("--samples", args.samples), ("--best-of", args.best_of)):
        if value is not None and not 1 <= value <= _MOST:
            raise UsageError(f"{option} {value}: must be 1 to {_MOST}")
    if args.seed is not None and not 0 <= args.seed < 2**32:
        raise UsageError(f"--seed {args.seed}: must be 0 to 4294967295")
    count = None
    if args.prompts and re.fullmatch(r"-?[0-9]+", args.prompts):
        count = int(args.prompts)
        if count < 1:
            raise UsageError(f"--prompts {count}: must be at least 1, or the name of a file")
    from trainer.session.checkpoint_evaluation import Wanted

    return Wanted(
        checkpoint=args.checkpoint,
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
