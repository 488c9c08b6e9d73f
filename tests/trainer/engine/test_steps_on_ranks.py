"""Reward models and DPO on several ranks learn what one learns, and end on all of them when one is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from dpo_helper import dpo_config
from preference_samples import labelled, reward_config
from ranks_helper import Ended, ended, hurt, largest_difference, started
from runs_helper import comparable, newest_checkpoint

from trainer.config import AnyConfig
from trainer.config.loading import config_text
from trainer.distributed.ranks import Ranks
from trainer.engine.trainable import check_shares
from trainer.engine.training import train
from trainer.errors import UsageError
from trainer.events import (
    DPOEvaluation,
    Evaluation,
    Event,
    RewardModelEvaluation,
    RewardModelStep,
    RunEnded,
)
from trainer.reward_model.predictions import HELD_OUT, read_predictions
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal

MEASURED = (RewardModelStep, RewardModelEvaluation, DPOEvaluation, Evaluation)
COMMANDS = {"reward-model": ["reward-model", "train"], "dpo": ["dpo", "--trust-code"]}
# Steps of 8, 8 and 1 comparisons: the last one has fewer than there are ranks.
SETTINGS = ("train.batch_size=8", "train.epochs=3", "data.eval_fraction=0.3", "eval.every=1")


def configured(kind: str, folder: Path, name: str, *settings: str) -> AnyConfig:
    """Return the configuration of a small run on 24 pairs in a file, in a workspace made in `folder` if missing."""
    pairs = folder / "pairs.jsonl"
    if not pairs.exists():
        rows = []
        for one in labelled(24):
            texts = one.comparison.completions
            chosen, rejected = texts if one.judgement.choice == "a" else texts[::-1]
            rows.append({"prompt": one.comparison.prompt, "chosen": chosen, "rejected": rejected})
        pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = (f"run.name={name}", f"data.preferences={pairs}", *SETTINGS, *settings)
    if kind == "dpo":
        return dpo_config(folder, f"reward.sources=['{folder / 'rewards.py'}:likes']", *settings)
    # It learns too fast, so that it stops early.
    return reward_config(folder, "optim.lr=0.05", "train.patience=2", *settings)


def commands(kind: str, folder: Path, name: str, *settings: str, patch: str = "") -> list[list[str]]:
    """Return the command of each of two ranks. patch: applied to the second one's program."""
    config = configured(kind, folder, name, *settings)
    toml = folder / f"{name}.toml"
    toml.write_text(config_text(config))
    words = [*COMMANDS[kind], "--display", "json", "--config", str(toml)]
    first = ["-m", "workbench", *words]
    return [first, [hurt(folder, patch), *words] if patch else first]


def run_two(folder: Path, both: Sequence[Sequence[str]]) -> list[Ended]:
    with started(folder, both) as processes:
        return ended(folder, processes)


def events_of(folder: Path, name: str) -> list[Event]:
    return read_journal(RunFolder(folder / "runs" / name).events).events


def measured(folder: Path, name: str) -> dict[str, Any]:
    """Return what a run has measured and learned, as plain values."""
    newest = newest_checkpoint(RunFolder(folder / "runs" / name))
    assert newest is not None
    weights = [mx.load(str(path)) for path in sorted(newest.rglob("*.safetensors"))]
    return {
        "events": [same(event) for event in events_of(folder, name) if isinstance(event, MEASURED)],
        "weights": [{key: np.array(array).tolist() for key, array in tree.items()} for tree in weights],
    }


def same(event: Event) -> dict[str, Any]:
    """Return what two runs of one seed have in common, whatever the number of ranks."""
    return {key: value for key, value in comparable(event).items() if key != "ranks"}


def train_alone(kind: str, folder: Path, name: str, *settings: str) -> None:
    train(configured(kind, folder, name, *settings))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a reward model on two ranks, runs/several, and the same one on one, runs/one."""
    folder = tmp_path_factory.mktemp("whole")
    results = run_two(folder, commands("reward-model", folder, "several"))
    assert [result.code for result in results] == [0, 0], results
    assert not results[1].out
    assert not results[1].err, "only the first rank reports"
    train_alone("reward-model", folder, "one")
    return folder


def test_a_reward_model_on_two_ranks_learns_what_it_learns_on_one(whole: Path) -> None:
    assert largest_difference(measured(whole, "several"), measured(whole, "one")) < 1e-5
    steps = [event for event in events_of(whole, "several") if isinstance(event, RewardModelStep)]
    assert [step.comparisons for step in steps[:4]] == [8, 8, 1, 8]
    assert all(len(step.ranks) == 2 and step.ranks[1]["sent"] > 0 for step in steps)
    end = next(event for event in events_of(whole, "several") if isinstance(event, RunEnded))
    assert end.reason == "held-out log-loss did not improve in 2 evaluations"
    leads = [
        [
            [pair.chosen_reward, pair.rejected_reward]
            for pair in read_predictions(whole / "runs" / name / HELD_OUT).pairs
        ]
        for name in ("several", "one")
    ]
    assert largest_difference(*leads) < 1e-5


def test_dpo_on_two_ranks_learns_what_it_learns_on_one(tmp_path: Path) -> None:
    results = run_two(tmp_path, commands("dpo", tmp_path, "several"))
    assert [result.code for result in results] == [0, 0], results
    assert not results[1].out
    assert not results[1].err
    train_alone("dpo", tmp_path, "one")
    assert largest_difference(measured(tmp_path, "several"), measured(tmp_path, "one")) < 1e-5
    assert any(isinstance(event, Evaluation) for event in events_of(tmp_path, "several")), "samples are scored too"


def test_a_step_of_fewer_comparisons_than_ranks_is_refused(tmp_path: Path) -> None:
    config = configured("reward-model", tmp_path, "small", "train.batch_size=2")
    ranks = Ranks()
    check_shares(config, ranks)
    ranks.size = 3
    with pytest.raises(UsageError, match=r"2 comparisons \(train.batch_size\) is too small for 3 ranks"):
        check_shares(config, ranks)
