"""`ppo-workbench reward-model`: train, eval, score."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config.pairs import RewardModelConfig
from trainer.errors import DataError, UsageError, counted
from trainer.runs.checkpoint_files import newest_checkpoint
from trainer.runs.folder import RunFolder, open_run
from workbench.cli.config import runs_dir
from workbench.cli.parser import PREFERENCES, add, add_preference_training
from workbench.cli.train import train as train_run
from workbench.system import output
from workbench.text import aligned, number, percent, visible

if TYPE_CHECKING:
    from trainer.reward_model.loaded import LoadedRewardModel

_SCORED_AT_ONCE = 64  # rows
_MODEL = "the run's folder or name, or a checkpoint's folder"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    actions = parser.add_subparsers(required=True, title="commands", metavar="")
    action = actions.add_parser("train", help="train a reward model")
    action.set_defaults(execute=train)
    add_preference_training(action, "reward-model")
    action = actions.add_parser("eval", help="evaluate a reward model on held-out preferences")
    action.set_defaults(execute=evaluate)
    add(action, "run", help=_MODEL)
    action.add_argument("--data", metavar="SOURCE", help=f"{PREFERENCES} (default: the held-out part of the run's)")
    add(action, "--json", "--dir")
    action = actions.add_parser("score", help="score completions, one JSON object per line")
    action.set_defaults(execute=score)
    add(action, "run", help=_MODEL)
    action.add_argument("--prompt", metavar="TEXT", help="the prompt of --completion")
    action.add_argument("--completion", metavar="TEXT", action="append", default=[], help="can be repeated")
    action.add_argument("--data", metavar="FILE", help="a file whose rows have a prompt and a completion")
    add(action, "--dir")


def train(args: argparse.Namespace) -> int:
    """Train as the command line says and return the exit code. Raises TrainerError for what a user can fix."""
    exit_code, folder = train_run(args, RewardModelConfig)
    if exit_code == 0 and folder and args.display != "json":
        from trainer.reward_model.snapshot import read_card

        checkpoint, _ = newest_checkpoint(RunFolder(folder))
        if evaluation := checkpoint and read_card(checkpoint).get("evaluation"):  # none if nothing was held out
            output.data("\n".join(["", *evaluation_lines(evaluation)]))
    return exit_code


def evaluate(args: argparse.Namespace) -> int:
    """Print the evaluation of a trained reward model; warnings about the data go to stderr."""
    from trainer.reward_model.loaded import evaluate as evaluated

    folder, run = _found(args)
    loaded, source = _loaded(folder), args.data or run
    if source is None:
        raise UsageError(f"'{args.run}' is not a run, so its held-out pairs are unknown: name a source with --data")
    report, warnings = evaluated(loaded, source)
    for warning in warnings:
        output.warning(warning)
    values = report.as_dict()
    output.data(json.dumps(values) if args.json else "\n".join(evaluation_lines(values)))
    return 0


def score(args: argparse.Namespace) -> int:
    """Print the score of each completion, one JSON object per line."""
    if bool(args.data) == bool(args.completion):
        raise UsageError("give completions either with --prompt and --completion, or with --data FILE")
    given = ({"prompt": args.prompt or "", "completion": text} for text in args.completion)
    rows = _rows(Path(args.data)) if args.data else given
    first = next(rows, None)
    if first is None:
        raise DataError(f"'{args.data}' has no rows")
    loaded = _loaded(_found(args)[0])
    rows = chain([first], rows)
    while batch := list(islice(rows, _SCORED_AT_ONCE)):
        scores = loaded.score([loaded.encode(row["prompt"], row["completion"], row) for row in batch])
        for row, value in zip(batch, scores, strict=True):
            output.data(json.dumps({**row, "score": value}, default=str))
    return 0


def _found(args: argparse.Namespace) -> tuple[Path, RunFolder | None]:
    """Return the folder of the model, which is a run's or a checkpoint's, and the run if it is one."""
    if (Path(args.run) / "reward_model.json").is_file():
        return Path(args.run), None
    folder = open_run(args.run, runs_dir(args))
    return folder.root, folder


def _loaded(folder: Path) -> LoadedRewardModel:
    from trainer.reward_model.loaded import load_reward_model

    loaded = load_reward_model(folder)
    if not loaded.is_finished:
        output.warning(f"the training of '{folder}' is not finished: its scores have no fixed mean and scale")
    return loaded


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    from trainer.data.readers import read_rows

    for place, columns in read_rows(path):
        if missing := [name for name in ("prompt", "completion") if name not in columns]:
            raise DataError(f"{place}: lacks the column {' and '.join(missing)}: name a file that has both")
        if not all(isinstance(columns[name], str | list) for name in ("prompt", "completion")):
            raise DataError(f"{place}: prompt and completion must be texts or lists of messages")
        yield columns


def evaluation_lines(evaluation: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the tables. evaluation: a RewardModelReport as plain values."""
    accuracy = evaluation["accuracy"]
    lines = [
        (counted(accuracy["pairs"], "held-out pair"), "accuracy", "95% interval", "log-loss"),
        ("reward model", percent(accuracy["value"], 1), _interval(accuracy), number(evaluation["log_loss"])),
    ]
    for name, known in (("length alone", evaluation["length"]), ("untrained", evaluation["untrained"])):
        if known:
            lines.append((name, percent(known["accuracy"], 1), "", number(known["log_loss"])))
    yield from aligned(lines)
    if ahead := evaluation.get("over_length"):
        points, low, high = (f"{number(100 * ahead[key], 1)}" for key in ("value", "low", "high"))
        yield f"difference from length alone on the same pairs: {points} points, 95% interval {low} to {high}"
    for name, title in (("by_length", "better completion"), ("by_source", "source")):
        if rows := evaluation[name]:
            lines = [(title, "pairs", "accuracy", "95% interval")]
            for row in rows:
                lines.append((visible(row["name"]), str(row["pairs"]), percent(row["value"], 1), _interval(row)))
            yield from ("", *aligned(lines))
    if bins := evaluation["calibration"]:
        lines = [("predicted probability", "pairs", "mean", "accuracy")]
        for one in bins:
            share = f"{one['low']:.2f} to {one['high']:.2f}"
            lines.append((share, str(one["pairs"]), number(one["confidence"]), number(one["accuracy"])))
        yield from ("", *aligned(lines))
        yield f"calibration error (ECE) {number(evaluation['calibration_error'])}"
    if ties := evaluation["ties"]:
        yield ""
        yield (
            f"{counted(ties['ties'], 'tie')}: probability of a tie {number(ties['on_ties'])} on them, "
            f"{number(ties['on_decided'])} on the decided pairs"
        )


def _interval(accuracy: dict[str, Any]) -> str:
    return f"{percent(accuracy['low'], 1)} to {percent(accuracy['high'], 1)}"
