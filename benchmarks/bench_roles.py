"""Measure the memory of PPO's four models on one backbone: policy, then reference, value and reward added in turn.

Each row is a process that does an iteration's work for its roles: a rollout, one pass for each role, and an optimiser
step of policy and value adapter. In the last row the reward model has its own backbone beside the policy's, as if it
had been trained on another model.

Run: .venv/bin/python benchmarks/bench_roles.py [--model starter|PATH] [--batch-size 8] [--new-tokens 48]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx

from trainer.config.reward_model import RewardModelConfig
from trainer.config.schema import (
    BackboneConfig,
    DataConfig,
    ModelConfig,
    OptimConfig,
    PPOConfig,
    RewardConfig,
    RolloutConfig,
)
from trainer.data import encode_prompts, load_prompts
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import load_backbone
from trainer.ppo import steps
from trainer.ppo.learner import Learner
from trainer.reward_model.network import RewardModel, Scale
from trainer.reward_model.snapshot import Snapshot, save_snapshot
from trainer.rewards import build_rewards

ROWS = {
    "policy": (1, False),
    "+ reference": (2, False),
    "+ value": (3, False),
    "+ reward": (4, False),
    "+ reward, own backbone": (4, True),
}
MEBI = 2**20


def main() -> None:
    """Measure each row in its own process and print the table; with --row, measure that row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="starter", help="'starter', or a folder with weights and tokenizer")
    parser.add_argument("--batch-size", type=int, default=8, help="sequences per batch")
    parser.add_argument("--new-tokens", type=int, default=48, help="tokens of each response")
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--reward-model", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(options)))
        return
    print(f"{'roles':24}{'weights':>10}{'MLX peak':>10}{'resident':>10}   MiB")
    with tempfile.TemporaryDirectory(prefix="bench-roles-") as folder:
        reward_model = Path(folder) / "reward-model"  # written by the first row
        make = [sys.executable, __file__, *sys.argv[1:], "--reward-model", str(reward_model)]
        for row in ROWS:
            child = subprocess.run([*make, "--row", row], stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(child.stdout)
            print(f"{row:24}" + "".join(f"{found[name] / MEBI:10.0f}" for name in ("weights", "peak", "resident")))


def measure(options: argparse.Namespace) -> dict[str, int]:
    """Return bytes: the weights once everything is loaded, MLX's peak during the work, the process's resident peak."""
    roles, owns_backbone = ROWS[options.row]
    model = load_backbone(ModelConfig(path=options.model))
    if not options.reward_model.exists():
        write_reward_model(options.reward_model, options.model, model.backbone)
    # The critic has its own adapter, so that it is a separate model; it makes no pass unless its role is on.
    actor = ActorCriticLLM(model.backbone, ModelConfig(path=options.model, value_model="adapter"), key=mx.random.key(0))
    learner = Learner(actor, OptimConfig(), total_steps=1)
    rewards = None
    if roles == 4:
        sources: Any = [{"kind": "model", "path": str(options.reward_model)}]
        rewards = build_rewards(RewardConfig(sources=sources), backbone=None if owns_backbone else model)
    mx.clear_cache()
    weights = mx.get_active_memory()
    mx.reset_peak_memory()

    data = DataConfig(limit=options.batch_size)
    prompts = encode_prompts(load_prompts(data), model.tokenizer, data).prompts
    sampling = RolloutConfig(batch_size=len(prompts), max_new_tokens=options.new_tokens, ignore_stop=True)
    kwargs: Any = {"micro_batch_tokens": OptimConfig().micro_batch_tokens}
    batch = steps.generate_sequences(model.backbone, model.tokenizer, prompts, sampling, key=mx.random.key(0))
    batch = steps.add_policy_logprobs_and_values(actor, batch, temperature=1.0, **kwargs)
    if roles >= 2:
        batch = steps.add_kl_to_sa_pairs(actor, batch, temperature=1.0, estimator="k1", **kwargs)
    if roles >= 3:
        batch = steps.add_values_to_sa_pairs(actor, batch, **kwargs)
    if rewards is not None:
        batch, _ = steps.compute_rewards(rewards, batch, prompts)
    mx.clear_cache()
    noise = mx.random.normal(batch.mask.shape, key=mx.random.key(1)) * batch.mask
    batch = batch._replace(advantages=noise, returns=noise)
    if roles >= 3:
        learner.train(batch, PPOConfig(), "value", temperature=1.0)
    learner.train(batch, PPOConfig(), "policy", temperature=1.0)
    mx.eval(actor.policy_parameters(), actor.value_parameters())
    unit = 1 if sys.platform == "darwin" else 1024
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"weights": weights, "peak": mx.get_peak_memory(), "resident": resident}


def write_reward_model(folder: Path, model: str, backbone: Any) -> None:
    """Write an untrained reward model on `backbone` to `folder`; it takes as much memory as a trained one."""
    config = RewardModelConfig(model=BackboneConfig(path=model))
    made = RewardModel(backbone, config, key=mx.random.key(0))
    snapshot = Snapshot(
        iteration=0,
        parameters=made.parameters(),
        optimizer={"step": mx.array(0)},
        adapter_config=made.adapter_config,
        scale=Scale(0.0, 1.0, 1.0),
        fingerprint="",
        length_slope=0.0,
        finished=True,
    )
    save_snapshot(folder, snapshot, config)


if __name__ == "__main__":
    main()
