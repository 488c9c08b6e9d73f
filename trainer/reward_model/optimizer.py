"""Optimiser of runs that count steps: Adam with decoupled weight decay, a schedule and gradient clipping."""

from __future__ import annotations

import math
from typing import Any, cast

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_map

from trainer.arrays import leaves
from trainer.config.reward_model import RewardOptimConfig
from trainer.models.adapters import Parameters


class StepOptimizer:
    """Adam with bias correction, with a schedule over `total_steps`; steps are numbered from 1."""

    def __init__(self, config: RewardOptimConfig, parameters: Parameters, *, total_steps: int) -> None:
        self.config = config
        self.total_steps = total_steps
        self._adam = optim.AdamW(
            learning_rate=0.0,
            betas=[config.beta1, config.beta2],
            eps=config.eps,
            weight_decay=config.weight_decay,
            bias_correction=True,
        )
        self._adam.init(parameters)

    def learning_rate(self, number: int) -> float:
        """Return the learning rate of step `number`."""
        return self.config.lr * schedule_factor(self.config, number - 1, self.total_steps)

    def apply(self, gradients: Parameters, norm: float, number: int, parameters: Parameters) -> Parameters:
        """Return `parameters` after step `number`, evaluated, so that one step's graph does not reach into the next.

        norm: the global norm of the gradients, which are scaled down to at most `max_grad_norm`.
        """
        scale = min(1.0, self.config.max_grad_norm / (norm + 1e-6))
        gradients = {name: gradient * scale for name, gradient in gradients.items()}
        self._adam.learning_rate = self.learning_rate(number)
        after = cast("Parameters", self._adam.apply_gradients(gradients, parameters))
        mx.eval(after, self._adam.state)
        return after

    def state(self) -> dict[str, Any]:
        """Return moments and step count as one tree of arrays. It is a copy: Adam changes its own in place."""
        return cast("dict[str, Any]", tree_map(lambda x: x, self._adam.state))

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self._adam.state = tree_map(lambda x: x, state)


def global_norm(gradients: Parameters) -> float:
    """Return the norm of all gradients together."""
    return math.sqrt(sum(float(mx.square(gradient).sum()) for gradient in leaves(gradients)))


def schedule_factor(config: RewardOptimConfig, step: int, total: int) -> float:
    """Return the factor on the learning rate at `step` (from 0) of `total`.

    It rises linearly over the warm-up, then follows the schedule.
    """
    warmup = round(config.warmup * total)
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "constant":
        return 1.0
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    return 1 - progress if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
