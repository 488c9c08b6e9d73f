"""Compare computing with denormal numbers and with zeros in their place: scoring and the gradient of a batch, on a CPU.

On the starter model with random tokens. Each way runs in a process of its own, because threads take it over from the
one that starts them; they take turns.

Run: .venv/bin/python benchmarks/bench_denormals.py [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

import mlx.core as mx  # isort: skip
from bench_lanes import batch_of, timed

from trainer.config import Config
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import load_backbone
from trainer.models.trunk import vocabulary_size
from trainer.ppo import steps
from trainer.ppo.learner import Learner

WAYS = ("denormals", "zeros")


def measure(way: str) -> dict[str, tuple[float, float]]:
    """Return the seconds of the clock and of the CPU that each kind of work takes, after a first time."""
    if way == "denormals":
        mx.eval(mx.ones((256, 256)) @ mx.ones((256, 256)))  # starts MLX's threads as they are without us
    config = Config()
    model = load_backbone(config.model)
    actor = ActorCriticLLM(model.backbone, config.model, key=mx.random.key(0))
    learner = Learner(actor, config.optim, total_steps=1)
    batch = batch_of(8, 18, 48, vocabulary_size(model.backbone))
    how: dict[str, Any] = {"temperature": 1.0, "micro_batch_tokens": config.optim.micro_batch_tokens}
    scored = steps.add_policy_logprobs_and_values(actor, batch, **how)
    ready = scored._replace(advantages=batch.mask, returns=batch.mask)
    kinds: dict[str, Callable[[], Any]] = {
        "score": lambda: steps.add_policy_logprobs_and_values(actor, batch, **how).logprobs,
        "gradient": lambda: learner.gradients(ready, config.ppo, "joint", temperature=1.0).of,
    }
    return {name: [timed(work) for _ in range(2)][-1] for name, work in kinds.items()}


def main() -> None:
    """Print a table: medians of the rounds, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child)))
        return
    found: dict[str, list[dict[str, tuple[float, float]]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            command = [sys.executable, __file__, "--child", way]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[way].append(json.loads(done.stdout))
    print("| | with denormals, s (CPU) | with zeros, s (CPU) | ratio |\n|---|---|---|---|")
    for kind in ("score", "gradient"):
        rows = [
            [statistics.median(side) for side in zip(*(one[kind] for one in found[way]), strict=True)] for way in WAYS
        ]
        cells = [f"{clock:.2f} ({cpu:.2f})" for clock, cpu in rows]
        print(f"| {kind} | {cells[0]} | {cells[1]} | {rows[0][0] / rows[1][0]:.2f} |")


if __name__ == "__main__":
    main()
