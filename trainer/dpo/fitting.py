"""Training of a policy by DPO, step by step. It writes no files: others store its events and snapshots."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from trainer.config.dpo import DPOConfig, as_ppo
from trainer.config.reward_model import RewardTrainConfig
from trainer.control.control import Control
from trainer.dpo.evaluation import evaluate_pairs
from trainer.dpo.learner import DPOLearner
from trainer.dpo.pairs import Pairs
from trainer.evaluation.measure import evaluate, reference_baseline
from trainer.events import DPOStep, Event, Phase, PhaseProgress
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.loading import LoadedModel
from trainer.ppo.checkpoint import Snapshot
from trainer.ppo.loop import PPO
from trainer.reward_model.batches import step_groups, steps_in
from trainer.reward_model.length_baseline import fit_length_slope
from trainer.reward_model.outcomes import outcomes
from trainer.reward_model.skipped_steps import SkippedSteps
from trainer.rewards import Rewards
from trainer.seeding import Purpose, key_for


class DPO:
    """The DPO algorithm on a model and pairs. Call `step`, and `evaluate` when it is due.

    rewards: scores the samples; None to sample nothing.
    """

    def __init__(
        self,
        config: DPOConfig,
        model: LoadedModel,
        data: Pairs,
        rewards: Rewards | None = None,
        *,
        emit: Callable[[Event], None] = lambda event: None,
        control: Control | None = None,
    ) -> None:
        self.config = config
        self.data = data
        self.emit = emit
        self.control = control or Control()
        as_sampled = as_ppo(config)
        key = key_for(config.run.seed, Purpose.ADAPTER)
        self.actor = ActorCriticLLM(model.backbone, as_sampled.model, key=key)
        self._order = RewardTrainConfig(epochs=config.train.epochs, batch_size=config.train.batch_size)
        self.total_steps = steps_in(len(data.train), self._order)
        self.learner = DPOLearner(self.actor, config, total_steps=self.total_steps)
        self.number = 0  # steps taken
        self.tokens = 0
        # PPO's own evaluation scores the samples, so that the two algorithms can be compared.
        self._ppo = (
            PPO(as_sampled, self.actor, model.tokenizer, [], rewards, emit=emit, control=self.control)
            if rewards is not None and data.prompts
            else None
        )
        self._baseline = reference_baseline(self._ppo, data.prompts) if self._ppo is not None else None
        even = np.zeros(sum(len(group.sequences) for group in data.train))
        self._length_slope = fit_length_slope(outcomes(data.train, even, 1.0).longer_by)
        self._skipped = SkippedSteps(config.optim.lr)

    def step(self) -> DPOStep:
        """Take the next step: the gradient over its comparisons, then Adam.

        Raises DivergedError at the third NaN in a row.
        """
        number = self.number + 1
        groups = step_groups(self.data.train, number, self._order, self.config.run.seed)
        mx.reset_peak_memory()
        started = self.control.clock()
        found = self.learner.train(groups, number, self._progress(number, "update"))
        seconds = self.control.clock() - started
        tokens = sum(len(sequence) for group in groups for sequence in group.sequences)
        self.number = number
        self.tokens += tokens
        numbers = found._asdict()
        taken = numbers.pop("taken")
        event = DPOStep(
            iteration=number,
            comparisons=len(groups),
            **numbers,
            skipped=not taken,
            learning_rate=self.learner.optimizer.learning_rate(number),
            tokens=self.tokens,
            tokens_per_second=tokens / seconds,
            seconds=seconds,
            memory_bytes=mx.get_peak_memory(),
        )
        self.emit(event)
        self._skipped.after(self.number, taken=taken, emit=self.emit)
        return event

    def is_evaluation_due(self) -> bool:
        """Return whether the policy is evaluated after the step just taken."""
        every = self.config.eval.every
        return self.number >= self.total_steps or bool(every and self.number % every == 0)

    def evaluate(self) -> None:
        """Evaluate the current policy on the held-out comparisons, and by its samples if there is a reward."""
        if self.data.held_out:
            self.emit(
                evaluate_pairs(
                    self.actor,
                    self.data.held_out,
                    self.config,
                    iteration=self.number,
                    length_slope=self._length_slope,
                    clock=self.control.clock,
                    progress=self._progress(self.number, "evaluate"),
                )
            )
        if self._ppo is not None:
            self.emit(evaluate(self._ppo, self.data.prompts, self.number, self._baseline))

    def snapshot(self) -> Snapshot:
        """Return the current state, as that of a PPO run without a critic."""
        return Snapshot(
            iteration=self.number,
            policy=self.actor.policy_parameters(),
            value={},
            optimizer={"policy": self.learner.optimizer.state(), "value": {}},
            optimizer_steps=self.number,
            rewards={},
            tokens=self.tokens,
            adapter_config=self.actor.adapter_config,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from `snapshot`."""
        self.actor.update_policy(snapshot.policy)
        self.learner.optimizer.restore(snapshot.optimizer["policy"])
        self.number, self.tokens = snapshot.iteration, snapshot.tokens

    def _progress(self, number: int, phase: Phase) -> Callable[[int, int], None]:
        def progress(done: int, total: int) -> None:
            self.control.check()
            self.emit(PhaseProgress(iteration=number, phase=phase, done=done, total=total))

        progress(0, 1)
        return progress
