"""`ppo-workbench reward-model`: train, eval, score."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer.config.reward_model import RewardModelConfig
from trainer.control.control import Control
from trainer.errors import DataError, UsageError
from trainer.events import Event, RunEnded, RunStarted
from trainer.runs.checkpoint_index import newest_checkpoint
from trainer.runs.folder import RunFolder, open_run
from trainer.runs.sinks import Sink
from workbench.cli.preference_runs import configuration, resumed
from workbench.cli.reward_model_table import table
from workbench.cli.runs_dir import runs_dir
from workbench.cli.train import headless
from workbench.headless import choose
from workbench.run.session import Session
from workbench.system import output

if TYPE_CHECKING:
    from trainer.reward_model.loaded import LoadedRewardModel

_SCORED_AT_ONCE = 64  # rows


def train(args: argparse.Namespace) -> int:
    """Train as the command line says and return the exit code. Raises TrainerError for what a user can fix."""
    if args.resume is not None:
        config, folder = resumed(args, RewardModelConfig)
        resume: Path | None = folder.root
        preset = ""
    else:
        config, resume = configuration(args, RewardModelConfig), None
        preset = Path(args.config_given).stem if args.config_given else "reward-model"
    run = _Run()
    untyped: Any = config  # a session passes it on unchanged
    exit_code = headless(Session(untyped, resume=resume, preset=preset, train=run.train), choose(args.display))
    if exit_code == 0 and args.display != "json" and (evaluation := _evaluation(run.folder)):
        output.data("\n".join(["", *table(evaluation)]))
    return exit_code


def evaluate(args: argparse.Namespace) -> int:
    """Print the evaluation of a trained reward model; warnings about the data go to stderr."""
    from trainer.reward_model.saved import evaluate_held_out, evaluate_on

    found = _found(args)
    loaded = _loaded(found.model)
    if args.data:
        result = evaluate_on(loaded, args.data)
    elif found.run is None:
        raise UsageError(f"'{args.run}' is no run, so what it held out is not known: name a source by --data")
    else:
        result = evaluate_held_out(loaded, found.run)
    for warning in result.warnings:
        output.warning(warning)
    values = result.report.as_dict()
    output.data(json.dumps(values) if args.json else "\n".join(table(values)))
    return 0


def score(args: argparse.Namespace) -> int:
    """Print the score of each completion, one JSON object a line."""
    if bool(args.data) == bool(args.completion):
        raise UsageError("name completions either by --prompt and --completion, or by --data FILE")
    rows = _rows(Path(args.data)) if args.data else _given(args)
    first = next(rows, None)
    if first is None:
        raise DataError(f"'{args.data}' has no rows")
    loaded = _loaded(_found(args).model)
    waiting = [first]
    for row in rows:
        if len(waiting) == _SCORED_AT_ONCE:
            _print_scores(loaded, waiting)
            waiting = []
        waiting.append(row)
    _print_scores(loaded, waiting)
    return 0


ACTIONS = {"train": train, "eval": evaluate, "score": score}


class _Run:
    """The trainer's entry point for a session, and a sink that keeps the run's folder."""

    def __init__(self) -> None:
        self.folder = Path()

    def train(
        self, config: Any, *, resume: Path | None, preset: str, sinks: Sequence[Sink], control: Control
    ) -> RunEnded:
        """Run to the end. Raises TrainerError for what a user can fix."""
        # Imported here, because this imports mlx, which only the training thread may use.
        from trainer.reward_model.training import train_reward_model
        from trainer.session.training import release_thread

        try:
            return train_reward_model(config, resume=resume, preset=preset, sinks=[self, *sinks], control=control)
        finally:
            release_thread()

    def emit(self, event: Event) -> None:
        """Keep the folder when the run starts."""
        if isinstance(event, RunStarted):
            self.folder = Path(event.folder)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def _evaluation(folder: Path) -> dict[str, Any]:
    """Return the last evaluation of the run in `folder`; empty if nothing was held out."""
    checkpoint = newest_checkpoint(RunFolder(folder))
    card = json.loads((checkpoint / "reward_model.json").read_bytes()) if checkpoint else {}
    return card.get("evaluation") or {}


class _Found(NamedTuple):
    model: Path  # folder of a run or of a checkpoint
    run: RunFolder | None


def _found(args: argparse.Namespace) -> _Found:
    if (Path(args.run) / "reward_model.json").is_file():
        return _Found(Path(args.run), None)
    folder = open_run(args.run, runs_dir(args))
    return _Found(folder.root, folder)


def _loaded(folder: Path) -> LoadedRewardModel:
    from trainer.reward_model.loaded import load_reward_model

    loaded = load_reward_model(folder)
    if not loaded.is_finished:
        output.warning(f"the training of '{folder}' has not come to its end: its scores are of no set mean and scale")
    return loaded


def _given(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    return ({"prompt": args.prompt or "", "completion": text} for text in args.completion)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    from trainer.data.files import read_rows

    for place, columns in read_rows(path):
        if missing := [name for name in ("prompt", "completion") if name not in columns]:
            raise DataError(f"{place}: has no column {' and no '.join(missing)}: name a file that has both")
        if not all(isinstance(columns[name], str | list) for name in ("prompt", "completion")):
            raise DataError(f"{place}: prompt and completion must be texts or lists of messages")
        yield columns


def _print_scores(loaded: LoadedRewardModel, rows: list[dict[str, Any]]) -> None:
    scores = loaded.score([loaded.encode(row["prompt"], row["completion"]) for row in rows])
    for row, value in zip(rows, scores, strict=True):
        output.data(json.dumps({**row, "score": value}, default=str))
