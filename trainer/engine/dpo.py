"""DPO as a run trains it: from preferences to a policy, evaluated on held-out pairs and by its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Self

from trainer.arrays import Purpose, key_for
from trainer.config.pairs import DPOConfig, as_ppo
from trainer.dpo import DPOLearner, evaluate_pairs
from trainer.engine.trainable import StepTraining
from trainer.errors import counted, storage_error
from trainer.evaluation.held_out import ReferenceBaseline, evaluate
from trainer.events import DPOStep
from trainer.files import read_regular
from trainer.memory.estimate import changed
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import LoadedModel
from trainer.models.forward import check_grad_checkpoint
from trainer.pairs.comparisons import Comparisons, load_material, policy_comparisons
from trainer.pairs.groups import changed_preferences
from trainer.policy_checkpoint import Snapshot
from trainer.ppo.loop import PPO
from trainer.reward_model.pair_evaluation import length_slope_of
from trainer.rewards import Rewards, build_rewards, load_functions
from trainer.rewards.model_reward import keep_models
from trainer.runs.folder import RunFolder


def began_with(folder: RunFolder, data: Comparisons) -> bool:
    """Return whether the run in `folder` began with the preferences of `data`. Raises StorageError."""
    with storage_error(f"cannot read '{folder.pairs}'", "start a new run"):
        return read_regular(folder.pairs).strip() == data.fingerprint.encode()


class DPO(StepTraining):
    """A policy under training by DPO; see `Trainable`. Its rewards score the samples; without, it samples nothing."""

    config: DPOConfig
    step_event = DPOStep
    _functions: dict[str, ModuleType] | None = None

    def load(self, folder: RunFolder | None) -> Sequence[Any]:
        """Read preferences and model; return the hash of the preferences. Raises UsageError if `folder` has another."""
        if self.ranks.leads:
            self._functions = load_functions(self.config.reward, trust=self._trust)
            self.warnings += keep_models(self.config)
        self.model, self.data, warnings = load_material(self.config, self._preferences, policy_comparisons)
        if folder and not began_with(folder, self.data):
            raise changed_preferences(self.config.data)
        self.warnings += [*warnings, *self.data.warnings]
        return [self.data.fingerprint]

    def build(self) -> None:
        """Put the policy's adapter on the model, and build the rewards if samples are to be scored."""
        config = self.config
        rewards: Rewards | None = None
        if config.reward.sources:
            with self.ranks.all_or_none(ends=True):
                rewards = build_rewards(
                    config.reward,
                    backbone=self.model,
                    max_new_tokens=config.rollout.max_new_tokens,
                    micro_batch_tokens=config.optim.micro_batch_tokens,
                    trust=self._trust,
                    between_passes=self.hooks.check,
                    modules=self._functions,
                    ranks=self.ranks,
                    answers=self.answers,
                    wait=self.hooks.wait,
                )
        self.build_on(config, self.model, self.data, rewards)

    def build_on(
        self, config: DPOConfig, model: LoadedModel, data: Comparisons, rewards: Rewards | None = None
    ) -> Self:
        """Build what trains on a loaded model and comparisons; return this object."""
        self.use_data(config, data)
        self.model, self.fingerprint = model, data.fingerprint
        as_sampled, tokenizer = as_ppo(config), model.tokenizer
        key = key_for(config.run.seed, Purpose.ADAPTER)
        self.actor = ActorCriticLLM(model.backbone, as_sampled.model, key=key)
        if config.optim.grad_checkpoint:
            check_grad_checkpoint(model.backbone)
        self.trainable = sum(array.size for array in self.actor.policy_parameters().values())
        self.learner = DPOLearner(self.actor, config, total_steps=self.total, ranks=self.ranks)
        self._length_slope = length_slope_of(data.train)
        # PPO's own evaluation scores the samples, so that the two algorithms can be compared.
        self._ppo: PPO | None = None
        self._baseline: ReferenceBaseline | None = None
        if rewards is not None and data.prompts:
            hooks: Any = {"report": self.hooks.report, "clock": self.hooks.clock, "ranks": self.ranks}
            self._ppo = PPO(as_sampled, self.actor, tokenizer, [], rewards, **hooks)
            self._baseline = ReferenceBaseline(data.prompts, draws=as_sampled.eval.best_of)
        return self

    def configure(self, config: DPOConfig, rewards: Any = None) -> None:
        """Use the micro-batches of `config` from now on, also for the samples of evaluations."""
        super().configure(config)
        if self._ppo is not None:
            tokens = config.optim.micro_batch_tokens
            self._ppo.configure(changed(self._ppo.config, "optim.micro_batch_tokens", tokens))

    def ending(self) -> str:
        """Return why there are no more steps, if all have been taken; a resume with more steps continues."""
        return f"{counted(self.number, 'step')} done" if self.number >= self.total else ""

    def prepare(self) -> None:
        """Evaluate the untrained policy."""
        self.evaluate()
        self.is_prepared = True

    def due(self) -> Iterator[Callable[[], object]]:
        """Yield `evaluate` if it is due after the step just taken: after every so many, and after the last."""
        every = self.config.eval.every
        if self.ending() or (every and self.number % every == 0):
            yield self.evaluate

    def evaluate(self) -> None:
        """Evaluate the current policy on the held-out comparisons, and by its samples if there is a reward."""
        if self.data.held_out:
            self.hooks.report(
                evaluate_pairs(
                    self.actor,
                    self.data.held_out,
                    self.config,
                    iteration=self.number,
                    length_slope=self._length_slope,
                    clock=self.phases.clock,
                    progress=self.phases.start(self.number, "evaluate"),
                    ranks=self.ranks,
                )
            )
        if self._ppo is not None:
            self.hooks.report(evaluate(self._ppo, self.data.prompts, self.number, self._baseline))

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
        """Restore policy, optimiser and counts from `snapshot`."""
        self.actor.update_policy(snapshot.policy)
        self.learner.optimizer.restore(snapshot.optimizer["policy"])
        self.number, self.tokens = snapshot.iteration, snapshot.tokens
        self.is_prepared = True
