"""The loss of a micro-batch, and the scores of its tokens where the same pass computes them."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import mlx.core as mx

from trainer import maths
from trainer.arrays import filled
from trainer.config.ppo import PPOConfig
from trainer.models.actor_critic import ActorCriticLLM, Want
from trainer.models.forward import (
    Columns,
    Compute,
    Forward,
    Head,
    entropy,
    kl_divergence,
    likeliest_tokens,
    logprobs_and_entropy,
    logprobs_of,
    token_logprobs,
)
from trainer.rollout.experience import Experience

Objective = Literal["joint", "policy", "value", "pull"]
"""Losses of a pass: both, one of them, or the critic's alone on the trunk that it shares with the policy."""
_WANT: dict[Objective, Want] = {"joint": "both", "policy": "logits", "value": "values", "pull": "values"}
Scores = dict[str, Any]  # arrays [B, T, ...] by field of Experience
SCORES = ("logprobs", "entropy", "ref_logprobs", "top_tokens", "top_logprobs", "top_ref_logprobs")
"""Fields of Experience that the first step of an iteration can measure, in this order."""


class LossSettings(NamedTuple):
    """Settings that the losses of an iteration depend on, beside its batch."""

    ppo: PPOConfig
    temperature: float  # of the sampled distribution
    kl_coef: float = 0.0  # of the KL penalty, for kl_in = "loss"
    max_new_tokens: int = 0  # for loss_aggregation = "constant"
    value_unit: float = 1.0  # what a relative_value_clip of 1 is
    alternatives: int = 0  # likeliest tokens of each position, where a step measures scores


class LossSums(NamedTuple):
    """Sums over the real tokens of a micro-batch; losses are summed as in `maths.aggregated`."""

    policy_loss: mx.array
    value_loss: mx.array
    clipped: mx.array
    approx_kl: mx.array
    ratio: mx.array
    ratio_max: mx.array  # this and the next are maxima, not sums
    log_ratio_max: mx.array


class Measurements(NamedTuple):
    """Measurements of some micro-batches."""

    sums: LossSums
    scores: list[Scores]  # of each one, if the policy is trained: `ratios`, pi / pi_old of its tokens, and if it came
    # without them the fields of Experience in `SCORES`

    def joined(self, other: Measurements) -> Measurements:
        """Return the measurements of all their micro-batches."""
        both = [mx.add(mine, theirs) for mine, theirs in zip(self.sums, other.sums, strict=True)]
        sums = LossSums(*both)._replace(
            ratio_max=mx.maximum(self.sums.ratio_max, other.sums.ratio_max),
            log_ratio_max=mx.maximum(self.sums.log_ratio_max, other.sums.log_ratio_max),
        )
        return Measurements(sums, self.scores + other.scores)


def loss_of(
    actor: ActorCriticLLM,
    batch: Experience,
    ref_states: mx.array | None,
    objective: Objective,
    settings: LossSettings,
) -> tuple[mx.array, Measurements]:
    """Compute L = L_clip + c1 L_vf - c2 H (+ beta KL), summed over the micro-batch, and what was measured.

    A batch without log-probs comes from the policy as it is: then pi_old = pi, and its scores are measured as well,
    with those of the reference. ref_states: the reference's states, where the policy's loss needs them.
    """
    ppo = settings.ppo
    kl_coef = settings.kl_coef if ppo.kl_in == "loss" else 0.0
    mask, zero = batch.mask > 0, mx.array(0.0)
    forward = actor(batch.sequences, batch.prompt_lengths, batch.responses.shape[1], want=_WANT[objective])

    def real(x: mx.array) -> mx.array:
        return mx.where(mask, x, 0.0)  # inputs too, before exp: 0 times NaN is NaN in the gradient

    aggregated = partial(maths.aggregated, mask=batch.mask, aggregation=ppo.loss_aggregation)
    loss, sums, scores = zero, LossSums(*(zero for _ in LossSums._fields)), list[Scores]()
    if forward.states is not None:
        columns = {"tokens": batch.responses, "advantages": filled(batch.advantages)}
        if ppo.importance_cap:
            columns["sampled"] = batch.sampler_logprobs
        how: dict[str, Any] = {"head": forward.head, "temperature": settings.temperature}
        losses: Compute = partial(_token_losses, ppo=ppo, kl_coef=kl_coef, **how)
        if ref_states is not None:
            columns["ref_states"] = ref_states
        if batch.logprobs is not None:
            columns["old"] = batch.logprobs
            if kl_coef > 0:
                columns["reference"] = filled(batch.ref_logprobs)
            compute = losses
        else:
            compute = partial(_losses_and_scores, losses=losses, **how, alternatives=settings.alternatives)
        if ppo.ratio == "sequence" and batch.logprobs is not None:  # else no ratio has moved from 1 yet
            token_loss, policy, logprobs = _sequence_losses(forward, columns, batch.mask, losses, settings, kl_coef)
            found = []
        else:
            token_loss, policy, logprobs, *found = forward.at_positions(batch.mask, compute, columns, gradient=True)
        loss = loss + aggregated(token_loss)
        policy_loss = aggregated(policy)
        log_ratio = logprobs - real(found[0] if found else filled(batch.logprobs))
        ratio = mx.exp(log_ratio)
        scores = [{"ratios": ratio, **dict(zip(SCORES, found, strict=False))}]
        used = mx.exp(maths.sequence_log_ratio(log_ratio, batch.mask)) if ppo.ratio == "sequence" else ratio
        outside = used > 1 + (ppo.clip_high or ppo.clip)
        if ppo.policy_loss == "clip":
            outside = outside | (used < 1 - ppo.clip)
        sums = sums._replace(
            policy_loss=policy_loss,
            clipped=real(outside.astype(mx.float32)).sum(),
            approx_kl=real(maths.approx_kl(log_ratio)).sum(),
            ratio=real(ratio).sum(),
            ratio_max=real(ratio).max(),
            log_ratio_max=mx.abs(real(log_ratio)).max(),
        )
    if forward.values is not None:
        old_values, returns = real(filled(batch.values)), real(filled(batch.returns))
        values = real(forward.values[:, :-1])
        if batch.base_values is not None:
            values = values + real(batch.base_values)
        scale, clip = actor.value_scale or 1.0, ppo.relative_value_clip * settings.value_unit
        values, old_values, returns = values / scale, old_values / scale, returns / scale
        value_loss = aggregated(maths.clipped_value_loss(values, old_values, returns, clip=clip / scale or None))
        loss = loss + (ppo.value_coef if objective == "joint" else 1.0) * value_loss
        sums = sums._replace(value_loss=value_loss)
    return loss, Measurements(sums, scores)


def _losses_and_scores(
    logits: mx.array,
    tokens: mx.array,
    ref_states: mx.array,
    *,
    losses: Compute,
    head: Head,
    temperature: float,
    alternatives: int,
    **columns: mx.array,
) -> tuple[mx.array, ...]:
    """Return `losses` of n tokens that the policy itself wrote, followed by their `SCORES`.

    The last three of these are there only if there are `alternatives`. logits: [n, V] of the policy; ref_states: [n, D]
    of the reference.
    """
    constant = mx.stop_gradient(logits)
    old, entropy = logprobs_and_entropy(constant, tokens, temperature)
    ref_logits = head(ref_states[None])[0]
    reference = token_logprobs(ref_logits, tokens, temperature)
    found: tuple[mx.array, ...] = (old, entropy, reference)
    if alternatives:
        others = likeliest_tokens(constant, alternatives)
        both = ((constant, old), (ref_logits, reference))
        found += (others, *(logprobs_of(x, others, tokens, own, temperature) for x, own in both))
    return *losses(logits, tokens, old=old, reference=reference, ref_states=ref_states, **columns), *found


def _token_losses(
    logits: mx.array,
    tokens: mx.array,
    old: mx.array,
    advantages: mx.array,
    sampled: mx.array | None = None,
    reference: mx.array | None = None,
    ref_states: mx.array | None = None,
    *,
    ppo: PPOConfig,
    temperature: float,
    kl_coef: float,
    head: Head,
) -> tuple[mx.array, mx.array, mx.array]:
    """Compute L_clip - c2 H (+ beta KL) of n tokens, L_clip alone, and their log-probs: [n] each.

    logits: [n, V]; old, sampled, reference: [n] log-probs, the last two only where the loss needs them; ref_states:
    [n, D] of the reference, for the exact KL; head: from states to logits.
    """
    logprobs = token_logprobs(logits, tokens, temperature)
    loss = policy = _policy_loss(logprobs, logprobs - old, old, advantages, sampled, ppo)
    if ppo.entropy_coef > 0:
        loss = loss - ppo.entropy_coef * entropy(logits, temperature)
    if kl_coef > 0 and ppo.kl_estimator == "full":
        loss = loss + kl_coef * kl_divergence(logits, head(filled(ref_states)[None])[0], temperature)
    elif kl_coef > 0:
        loss = loss + kl_coef * maths.kl_loss(logprobs, filled(reference), ppo.kl_estimator)
    return loss, policy, logprobs


def _sequence_losses(
    forward: Forward, columns: Columns, mask: mx.array, losses: Compute, settings: LossSettings, kl_coef: float
) -> tuple[mx.array, mx.array, mx.array]:
    """Compute what `_token_losses` does, with the ratios of whole sequences: [B, T] each.

    What a position adds to the loss depends on the whole sequence here, so the policy's loss is that of log-probs which
    have their gradient already. losses: `_token_losses`, which computes the other terms.
    """
    real = {name: mx.where(mask > 0, x, 0) for name, x in columns.items() if x.ndim == 2}
    logprobs = forward.logprobs(real["tokens"], mask, settings.temperature, gradient=True)
    ppo, old, advantages = settings.ppo, real["old"], real["advantages"]
    log_ratio = maths.sequence_log_ratio(logprobs - old, mask)
    loss = policy = _policy_loss(logprobs, log_ratio, old, advantages, real.get("sampled"), ppo)
    if ppo.entropy_coef > 0 or kl_coef > 0:
        rest = {**columns, "advantages": mx.zeros_like(advantages)}
        loss = policy + forward.at_positions(mask, losses, rest, gradient=True)[0]
    return loss, policy, logprobs


def _policy_loss(
    logprobs: mx.array,
    log_ratio: mx.array,
    old: mx.array,
    advantages: mx.array,
    sampled: mx.array | None,
    ppo: PPOConfig,
) -> mx.array:
    """Return the loss `ppo.policy_loss` of tokens, weighted for the sampler where `sampled` is given; any one shape."""
    if ppo.policy_loss == "cispo":
        loss = maths.cispo_loss(logprobs, log_ratio, advantages, clip_high=ppo.clip_high or ppo.clip)
    else:
        loss = maths.clipped_policy_loss(
            log_ratio,
            advantages,
            clip=ppo.clip,
            clip_high=ppo.clip_high or None,
            dual_clip=ppo.dual_clip or None,
        )
    return loss if sampled is None else loss * maths.importance_weights(old, sampled, ppo.importance_cap)
