"""Operations of the matrix products of an iteration, counted from the model's shape. Nothing here imports MLX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainer.config import Config
from trainer.memory.footprint import adapter_parameters
from trainer.memory.shape import ModelShape


class Work(NamedTuple):
    """Operations of each phase; generation in two parts, as only the first has many rows of each product."""

    prefill: float
    decode: float
    score: float
    update: float


def counted(shape: ModelShape, config: Config, prompts: Sequence[int], responses: Sequence[int]) -> Work:
    """Count the operations of one iteration on sequences with these numbers of tokens in prompt and response.

    Linear layers and the head, attention, and in the backward pass the gradient by each layer's input (the weights are
    frozen, so they have none) and the adapter's.
    """
    linear = 2 * (shape.parameters - shape.vocabulary * shape.hidden * (1 if shape.tied else 2))  # for a token
    head = 2 * shape.vocabulary * shape.hidden
    adapters = 2 * adapter_parameters(config.model, shape)
    pair = 4 * shape.layers * shape.heads * shape.head_size  # scores and their weighted sum
    read, written = sum(prompts), sum(responses)
    tokens = read + written
    both = list(zip(prompts, responses, strict=True))
    attention = pair * sum((prompt + response) ** 2 for prompt, response in both)  # the causal half is computed too
    prefill = read * (linear + adapters) + pair * sum(prompt**2 for prompt in prompts)
    looked_at = sum(prompt * response + response**2 / 2 for prompt, response in both)
    decode = written * (linear + head + adapters) + pair * looked_at

    reference = tokens * linear + attention + written * head
    policy = reference + tokens * adapters
    # The gradient by the inputs costs what the pass does; that of attention and of the adapters twice as much.
    backward = tokens * (linear + 2 * adapters) + 2 * attention + written * head
    if config.optim.grad_checkpoint:
        backward += policy - written * head  # the blocks once more
    has_critic = config.ppo.estimator == "gae"
    passes = 2 if has_critic and config.model.value_model == "adapter" else 1  # actor and critic
    score, update = reference + passes * policy, config.ppo.epochs * passes * (policy + backward)
    if not has_critic and config.ppo.kl_in == "loss" and config.ppo.minibatches == 1:
        score, update = 0.0, update + reference  # the first step scores the batch
    return Work(prefill, decode, score, update + config.run.final_ratios * policy)
