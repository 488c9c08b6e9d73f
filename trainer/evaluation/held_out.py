"""Scores of the policy on held-out prompts, compared with the responses of the reference, and reports of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from trainer import maths
from trainer.arrays import Purpose, filled, key_for
from trainer.confidence import Interval, mean_interval
from trainer.config.schema import RolloutConfig
from trainer.data import Prompt
from trainer.evaluation.intervals import (
    Floats,
    best_of_n,
    critic_sums,
    explained_variance_of_sums,
    prompt_means,
    rms_of_sums,
    share_interval,
    win_shares,
)
from trainer.events import Evaluation, Progress
from trainer.ppo import steps
from trainer.ppo.loop import PPO
from trainer.reward_types import Reward, TrainerState
from trainer.rollout.experience import Experience
from trainer.rollout.generation import Response, lay_out


class Scores(NamedTuple):
    """Scores and lengths of n responses to each of P prompts; all [P, n]. A score is NaN if no source applies."""

    total: Floats
    parts: Mapping[str, Floats]  # raw, by reward source
    lengths: Floats  # tokens
    truncated: Floats  # 1.0 if cut short

    def cut(self, where: slice) -> Scores:
        """Return the scores of some of the responses to each prompt."""
        parts = {name: part[:, where] for name, part in self.parts.items()}
        return Scores(self.total[:, where], parts, self.lengths[:, where], self.truncated[:, where])


class Measured(NamedTuple):
    """Measurements of a policy on K responses to each of P prompts; [P, K] unless noted."""

    scores: Scores
    kl: Floats  # k1, nats a sequence
    rewards: Floats  # score minus the KL penalty
    critic: Floats | None  # [P, 5] of `critic_sums`; None without a critic
    reference: Scores | None  # [P, n >= K], the first K by the policy's draws; None without a baseline
    wins: Floats | None  # [P] share of the K^2 pairs with the reference that the policy wins; ties count half


class BestOfN(NamedTuple):
    """Mean over prompts of the expected best score of n responses of the reference."""

    n: int
    kl: float  # upper bound of the KL from the reference, nats a sequence
    score: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """An evaluation of a checkpoint. Every interval is a 95% interval over the prompts.

    Keys of policy and reference: score, reward (score minus the KL penalty), kl (nats a sequence), length (tokens),
    truncated and unscored (shares; responses without a score are in no number of scores), and `parts.NAME` with the
    raw score of each reward source.
    """

    run: str
    kind: str  # "ppo" or "dpo"
    checkpoint: str
    iteration: int
    averaged: bool  # whether the policy is its moving average
    kl_coef: float  # of the KL penalty
    prompts: int
    samples: int  # responses to each prompt
    seed: int
    policy: dict[str, Interval]
    reference: dict[str, Interval]
    gain: Interval  # the policy's score minus the reference's
    win_rate: Interval  # share of pairs in which the policy scores higher than the reference; ties count half
    pairs: int
    best_of: list[BestOfN]
    critic: dict[str, Interval]  # explained_variance and error, on unseen rollouts; empty without a critic


class ReferenceBaseline:
    """Responses of the reference to some prompts, sampled when first needed and scored by the run's reward.

    They depend on the seed, so that a resumed run has the same. They are sampled again when the settings of sampling
    change, and scored again when the rewards or their statistics change.
    """

    def __init__(self, prompts: Sequence[Prompt], *, draws: int) -> None:
        self.prompts = list(prompts)
        self.draws = draws  # responses to each prompt
        self.responses: list[Response] = []  # the first of every prompt, then the second, and so on
        self._sampled_with: RolloutConfig | None = None
        self._scored: tuple[Reward, dict[str, Any], Scores] | None = None  # by which rewards, and their state

    def passes(self, ppo: PPO) -> int:
        """Return the number of passes over the prompts that `sample` will take."""
        return 0 if self._sampled_with == ppo.config.rollout else self.draws

    def sample(self, ppo: PPO, progress: Progress) -> None:
        """Sample the responses, unless they are there already."""
        if not self.passes(ppo):
            return
        with ppo.actor.reference():
            self.responses = _sampled(ppo, self.prompts, self.draws, progress)
        self._sampled_with, self._scored = ppo.config.rollout, None

    def scores(self, ppo: PPO) -> Scores:
        """Score the responses by the run's reward as it is now."""
        now = ppo.rewards.state()
        if ppo.ranks.gather(ppo.rewards.asks_for_state)[0]:
            self._scored = None
        if self._scored is None or self._scored[0] is not ppo.rewards or self._scored[1] != now:
            self._scored = (ppo.rewards, now, _scored(ppo, self.prompts, self.responses)[1])
        return self._scored[2]


def evaluate(
    ppo: PPO, prompts: Sequence[Prompt], iteration: int, baseline: ReferenceBaseline | None = None
) -> Evaluation:
    """Sample one response to each of `prompts` with the same draws every time, and score them.

    The policy is its moving average if one is kept. Neither the statistics of the rewards nor the weights change.
    baseline: the reference's responses to the same prompts, to compare with.
    """
    started = ppo.phases.clock()
    found = measure(ppo, prompts, iteration, baseline)
    scores, critic, reference = found.scores.total, found.critic, found.reference
    interval, known = mean_interval(prompt_means(scores)), scores[~np.isnan(scores)]
    wins = share_interval(np.zeros(0) if found.wins is None else found.wins)
    drawn = 1 if baseline is None else baseline.draws
    return Evaluation(
        iteration=iteration,
        prompts=len(prompts),
        score_mean=interval.value,
        score_std=float(known.std()) if known.size else math.nan,
        score_low=interval.low,
        score_high=interval.high,
        reward_mean=maths.mean_of_known(found.rewards),
        kl=float(found.kl.mean()),
        response_length=float(found.scores.lengths.mean()),
        truncated=float(found.scores.truncated.mean()),
        unscored=1 - known.size / scores.size,
        parts={name: maths.mean_of_known(part) for name, part in found.scores.parts.items()},
        win_rate=wins.value,
        win_rate_low=wins.low,
        win_rate_high=wins.high,
        reference_score=math.nan if reference is None else maths.mean_of_known(reference.total[:, 0]),
        best_of=drawn,
        best_of_score=math.nan if reference is None else maths.mean_of_known(best_of_n(reference.total, drawn)),
        explained_variance=math.nan if critic is None else float(explained_variance_of_sums(critic.sum(axis=0))),
        value_error=math.nan if critic is None else float(rms_of_sums(critic.sum(axis=0))),
        averaged=ppo.learner.average is not None,
        seconds=ppo.phases.clock() - started,
        memory_bytes=mx.get_peak_memory(),  # since the phase began: the rewards are scored after it
    )


def measure(
    ppo: PPO, prompts: Sequence[Prompt], iteration: int, baseline: ReferenceBaseline | None, *, samples: int = 1
) -> Measured:
    """Measure the policy, or its moving average if one is kept, on `samples` responses to each of `prompts`.

    The draws depend on `run.seed` alone. baseline: has at least as many responses to the same prompts.
    """
    average = ppo.learner.average
    passes = samples + 2 + ppo.critic_apart + (baseline.passes(ppo) if baseline else 0)
    with ppo.phases(iteration, "evaluate", passes=passes) as progress:
        with contextlib.nullcontext() if average is None else ppo.actor.policy(average):
            responses = _sampled(ppo, prompts, samples, progress)
            batch = ppo.score(lay_out([*prompts] * samples, responses), progress)
        if baseline:
            baseline.sample(ppo, progress)
    ppo.rewards.use_state(TrainerState(iteration, ppo.config.ppo.iterations))
    reference: Scores | None = None
    if baseline and ppo.config.reward.normalize == "batch":  # scores of two batches are not comparable
        scored, both = _scored(ppo, prompts, responses + baseline.responses)
        scores, reference = both.cut(slice(samples)), both.cut(slice(samples, None))
    else:
        scored, scores = _scored(ppo, prompts, responses)
        reference = baseline.scores(ppo) if baseline else None
    batch = batch._replace(
        scores=filled(scored.scores)[: batch.size],
        token_scores=filled(scored.token_scores)[: batch.size, : batch.mask.shape[1]],
    )
    k1 = maths.kl_estimate(filled(batch.logprobs), filled(batch.ref_logprobs), "k1")
    kl, penalties = (_by_prompt(mx.where(batch.mask > 0, x, 0.0).sum(axis=1), samples) for x in (k1, filled(batch.kl)))
    wins: Floats | None = None
    if baseline and reference:
        size, count = len(prompts), samples
        same = np.empty((size, count, count), dtype=bool)
        for prompt, one, other in np.ndindex(same.shape):
            written, theirs = responses[one * size + prompt], baseline.responses[other * size + prompt]
            same[prompt, one, other] = written.tokens == theirs.tokens
        wins = win_shares(scores.total, reference.total[:, :count], same)
    return Measured(
        scores=scores,
        kl=kl,
        rewards=scores.total - ppo.kl_coef * penalties,
        critic=_critic(ppo, batch, prompts, samples) if ppo.has_critic else None,
        reference=reference,
        wins=wins,
    )


def _sampled(ppo: PPO, prompts: Sequence[Prompt], draws: int, progress: Progress) -> list[Response]:
    """Sample responses to `prompts`, draw by draw. A draw's key is independent of policy and number of draws."""

    def report(done: int, total: int) -> None:
        progress(min(done, total - 1), total)  # the last token is not known: all responses may end early

    c, responses = ppo.config, list[Response]()
    for draw in range(draws):
        key = key_for(c.run.seed, Purpose.EVALUATION, *([draw] if draw else []))
        responses += ppo.respond(prompts, c.rollout, key=key, progress=report)
        progress(1, 1)
    return responses


def _scored(ppo: PPO, prompts: Sequence[Prompt], responses: Sequence[Response]) -> tuple[Experience, Scores]:
    """Score `responses`, ordered draw by draw, by the run's reward: in that order and by prompt. Raises RewardError."""
    draws = len(responses) // len(prompts)
    repeated = [*prompts] * draws
    batch = lay_out(repeated, responses)
    batch, result = steps.compute_rewards(ppo.rewards, batch, repeated, update_statistics=False)
    totals = np.array(result.scores) + np.array(filled(batch.token_scores).sum(axis=1))
    scores = Scores(
        total=_by_prompt(totals, draws),
        parts={name: _by_prompt(part, draws) for name, part in result.parts.items()},
        lengths=_by_prompt(batch.response_lengths, draws),
        truncated=_by_prompt(batch.truncated, draws),
    )
    return batch, scores


def _by_prompt(values: Any, draws: int) -> Floats:
    """Reshape values [draws P], ordered draw by draw, to [P, draws]."""
    rows: Floats = np.array(values, dtype=np.float64).reshape(draws, -1).T
    return rows


def _critic(ppo: PPO, batch: Experience, prompts: Sequence[Prompt], samples: int) -> Floats:
    """Compare the critic with returns of lambda = 1, since others contain its own values. Returns sums [P, 5]."""
    c = ppo.config.ppo
    batch = ppo.with_potential_values(steps.leave_out_unscored(batch), [*prompts] * samples)
    batch = steps.adjust_rewards_with_kl(
        batch, kl_coef=ppo.kl_coef_in_rewards, whiten=c.whiten_rewards, bootstrap_truncated=c.bootstraps
    )
    batch = steps.compute_td_errors(batch, gamma=c.gamma, bootstrap_truncated=c.bootstraps)
    batch = steps.add_reward_to_go(steps.compute_gae_advantages(batch, gamma=c.gamma, lam=1.0))
    values, returns, mask = (np.array(filled(x), dtype=np.float64) for x in (batch.values, batch.returns, batch.mask))
    sums: Floats = critic_sums(values, returns, mask).reshape(samples, -1, 5).sum(axis=0)
    return sums
