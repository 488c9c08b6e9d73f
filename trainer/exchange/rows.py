"""Values and conditions that the tables of several trainers share."""

from __future__ import annotations

import math

from trainer.config.reward_sources import AnySource, ModelSource
from trainer.config.schema import Config
from trainer.exchange.settings import Facts

BFLOAT16 = ("auto", "bfloat16")
ONE_REWARD = "it takes one reward model of weight 1"


def samples(facts: Facts) -> int:
    """Return the number of responses per prompt."""
    return facts.config.rollout.samples_per_prompt


def prompts_per_iteration(facts: Facts) -> int:
    """Return the number of prompts per iteration."""
    return max(1, facts.config.rollout.batch_size // samples(facts))


def minibatch(facts: Facts) -> int:
    """Return the number of sequences per optimiser step."""
    return facts.config.rollout.batch_size // facts.config.ppo.minibatches


def steps(facts: Facts) -> int:
    """Return the number of optimiser steps of the run."""
    ppo = facts.config.ppo
    return ppo.iterations * ppo.epochs * ppo.minibatches


def warmup_iterations(facts: Facts) -> int:
    """Return the iterations in which the learning rate rises."""
    ppo = facts.config.ppo
    return math.ceil(facts.config.optim.warmup_steps / (ppo.epochs * ppo.minibatches))


def lora_alpha(facts: Facts) -> int:
    """Return alpha = rank times scale as a whole number."""
    model = facts.config.model
    return round(model.lora_rank * model.lora_scale)


def lora_targets(facts: Facts) -> list[str]:
    """Return the ends of the names of the layers with an adapter."""
    return sorted({target.rpartition(".")[2] for target in facts.config.model.lora_targets})


def longest(facts: Facts) -> int:
    """Return the most tokens of prompt and response together."""
    return facts.config.data.max_prompt_tokens + facts.config.rollout.max_new_tokens


def kl_target_per_token(facts: Facts) -> float:
    """Return the target KL in nats per token of a response of full length."""
    return facts.config.ppo.kl_target / facts.config.rollout.max_new_tokens


def has_critic(facts: Facts) -> bool:
    """Return whether the run has a critic."""
    return facts.config.ppo.estimator == "gae"


def has_no_critic(facts: Facts) -> bool:
    """Return whether the run has no critic."""
    return not has_critic(facts)


def is_adaptive(facts: Facts) -> bool:
    """Return whether the KL coefficient is adapted."""
    return facts.config.ppo.kl_controller == "adaptive"


def only_source(config: Config) -> AnySource | None:
    """Return the source that is the whole reward, if it is one of weight 1."""
    counted = [source for source in config.reward.sources if source.weight]
    return counted[0] if len(counted) == 1 and counted[0].weight == 1 else None


def one_reward_model(facts: Facts) -> bool:
    """Return whether the reward is exactly the score of one reward model."""
    return isinstance(only_source(facts.config), ModelSource) and bool(facts.reward_model)


def no_reward_model(facts: Facts) -> bool:
    """Return whether the reward is something else than the score of one reward model."""
    return not one_reward_model(facts)
