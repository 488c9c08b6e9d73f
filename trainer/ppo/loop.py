"""Proximal policy optimisation (PPO) of a language model; `PPO.iteration` reads as the algorithm's diagram.

Schulman et al. 2017 (arXiv 1707.06347); for language models Ziegler et al. 2019 (arXiv 1909.08593).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainer import maths
from trainer.arrays import Purpose, filled, key_for
from trainer.confidence import ROUNDING
from trainer.config import Config
from trainer.config.schema import RolloutConfig
from trainer.data import Prompt
from trainer.distributed.ranks import ALONE, Ranks
from trainer.events import Alert, Iteration, Progress, Report, ignored
from trainer.fitting.optimisation import Phases, SkippedSteps
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.forward import check_grad_checkpoint
from trainer.ppo import estimators, steps
from trainer.ppo.groups import Group, PromptWalk, groups_of
from trainer.ppo.learner import Learner, StepMetrics, has_signal
from trainer.ppo.losses import LossSettings, Objective, Scores
from trainer.ppo.metrics import rollout_metrics, update_metrics
from trainer.ppo.potentials import PotentialValues, add_fitted_potentials, add_prefix_scores
from trainer.reward_types import Reward, RewardResult, TrainerState
from trainer.rollout.experience import Experience
from trainer.rollout.generation import Response, generate_responses, lay_out
from trainer.rollout.token_texts import TokenTexts

Ratios = npt.NDArray[np.float32]
FIRST_SHARE, SHARE_EVERY = 5, 20
"""First iteration that measures the critic's share of the gradient, and iterations from one measurement to the next.
Each takes 2.7 s of the quickstart's iteration of 11 s: 1.2% of all."""


class IterationResult(NamedTuple):
    """Result of one iteration: the batch with every field filled, its rewards in parts, and its metrics."""

    batch: Experience
    prompts: list[Prompt]  # B, one per row
    rewards: RewardResult
    metrics: Iteration
    ratios: Ratios | None  # [B, T, passes] pi / pi_old in each pass; None: no policy step
    trains_policy: bool  # false while the critic alone learns


class PPO:
    """PPO on a model, prompts and a reward. It writes no files.

    report: receives progress and alerts, and may raise Interrupted; clock: seconds, as for `Phases`. On several ranks,
    each one calls the same methods with the same arguments and has the same results.
    """

    def __init__(
        self,
        config: Config,
        actor: ActorCriticLLM,
        tokenizer: Any,
        prompts: Sequence[Prompt],
        rewards: Reward,
        *,
        report: Report = ignored,
        clock: Callable[[], float] = time.perf_counter,
        ranks: Ranks = ALONE,
    ) -> None:
        self.actor = actor
        self.tokenizer = tokenizer
        self.prompts = prompts
        self.rewards = rewards
        self.report = report
        self.ranks = ranks
        if config.optim.grad_checkpoint:
            check_grad_checkpoint(actor.backbone)
        self.learner = Learner(actor, config.optim, ranks=ranks)
        self.kl_coef = config.ppo.kl_coef
        """KL coefficient of the next iteration; an adaptive controller changes it."""
        self.walk = PromptWalk(prompts)
        self.potential_values = PotentialValues(config.rollout.max_new_tokens)
        self.tokens = 0
        self.skipped = SkippedSteps(
            "iteration",
            lambda: f"lower optim.policy_lr ({self.learner.learning_rates()[0]:g}) or raise ppo.kl_coef and resume",
            hint="; lower the learning rate if it repeats",
        )
        self.phases = Phases(report, clock)
        self._scored_texts = TokenTexts(tokenizer, as_scored=True)
        self._use(config)

    def configure(self, config: Config, rewards: Reward | None = None) -> None:
        """Use `config` from the next iteration on, as a run resumed with it would. Only live settings may differ.

        rewards: those of `config`, if they differ from the current ones.
        """
        if config.ppo.kl_coef != self.config.ppo.kl_coef:
            self.kl_coef = config.ppo.kl_coef
        self.rewards = rewards or self.rewards
        self.rewards.use_micro_batches(config.optim.micro_batch_tokens)
        self._use(config)

    def _use(self, config: Config) -> None:
        ppo, run = config.ppo, config.run
        self.config = config
        self.has_critic = ppo.estimator == "gae"
        """True if the advantages come from values."""
        self.critic_apart = self.has_critic and self.actor.value_model == "adapter"
        self.alternatives = run.alternatives if run.save_samples else 0
        """Number of likeliest tokens that are kept of each position."""
        self.passes = ppo.epochs + (run.final_ratios and run.save_samples)
        """Passes over a batch of which the ratios are kept: the epochs, and perhaps one after the last step."""
        self.update_passes = (self.passes + ppo.epochs * self.critic_apart) * ppo.minibatches
        self._bootstraps = ppo.bootstraps
        self.uses_potentials = bool(config.prefix_stride) or (self.has_critic and self.actor.fitted is not None)
        self.learns_values = self.has_critic and self.actor.fitted is None
        """True if gradients train the critic."""
        learned = self.potential_values.state()
        self.potential_values.known = "score" if config.prefix_stride else "fitted"
        self.potential_values.restore(learned)  # which is nothing, if it is of another Phi
        steps = ppo.epochs * ppo.minibatches
        warmup = ppo.critic_warmup if self.has_critic else 0
        self.learner.configure(config.optim, total_steps=ppo.iterations * steps, critic_steps=warmup * steps)

    def iteration(self, number: int) -> IterationResult:
        """Run iteration `number`, from 1: roll out, score, shape rewards, estimate advantages, learn."""
        c, ppo, phase = self.config, self.config.ppo, partial(self.phases, number)
        self.phases.begin()
        prompts = self.walk.draw(c, number, c.rollout.batch_size // c.rollout.samples_per_prompt, first=True)
        self.rewards.use_state(TrainerState(number - 1, ppo.iterations))

        with phase("generate") as progress:
            key = key_for(c.run.seed, Purpose.ROLLOUT, number)
            responses = self.respond(prompts, c.rollout, key=key, progress=progress)
            batch = lay_out(prompts, responses)

        if not self.scores_while_learning and not c.rollout.dynamic:
            batch = self.scored(number, batch)

        with phase("reward"):
            batch, rewards = steps.compute_rewards(self.rewards, batch, prompts)

        groups = self.groups(rewards, prompts)
        if c.rollout.dynamic:
            batch, rewards = self.replace_dead_groups(number, prompts, responses, rewards, groups)
            if not self.scores_while_learning:
                batch = self.scored(number, batch)

        if ppo.estimator == "remax":
            batch = self._with_greedy_baselines(number, batch, prompts)
        batch = steps.leave_out_unscored(batch)
        if self.uses_potentials:
            with phase("reward"):
                batch = self.with_potential_values(batch, prompts)

        batch = steps.adjust_rewards_with_kl(
            batch, kl_coef=self.kl_coef_in_rewards, whiten=ppo.whiten_rewards, bootstrap_truncated=self._bootstraps
        )

        if self.has_critic:
            batch = steps.compute_td_errors(batch, gamma=ppo.gamma, bootstrap_truncated=self._bootstraps)
            batch = steps.compute_gae_advantages(batch, gamma=ppo.gamma, lam=ppo.lam)
            batch = steps.add_reward_to_go(batch)
            batch = steps.add_outcomes(batch, gamma=ppo.gamma, bootstrap_truncated=self._bootstraps)
            if self.learns_values:
                steps.follow_returns(self.actor, batch)
            if self.uses_potentials:
                batch = self.learn_potentials(batch)
        else:
            batch = estimators.ESTIMATORS[ppo.estimator](batch, ppo, c.rollout.samples_per_prompt)

        mx.eval([field for field in batch if isinstance(field, mx.array)])  # so that the update does not recompute it
        if batch.logprobs is None and float(batch.mask.sum()) != float(batch.response_lengths.sum()):
            batch = self.scored(number, batch)  # the first step scores only what it trains on
        self.learner.steps = (number - 1) * ppo.epochs * ppo.minibatches  # whatever ppo.epochs was before
        rates = self.learner.learning_rates()
        with phase("update", passes=self.update_passes) as progress:
            batch, found, ratios = self.learn(number, batch, progress)
        if batch.logprobs is None:  # no step was computed that could have scored it
            batch = self.scored(number, batch)

        metrics = self._metrics(number, batch, found, rewards, rates, groups)
        trains_policy = self.objectives(number) not in ([], ["value"])
        if ppo.kl_controller == "adaptive" and trains_policy:
            self.kl_coef = maths.adapted_kl_coef(
                self.kl_coef,
                metrics.kl,
                target=ppo.kl_target,
                horizon=ppo.kl_horizon,
                sequences=c.rollout.batch_size,
            )
        return IterationResult(batch, prompts, rewards, metrics, ratios, trains_policy)

    def groups(self, rewards: RewardResult, prompts: Sequence[Prompt]) -> list[Group]:
        """Return the groups of responses to one prompt, if there are any; the dead ones rest with `data.curriculum`."""
        groups = groups_of(rewards, prompts, self.config.rollout.samples_per_prompt)
        if self.config.data.curriculum:
            self.walk.rest(groups)
        return groups

    def replace_dead_groups(
        self,
        number: int,
        prompts: list[Prompt],
        responses: list[Response],
        rewards: RewardResult,
        groups: list[Group],
    ) -> tuple[Experience, RewardResult]:
        """Replace the groups of a batch that are dead by those of further prompts, `rollout.dynamic` times at most.

        Yu et al. 2025 (arXiv 2503.14476), section 3.2, which goes on until all groups have a spread. Changes `prompts`
        and `responses`, adds the further groups to `groups`, and returns the batch with its rewards.
        """
        c, samples = self.config, self.config.rollout.samples_per_prompt
        dead = [place for place, group in enumerate(groups) if group.is_dead]
        for draw in range(1, c.rollout.dynamic + 1):
            if not dead:
                break
            further = self.walk.draw(c, number, len(dead))
            with self.phases(number, "generate") as progress:
                key = key_for(c.run.seed, Purpose.ROLLOUT, number, draw)
                written = self.respond(further, c.rollout, key=key, progress=progress)
            with self.phases(number, "reward"):
                _, found = steps.compute_rewards(self.rewards, lay_out(further, written), further)
            rows = [place * samples + sample for place in dead for sample in range(samples)]
            for row, prompt, response in zip(rows, further, written, strict=True):
                prompts[row], responses[row] = prompt, response
            rewards = rewards.replaced(rows, found)
            new = self.groups(found, further)
            groups += new
            dead = [place for place, group in zip(dead, new, strict=True) if group.is_dead]
        return steps.with_rewards(lay_out(prompts, responses), rewards), rewards

    def respond(
        self, prompts: Sequence[Prompt], rollout: RolloutConfig, *, key: mx.array, progress: Progress
    ) -> list[Response]:
        """Sample one response per prompt (repeat a prompt for several), a share of them on each rank."""
        model, share = self.actor.backbone, None if self.ranks.alone else self.ranks.rows(len(prompts))
        write = partial(generate_responses, model, self.tokenizer, prompts, rollout, key=key, progress=progress)
        return [Response(*response) for part in self.ranks.together(partial(write, share=share)) for response in part]

    def scored(self, number: int, batch: Experience) -> Experience:
        """Return the batch with the fields of `score` for all its sequences, in a phase of iteration `number`."""
        real = (mx.arange(batch.mask.shape[1])[None] < batch.response_lengths[:, None]).astype(mx.float32)
        with self.phases(number, "score", passes=3 if self.critic_apart else 2) as progress:
            whole = self.score(batch._replace(mask=real), progress, alternatives=self.alternatives)
        return whole._replace(mask=batch.mask)

    def score(self, batch: Experience, progress: Progress, *, alternatives: int = 0) -> Experience:
        """Add log-probs of policy and reference, their KL, and values of the critic if there is one.

        alternatives: most likely tokens of each position to add as well. Each rank scores a share of the sequences.
        """
        c = self.config
        mx.eval(self.actor.policy_parameters(), self.actor.value_parameters())  # read from a file, they may wait for it
        passes: Any = {"micro_batch_tokens": c.optim.micro_batch_tokens, "progress": progress}
        tempered = {**passes, "temperature": c.rollout.temperature, "critic": self.has_critic}

        def scored(part: Experience) -> dict[str, mx.array]:
            part = steps.add_policy_logprobs_and_values(self.actor, part, alternatives=alternatives, **tempered)
            part = steps.add_kl_to_sa_pairs(self.actor, part, estimator=c.ppo.kl_estimator, **tempered)
            if self.critic_apart:
                part = steps.add_values_to_sa_pairs(self.actor, part, **passes)
            fields: dict[str, Any] = part._asdict()
            return {name: x for name, x in fields.items() if x is not None and getattr(batch, name) is None}

        found: Any = steps.on_shares(self.ranks, batch, scored)
        return batch._replace(**found)

    def _with_greedy_baselines(self, number: int, batch: Experience, prompts: Sequence[Prompt]) -> Experience:
        """Return the batch with the baselines of ReMax."""
        rollout = self.config.rollout
        once, key = prompts[:: rollout.samples_per_prompt], mx.random.key(0)  # which draws nothing
        greedy = rollout.model_copy(update={"top_k": 1})  # the likeliest token, always
        with self.phases(number, "generate") as progress:
            best = lay_out(once, self.respond(once, greedy, key=key, progress=progress))
        with self.phases(number, "reward"):
            return estimators.add_greedy_baselines(self.rewards, batch, best, prompts)

    def with_potential_values(self, batch: Experience, prompts: Sequence[Prompt]) -> Experience:
        """Return the batch with what is known of its scores before each token in its values."""
        if every := self.config.prefix_stride:
            batch = add_prefix_scores(self.rewards, batch, prompts, self._scored_texts, every=every)
        elif self.actor.fitted:
            batch = add_fitted_potentials(self.actor.fitted, batch)
        return self.potential_values.add(batch, every)

    def learn_potentials(self, batch: Experience) -> Experience:
        """Learn from the outcomes of a batch what its potentials were worth, then have the fitted critic learn.

        Returns the batch without what that critic reads, which nothing needs any more.
        """
        outcomes, fitted = np.array(filled(batch.outcomes), dtype=np.float64), self.actor.fitted
        if fitted and fitted.outcome_scale > steps.SMALLEST_RETURNS:
            limit = steps.OUTLIER * fitted.outcome_scale
            outcomes = outcomes.clip(-limit, limit)
        self.potential_values.learn(batch, self.config.prefix_stride, outcomes)
        if fitted:
            fitted.learn(filled(batch.fitted), outcomes, np.array(batch.mask) > 0)
        return batch._replace(fitted=None, final_fitted=None)

    def learn(
        self, number: int, batch: Experience, progress: Progress
    ) -> tuple[Experience, list[StepMetrics], Ratios | None]:
        """Train for several epochs over the batch in reshuffled minibatches, one optimiser step each.

        Returns the batch with its scores, if the first step has measured them; the metrics of the steps; and the
        ratios, as in `IterationResult`.
        """
        c, ppo = self.config, self.config.ppo
        advantages = filled(batch.advantages)
        error = float(maths.root_mean_square(advantages, batch.mask))  # returns less values, before whitening
        objectives = self._objectives_with_signal(number, batch, error)
        if not objectives:
            return batch, [], None
        if objectives != ["value"] and not has_signal(batch):
            batch = batch._replace(advantages=mx.zeros_like(advantages))  # Adam would follow their rounding errors
        elif ppo.whiten_advantages and objectives != ["value"]:
            batch = batch._replace(advantages=maths.whiten(advantages, batch.mask))
        new_tokens = c.rollout.max_new_tokens
        settings = LossSettings(ppo, c.rollout.temperature, self.kl_coef, new_tokens, error, self.alternatives)
        found = list[StepMetrics]()
        ratios = np.full((self.passes, *batch.mask.shape), np.nan, dtype=np.float32)
        seed = [c.run.seed, Purpose.MINIBATCHES, number]
        draws = [np.random.default_rng([*seed, epoch]).permutation(batch.size) for epoch in range(self.passes)]
        passes = [
            (epoch, part.tolist()) for epoch, draw in enumerate(draws) for part in np.split(draw, ppo.minibatches)
        ]
        for epoch, rows in passes:
            minibatch = batch.take(rows)
            if epoch == ppo.epochs:  # after the last step
                if objectives != ["value"]:
                    part = self.learner.ratios(minibatch, temperature=settings.temperature, progress=progress)
                    ratios[epoch, rows, : part.shape[1]] = np.array(part)
                continue
            if not minibatch.mask.any() or (found and found[-1].outcome == "target_kl"):
                continue
            measures = not found and number % SHARE_EVERY == FIRST_SHARE
            step = self.learner.train(minibatch, settings, *objectives, progress=progress, critic_share=measures)
            if step.scores:  # of the first step, whose minibatch is the whole batch
                scores: Scores = {name: batch.gathered([part], rows) for name, part in step.scores.items()}
                batch = steps.add_kl(batch._replace(**scores), ppo.kl_estimator)
            if step.metrics.outcome == "taken" and step.ratios is not None:  # a skipped one pushed no token
                ratios[epoch, rows, : step.ratios.shape[1]] = np.array(step.ratios)
            found.append(step.metrics)
            if step.metrics.outcome == "ratio_spike":
                message = (
                    f"a minibatch was skipped: its mean ratio was {step.metrics.ratio_mean:.3g}, its largest log-ratio "
                    f"{step.metrics.log_ratio_max:.3g}"
                )
                self.alert(number, "info", "ratio_spike", message)
            self.skipped.after(number, skipped=step.metrics.outcome == "not_finite", report=self.report)
            self.learner.steps += step.metrics.outcome != "target_kl"
        batch = batch._replace(advantages=advantages)
        return batch, found, None if objectives == ["value"] else np.moveaxis(ratios, 0, -1)

    def _objectives_with_signal(self, number: int, batch: Experience, error: float) -> list[Objective]:
        """Return what the steps train, without what has nothing to learn from, and report that.

        error: root mean square of the returns less the values.
        """
        objectives, ppo = self.objectives(number), self.config.ppo
        if not objectives:  # a fitted critic has learned from the batch already
            return []
        if not batch.mask.any():
            message = f"no reward source applies to any of the {batch.size} responses, so no step was taken"
            self.alert(number, "warning", "no_signal", message)
            return []
        if objectives == ["value"] or has_signal(batch):
            return objectives
        rest = ["the KL penalty"] * (ppo.kl_in == "loss" and self.kl_coef > 0)
        rest += ["the entropy bonus"] * (ppo.entropy_coef > 0)
        if rest:
            result = f"only {' and '.join(rest)} moved the policy"
        else:
            size = float(maths.root_mean_square(filled(batch.returns), batch.mask))
            objectives = ["value"] if self.learns_values and not error <= ROUNDING * max(1.0, size) else []
            result = "only the critic was trained" if objectives else "no step was taken"
        message = f"all advantages are equal, so {result}: is the reward constant?"
        self.alert(number, "warning", "no_signal", message)
        return objectives

    def _metrics(
        self,
        number: int,
        batch: Experience,
        found: list[StepMetrics],
        rewards: RewardResult,
        rates: tuple[float, float],
        groups: Sequence[Group],
    ) -> Iteration:
        seconds, memory = self.phases.clock() - self.phases.began, max(self.phases.memory.values())
        tokens = int(batch.response_lengths.sum())
        self.tokens += tokens
        updates = update_metrics(found, minibatches=self.config.ppo.minibatches)
        if self.has_critic and not self.learns_values:  # no step has measured it
            error = maths.root_mean_square(filled(batch.outcomes) - filled(batch.values), batch.mask)
            updates["value_loss"] = float(error) ** 2 / 2
        return Iteration(
            iteration=number,
            **rollout_metrics(batch, kl_coef=self.kl_coef),
            **updates,
            kl_coef=self.kl_coef,
            policy_lr=rates[0],
            value_lr=rates[1],
            tokens_per_second=tokens / seconds,
            seconds=dict(self.phases.seconds),
            memory=dict(self.phases.memory),
            memory_bytes=memory,
            ranks=self.ranks.described(seconds, memory),
            tokens=self.tokens,
            parts={name: maths.mean_of_known(scores) for name, scores in rewards.parts.items()},
            dead_groups=maths.mean_of_known([group.is_dead for group in groups]),
            difficulty=[[group.index, group.score] for group in groups if not math.isnan(group.score)],
        )

    def alert(self, number: int, level: Any, code: str, message: str) -> None:
        """Report something that a user should know about iteration `number`."""
        self.report(Alert(iteration=number, level=level, code=code, message=message))

    @property
    def scores_while_learning(self) -> bool:
        """Return whether the first step also scores the batch, in the same pass.

        It can where the scores determine neither rewards nor advantages, and the step takes the whole batch.
        """
        return not self.has_critic and not self.kl_coef_in_rewards and self.config.ppo.minibatches == 1

    @property
    def kl_coef_in_rewards(self) -> float:
        """Coefficient of the KL penalty in each token's reward; 0 if the penalty is in the loss."""
        return self.kl_coef if self.config.ppo.kl_in == "reward" else 0.0

    def objectives(self, number: int) -> list[Objective]:
        """Return what the steps of iteration `number` train; in the first ones the critic may learn alone."""
        if self.has_critic and number <= self.config.ppo.critic_warmup:
            return ["value"] if self.learns_values else []
        if self.critic_apart:
            return ["policy", "value"]
        return ["joint" if self.learns_values else "policy"]
