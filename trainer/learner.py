"""The update: gradients of a minibatch, accumulated over micro-batches, and one optimiser step for actor and critic."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, cast

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_map

from trainer import maths
from trainer.arrays import filled, leaves
from trainer.config.schema import OptimConfig, PPOConfig
from trainer.experience import Experience
from trainer.models.actor_critic import ActorCriticLLM, Want
from trainer.models.adapters import Parameters
from trainer.models.logprobs import entropy, token_logprobs
from trainer.steps import Progress, micro_batches, silent

Trainables = dict[str, Parameters]  # "policy" and "value", whichever a step trains
Objective = Literal["joint", "policy", "value"]
_WANT: dict[Objective, Want] = {"joint": "both", "policy": "logits", "value": "values"}


class How(TypedDict):
    """How a step is taken."""

    temperature: float
    progress: Progress


class LossSums(NamedTuple):
    """Sums over the real tokens of a micro-batch; divided by the minibatch's tokens they are its means."""

    policy_loss: mx.array
    value_loss: mx.array
    clipped: mx.array
    approx_kl: mx.array
    ratio: mx.array
    ratio_max: mx.array  # a maximum, not a sum

    def joined(self, other: LossSums) -> LossSums:
        """Of both micro-batches together."""
        both = [mx.add(mine, theirs) for mine, theirs in zip(self, other, strict=True)]
        return LossSums(*both)._replace(ratio_max=mx.maximum(self.ratio_max, other.ratio_max))


class StepMetrics(NamedTuple):
    """What one optimiser step saw, before it was taken."""

    policy_loss: float
    value_loss: float
    clip_fraction: float
    approx_kl: float
    ratio_mean: float
    ratio_max: float
    grad_norm: float
    taken: bool  # false: loss or gradient was NaN or inf, nothing was changed

    def with_critic(self, critic: StepMetrics) -> StepMetrics:
        """This step of the actor, with what the critic's own step saw."""
        norm = math.hypot(self.grad_norm, critic.grad_norm)
        taken = self.taken and critic.taken
        return self._replace(value_loss=critic.value_loss, grad_norm=norm, taken=taken)


class Step(NamedTuple):
    """One optimiser step: its numbers, and the policy it found against the one that wrote."""

    metrics: StepMetrics
    ratios: mx.array | None  # [B, T] pi / pi_old of each token before the step, 0 in the padding; None of a critic's

    def with_critic(self, critic: Step) -> Step:
        """This step of the actor, with what the critic's own step saw."""
        return self._replace(metrics=self.metrics.with_critic(critic.metrics))


class Gradients(NamedTuple):
    """The gradient of a minibatch, and what was computed on the way."""

    of: Trainables
    sums: LossSums
    ratios: mx.array | None  # as in Step


class Learner:
    """Optimisers of the policy's adapter and of the value model, and the steps they take.

    Adam with decoupled weight decay and bias correction; separate learning rates, one schedule. The clipped gradient's
    norm is that of everything the step trains together.
    """

    def __init__(self, actor: ActorCriticLLM, config: OptimConfig, *, total_steps: int) -> None:
        self.actor = actor
        self.config = config
        self.total_steps = total_steps
        self.steps = 0  # minibatches trained on: the place in the schedule, moved by the caller
        self.policy_optimizer = self._adam()
        self.value_optimizer = self._adam()
        self.policy_optimizer.init(actor.policy_parameters())
        self.value_optimizer.init(actor.value_parameters())

    def configure(self, config: OptimConfig, *, total_steps: int) -> None:
        """Go by `config` from the next step on; Adam's own settings, which are not live, stay as they are."""
        self.config = config
        self.total_steps = total_steps

    def learning_rates(self) -> tuple[float, float]:
        """Of policy and value model, for the coming step."""
        factor = schedule_factor(self.config, self.steps, self.total_steps)
        return self.config.policy_lr * factor, self.config.value_lr * factor

    def train_joint(self, batch: Experience, ppo: PPOConfig, **how: Unpack[How]) -> Step:
        """One step of actor and critic on a minibatch, L = L_clip + c1 L_vf - c2 H, one pass over the shared trunk."""
        return self._train(batch, ppo, "joint", **how)

    def train_policy_model(self, batch: Experience, ppo: PPOConfig, **how: Unpack[How]) -> Step:
        """One step of the actor alone on a minibatch: L = L_clip - c2 H."""
        return self._train(batch, ppo, "policy", **how)

    def train_value_model(self, batch: Experience, ppo: PPOConfig, **how: Unpack[How]) -> Step:
        """One step of the critic alone on a minibatch: L = L_vf."""
        return self._train(batch, ppo, "value", **how)

    def ratios(self, batch: Experience, **how: Unpack[How]) -> mx.array:
        """pi / pi_old of each token of a minibatch under the policy as it is now. [B, T], 0 in the padding."""
        ratios, order = [], []
        for rows, part in micro_batches(batch, self.config.micro_batch_tokens, how["progress"]):
            forward = self.actor(part.sequences, part.prompt_lengths, part.responses.shape[1], want="logits")
            logprobs = token_logprobs(filled(forward.logits), part.responses, how["temperature"])
            ratio = mx.exp(logprobs - filled(part.logprobs))
            mx.eval(ratio)  # frees this micro-batch's logits
            order += rows
            ratios.append(ratio)
        return batch.gathered(ratios, order)

    def state(self) -> dict[str, Any]:
        """Moments and step counts of both optimisers, as one tree of arrays (a copy: Adam changes its own in place)."""
        state = {"policy": self.policy_optimizer.state, "value": self.value_optimizer.state}
        return cast("dict[str, Any]", tree_map(lambda x: x, state))

    def restore(self, state: dict[str, Any], steps: int) -> None:
        """Go back to what `state` and `steps` were."""
        state = tree_map(lambda x: x, state)
        self.policy_optimizer.state = state["policy"]
        self.value_optimizer.state = state["value"]
        self.steps = steps

    def _adam(self) -> optim.AdamW:
        c = self.config
        return optim.AdamW(
            learning_rate=0.0,
            betas=[c.beta1, c.beta2],
            eps=c.eps,
            weight_decay=c.weight_decay,
            bias_correction=True,
        )

    def _train(self, batch: Experience, ppo: PPOConfig, objective: Objective, **how: Unpack[How]) -> Step:
        gradients, sums, ratios = self.gradients(batch, ppo, objective, **how)
        norm = math.sqrt(sum(float(mx.square(gradient).sum()) for gradient in leaves(gradients)))
        numbers = [float(number) for number in sums]
        finite = all(math.isfinite(number) for number in (norm, *numbers))
        if finite:
            self._apply(gradients, norm)
        tokens = float(batch.mask.sum())
        policy_loss, value_loss, clipped, kl, ratio = (number / tokens for number in numbers[:-1])
        metrics = StepMetrics(policy_loss, value_loss, clipped, kl, ratio, numbers[-1], norm, taken=finite)
        return Step(metrics, ratios)

    def gradients(
        self,
        batch: Experience,
        ppo: PPOConfig,
        objective: Objective,
        *,
        temperature: float,
        progress: Progress = silent,
    ) -> Gradients:
        """Gradient of the minibatch's mean loss, the values of LossSums over all of it, and the ratios of its tokens.

        Each micro-batch's sum is divided by the token count of the whole minibatch, so that any cut of it into
        micro-batches gives the gradient of one big batch.
        """
        tokens = batch.mask.sum()
        actor = self.actor
        before: Trainables = {}
        if objective != "value":
            before["policy"] = actor.policy_parameters()
        if objective != "policy":
            before["value"] = actor.value_parameters()
        total: Trainables | None = None
        sums = LossSums(*(mx.array(0.0) for _ in LossSums._fields))
        ratios: list[mx.array] = []
        order: list[int] = []

        def loss(trainables: Trainables, part: Experience) -> tuple[mx.array, LossSums, mx.array | None]:
            self._put(trainables)
            return _loss(actor, part, ppo, temperature, objective, tokens)

        loss_and_grad = mx.value_and_grad(loss)
        try:
            for rows, part in micro_batches(batch, self.config.micro_batch_tokens, progress):
                (_, found, ratio), gradients = loss_and_grad(before, part)
                total = gradients if total is None else tree_map(mx.add, total, gradients)
                sums = sums.joined(found)
                ratios += [] if ratio is None else [ratio]
                order += rows
                mx.eval(total, sums, ratios)  # frees this micro-batch's graph: 2.9 MB, not 16.0, at the peak of a toy
        finally:
            self._put(before)  # the traced arrays must not stay in the model
        assert total is not None
        return Gradients(total, sums, batch.gathered(ratios, order) if ratios else None)

    def _apply(self, gradients: Trainables, norm: float) -> None:
        scale = min(1.0, self.config.max_grad_norm / (norm + 1e-6))
        gradients = tree_map(lambda g: g * scale, gradients)
        policy_lr, value_lr = self.learning_rates()
        self.policy_optimizer.learning_rate = policy_lr
        self.value_optimizer.learning_rate = value_lr
        if "policy" in gradients:
            before = self.actor.policy_parameters()
            self.actor.update_policy(self.policy_optimizer.apply_gradients(gradients["policy"], before))
        if "value" in gradients:
            before = self.actor.value_parameters()
            self.actor.update_value(self.value_optimizer.apply_gradients(gradients["value"], before))
        # One step's graph must not hang on the next.
        mx.eval(self.actor.policy_parameters(), self.actor.value_parameters(), self.state())

    def _put(self, trainables: Trainables) -> None:
        if "policy" in trainables:
            self.actor.update_policy(trainables["policy"])
        if "value" in trainables:
            self.actor.update_value(trainables["value"])


def schedule_factor(config: OptimConfig, step: int, total: int) -> float:
    """Factor on the learning rates at `step` (from 0) of `total`: a linear rise over the warm-up, then the schedule."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    progress = min((step - config.warmup_steps) / max(total - config.warmup_steps, 1), 1.0)
    return 1 - progress if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))


def has_signal(batch: Experience) -> bool:
    """Whether the raw advantages differ at all: without that, Adam would make a full step out of rounding noise."""
    variance = float(maths.masked_variance(filled(batch.advantages), batch.mask))
    return not variance <= 1e-12  # NaN goes on, to be reported as the skipped step that it will be


def _loss(
    actor: ActorCriticLLM,
    batch: Experience,
    ppo: PPOConfig,
    temperature: float,
    objective: Objective,
    tokens: mx.array,
) -> tuple[mx.array, LossSums, mx.array | None]:
    """L = L_clip + c1 L_vf - c2 H, summed over the micro-batch and divided by the minibatch's `tokens`.

    And LossSums, and pi / pi_old of each token where the policy takes part.
    """
    mask, zero = batch.mask > 0, mx.array(0.0)
    forward = actor(batch.sequences, batch.prompt_lengths, batch.responses.shape[1], want=_WANT[objective])

    def real(x: mx.array) -> mx.array:
        return mx.where(mask, x, 0.0)  # on the way in too: before exp, and 0 times NaN is NaN in the gradient

    def total(x: mx.array) -> mx.array:
        return real(x).sum()

    loss, sums, ratio = zero, LossSums(zero, zero, zero, zero, zero, zero), None
    if forward.logits is not None:
        old_logprobs, advantages = real(filled(batch.logprobs)), real(filled(batch.advantages))
        logprobs = real(token_logprobs(forward.logits, batch.responses, temperature))
        policy_loss = total(maths.clipped_policy_loss(logprobs, old_logprobs, advantages, clip=ppo.clip))
        loss = loss + policy_loss
        if ppo.entropy_coef > 0:
            loss = loss - ppo.entropy_coef * total(entropy(forward.logits, temperature))
        log_ratio = mx.stop_gradient(logprobs - old_logprobs)
        ratio = mx.exp(log_ratio)
        sums = sums._replace(
            policy_loss=policy_loss,
            clipped=total((mx.abs(ratio - 1) > ppo.clip).astype(mx.float32)),
            approx_kl=total(maths.approx_kl(log_ratio)),
            ratio=total(ratio),
            ratio_max=real(ratio).max(),
        )
    if forward.values is not None:
        old_values, returns = real(filled(batch.values)), real(filled(batch.returns))
        values = real(forward.values[:, :-1])
        value_loss = total(maths.clipped_value_loss(values, old_values, returns, clip=ppo.value_clip or None))
        loss = loss + (ppo.value_coef if objective == "joint" else 1.0) * value_loss
        sums = sums._replace(value_loss=value_loss)
    return loss / tokens, sums, ratio
