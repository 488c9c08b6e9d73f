"""Measure which share of the machine's matrix-product limit a PPO iteration reaches, by phase.

`operations.counted` counts the operations of all matrix products from the model's shape. The limit is the best product
of 512 x 576 by 576 x 1536 in the same process, between the iterations. A decoding step reads all weights for a few
rows, so its limit is the memory's bandwidth: the script prints the bytes a second as well.

Run: .venv/bin/python benchmarks/bench_limit.py [--iterations 3] [--epochs 4] [--new-tokens 48]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
from operations import counted

from trainer.arrays import to_list
from trainer.config.loading import parse_overrides
from trainer.config.problems import validate
from trainer.data import encode_prompts, load_prompts
from trainer.memory.shape import shape_of
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import load_backbone
from trainer.ppo.loop import PPO
from trainer.rewards import build_rewards

GIGA = 1e9


def limit(clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the operations a second of the best of 20 products."""
    x, weights = mx.random.normal((512, 576)), mx.random.normal((1536, 576))
    mx.eval(x @ weights.T)
    best = float("inf")
    for _ in range(20):
        start = clock()
        mx.eval(x @ weights.T)
        best = min(best, clock() - start)
    return 2 * 512 * 576 * 1536 / best


def main() -> None:
    """Run the iterations and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=48)
    options = parser.parse_args()
    settings = [
        "model.lora_targets=['q_proj', 'v_proj']",
        "rollout.ignore_stop=true",
        f"rollout.max_new_tokens={options.new_tokens}",
        f"ppo.epochs={options.epochs}",
        f"ppo.iterations={options.iterations + 1}",
    ]
    config = validate(parse_overrides(settings))
    shape, _ = shape_of(config.model.path)
    assert shape is not None
    model = load_backbone(config.model)
    prompts = encode_prompts(load_prompts(config.data), model.tokenizer, config.data).prompts
    actor = ActorCriticLLM(model.backbone, config.model, key=mx.random.key(0))
    ppo = PPO(config, actor, model.tokenizer, prompts, build_rewards(config.reward))
    rates, seconds, work = [], [], []
    for number in range(1, options.iterations + 2):
        rates.append(limit())
        result = ppo.iteration(number)
        seconds.append(result.metrics.seconds)
        prompts, responses = (to_list(x) for x in (result.batch.prompt_lengths, result.batch.response_lengths))
        work.append(counted(shape, config, prompts, responses))
    best = max(rates)
    print(f"limit {best / GIGA:.0f} GFLOP/s\n")
    print("| phase | seconds | GFLOP | GFLOP/s | share of the limit |\n|---|---|---|---|---|")
    total_seconds = total = 0.0
    for phase in ("generate", "score", "update"):
        took = median(each[phase] for each in seconds[1:])
        parts = ("prefill", "decode") if phase == "generate" else (phase,)
        done = median(sum(getattr(each, part) for part in parts) for each in work[1:])
        total_seconds, total = total_seconds + took, total + done
        print(f"| {phase} | {took:.1f} | {done / GIGA:.0f} | {done / took / GIGA:.0f} | {done / took / best:.0%} |")
    rate = total / total_seconds
    print(f"| all | {total_seconds:.1f} | {total / GIGA:.0f} | {rate / GIGA:.0f} | {rate / best:.0%} |")
    read = options.new_tokens * 4 * shape.parameters / median(each["generate"] for each in seconds[1:])
    print(f"\ngenerate reads {read / GIGA:.1f} GB/s of weights")


if __name__ == "__main__":
    main()
