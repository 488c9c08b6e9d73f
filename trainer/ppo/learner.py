"""The update: the gradient of a minibatch, and one optimiser step for actor and critic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import mlx.core as mx

from trainer import maths
from trainer.arrays import filled
from trainer.confidence import ROUNDING
from trainer.config.schema import OptimConfig
from trainer.distributed.ranks import ALONE, Ranks
from trainer.events import Progress, silent
from trainer.fitting.optimisation import (
    accumulate,
    adam,
    clipped,
    copied,
    global_norm,
    micro_batch_rows,
    schedule_factor,
)
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import Parameters
from trainer.ppo.losses import LossSettings, LossSums, Measurements, Objective, Scores, loss_of
from trainer.ppo.steps import on_shares, over_micro_batches
from trainer.rollout.experience import Experience

Trainables = dict[str, Parameters]  # by "policy" and "value", as far as the step trains them
_SIDES: dict[Objective, tuple[str, ...]] = {
    "joint": ("policy", "value"),
    "policy": ("policy",),
    "value": ("value",),
    "pull": ("policy",),  # of the critic's loss on the policy's adapter
}
Outcome = Literal["taken", "not_finite", "ratio_spike", "target_kl"]
MAX_LOG_RATIO = 20.0
"""Largest plausible |log-ratio| of a token; beyond it something broke."""


class StepMetrics(NamedTuple):
    """Metrics of one optimiser step, measured before it is taken; NaN for a side that it does not train."""

    policy_loss: float
    value_loss: float
    clip_fraction: float
    approx_kl: float
    ratio_mean: float
    ratio_max: float
    log_ratio_max: float
    grad_norm: float
    outcome: Outcome  # other than "taken": nothing was changed
    critic_share: float = math.nan  # of the norms of both losses' gradients on a shared trunk, where it was measured


class Step(NamedTuple):
    """One optimiser step: its metrics, and the policy's ratios and scores before it."""

    metrics: StepMetrics
    ratios: mx.array | None  # [B, T] pi / pi_old of each token before the step, 0 in the padding; None for a critic
    scores: Scores  # fields of Experience, if the minibatch came without them


class Learner:
    """Optimisers of the policy's adapter and of the value model, and the steps they take.

    Adam with decoupled weight decay and bias correction; separate learning rates, one schedule. Clipping uses the
    norm of a whole gradient, adapter and head together.
    """

    def __init__(
        self,
        actor: ActorCriticLLM,
        config: OptimConfig,
        *,
        total_steps: int = 0,
        critic_steps: int = 0,
        ranks: Ranks = ALONE,
    ) -> None:
        self.actor = actor
        self.ranks = ranks
        self._read = {"policy": actor.policy_parameters}
        self._write = {"policy": actor.update_policy, "value": actor.update_value}
        if actor.fitted is None:
            self._read["value"] = actor.value_parameters
        self.configure(config, total_steps=total_steps, critic_steps=critic_steps)
        self.steps = 0  # minibatches trained on: the position in the schedule; the caller counts
        self.optimizers = {side: adam(config, read()) for side, read in self._read.items()}
        self.average: Parameters | None = actor.policy_parameters() if config.ema_decay else None
        """Exponential moving average of the policy's adapter over the steps taken; None if disabled."""

    def configure(self, config: OptimConfig, *, total_steps: int, critic_steps: int = 0) -> None:
        """Use `config` from the next step on. Adam's own settings are not live and stay as they are.

        total_steps: of the run; critic_steps: the first of them, which train the critic alone.
        """
        self.config = config
        self.total_steps = total_steps
        self.critic_steps = critic_steps

    def learning_rates(self) -> tuple[float, float]:
        """Return the learning rates of the policy and the value model for the next step.

        The policy's schedule begins with its own first step, after those of the critic alone.
        """
        c, alone = self.config, self.critic_steps
        policy = schedule_factor(c, max(self.steps - alone, 0), self.total_steps - alone, warmup=c.warmup_steps)
        return c.policy_lr * policy, c.value_lr * schedule_factor(
            c, self.steps, self.total_steps, warmup=c.warmup_steps
        )

    def train(
        self,
        batch: Experience,
        settings: LossSettings,
        *objectives: Objective,
        progress: Progress = silent,
        critic_share: bool = False,
    ) -> Step:
        """Take one step on a minibatch, or none: with a pass and a gradient for each objective.

            joint:  L = L_clip + c1 L_vf - c2 H (+ beta KL),  in one pass over a trunk that actor and critic share
            policy: L = L_clip - c2 H (+ beta KL)
            value:  L = L_vf

        "policy", "value" trains a critic with its own adapter beside the actor: each gradient is clipped by its own
        norm, and if one of them cannot be used, neither changes anything. critic_share: measure it, in a pass more.
        """
        tokens = float(batch.mask.sum())
        total = float(maths.aggregation_total(batch.mask, settings.ppo.loss_aggregation, settings.max_new_tokens))
        step: Step | None = None
        gradients: Trainables = {}
        for objective in objectives:
            found, sums, scores = self.gradients(batch, settings, objective, progress)
            norm = global_norm(found)
            metrics = _metrics(sums, objective, settings, tokens=tokens, total=total, norm=norm)
            if objective == "joint" and critic_share:
                metrics = metrics._replace(critic_share=self._critic_share(found, batch, settings))
            if step is None:
                step = Step(metrics, scores.pop("ratios", None), scores)
            else:  # the critic's own pass
                norm = math.hypot(step.metrics.grad_norm, norm)
                both = step.metrics._replace(value_loss=metrics.value_loss, grad_norm=norm, outcome=metrics.outcome)
                step = step._replace(metrics=both)
            if metrics.outcome != "taken":
                return step
            gradients |= clipped(found, metrics.grad_norm, self.config.max_grad_norm)
        assert step is not None
        for side, rate in zip(self.optimizers, self.learning_rates(), strict=False):
            self.optimizers[side].learning_rate = rate
        for side, gradient in gradients.items():
            self._write[side](self.optimizers[side].apply_gradients(gradient, self._read[side]()))
        if self.average is not None and "policy" in gradients:  # average <- d average + (1 - d) policy
            d, policy = self.config.ema_decay, self.actor.policy_parameters()
            self.average = {name: d * mean + (1 - d) * policy[name] for name, mean in self.average.items()}
        states = [optimizer.state for optimizer in self.optimizers.values()]
        # Otherwise the next step's graph would include this one's.
        mx.eval([read() for read in self._read.values()], states, self.average)
        return step

    def gradients(
        self, batch: Experience, settings: LossSettings, objective: Objective, progress: Progress = silent
    ) -> tuple[Trainables, LossSums, Scores]:
        """Return the gradient of the minibatch's mean loss, and what is measured on the way: sums, and by token.

        By token there are `ratios`, as in `Step`, and the scores of a minibatch that came without them.

        Each micro-batch's sum is divided by the token count of the whole minibatch, or by whatever
        `maths.aggregation_total` gives. Any split into ranks and micro-batches therefore gives the gradient of one big
        batch.
        """
        ppo = settings.ppo
        weight = maths.aggregation_total(batch.mask, ppo.loss_aggregation, settings.max_new_tokens)
        mx.eval(weight)
        exact_kl = ppo.kl_in == "loss" and settings.kl_coef > 0 and ppo.kl_estimator == "full"
        needs_reference = objective in ("joint", "policy") and (batch.logprobs is None or exact_kl)
        alone, order = self.ranks.alone, list[int]()
        share = [] if alone else self.ranks.dealt(batch.lengths())
        own = batch if alone else batch.take(share)

        def parts() -> Iterator[tuple[Experience, mx.array | None]]:
            for rows in micro_batch_rows(own.lengths(), self.config.micro_batch_tokens, progress=progress):
                order.extend(rows)
                part, states = own.take(rows), None
                if needs_reference:
                    where = part.sequences, part.prompt_lengths, part.responses.shape[1]
                    with self.actor.reference():
                        states = self.actor(*where, want="logits").states
                    mx.eval(states)  # here: in a gradient, MLX would keep all that it was made of
                yield part, states

        def mean_loss(part: tuple[Experience, mx.array | None]) -> tuple[mx.array, Measurements]:
            loss, measured = loss_of(self.actor, *part, objective, settings)
            return loss / weight, measured

        with self.ranks.all_or_none():
            gradients, measured = accumulate(
                mean_loss,
                {side: self._read[side]() for side in _SIDES[objective]},
                parts(),
                put=self._put,
                backbone=self.actor.backbone,
                grad_checkpoint=self.config.grad_checkpoint,
                join=Measurements.joined,
            )
            sums, parted = measured
            names = parted[0] if parted else ()
            scores = {name: own.gathered([part[name] for part in parted], order) for name in names}
            if not alone:
                scores = {name: batch.spread(name, value, share) for name, value in scores.items()}
            mx.eval(scores)
        if not alone:
            gradients, numbers, scores = self.ranks.summed((gradients, list(sums), scores))
            largest = self.ranks.largest(mx.stack([sums.ratio_max, sums.log_ratio_max]))
            sums = LossSums(*numbers)._replace(ratio_max=largest[0], log_ratio_max=largest[1])
        return gradients, sums, scores

    def ratios(self, batch: Experience, *, temperature: float, progress: Progress) -> mx.array:
        """Return pi / pi_old of each token of a minibatch under the current policy: [B, T], 0 in the padding."""

        def measured(part: Experience) -> dict[str, mx.array]:
            forward = self.actor(part.sequences, part.prompt_lengths, part.responses.shape[1], want="logits")
            logprobs = forward.logprobs(part.responses, part.mask, temperature)
            return {"ratios": mx.exp(logprobs - filled(part.logprobs))}

        passes: Any = {"budget": self.config.micro_batch_tokens, "progress": progress}
        return on_shares(self.ranks, batch, lambda own: over_micro_batches(own, measured, **passes))["ratios"]

    def state(self) -> dict[str, Any]:
        """Return the moments and step counts of both optimisers as one tree of arrays."""
        return copied({side: optimizer.state for side, optimizer in self.optimizers.items()})

    def restore(self, state: dict[str, Any], steps: int) -> None:
        """Restore the optimisers to `state`, and the step count to `steps`."""
        for side, own in copied(state).items():
            self.optimizers[side].state = own
        self.steps = steps

    def _critic_share(self, joint: Trainables, batch: Experience, settings: LossSettings) -> float:
        """Return |c1 g_vf| / (|c1 g_vf| + |g_pi|) of the gradients of both losses on the trunk that they share.

        joint: the gradient of their sum, which is g_pi + c1 g_vf.
        """
        pull = self.gradients(batch, settings, "pull")[0]["policy"]
        critic = {name: settings.ppo.value_coef * gradient for name, gradient in pull.items()}
        policy = {name: both - critic[name] for name, both in joint["policy"].items()}
        norm = global_norm(critic)
        return norm / (norm + global_norm(policy)) if norm else 0.0

    def _put(self, trainables: Trainables) -> None:
        for side, parameters in trainables.items():
            self._write[side](parameters)


def has_signal(batch: Experience) -> bool:
    """Return whether the raw advantages vary by more than rounding errors, of which Adam would make a full step."""
    advantages = filled(batch.advantages)
    if batch.advantage_scales is not None:  # in the unit of the reward: a small divisor enlarges rounding
        advantages = advantages * batch.advantage_scales[:, None]
    deviation = math.sqrt(float(maths.masked_variance(advantages, batch.mask)))
    # NaN passes: its step will be skipped and reported.
    return not deviation <= ROUNDING * max(1.0, float(maths.root_mean_square(filled(batch.returns), batch.mask)))


def _metrics(
    sums: LossSums, objective: Objective, settings: LossSettings, *, tokens: float, total: float, norm: float
) -> StepMetrics:
    """Compute a minibatch's metrics from its sums, and whether its step is taken.

    Losses are divided by `total`, other sums by `tokens`.
    """
    ppo, numbers = settings.ppo, [float(number) for number in sums]
    policy_loss, value_loss, clipped, kl, ratio, ratio_max, log_ratio_max = numbers
    policy = [policy_loss / total, clipped / tokens, kl / tokens, ratio / tokens, ratio_max, log_ratio_max]
    if objective == "value":
        policy = [math.nan] * len(policy)
    outcome: Outcome = "taken"
    # Before the test for inf: exp of a log-ratio of 100 is inf, and so is the loss.
    spiked = policy[3] > ppo.ratio_threshold or policy[5] > MAX_LOG_RATIO
    if ppo.ratio_threshold and spiked and math.isfinite(policy[5]):
        outcome = "ratio_spike"
    elif not all(math.isfinite(number) for number in (norm, *numbers)):
        outcome = "not_finite"
    elif ppo.target_approx_kl and policy[2] > ppo.target_approx_kl:
        outcome = "target_kl"
    return StepMetrics(
        policy_loss=policy[0],
        value_loss=value_loss / total if objective in ("joint", "value") else math.nan,
        clip_fraction=policy[1],
        approx_kl=policy[2],
        ratio_mean=policy[3],
        ratio_max=policy[4],
        log_ratio_max=policy[5],
        grad_norm=norm,
        outcome=outcome,
    )
