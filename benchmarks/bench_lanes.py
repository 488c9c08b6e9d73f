"""Compare two lanes of one thread with one lane of two: scoring and the gradient of a batch, on a CPU.

In one process and in turns, on the starter model. CPU seconds tell more than the clock where other programs run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

import mlx.core as mx  # isort: skip
import numpy as np

from trainer.config import Config
from trainer.data import Prompt
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import load_backbone
from trainer.models.trunk import vocabulary_size
from trainer.ppo import steps
from trainer.ppo.learner import Learner
from trainer.rollout.experience import Experience
from trainer.rollout.generation import Response, lay_out


def batch_of(sequences: int, prompt: int, response: int, vocabulary: int) -> Experience:
    """Return a rollout of random tokens, all of one length."""
    draws = np.random.default_rng(0)
    prompts = [Prompt(row, "", "", draws.integers(vocabulary, size=prompt).tolist(), {}) for row in range(sequences)]
    responses = [
        Response(draws.integers(vocabulary, size=response).tolist(), [0.0] * response, "", True) for _ in prompts
    ]
    return lay_out(prompts, responses)


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of the clock and of the CPU that `work` takes."""
    clock, cpu = time.perf_counter(), time.process_time()
    mx.eval(work())
    return time.perf_counter() - clock, time.process_time() - cpu


def main() -> None:
    """Print a table: medians of the rounds, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=18)
    parser.add_argument("--response", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    config = Config()
    model = load_backbone(config.model)
    actor = ActorCriticLLM(model.backbone, config.model, key=mx.random.key(0))
    learners = {
        count: Learner(actor, config.optim.model_copy(update={"lanes": count}), total_steps=1) for count in (1, 2)
    }
    batch = batch_of(options.sequences, options.prompt, options.response, vocabulary_size(model.backbone))
    how: dict[str, Any] = {"temperature": 1.0, "micro_batch_tokens": config.optim.micro_batch_tokens}
    scored = steps.add_policy_logprobs_and_values(actor, batch, **how)
    ready = scored._replace(advantages=batch.mask, returns=batch.mask)
    kinds: dict[str, Callable[[int], Any]] = {
        "score": lambda count: steps.add_policy_logprobs_and_values(actor, batch, lanes=count, **how).logprobs,
        "gradient": lambda count: learners[count].gradients(ready, config.ppo, "joint", temperature=1.0).of,
    }
    print("| | one lane, s (CPU) | two lanes, s (CPU) | ratio |")
    print("|---|---|---|---|")
    for name, work in kinds.items():
        found: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        for round_ in range(options.rounds + 1):
            for count in (1, 2):
                seconds = timed(partial(work, count))
                if round_:  # the first warms up
                    found[count].append(seconds)
        one, two = (tuple(map(statistics.median, zip(*found[count], strict=True))) for count in (1, 2))
        print(f"| {name} | {one[0]:.2f} ({one[1]:.2f}) | {two[0]:.2f} ({two[1]:.2f}) | {one[0] / two[0]:.2f} |")


if __name__ == "__main__":
    main()
