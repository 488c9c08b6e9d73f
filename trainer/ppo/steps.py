"""Steps of one PPO iteration, in order. Each takes a batch and returns it with more fields filled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from trainer import maths
from trainer.arrays import filled, to_list
from trainer.data import Prompt
from trainer.distributed.ranks import Ranks
from trainer.events import Progress, silent
from trainer.fitting.optimisation import micro_batch_rows
from trainer.models.actor_critic import ActorCriticLLM, Want
from trainer.models.forward import likeliest_tokens, logprobs_and_entropy, logprobs_of, token_logprobs
from trainer.reward_types import Reward, RewardInput, RewardResult
from trainer.rollout.experience import Experience

SCALE_MEMORY = 0.9
"""Weight of earlier batches in the mean square of the returns, the scale of the critic's head."""
OUTLIER = 10.0
"""Returns count as at most this multiple of their scale, or one batch of huge rewards would blur all later values."""
SMALLEST_RETURNS = 1e-4
"""Smaller returns are no scale: they may be rounding errors of the KL."""


def over_micro_batches(
    batch: Experience, compute: Callable[[Experience], dict[str, mx.array]], *, budget: int, progress: Progress
) -> dict[str, mx.array]:
    """Return what `compute` finds in each micro-batch, by name, in the layout of the batch: [B, T, ...].

    compute: returns arrays [b, t, ...] or, with a column for the state after the last token, [b, t + 1, ...].
    """
    order, found, width = list[int](), list[dict[str, mx.array]](), 0
    for rows in micro_batch_rows(batch.lengths(), budget, progress=progress):
        part = batch.take(rows)
        arrays = compute(part)
        mx.eval(arrays)  # frees this micro-batch's states
        order += rows
        width = part.responses.shape[1]
        found.append(arrays)
    return {
        name: batch.gathered([arrays[name] for arrays in found], order, extra=last.shape[1] - width)
        for name, last in found[-1].items()
    }


def on_shares(
    ranks: Ranks, batch: Experience, compute: Callable[[Experience], dict[str, mx.array]]
) -> dict[str, mx.array]:
    """Return the arrays [B, ...] that `compute` finds in a batch, each rank in a share of its rows."""
    if ranks.alone or batch.size < ranks.size:
        return compute(batch)
    share = ranks.dealt(batch.lengths())
    with ranks.all_or_none():
        found = {name: batch.spread(name, value, share) for name, value in compute(batch.take(share)).items()}
        mx.eval(found)
    return ranks.summed(found)


def add_policy_logprobs_and_values(
    actor: ActorCriticLLM,
    batch: Experience,
    *,
    temperature: float,
    micro_batch_tokens: int,
    alternatives: int = 0,
    critic: bool = True,
    progress: Progress = silent,
) -> Experience:
    """Add old log-probs, entropy and, if the critic shares the policy's forward pass, V(s_t).

    This takes one teacher-forced pass. The log-probs are those of the sampled distribution: the same temperature scales
    the logits. alternatives: how many of the likeliest tokens are kept at each position. critic: whether values are
    needed at all.
    """
    critic = critic and actor.value_model == "head"
    names = ("logprobs", "entropy", "top_tokens", "top_logprobs")

    def scores(logits: mx.array, tokens: mx.array) -> tuple[mx.array, ...]:
        logprob, entropy = logprobs_and_entropy(logits, tokens, temperature)
        if not alternatives:
            return logprob, entropy
        others = likeliest_tokens(logits, alternatives)
        return logprob, entropy, others, logprobs_of(logits, others, tokens, logprob, temperature)

    def scored(part: Experience) -> dict[str, mx.array]:
        want: Want = "both" if critic else "logits"
        forward = actor(part.sequences, part.prompt_lengths, part.responses.shape[1], want=want)
        found = dict(zip(names, forward.at_positions(part.mask, scores, {"tokens": part.responses}), strict=False))
        return {**found, "values": filled(forward.values)} if critic else found

    found: Any = over_micro_batches(batch, scored, budget=micro_batch_tokens, progress=progress)
    values = found.pop("values", None)
    batch = batch._replace(**found)
    if values is not None:
        values, final = _split(batch, values)
        batch = batch._replace(values=values, final_values=final)
    return batch


def add_values_to_sa_pairs(
    actor: ActorCriticLLM,
    batch: Experience,
    *,
    micro_batch_tokens: int,
    progress: Progress = silent,
) -> Experience:
    """Add V(s_t) from the critic's own pass, unless `add_policy_logprobs_and_values` has added it."""
    if batch.values is not None:
        return batch

    def valued(part: Experience) -> dict[str, mx.array]:
        forward = actor(part.sequences, part.prompt_lengths, part.responses.shape[1], want="values")
        return {"values": filled(forward.values)}

    found = over_micro_batches(batch, valued, budget=micro_batch_tokens, progress=progress)
    values, final = _split(batch, found["values"])
    return batch._replace(values=values, final_values=final)


def add_kl_to_sa_pairs(
    actor: ActorCriticLLM,
    batch: Experience,
    *,
    temperature: float,
    estimator: maths.KLEstimator,
    micro_batch_tokens: int,
    critic: bool = True,
    progress: Progress = silent,
) -> Experience:
    """Add reference log-probs (adapter off), also of the alternatives, and KL_t of policy against reference.

    critic: whether values are needed at all; a fitted critic reads them in this pass.
    """

    def scores(logits: mx.array, tokens: mx.array, others: mx.array | None = None) -> tuple[mx.array, ...]:
        logprob = token_logprobs(logits, tokens, temperature)
        if others is None:
            return (logprob,)
        return logprob, logprobs_of(logits, others, tokens, logprob, temperature)

    def scored(part: Experience) -> dict[str, mx.array]:
        width = part.responses.shape[1]
        forward = actor(part.sequences, part.prompt_lengths, width, want="logits", fits=critic)
        columns = {"tokens": part.responses}
        if part.top_tokens is not None:
            columns["others"] = part.top_tokens
        found = forward.at_positions(part.mask, scores, columns)
        read = {} if forward.fitted is None else {"fitted": forward.fitted}
        return {**dict(zip(("ref_logprobs", "top_ref_logprobs"), found, strict=False)), **read}

    with actor.reference():
        found: Any = over_micro_batches(batch, scored, budget=micro_batch_tokens, progress=progress)
    if "fitted" in found:
        found["fitted"], found["final_fitted"] = _split(batch, found["fitted"])
    return add_kl(batch._replace(**found), estimator)


def add_kl(batch: Experience, estimator: maths.KLEstimator) -> Experience:
    """Add KL_t of policy against reference, from the log-probs of both."""
    kl = maths.kl_estimate(filled(batch.logprobs), filled(batch.ref_logprobs), estimator)
    return batch._replace(kl=mx.where(batch.mask > 0, kl, 0.0))


def compute_rewards(
    rewards: Reward, batch: Experience, prompts: Sequence[Prompt], *, update_statistics: bool = True
) -> tuple[Experience, RewardResult]:
    """Add one score per sequence, NaN if no source applies, and rewards of single tokens where a source gives them.

    prompts: B, one per row. The reward sees the response as it was cut. Raises RewardError.
    """
    tokens, counts = to_list(batch.responses), to_list(batch.response_lengths)
    result = rewards(
        [
            RewardInput(prompt.prompt, text, ids[:count], prompt.columns, bool(truncated))
            for prompt, text, ids, count, truncated in zip(
                prompts, batch.texts, tokens, counts, to_list(batch.truncated), strict=True
            )
        ],
        update_statistics=update_statistics,
    )
    return with_rewards(batch, result), result


def with_rewards(batch: Experience, result: RewardResult) -> Experience:
    """Add the scores of `result`, and its rewards of single tokens."""
    width = batch.mask.shape[1]
    per_token = [row + [0.0] * (width - len(row)) for row in result.token_rewards or [[] for _ in result.scores]]
    return batch._replace(scores=mx.array(result.scores), token_scores=mx.array(per_token))


def leave_out_unscored(batch: Experience) -> Experience:
    """Empty the mask of sequences without a score or a baseline: they are in no statistic and train nothing."""
    known = ~mx.isnan(filled(batch.scores))
    if batch.baselines is not None:
        known = known & ~mx.isnan(batch.baselines)
    return batch._replace(mask=batch.mask * known[:, None])


def adjust_rewards_with_kl(
    batch: Experience, *, kl_coef: float, whiten: bool = False, bootstrap_truncated: bool = False
) -> Experience:
    """Compute r_t = -beta KL_t (+ the token's own reward), plus the score on the last real token.

    With `bootstrap_truncated`, a truncated response has no score: V after it, which predicts the score, replaces it.
    """
    scores = filled(batch.scores)
    scores = mx.where(batch.truncated > 0, 0.0, scores) if bootstrap_truncated else scores
    kl = filled(batch.kl) if kl_coef else mx.zeros_like(batch.mask)  # not measured yet where it is not needed
    rewards = maths.shaped_rewards(kl, scores, batch.mask, kl_coef=kl_coef) + filled(batch.token_scores)
    return batch._replace(rewards=maths.whiten(rewards, batch.mask, shift_mean=False) if whiten else rewards)


def compute_td_errors(batch: Experience, *, gamma: float, bootstrap_truncated: bool = False) -> Experience:
    """Compute delta_t = r_t + gamma V(s_{t+1}) - V(s_t).

    V after the end is 0, or with `bootstrap_truncated` the critic's value where a response was truncated, in place of
    its score.
    """
    final = filled(batch.final_values) * batch.truncated if bootstrap_truncated else None
    deltas = maths.td_errors(filled(batch.rewards), filled(batch.values), batch.mask, gamma=gamma, final_values=final)
    return batch._replace(td_errors=deltas)


def compute_gae_advantages(batch: Experience, *, gamma: float, lam: float) -> Experience:
    """Compute A_t = sum over l >= 0 of (gamma lambda)^l delta_{t+l}, directly from its definition.

    Schulman et al. 2015 (arXiv 1506.02438), eq. 16.
    """
    return batch._replace(advantages=maths.discounted_sums(filled(batch.td_errors), batch.mask, gamma * lam))


def add_reward_to_go(batch: Experience) -> Experience:
    """Add G_t = A_t + V(s_t), from the advantages before any whitening."""
    returns = filled(batch.advantages) + filled(batch.values)
    return batch._replace(returns=mx.where(batch.mask > 0, returns, 0.0))


def add_outcomes(batch: Experience, *, gamma: float, bootstrap_truncated: bool = False) -> Experience:
    """Add the discounted rewards-to-go, which hold nothing of the critic's own values before a response's end.

    bootstrap_truncated: those of a truncated response go on with its value after the last token.
    """
    final = filled(batch.final_values) * batch.truncated if bootstrap_truncated else None
    zeros = mx.zeros_like(batch.mask)
    rewards = maths.td_errors(filled(batch.rewards), zeros, batch.mask, gamma=gamma, final_values=final)
    return batch._replace(outcomes=maths.discounted_sums(rewards, batch.mask, gamma))


def _split(batch: Experience, found: mx.array) -> tuple[mx.array, mx.array]:
    """Return numbers [B, T + 1, ...] in two parts: before each token, 0 in the padding, and after the last [B, ...]."""
    extra = [1] * (found.ndim - 2)
    final = mx.take_along_axis(found, batch.response_lengths.reshape(-1, 1, *extra), axis=1).squeeze(1)
    return mx.where(batch.mask.reshape(*batch.mask.shape, *extra) > 0, found[:, :-1], 0.0), final


def follow_returns(actor: ActorCriticLLM, batch: Experience) -> None:
    """Give the critic's head as its scale the running root mean square of the returns that it is to predict.

    It then learns as fast, and pulls as hard on a shared trunk, whatever the scale of the rewards is (van Hasselt
    et al. 2016, arXiv 1602.07714, without their shift, which would change nothing but the head's bias).
    """
    returns = filled(batch.returns)
    if batch.base_values is not None:
        returns = returns - batch.base_values
    new = float(maths.root_mean_square(returns, batch.mask))
    if SMALLEST_RETURNS < new < math.inf:
        before = actor.value_scale or new
        square = SCALE_MEMORY * before**2 + (1 - SCALE_MEMORY) * min(new, OUTLIER * before) ** 2
        actor.use_value_scale(math.sqrt(square))
