"""Run of DPO: from preferences to a policy in the run's folder, with a journal and checkpoints like PPO's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from trainer.config import config_warnings, resolve_paths, with_seed
from trainer.config.dpo import DPOConfig, as_ppo
from trainer.config.reward_model import PreferenceDataConfig
from trainer.control.control import Control
from trainer.control.lifecycle import RunUnderWay, closing
from trainer.dpo.dpo_evaluation import evaluate_pairs
from trainer.dpo.dpo_learner import DPOLearner
from trainer.errors import StorageError
from trainer.evaluation.held_out import evaluate, reference_baseline
from trainer.events import DPOStep, Event, RunEnded
from trainer.fitting.memory_limit import Smaller
from trainer.fitting.step_run import Loaded, StepRun
from trainer.fitting.step_training import StepTraining
from trainer.memory.savings import changed
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import with_saved_layers
from trainer.models.backbone import LoadedModel, load_backbone, load_tokenizer
from trainer.models.grad_checkpoint import check_grad_checkpoint
from trainer.plurals import counted
from trainer.ppo.checkpoint import Snapshot, load_checkpoint, save_checkpoint
from trainer.ppo.loop import PPO
from trainer.preference_data.comparisons import Comparisons, load_preferences, policy_comparisons
from trainer.preference_data.groups import changed_preferences
from trainer.preferences.records import Preference
from trainer.reward_model.pair_evaluation import length_slope_of
from trainer.rewards import Rewards, Trust, build_run_rewards, load_functions, trust_all
from trainer.rewards.model_reward import keep_models, unfinished_models, with_checkpoints
from trainer.runs.checkpoint_index import newest_checkpoint
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
) -> RunEnded:
    """Train as `config` says, wholly on the calling thread, and return how the run ended.

    preferences: those to train on, instead of `config.data.preferences`. resume, preset, sinks, control, trust: as for
    `trainer.ppo_run.training.train`. Raises TrainerError for what a user can fix; the journal then says why.
    """
    out, control = Sinks(sinks), control or Control()
    with closing(out, control):
        config = with_seed(with_checkpoints(resolve_paths(config, Path.cwd())))
        run = StepRun(config, resume, out, control)
        run.run.warnings = config_warnings(config) + unfinished_models(config)
        return run.train(lambda: _load(run.run, config, preferences, trust), preset)


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
        emit: Callable[[Event], None] = lambda event: None,
        control: Control | None = None,
    ) -> None:
        super().__init__(config, data, emit, control)
        as_sampled = as_ppo(config)
        key = key_for(config.run.seed, Purpose.ADAPTER)
        self.actor = ActorCriticLLM(model.backbone, as_sampled.model, key=key)
        if config.optim.grad_checkpoint:
            check_grad_checkpoint(model.backbone)
        self.learner = DPOLearner(self.actor, config, total_steps=self.total_steps)
        # PPO's own evaluation scores the samples, so that the two algorithms can be compared.
        self._ppo = (
            PPO(as_sampled, self.actor, model.tokenizer, [], rewards, emit=emit, control=self.control)
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
            self.emit(
                evaluate_pairs(
                    self.actor,
                    self.data.held_out,
                    self.config,
                    iteration=self.number,
                    length_slope=self._length_slope,
                    clock=self.control.clock,
                    progress=self._phases.report(self.number, "evaluate"),
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
        """Restore policy, optimiser and counts from `snapshot`."""
        self.actor.update_policy(snapshot.policy)
        self.learner.optimizer.restore(snapshot.optimizer["policy"])
        self.number, self.tokens = snapshot.iteration, snapshot.tokens
        self.is_prepared = True


def _load(run: RunUnderWay, config: DPOConfig, preferences: Iterable[Preference] | None, trust: Trust) -> Loaded:
    loaded = load_preferences(config.data) if preferences is None else None
    functions = load_functions(config.reward, trust=trust)
    run.warnings += keep_models(config)
    tokenizer = load_tokenizer(config.model)
    data = policy_comparisons(loaded or preferences or (), tokenizer, config)  # a broken row ends the run here
    model = load_backbone(config.model, tokenizer=tokenizer)
    rewards = None  # nothing is sampled
    if config.reward.sources:
        rewards = build_run_rewards(config, model, trust=trust, between_passes=run.control.check, modules=functions)
    run.warnings += loaded.warnings if loaded else []
    if run.resume:
        _check_pairs(run.folder, data.fingerprint, config.data)
        if saved := newest_checkpoint(run.folder):
            config = with_saved_layers(config, saved / "policy")
    dpo = DPO(config, model, data, rewards, emit=run.emit, control=run.control)
    return Loaded(
        model,
        dpo,
        trainable=lambda snapshot: list(snapshot.policy.values()),
        read=lambda path: load_checkpoint(path, dpo.actor.adapter_config),
        write=save_checkpoint,
        pairs=data.fingerprint,
    )


def _check_pairs(folder: RunFolder, pairs: str, config: PreferenceDataConfig) -> None:
    try:
        began_with = read_pairs(folder)
    except OSError as error:
        raise StorageError(f"cannot read '{folder.pairs}': {error.strerror}; start a new run") from None
    if began_with != pairs.encode():
        raise changed_preferences(config)
