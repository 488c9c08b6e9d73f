"""Compare a training step of the reward model with mlx-lm's LoRA trainer: same model, tokens, batch and adapter.

Each side runs in its own process, one after the other, with the same BLAS. Tokens per second are the batch's real
tokens divided by the seconds of a step, on one clock; the first step is warm-up. mlx-lm's loss needs the vocabulary and
ours does not, which is part of the comparison.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import trainer  # noqa: F401  loads the BLAS

SIDES = ("ours", "mlx-lm")
RANK, SCALE, TARGETS = 8, 20.0, ["q_proj", "v_proj"]


def main() -> None:
    """Run both sides, and print tokens per second and their ratio, which should be at least 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="starter", help="'starter', or a folder in mlx-lm's format")
    parser.add_argument("--pairs", type=int, default=4, help="pairs per batch (default: %(default)s)")
    parser.add_argument("--length", type=int, default=128, help="tokens per sequence (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="measured steps of each side (default: %(default)s)")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        seconds = {"ours": our_steps, "mlx-lm": mlx_lm_steps}[args.side](args)
        print(json.dumps(seconds))
        return
    tokens = 2 * args.pairs * args.length
    speeds = {side: tokens / median(run_side(side)) for side in SIDES}
    for side, speed in speeds.items():
        print(f"{side:8} {speed:8.1f} tokens/s   {tokens / speed:6.2f} s per step of {tokens} tokens")
    print(f"ratio    {speeds['ours'] / speeds['mlx-lm']:8.2f}")


def run_side(side: str) -> list[float]:
    """Run `side` in its own process, and return the seconds of each measured step."""
    command = [sys.executable, __file__, *sys.argv[1:], "--side", side]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr}")
    return [float(seconds) for seconds in json.loads(done.stdout.splitlines()[-1])]


def sequences(args: argparse.Namespace) -> list[list[int]]:
    """Return the batch, 2 x `pairs` sequences of random token ids: the text does not affect the time."""
    rng = np.random.default_rng(0)
    return [rng.integers(10, 10_000, args.length).tolist() for _ in range(2 * args.pairs)]


def our_steps(args: argparse.Namespace) -> list[float]:
    """Return the seconds of each measured step of `RewardLearner`."""
    from trainer.arrays import Purpose, key_for
    from trainer.config.problems import validate_as
    from trainer.config.reward_model import RewardModelConfig
    from trainer.models.backbone import load_backbone
    from trainer.pairs.groups import Group, Pair
    from trainer.reward_model.network import RewardModel
    from trainer.reward_model.reward_learner import RewardLearner

    model = {"path": args.model, "lora_rank": RANK, "lora_scale": SCALE, "lora_targets": TARGETS}
    budget = {"micro_batch_tokens": 2 * args.pairs * args.length}
    config = validate_as(RewardModelConfig, {"model": model, "optim": budget})
    backbone = load_backbone(config.model).backbone
    learner = RewardLearner(
        RewardModel(backbone, config, key=key_for(0, Purpose.ADAPTER)), config, total_steps=args.steps + 1
    )
    words = sequences(args)
    groups = [
        Group(number, words[2 * number : 2 * number + 2], [args.length] * 2, [([Pair(0, 1, False, 1, "")], None)])
        for number in range(args.pairs)
    ]
    ends = [time.perf_counter()]
    for number in range(1, args.steps + 2):
        learner.train(groups, number, lambda done, total: None)
        ends.append(time.perf_counter())
    return [end - start for start, end in pairwise(ends[1:])]


def mlx_lm_steps(args: argparse.Namespace) -> list[float]:
    """Return the seconds of each measured step of mlx-lm's own trainer, unchanged."""
    import mlx.optimizers as optim
    from mlx_lm.tuner.trainer import TrainingArgs, TrainingCallback, train
    from mlx_lm.tuner.utils import linear_to_lora_layers
    from mlx_lm.utils import load_model

    from trainer.models.starter import starter_model

    model, _ = load_model(starter_model() if args.model == "starter" else Path(args.model))
    model.freeze()
    keys = [f"self_attn.{name}" for name in TARGETS]
    linear_to_lora_layers(model, len(model.layers), {"rank": RANK, "scale": SCALE, "dropout": 0.0, "keys": keys})
    ends = [time.perf_counter()]

    class Clock(TrainingCallback):  # type: ignore[misc]
        def on_train_loss_report(self, train_info: dict[str, Any]) -> None:
            ends.append(time.perf_counter())

    batch = [(words, 0) for words in sequences(args)]
    settings = TrainingArgs(
        batch_size=len(batch),
        iters=args.steps + 1,
        steps_per_report=1,
        steps_per_save=10**9,
        max_seq_length=args.length,
        adapter_file="/dev/null",
    )
    try:
        train(model, optim.AdamW(1e-4), batch, args=settings, training_callback=Clock())
    except RuntimeError:  # saving to /dev/null fails, but only after training
        if len(ends) < args.steps + 2:
            raise
    return [end - start for start, end in pairwise(ends[1:])]


if __name__ == "__main__":
    main()
