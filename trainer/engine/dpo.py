"""Run of DPO: from preferences to a policy in the run's folder, with a journal and checkpoints like PPO's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.config import config_warnings, resolve_paths, with_seed
from trainer.config.dpo import DPOConfig, as_ppo
from trainer.config.reward_model import PreferenceDataConfig
from trainer.distributed.ranks import ALONE, Ranks
from trainer.dpo.dpo_evaluation import evaluate_pairs
from trainer.dpo.dpo_learner import DPOLearner
from trainer.engine.checkpoint import Snapshot, arrays_of, load_checkpoint, plain_state, save_checkpoint, with_state
from trainer.engine.control import Control
from trainer.engine.lifecycle import RunUnderWay, closing, reporting
from trainer.engine.step_run import Files, StepRun, follow_steps
from trainer.engine.step_training import StepTraining
from trainer.errors import StorageError
from trainer.evaluation.held_out import evaluate, reference_baseline
from trainer.events import DPOStep, Report, RunEnded, ignored
from trainer.fitting.memory_limit import Smaller
from trainer.memory.estimate import changed
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import LoadedModel, LoadedTokenizer
from trainer.models.grad_checkpoint import check_grad_checkpoint
from trainer.plurals import counted
from trainer.ppo.loop import PPO
from trainer.preference_data.comparisons import Comparisons, Material, load_material, policy_comparisons
from trainer.preference_data.groups import changed_preferences
from trainer.preferences.records import Preference
from trainer.reward_model.pair_evaluation import length_slope_of
from trainer.rewards import Rewards, Trust, build_run_rewards, load_functions, trust_all
from trainer.rewards.model_reward import keep_models, unfinished_models, with_checkpoints
from trainer.runs.folder import RunFolder, read_pairs
from trainer.runs.sinks import Sink, Sinks
from trainer.seeding import Purpose, key_for


def train_dpo(
    config: DPOConfig,
    *,
    preferences: Iterable[Preference] | None = None,
    resume: Path | None = None,
    preset: str = "dpo",
    sinks: Sequence[Sink] = (),
    control: Control | None = None,
    trust: Trust = trust_all,
    ranks: Ranks = ALONE,
) -> RunEnded:
    """Train as `config` says, wholly on the calling thread, and return how the run ended.

    preferences: those to train on, instead of `config.data.preferences`, which the other ranks read. resume, preset,
    sinks, control, trust, ranks: as for `trainer.engine.training.train`. Raises TrainerError for what a user can fix;
    the journal then says why.
    """
    out, control = Sinks(sinks), control or Control()
    with closing(out, control):
        config = with_seed(with_checkpoints(resolve_paths(config, Path.cwd())))
        run = StepRun(config, resume, out, control, ranks)
        run.run.warnings = config_warnings(config) + unfinished_models(config)
        return run.train(_DPOKind(config, ranks, run.run, preferences, trust), preset)


def follow_dpo(ranks: Ranks, config: DPOConfig) -> None:
    """Train with the first rank, as `follow_steps` does."""
    follow_steps(ranks, config, _DPOKind(config, ranks))


class DPO(StepTraining):
    """The DPO algorithm on a model and comparisons. rewards: scores the samples; None to sample nothing."""

    config: DPOConfig
    data: Comparisons
    step_event = DPOStep

    def __init__(
        self,
        config: DPOConfig,
        model: LoadedModel,
        data: Comparisons,
        rewards: Rewards | None = None,
        *,
        report: Report = ignored,
        clock: Callable[[], float] = time.perf_counter,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__(config, data, report, clock, ranks)
        as_sampled = as_ppo(config)
        key = key_for(config.run.seed, Purpose.ADAPTER)
        self.actor = ActorCriticLLM(model.backbone, as_sampled.model, key=key)
        if config.optim.grad_checkpoint:
            check_grad_checkpoint(model.backbone)
        self.learner = DPOLearner(self.actor, config, total_steps=self.total_steps, ranks=ranks)
        # PPO's own evaluation scores the samples, so that the two algorithms can be compared.
        self._ppo = (
            PPO(as_sampled, self.actor, model.tokenizer, [], rewards, report=report, clock=clock, ranks=ranks)
            if rewards is not None and data.prompts
            else None
        )
        self._baseline = reference_baseline(self._ppo, data.prompts) if self._ppo is not None else None
        self._length_slope = length_slope_of(data.train)

    def lower(self, change: Smaller) -> None:
        """Use smaller micro-batches from now on, also for the samples of evaluations."""
        super().lower(change)
        if self._ppo is not None:
            self._ppo.configure(changed(self._ppo.config, *change))

    @property
    def finished(self) -> bool:
        """Return whether all steps have been taken; a resume with more steps continues."""
        return self.number >= self.total_steps

    @property
    def reason(self) -> str:
        """Reason why there are no more steps."""
        return f"{counted(self.number, 'step')} done"

    def prepare(self) -> None:
        """Evaluate the untrained policy."""
        self.evaluate()
        self.is_prepared = True

    def due(self) -> Iterator[Callable[[], object]]:
        """Yield `evaluate` if it is due after the step just taken: after every so many, and after the last."""
        every = self.config.eval.every
        if self.finished or (every and self.number % every == 0):
            yield self.evaluate

    def evaluate(self) -> None:
        """Evaluate the current policy on the held-out comparisons, and by its samples if there is a reward."""
        if self.data.held_out:
            self.report(
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
            self.report(evaluate(self._ppo, self.data.prompts, self.number, self._baseline))

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

    def plain_state(self) -> dict[str, Any]:
        """Return what is not an array in the current state."""
        return plain_state(self.snapshot())

    def arrays(self) -> dict[str, Any]:
        """Return the arrays of the current state."""
        return arrays_of(self.snapshot())

    def take_over(self, state: dict[str, Any]) -> None:
        """Continue from the first rank's state."""
        here = self.snapshot()
        self.restore(with_state(here, state, self.ranks.from_first(arrays_of(here))))


class _DPOKind:
    """A run of DPO. run: None on other ranks than the first, which build no Python rewards."""

    adapter = "policy"

    def __init__(
        self,
        config: DPOConfig,
        ranks: Ranks,
        run: RunUnderWay | None = None,
        preferences: Iterable[Preference] | None = None,
        trust: Trust = trust_all,
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._run = run
        self._preferences = preferences
        self._trust = trust
        self._functions: dict[str, ModuleType] = {}

    def read(self) -> Material:
        if self._run:
            self._functions = load_functions(self._config.reward, trust=self._trust)
            self._run.warnings += keep_models(self._config)
        return load_material(self._config, self._preferences, self._compared)

    def _compared(self, preferences: Iterable[Preference], model: LoadedTokenizer, config: DPOConfig) -> Comparisons:
        data = policy_comparisons(preferences, model, config)
        if self._run and self._run.resume:
            _check_pairs(self._run.folder, data.fingerprint, config.data)
        return data

    def build(self, config: DPOConfig, found: Material) -> DPO:
        how: Any = self._run.hooks() if self._run else {"report": reporting(ignored, Control(), self._ranks)}
        return DPO(config, found.model, found.data, self._rewards(config, found.model), ranks=self._ranks, **how)

    def _rewards(self, config: DPOConfig, model: LoadedModel) -> Rewards | None:
        """Build the rewards, if samples are to be scored."""
        if not config.reward.sources:
            return None
        with self._ranks.all_or_none(ends=True):
            return build_run_rewards(
                config,
                model,
                trust=self._trust,
                # as in Phases.report
                between_passes=self._run.control.check if self._run and self._ranks.alone else lambda: None,
                modules=self._functions,
                ranks=self._ranks,
            )

    def files(self, fit: DPO) -> Files:
        return Files(
            trainable=lambda snapshot: list(snapshot.policy.values()),
            read=lambda path: load_checkpoint(path, fit.actor.adapter_config),
            write=save_checkpoint,
            pairs=fit.data.fingerprint,
        )


def _check_pairs(folder: RunFolder, pairs: str, config: PreferenceDataConfig) -> None:
    try:
        began_with = read_pairs(folder)
    except OSError as error:
        raise StorageError(f"cannot read '{folder.pairs}': {error.strerror}; start a new run") from None
    if began_with != pairs.encode():
        raise changed_preferences(config)
