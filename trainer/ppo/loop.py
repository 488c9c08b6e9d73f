"""Proximal policy optimisation (PPO) of a language model; `PPO.iteration` reads as the algorithm's diagram.

Schulman et al. 2017 (arXiv 1707.06347); for language models Ziegler et al. 2019 (arXiv 1909.08593).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer import maths
from trainer.arrays import filled
from trainer.config import Config
from trainer.config.schema import RolloutConfig
from trainer.control.control import Control
from trainer.data import Prompt, prompt_indices
from trainer.distributed.ranks import ALONE, Ranks
from trainer.events import Alert, Event, Iteration
from trainer.fitting.phases import Phases, SkippedSteps
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.grad_checkpoint import check_grad_checkpoint
from trainer.ppo import steps
from trainer.ppo.estimators import ESTIMATORS
from trainer.ppo.kl_controller import adapted_kl_coef
from trainer.ppo.learner import Learner, StepMetrics, StepOptions, has_signal, rounding_error
from trainer.ppo.losses import Objective, Scores
from trainer.ppo.metrics import rollout_metrics, settings_of, update_metrics
from trainer.ppo.prefix_values import PrefixValues
from trainer.ppo.shares import in_shares, respond
from trainer.rewards import RewardResult, Rewards, TrainerState
from trainer.rollout.experience import Experience, PassRatios, minibatch_rows
from trainer.rollout.generation import Response, lay_out
from trainer.rollout.token_texts import TokenTexts
from trainer.runs.samples import SampleSettings
from trainer.seeding import Purpose, key_for

SCALE_MEMORY = 0.9
"""Weight of earlier batches in the mean square of the returns, the scale of the critic's head."""
FIRST_SHARE, SHARE_EVERY = 5, 20
"""First iteration that measures the critic's share of the gradient, and iterations from one measurement to the next.
Each takes 2.7 s of the quickstart's iteration of 11 s: 1.2% of all."""
OUTLIER = 10.0
"""Returns count as at most this multiple of the scale, or one batch of huge rewards would blur all later values."""
SMALLEST_RETURNS = 1e-4
"""Smaller returns change no scale: they may be rounding errors of the KL."""


class Update(NamedTuple):
    """Result of the epochs over a batch."""

    steps: list[StepMetrics]
    ratios: npt.NDArray[np.float32] | None = None  # [B, T, passes] pi / pi_old in each pass; None: no policy step
    batch: Experience | None = None  # with its scores, if the first step has measured them


class IterationResult(NamedTuple):
    """Result of one iteration: the batch with every field filled, its rewards in parts, and its metrics."""

    batch: Experience
    prompts: list[Prompt]  # B, one per row
    rewards: RewardResult
    metrics: Iteration
    ratios: npt.NDArray[np.float32] | None  # as in Update
    settings: SampleSettings  # used in this iteration
    token_texts: TokenTexts  # decodes its tokens


class PPO:
    """PPO on a model, prompts and a reward. It writes no files; `emit` receives its events.

    On several ranks, each one calls the same methods with the same arguments and has the same results.
    """

    def __init__(
        self,
        config: Config,
        actor: ActorCriticLLM,
        tokenizer: Any,
        prompts: Sequence[Prompt],
        rewards: Rewards,
        *,
        emit: Callable[[Event], None] = lambda event: None,
        control: Control | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config = config
        self.actor = actor
        self.tokenizer = tokenizer
        self.prompts = prompts
        self.rewards = rewards
        self.emit = emit
        self.control = control or Control()
        self.ranks = ranks
        if config.optim.grad_checkpoint:
            check_grad_checkpoint(actor.backbone)
        self.learner = Learner(actor, config.optim, ranks=ranks, **_schedule(config))
        self.kl_coef = config.ppo.kl_coef
        """KL coefficient of the next iteration; an adaptive controller changes it."""
        self.prefix_values = PrefixValues(config.rollout.max_new_tokens)
        self.tokens = 0
        self.skipped = SkippedSteps(
            "iteration",
            lambda: f"lower optim.policy_lr ({self.learner.learning_rates()[0]:g}) or raise ppo.kl_coef and resume",
            hint="; lower the learning rate if it repeats",
        )
        self.phase = Phases(self.emit, self.control, ranks)
        self._token_texts = TokenTexts(tokenizer)
        self._scored_texts = TokenTexts(tokenizer, as_scored=True)

    def configure(self, config: Config, rewards: Rewards | None = None) -> None:
        """Use `config` from the next iteration on, as a run resumed with it would. Only live settings may differ.

        rewards: those of `config`, if they differ from the current ones.
        """
        if config.ppo.kl_coef != self.config.ppo.kl_coef:
            self.kl_coef = config.ppo.kl_coef
        if not config.uses_prefix_scores:
            self.prefix_values.restore(None)  # checkpoints without the scores have none of it
        self.config = config
        self.rewards = rewards or self.rewards
        self.rewards.use_micro_batches(config.optim.micro_batch_tokens)
        self.learner.configure(config.optim, **_schedule(config))

    def iteration(self, number: int) -> IterationResult:
        """Run iteration `number`, from 1: roll out, score, shape rewards, estimate advantages, learn."""
        c, kl_coef = self.config, self.kl_coef
        self.phase.begin()
        self.ranks.begin()
        started = self.control.clock()
        prompts = self.batch_prompts(number)
        self.rewards.use_state(TrainerState(number - 1, c.ppo.iterations))

        with self.phase(number, "generate", passes=2 if c.ppo.estimator == "remax" else 1) as progress:
            key = key_for(c.run.seed, Purpose.ROLLOUT, number)
            batch = lay_out(prompts, self.respond(prompts, c.rollout, key=key, progress=progress))
            greedy = None
            if c.ppo.estimator == "remax":
                once, key = prompts[:: c.rollout.samples_per_prompt], mx.random.key(0)  # which draws nothing
                greedy = lay_out(once, self.respond(once, steps.greedy(c.rollout), key=key, progress=progress))

        if not self.scores_while_learning:
            batch = self._scored(number, batch)

        with self.phase(number, "reward"):
            batch, rewards = steps.compute_rewards(self.rewards, batch, prompts)
            if greedy is not None:  # scored last, so that its normalisation is that of the batch
                batch = steps.add_greedy_baselines(self.rewards, batch, greedy, prompts)
            before = time.thread_time()
            trained = self.with_prefix_values(steps.leave_out_unscored(batch), prompts)
            prefix_seconds = time.thread_time() - before

        if batch.logprobs is None and not mx.array_equal(trained.mask, batch.mask):
            # The first step would score only what it trains on.
            trained = self._scored(number, batch)._replace(mask=trained.mask)
        batch = trained

        bootstraps = c.ppo.bootstraps
        batch = steps.adjust_rewards_with_kl(
            batch, kl_coef=self.kl_coef_in_rewards, whiten=c.ppo.whiten_rewards, bootstrap_truncated=bootstraps
        )
        if self.has_critic:
            batch = steps.compute_td_errors(batch, gamma=c.ppo.gamma, bootstrap_truncated=bootstraps)
            batch = steps.compute_gae_advantages(batch, gamma=c.ppo.gamma, lam=c.ppo.lam)
            batch = steps.add_reward_to_go(batch)
            self._follow_returns(batch)
            if batch.prefix_scores is not None:
                self.prefix_values.learn(batch, self.prefix_stride, c.ppo.gamma, bootstrap_truncated=bootstraps)
        else:
            batch = ESTIMATORS[c.ppo.estimator](batch, c.ppo, c.rollout.samples_per_prompt)
        mx.eval([field for field in batch if isinstance(field, mx.array)])  # so that the update does not recompute it

        self.learner.steps = (number - 1) * c.ppo.epochs * c.ppo.minibatches  # whatever ppo.epochs was before
        learning_rates = self.learner.learning_rates()
        with self.phase(number, "update", passes=self.update_passes) as progress:
            update = self.learn(number, batch, progress)
        batch = update.batch or batch
        if batch.logprobs is None:  # no step was computed that could have scored it
            batch = self._scored(number, batch)

        seconds = self.control.clock() - started
        if c.ppo.prefix_scores < 0 and batch.prefix_scores is not None:
            self._space_prefix_scores(number, prefix_seconds, seconds)
        tokens = int(batch.response_lengths.sum())
        memory = max(self.phase.memory.values())
        self.tokens += tokens
        metrics = Iteration(
            iteration=number,
            **rollout_metrics(batch, kl_coef=kl_coef),
            **update_metrics(update.steps, minibatches=c.ppo.minibatches),
            kl_coef=kl_coef,
            policy_lr=learning_rates[0],
            value_lr=learning_rates[1],
            tokens_per_second=tokens / seconds,
            seconds=dict(self.phase.seconds),
            memory=dict(self.phase.memory),
            memory_bytes=memory,
            ranks=self.ranks.described(seconds, memory),
            tokens=self.tokens,
            parts={name: maths.mean_of_known(scores) for name, scores in rewards.parts.items()},
        )
        settings = settings_of(
            batch,
            c,
            kl_coef=kl_coef,
            trains_policy=not self._critic_learns_alone(number),
            has_signal=has_signal(batch),
        )
        if c.ppo.kl_controller == "adaptive" and not self._critic_learns_alone(number):
            self.kl_coef = adapted_kl_coef(
                kl_coef, metrics.kl, target=c.ppo.kl_target, horizon=c.ppo.kl_horizon, sequences=batch.size
            )
        return IterationResult(batch, prompts, rewards, metrics, update.ratios, settings, self._token_texts)

    def respond(
        self, prompts: Sequence[Prompt], rollout: RolloutConfig, *, key: mx.array, progress: steps.Progress
    ) -> list[Response]:
        """Sample one response per prompt (repeat a prompt for several), a share of them on each rank."""
        return respond(self.ranks, self.actor.backbone, self.tokenizer, prompts, rollout, key=key, progress=progress)

    def _scored(self, number: int, batch: Experience) -> Experience:
        with self.phase(number, "score", passes=3 if self._critic_is_apart else 2) as progress:
            return self.score(batch, progress, alternatives=self.alternatives)

    def score(self, batch: Experience, progress: steps.Progress, *, alternatives: int = 0) -> Experience:
        """Add log-probs of policy and reference, their KL, and values of the critic if there is one.

        alternatives: most likely tokens of each position to add as well.
        """
        return in_shares(self.ranks, batch, lambda part: self._score(part, progress, alternatives))

    def _score(self, batch: Experience, progress: steps.Progress, alternatives: int) -> Experience:
        c = self.config
        mx.eval(self.actor.policy_parameters(), self.actor.value_parameters())  # read from a file, they may wait for it
        how: Any = {"micro_batch_tokens": c.optim.micro_batch_tokens, "progress": progress}
        tempered = {**how, "temperature": c.rollout.temperature}
        batch = steps.add_policy_logprobs_and_values(
            self.actor, batch, alternatives=alternatives, critic=self.has_critic, **tempered
        )
        batch = steps.add_kl_to_sa_pairs(self.actor, batch, estimator=c.ppo.kl_estimator, **tempered)
        return steps.add_values_to_sa_pairs(self.actor, batch, **how) if self.has_critic else batch

    def with_prefix_values(self, batch: Experience, prompts: Sequence[Prompt]) -> Experience:
        """Return the batch with what the scores before each token predict in its values, if they are on."""
        every = self.prefix_stride
        if not (every and self.has_critic):
            return batch
        batch = steps.add_prefix_scores(self.rewards, batch, prompts, self._scored_texts, every=every)
        return self.prefix_values.add(batch, every)

    @property
    def prefix_stride(self) -> int:
        """Tokens from one prefix score to the next; 0 without them."""
        every = self.config.ppo.prefix_scores if self.config.uses_prefix_scores else 0
        return self.prefix_values.apart if every < 0 else every

    def _space_prefix_scores(self, number: int, taken: float, iteration: float) -> None:
        """Put prefix scores further apart from the next iteration on if they took `taken` of its seconds, too many."""
        apart = self.ranks.gather(self.prefix_values.spacing(taken, iteration))[0]
        if apart > self.prefix_values.apart:
            self.prefix_values.apart = apart
            message = (
                f"prefix scores took {taken / iteration:.0%} of the iteration: from now on there is one every {apart} "
                f"tokens; for the same on any machine, set ppo.prefix_scores = {apart}"
            )
            self.emit(Alert(iteration=number, level="info", code="prefix_scores", message=message))

    def learn(self, number: int, batch: Experience, progress: steps.Progress) -> Update:
        """Train for several epochs over the batch in reshuffled minibatches, one optimiser step each."""
        ppo, rollout = self.config.ppo, self.config.rollout
        if not batch.mask.any():
            message = f"no reward source applies to any of the {batch.size} responses, so no step was taken"
            self.emit(Alert(iteration=number, level="warning", code="no_signal", message=message))
            return Update([])
        objectives, advantages = self.objectives(number), filled(batch.advantages)
        error = maths.root_mean_square(advantages, batch.mask)  # returns less values, before whitening
        if objectives != ["value"] and not has_signal(batch):
            objectives = self._without_signal(number, objectives, is_wrong=float(error) > rounding_error(batch))
            if not objectives:
                return Update([])
            batch = batch._replace(advantages=mx.zeros_like(advantages))  # Adam would follow their rounding errors
        elif ppo.whiten_advantages:
            batch = batch._replace(advantages=maths.whiten(advantages, batch.mask))
        options = StepOptions(
            temperature=rollout.temperature,
            progress=progress,
            kl_coef=self.kl_coef,
            max_new_tokens=rollout.max_new_tokens,
            value_unit=float(error),
            alternatives=self.alternatives,
        )
        trains_policy = objectives != ["value"]
        passes = [(epoch, rows) for epoch in range(ppo.epochs) for rows in self._minibatches(number, batch.size, epoch)]
        results: list[StepMetrics] = []
        ratios = PassRatios(batch, ppo.epochs + self._measures_final_ratios)
        for place, (epoch, rows) in enumerate(passes):
            minibatch = batch.take(rows)
            if not minibatch.mask.any():
                continue
            options["critic_share"] = place == 0 and number % SHARE_EVERY == FIRST_SHARE
            step = self.learner.train(minibatch, ppo, *objectives, **options)
            if step.scores:  # of the first step, whose minibatch is the whole batch
                scores: Scores = {name: batch.gathered([found], rows) for name, found in step.scores.items()}
                batch = steps.add_kl(batch._replace(**scores), ppo.kl_estimator)
            if step.metrics.taken and trains_policy:
                ratios.put(epoch, rows, step.ratios)  # how the step pushed each token; a skipped one pushed none
            self.learner.steps += step.metrics.outcome != "target_kl"
            results.append(step.metrics)
            self._check_step(number, step.metrics)
            if step.metrics.outcome == "target_kl":
                break
        if not trains_policy:
            return Update(results)
        if self._measures_final_ratios:
            for rows in self._minibatches(number, batch.size, ppo.epochs):
                found = self.learner.ratios(batch.take(rows), temperature=rollout.temperature, progress=progress)
                ratios.put(ppo.epochs, rows, found)
        return Update(results, ratios.array(), batch._replace(advantages=advantages))

    def _without_signal(self, number: int, objectives: list[Objective], *, is_wrong: bool) -> list[Objective]:
        """Report that all advantages are equal; return what still has a gradient.

        is_wrong: whether the critic has something to learn.
        """
        ppo = self.config.ppo
        rest = ["the KL penalty"] * (ppo.kl_in == "loss" and self.kl_coef > 0)
        rest += ["the entropy bonus"] * (ppo.entropy_coef > 0)
        if rest:
            result = f"only {' and '.join(rest)} moved the policy"
        else:
            objectives = ["value"] if self.has_critic and is_wrong else []
            result = "only the critic was trained" if objectives else "no step was taken"
        message = f"all advantages are equal, so {result}: is the reward constant?"
        self.emit(Alert(iteration=number, level="warning", code="no_signal", message=message))
        return objectives

    def _follow_returns(self, batch: Experience) -> None:
        """Give the head as its scale the running root mean square of the returns that it is to predict.

        It then learns as fast, and pulls as hard on a shared trunk, whatever the scale of the rewards is (van Hasselt
        et al. 2016, arXiv 1602.07714, without their shift, which would change nothing but the head's bias).
        """
        returns = filled(batch.returns)
        if batch.prefix_values is not None:
            returns = returns - batch.prefix_values
        new = float(maths.root_mean_square(returns, batch.mask))
        if SMALLEST_RETURNS < new < math.inf:
            before = self.actor.value_scale or new
            square = SCALE_MEMORY * before**2 + (1 - SCALE_MEMORY) * min(new, OUTLIER * before) ** 2
            self.actor.use_value_scale(math.sqrt(square))

    def batch_prompts(self, number: int) -> list[Prompt]:
        """Return the prompts of iteration `number`, each repeated `samples_per_prompt` times."""
        c = self.config
        count = c.rollout.batch_size // c.rollout.samples_per_prompt
        places = prompt_indices((number - 1) * count, count, len(self.prompts), seed=c.run.seed, shuffle=c.data.shuffle)
        return [self.prompts[place] for place in places for _ in range(c.rollout.samples_per_prompt)]

    @property
    def update_passes(self) -> int:
        """Number of minibatch passes in `learn`, for its progress."""
        epochs = self.config.ppo.epochs * (2 if self._critic_is_apart else 1)
        return (epochs + self._measures_final_ratios) * self.config.ppo.minibatches

    @property
    def scores_while_learning(self) -> bool:
        """Return whether the first step also scores the batch, in the same pass.

        It can where the scores determine neither rewards nor advantages, and the step takes the whole batch.
        """
        return not self.has_critic and not self.kl_coef_in_rewards and self.config.ppo.minibatches == 1

    @property
    def alternatives(self) -> int:
        """Number of likeliest tokens that are kept of each position."""
        run = self.config.run
        return run.alternatives if run.save_samples else 0

    @property
    def has_critic(self) -> bool:
        """Return whether the advantages come from values."""
        return self.config.ppo.estimator == "gae"

    @property
    def kl_coef_in_rewards(self) -> float:
        """Coefficient of the KL penalty in each token's reward; 0 if the penalty is in the loss."""
        return self.kl_coef if self.config.ppo.kl_in == "reward" else 0.0

    def _critic_learns_alone(self, number: int) -> bool:
        return self.has_critic and number <= self.config.ppo.critic_warmup

    def objectives(self, number: int) -> list[Objective]:
        """Return what the steps of iteration `number` train."""
        if self._critic_learns_alone(number):
            return ["value"]
        if self._critic_is_apart:
            return ["policy", "value"]
        return ["joint" if self.has_critic else "policy"]

    @property
    def _critic_is_apart(self) -> bool:
        return self.has_critic and not self.actor.shares_trunk

    @property
    def _measures_final_ratios(self) -> bool:
        return self.config.run.final_ratios and self.config.run.save_samples

    def _minibatches(self, number: int, size: int, epoch: int) -> list[list[int]]:
        seed = [self.config.run.seed, Purpose.MINIBATCHES, number, epoch]
        return minibatch_rows(size, self.config.ppo.minibatches, seed=seed)

    def _check_step(self, number: int, step: StepMetrics) -> None:
        """Report a skipped step. Raise DivergedError at the third NaN in a row, in one iteration or several."""
        if step.outcome == "ratio_spike":
            message = (
                f"a minibatch was skipped: its mean ratio was {step.ratio_mean:.3g}, its largest log-ratio "
                f"{step.log_ratio_max:.3g}"
            )
            self.emit(Alert(iteration=number, level="info", code="ratio_spike", message=message))
        self.skipped.after(number, skipped=step.outcome == "not_finite", emit=self.emit)


def _schedule(config: Config) -> dict[str, int]:
    """Return the number of optimiser steps of the whole run, and of those that train the critic alone."""
    ppo = config.ppo
    steps = ppo.epochs * ppo.minibatches
    warmup = ppo.critic_warmup if ppo.estimator == "gae" else 0
    return {"total_steps": ppo.iterations * steps, "critic_steps": warmup * steps}
