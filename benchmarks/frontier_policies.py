"""Score policies on held-out prompts of a task of frontier.py: adapters of ours and of TRL, with the same draws.

Run: .venv/bin/python benchmarks/frontier_policies.py ADAPTER... --set KEY=VALUE...
Prints one JSON object per adapter: score and kl (nats a sequence), means over all responses.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from quickstart_seeds import STORIES

from trainer.arrays import Purpose, key_for
from trainer.config import load_config, parse_overrides, resolve_paths
from trainer.data import load_prompts
from trainer.engine.initial import init_policy
from trainer.engine.ppo import run_prompts
from trainer.evaluation.held_out import measure
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import load_backbone
from trainer.ppo.loop import PPO
from trainer.rewards import build_rewards


def main() -> None:
    """Measure each adapter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("adapters", nargs="+", help="folders in mlx-lm's or PEFT's format")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="the task, on new prompts")
    parser.add_argument("--draws", type=int, default=4, help="responses to each prompt")
    options = parser.parse_args()
    config = resolve_paths(load_config(STORIES, parse_overrides(options.set)), Path.cwd())
    model = load_backbone(config.model)
    prompts = run_prompts(config, load_prompts(config.data), model, []).train
    actor = ActorCriticLLM(model.backbone, config.model, key=key_for(0, Purpose.ADAPTER))
    rewards = build_rewards(
        config.reward,
        backbone=model,
        max_new_tokens=config.rollout.max_new_tokens,
        micro_batch_tokens=config.optim.micro_batch_tokens,
    )
    ppo = PPO(config, actor, model.tokenizer, prompts, rewards)
    for adapter in options.adapters:
        init_policy(actor, config.model.model_copy(update={"policy_init": adapter}))
        found = measure(ppo, prompts, 0, None, samples=options.draws)
        print(json.dumps({"score": float(np.mean(found.scores.total)), "kl": float(np.mean(found.kl))}), flush=True)


if __name__ == "__main__":
    main()
