"""Update of a reward model: gradients accumulated over micro-batches, then one step of adapter and head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from trainer.config.reward_model import RewardModelConfig
from trainer.models.adapters import Parameters
from trainer.reward_model.batches import PairBatch, micro_batches, to_batch
from trainer.reward_model.loss import LossSums, preference_loss
from trainer.reward_model.model import RewardModel
from trainer.reward_model.optimizer import StepOptimizer, global_norm
from trainer.reward_model.pairs import Group

Progress = Callable[[int, int], None]  # groups done, groups in all


class RewardStep(NamedTuple):
    """Measurements of one optimiser step, from before it was taken."""

    loss: float  # mean over the groups
    accuracy: float  # share of decided pairs whose better completion scores higher; NaN without any
    lead: float  # mean over decided pairs, logits
    grad_norm: float  # before clipping
    taken: bool  # false: loss or gradient was NaN or inf, and nothing changed


class RewardLearner:
    """Gradients of the preference loss, and optimiser steps of adapter and head together."""

    def __init__(self, model: RewardModel, config: RewardModelConfig, *, total_steps: int) -> None:
        self.model = model
        self.config = config
        self.optimizer = StepOptimizer(config.optim, model.parameters(), total_steps=total_steps)

    def train(self, groups: Sequence[Group], number: int, progress: Progress) -> RewardStep:
        """Take step `number`, counted from 1, down the gradient of the mean loss over `groups`.

        The gradient is accumulated over micro-batches.
        """
        gradients, sums = self.gradients(groups, progress)
        norm = global_norm(gradients)
        loss, right, lead, decided = (float(value) for value in sums)
        taken = math.isfinite(norm) and math.isfinite(loss)
        if taken:
            self.model.update(self.optimizer.apply(gradients, norm, number, self.model.parameters()))
        return RewardStep(
            loss / len(groups),
            right / decided if decided else math.nan,
            lead / decided if decided else math.nan,
            norm,
            taken,
        )

    def gradients(
        self, groups: Sequence[Group], progress: Progress = lambda done, total: None
    ) -> tuple[Parameters, LossSums]:
        """Return the gradients of the mean loss over `groups`, and the sums over all of them.

        The gradients do not depend on how the groups are split into micro-batches.
        """
        before, total, sums, done = self.model.parameters(), None, None, 0

        def loss(parameters: Parameters, batch: PairBatch) -> tuple[mx.array, LossSums]:
            self.model.update(parameters)
            found = preference_loss(self.model, batch)
            return found.loss / len(groups), found

        loss_and_grad = mx.value_and_grad(loss)
        try:
            for part in micro_batches(groups, self.config.optim.micro_batch_tokens):
                (_, found), gradients = loss_and_grad(before, to_batch(part, self.config.train))
                total = gradients if total is None else tree_map(mx.add, total, gradients)
                sums = found if sums is None else LossSums(*map(mx.add, sums, found))
                mx.eval(total, sums)  # frees this micro-batch's graph
                done += len(part)
                progress(done, len(groups))
        finally:
            self.model.update(before)  # the traced arrays must not stay in the model
        assert total is not None
        assert sums is not None
        return total, sums
