"""Scores of the policy on held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer import steps
from trainer.arrays import filled
from trainer.data import Prompt
from trainer.events import Evaluation
from trainer.metrics import mean_parts
from trainer.ppo import PPO
from trainer.seeding import Purpose, key_for


def evaluate(ppo: PPO, prompts: Sequence[Prompt], iteration: int) -> Evaluation:
    """Sample one response to each of `prompts` with the same draws every time, and score them.

    The statistics of the rewards are not moved by it, and nothing is learned.
    """
    c = ppo.config
    started = ppo.control.clock()
    with ppo.phase(iteration, "evaluate", passes=3) as progress:

        def sampled(done: int, total: int) -> None:
            progress(min(done, total - 1), total)  # responses may all end early, so the last token is not known

        batch = steps.generate_sequences(
            ppo.actor.backbone,
            ppo.tokenizer,
            prompts,
            c.rollout,
            key=key_for(c.run.seed, Purpose.EVALUATION),
            progress=sampled,
        )
        progress(1, 1)
        how: Any = {"temperature": c.rollout.temperature, "micro_batch_tokens": c.optim.micro_batch_tokens}
        batch = steps.add_policy_logprobs_and_values(ppo.actor, batch, progress=progress, **how)
        batch = steps.add_kl_to_sa_pairs(ppo.actor, batch, estimator="k1", progress=progress, **how)
    batch, result = steps.compute_rewards(ppo.rewards, batch, prompts, update_statistics=False)
    scores = np.array(result.scores) + np.array(filled(batch.token_scores).sum(axis=1))
    return Evaluation(
        iteration=iteration,
        prompts=len(prompts),
        score_mean=float(scores.mean()),
        score_std=float(scores.std()),
        kl=float(filled(batch.kl).sum(axis=1).mean()),
        response_length=float(batch.response_lengths.mean()),
        truncated=float(batch.truncated.mean()),
        parts=mean_parts(result.parts),
        seconds=ppo.control.clock() - started,
    )
