"""The update: gradients of the loss on pairs, accumulated over micro-batches, and one step of the adapter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from trainer.config.dpo import DPOConfig
from trainer.dpo.batches import PairBatch, to_batch
from trainer.dpo.loss import LossSums, completion_logprobs, pair_loss
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import Parameters
from trainer.reward_model.batches import micro_batches
from trainer.reward_model.optimizer import StepOptimizer, global_norm
from trainer.reward_model.pairs import Group


class PolicyStep(NamedTuple):
    """Measurements of one optimiser step, before it is taken; means over its pairs."""

    loss: float  # mean over the groups
    accuracy: float
    lead: float
    chosen_reward: float
    rejected_reward: float
    chosen_logprob: float
    rejected_logprob: float
    grad_norm: float  # before clipping
    taken: bool  # false: loss or gradient was NaN or inf, nothing was changed


class DPOLearner:
    """Gradients of the loss on pairs, and steps of the policy's adapter."""

    def __init__(self, actor: ActorCriticLLM, config: DPOConfig, *, total_steps: int) -> None:
        self.actor = actor
        self.config = config
        self.optimizer = StepOptimizer(config.optim, actor.policy_parameters(), total_steps=total_steps)

    def train(self, groups: Sequence[Group], number: int, progress: Callable[[int, int], None]) -> PolicyStep:
        """Take step `number`, from 1: the gradient of the groups' mean loss, then Adam.

        The gradient is accumulated over micro-batches.
        """
        gradients, sums = self.gradients(groups, progress)
        norm = global_norm(gradients)
        loss = float(sums.loss)
        taken = math.isfinite(norm) and math.isfinite(loss)
        if taken:
            self.actor.update_policy(self.optimizer.apply(gradients, norm, number, self.actor.policy_parameters()))
        right, lead, chosen, rejected, chosen_logprob, rejected_logprob = (
            float(total / sums.pairs) for total in sums[1:-1]
        )
        return PolicyStep(
            loss=loss / len(groups),
            accuracy=right,
            lead=lead,
            chosen_reward=chosen,
            rejected_reward=rejected,
            chosen_logprob=chosen_logprob,
            rejected_logprob=rejected_logprob,
            grad_norm=norm,
            taken=taken,
        )

    def gradients(
        self, groups: Sequence[Group], progress: Callable[[int, int], None] = lambda done, total: None
    ) -> tuple[Parameters, LossSums]:
        """Return the gradient of the mean loss over `groups`, and the sums over all of them.

        The split into micro-batches does not change the result. The reference reads each micro-batch just before the
        policy does: in one epoch every pair comes once, so this costs what reading all in advance would, and at the
        start the two agree to the bit.
        """
        before, total, sums, done = self.actor.policy_parameters(), None, None, 0

        def loss(parameters: Parameters, batch: PairBatch, reference: mx.array) -> tuple[mx.array, LossSums]:
            self.actor.update_policy(parameters)
            found = pair_loss(self.actor, batch, reference, self.config.train)
            return found.loss / len(groups), found

        loss_and_grad = mx.value_and_grad(loss)
        try:
            for part in micro_batches(groups, self.config.optim.micro_batch_tokens):
                batch = to_batch(part)
                with self.actor.reference():
                    reference = completion_logprobs(self.actor, batch.completions)
                    mx.eval(reference)  # frees the reference's logits
                (_, found), gradients = loss_and_grad(before, batch, reference)
                total = gradients if total is None else tree_map(mx.add, total, gradients)
                sums = found if sums is None else LossSums(*map(mx.add, sums, found))
                mx.eval(total, sums)  # frees this micro-batch's graph
                self.actor.update_policy(before)
                done += len(part)
                progress(done, len(groups))
        finally:
            self.actor.update_policy(before)  # the traced arrays must not stay in the model
        assert total is not None
        assert sums is not None
        return total, sums
