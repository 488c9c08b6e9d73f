"""Reward models and DPO on several ranks learn what one learns, and end on all of them when one is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from dpo_helper import dpo_config
from preference_samples import labelled, reward_config
from ranks_helper import ended, largest_difference, started
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


def measured(folder: Path, name: str) -> tuple[list[Event], list[Any]]:
    """Return the events of a run, and what it has measured and learned, as plain values."""
    run = RunFolder(folder / "runs" / name)
    events, newest = read_journal(run.events).events, newest_checkpoint(run)
    assert newest is not None
    found: list[Any] = [
        {key: value for key, value in comparable(event).items() if key != "ranks"}
        for event in events
        if isinstance(event, MEASURED)
    ]
    for path in sorted(newest.rglob("*.safetensors")):
        arrays = mx.load(str(path))
        assert isinstance(arrays, dict)
        found.append({key: np.array(array).tolist() for key, array in arrays.items()})
    if (run.root / HELD_OUT).exists():
        pairs = read_predictions(run.root / HELD_OUT).pairs
        found.append([[pair.chosen_reward, pair.rejected_reward] for pair in pairs])
    return events, found


@pytest.mark.parametrize("kind", COMMANDS)
def test_two_ranks_learn_from_preferences_what_one_learns(kind: str, tmp_path: Path) -> None:
    toml = tmp_path / "several.toml"
    toml.write_text(config_text(configured(kind, tmp_path, "several")))
    command = ["-m", "workbench", *COMMANDS[kind], "--display", "json", "--config", str(toml)]
    with started(tmp_path, [command] * 2) as processes:
        results = ended(tmp_path, processes)
    assert [result.code for result in results] == [0, 0], results
    assert (results[1].out, results[1].err) == ("", ""), "only the first rank reports"
    train(configured(kind, tmp_path, "one"))
    (events, found), (_, alone) = (measured(tmp_path, name) for name in ("several", "one"))
    assert largest_difference(found, alone) < 1e-5
    if kind == "dpo":
        assert any(isinstance(event, Evaluation) for event in events), "samples are scored too"
        return
    steps = [event for event in events if isinstance(event, RewardModelStep)]
    assert [step.comparisons for step in steps[:4]] == [8, 8, 1, 8]
    assert all(len(step.ranks) == 2 and step.ranks[1]["sent"] > 0 for step in steps)
    end = next(event for event in events if isinstance(event, RunEnded))
    assert end.reason == "held-out log-loss did not improve in 2 evaluations"


def test_a_step_of_fewer_comparisons_than_ranks_is_refused(tmp_path: Path) -> None:
    config = configured("reward-model", tmp_path, "small", "train.batch_size=2")
    ranks = Ranks()
    check_shares(config, ranks)
    ranks.size = 3
    with pytest.raises(UsageError, match=r"2 comparisons \(train.batch_size\) is too small for 3 ranks"):
        check_shares(config, ranks)
