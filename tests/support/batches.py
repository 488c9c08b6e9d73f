"""Rollouts without sampling, and a tiny actor-critic with non-zero adapters, for the tests of the update."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from tiny import make_checkpoint

from trainer.config.schema import ModelConfig
from trainer.data import Prompt
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import load_backbone
from trainer.ppo import steps
from trainer.ppo.potentials import PotentialValues, add_fitted_potentials
from trainer.rollout.experience import Experience
from trainer.rollout.generation import Response, lay_out

NAN = float("nan")
LENGTHS = [(3, 6), (5, 1), (2, 8), (4, 3), (3, 5), (6, 2)]  # of prompt and response


def make_actor(
    folder: Path, *, value_model: Literal["fitted", "head", "adapter"] = "head", fresh: bool = False
) -> ActorCriticLLM:
    """Return an actor on a tiny llama, by default with a critic that has something to train.

    Unless `fresh`, adapters and head are random, as in mid-training.
    """
    path = folder if (folder / "config.json").exists() else make_checkpoint(folder, scale=0.5)
    config = ModelConfig(path=str(path), lora_rank=2, value_model=value_model)
    actor = ActorCriticLLM(load_backbone(config).backbone, config, key=mx.random.key(1))
    if not fresh:
        actor.update_policy(moved(actor.policy_parameters(), seed=2))
        if not actor.fitted:
            actor.update_value(moved(actor.value_parameters(), seed=3))
    return actor


def moved(parameters: dict[str, mx.array], *, seed: int, scale: float = 0.1) -> dict[str, mx.array]:
    """Return `parameters` with noise, as in mid-training."""
    keys = mx.random.split(mx.random.key(seed), len(parameters))
    return {
        name: array + scale * mx.random.normal(array.shape, key=key)
        for key, (name, array) in zip(keys, parameters.items(), strict=True)
    }


def arrays(actor: ActorCriticLLM, *parts: str) -> dict[str, Any]:
    """Return the current numbers of `parts` of "policy", "value" and "backbone" (by default of the first two)."""
    frozen = [(name, array) for name, array in tree_flatten(actor.backbone.parameters()) if "lora_" not in name]
    every = {"policy": actor.policy_parameters(), "value": actor.value_parameters(), "backbone": dict(frozen)}
    return {f"{part}.{name}": np.array(x) for part in parts or ("policy", "value") for name, x in every[part].items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether both hold the same numbers, bit for bit."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def random_batch(
    lengths: Sequence[tuple[int, int]] = LENGTHS, *, ids: Sequence[list[int]] | None = None, seed: int = 0
) -> Experience:
    """Return a rollout of random tokens, every other response truncated. ids: the responses, if not random."""
    draws = np.random.default_rng(seed)
    prompts, responses = [], []
    for row, (start, count) in enumerate(lengths):
        prompts.append(Prompt(row, "", "", draws.integers(1, 256, start).tolist(), {}))
        tokens = ids[row] if ids else draws.integers(0, 256, count).tolist()
        logprobs = draws.normal(-3, 1, count).tolist()
        responses.append(Response(tokens, logprobs, f"text {row}", truncated=row % 2 == 1))
    return lay_out(prompts, responses)


def scored(actor: ActorCriticLLM, batch: Experience, *, kl_coef: float = 0.1, **settings: Any) -> Experience:
    """Return `batch` up to the advantages, by default with random scores. settings: temperature, gamma, lam, scores."""
    temperature, gamma, lam = (settings.get(name, 1.0) for name in ("temperature", "gamma", "lam"))
    how: dict[str, Any] = {"micro_batch_tokens": 64}
    batch = steps.add_policy_logprobs_and_values(actor, batch, temperature=temperature, **how)
    batch = steps.add_kl_to_sa_pairs(actor, batch, temperature=temperature, estimator="k1", **how)
    if actor.fitted:
        batch = add_fitted_potentials(actor.fitted, batch)
        batch = PotentialValues(batch.mask.shape[1]).add(batch, 0)
    else:
        batch = steps.add_values_to_sa_pairs(actor, batch, **how)
    scores = settings.get("scores", np.random.default_rng(5).normal(0, 1, batch.size))
    batch = batch._replace(scores=mx.array(scores).astype(mx.float32), token_scores=mx.zeros_like(batch.mask))
    batch = steps.adjust_rewards_with_kl(batch, kl_coef=kl_coef)
    batch = steps.compute_td_errors(batch, gamma=gamma)
    batch = steps.compute_gae_advantages(batch, gamma=gamma, lam=lam)
    return steps.add_outcomes(steps.add_reward_to_go(batch), gamma=gamma)


def moved_on(batch: Experience, scale: float = 0.3) -> Experience:
    """Return `batch` as if policy and critic had moved since the rollout, so that ratios and values are clipped."""
    noise = mx.random.normal((2, *batch.mask.shape), key=mx.random.key(7)) * scale * batch.mask
    assert batch.logprobs is not None
    assert batch.values is not None
    return batch._replace(logprobs=batch.logprobs + noise[0], values=batch.values + noise[1])


def with_garbage(batch: Experience, extra: int = 3, garbage: float = NAN) -> Experience:
    """Return `batch` with `extra` columns: `garbage` in the padding of per-token arrays, random ids in that of ids."""
    draws = np.random.default_rng(11)
    ends = {"sequences": batch.prompt_lengths + batch.response_lengths}

    def spoiled(name: str, value: Any) -> Any:
        if not isinstance(value, mx.array) or value.ndim == 1:
            return value
        wide = mx.pad(value, ((0, 0), (0, extra)))
        real = mx.arange(wide.shape[1])[None] < ends.get(name, batch.response_lengths)[:, None]
        if name == "mask":
            return wide
        if name in ("sequences", "responses"):
            return mx.where(real, wide, mx.array(draws.integers(0, 256, wide.shape))).astype(value.dtype)
        return mx.where(real, wide, garbage)

    return Experience(*(spoiled(name, value) for name, value in zip(batch._fields, batch, strict=True)))
