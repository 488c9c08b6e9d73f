"""The optimiser of a reward model, and the steps that it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_map

from trainer.arrays import leaves
from trainer.config.reward_model import RewardModelConfig, RewardOptimConfig
from trainer.models.adapters import Parameters
from trainer.reward_model.batches import PairBatch, micro_batches, to_batch
from trainer.reward_model.loss import LossSums, preference_loss
from trainer.reward_model.model import RewardModel
from trainer.reward_model.pairs import Group

Progress = Callable[[int, int], None]  # groups done, of all


class RewardStep(NamedTuple):
    """What one optimiser step saw, before it was taken."""

    loss: float  # mean over the groups
    accuracy: float  # share of the decided pairs whose better one is ahead; NaN without any
    lead: float  # mean over them, logits
    grad_norm: float  # before clipping
    taken: bool  # false: loss or gradient was NaN or inf, nothing was changed


class RewardLearner:
    """Adam with decoupled weight decay and bias correction, over adapter and head together."""

    def __init__(self, model: RewardModel, config: RewardModelConfig, *, total_steps: int) -> None:
        self.model = model
        self.config = config
        self.total_steps = total_steps
        c = config.optim
        self._optimizer = optim.AdamW(
            learning_rate=0.0,
            betas=[c.beta1, c.beta2],
            eps=c.eps,
            weight_decay=c.weight_decay,
            bias_correction=True,
        )
        self._optimizer.init(model.parameters())

    def train(self, groups: Sequence[Group], number: int, progress: Progress) -> RewardStep:
        """Step `number`, from 1: the gradient of the groups' mean loss, accumulated over micro-batches, and Adam."""
        gradients, sums = self.gradients(groups, progress)
        norm = math.sqrt(sum(float(mx.square(gradient).sum()) for gradient in leaves(gradients)))
        loss, right, lead, decided = (float(value) for value in sums)
        taken = math.isfinite(norm) and math.isfinite(loss)
        if taken:
            self._apply(gradients, norm, number)
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
        """Of the mean loss over `groups`, whatever micro-batches they are cut into; and the sums over all of them."""
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

    def learning_rate(self, number: int) -> float:
        """Of step `number`, from 1."""
        return self.config.optim.lr * schedule_factor(self.config.optim, number - 1, self.total_steps)

    def state(self) -> dict[str, Any]:
        """Moments and step count, as one tree of arrays (a copy: Adam changes its own in place)."""
        return cast("dict[str, Any]", tree_map(lambda x: x, self._optimizer.state))

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to what `state` was."""
        self._optimizer.state = tree_map(lambda x: x, state)

    def _apply(self, gradients: Parameters, norm: float, number: int) -> None:
        scale = min(1.0, self.config.optim.max_grad_norm / (norm + 1e-6))
        gradients = {name: gradient * scale for name, gradient in gradients.items()}
        self._optimizer.learning_rate = self.learning_rate(number)
        self.model.update(self._optimizer.apply_gradients(gradients, self.model.parameters()))
        mx.eval(self.model.parameters(), self._optimizer.state)  # one step's graph must not hang on the next


def schedule_factor(config: RewardOptimConfig, step: int, total: int) -> float:
    """Factor on the learning rate at `step` (from 0) of `total`: a linear rise over the warm-up, then the schedule."""
    warmup = round(config.warmup * total)
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "constant":
        return 1.0
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    return 1 - progress if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
