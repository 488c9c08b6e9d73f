"""A whole DPO run: from preferences to a policy in the run's folder, with a journal and checkpoints like PPO's."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.config.dpo import DPOConfig, as_ppo, resolve_dpo_paths
from trainer.config.reward_model import PreferenceDataConfig
from trainer.control.control import Control
from trainer.control.lifecycle import RunUnderWay, closing
from trainer.dpo.fitting import DPO
from trainer.dpo.pairs import Pairs, load_pairs
from trainer.errors import StorageError, UsageError
from trainer.events import CheckpointSaved, RunEnded
from trainer.models.cpu.blas import blas_warning, measure_matmul
from trainer.models.loading import LoadedModel, load_backbone, quantize_warning
from trainer.ppo.checkpoint import Snapshot, load_checkpoint, save_checkpoint
from trainer.preferences.records import Preference
from trainer.reward_model.pairs import fingerprint
from trainer.reward_model.sources import load_preferences
from trainer.rewards import Rewards, Trust, build_rewards, load_functions, trust_all
from trainer.rewards.model import unfinished_models, with_checkpoints
from trainer.runs.checkpoint_files import load_newest
from trainer.runs.checkpoint_index import prune_checkpoints
from trainer.runs.folder import RunFolder, check_name_is_free, create_run, open_to_train, write_config
from trainer.runs.sinks import Sink, Sinks
from trainer.runs.trackers import build_trackers


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
    `trainer.session.training.train`. Raises TrainerError for what a user can fix; the journal then says why.
    """
    out, control = Sinks(sinks), control or Control()
    with closing(out, control):
        return _Run(config, resume, out, control, trust).train(preferences, preset)


class _Run(RunUnderWay):
    """One run under way: its model, the loop over steps, and its checkpoints."""

    dpo: DPO
    snapshot: Snapshot

    def __init__(self, config: DPOConfig, resume: Path | None, out: Sinks, control: Control, trust: Trust) -> None:
        super().__init__(resume, out, control)
        self.trust = trust
        config = resolve_dpo_paths(config, Path.cwd())
        if config.reward.sources:
            sources = with_checkpoints(as_ppo(config)).reward.sources
            config = config.model_copy(update={"reward": config.reward.model_copy(update={"sources": sources})})
        seed = config.run.seed if config.run.seed >= 0 else secrets.randbelow(2**32)
        self.config = config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})
        self.saved_at = -1
        self.is_prepared = False
        self.warnings = unfinished_models(as_ppo(self.config))

    @property
    def iteration(self) -> int:
        """Number of the last whole step."""
        return self.snapshot.iteration

    def train(self, preferences: Iterable[Preference] | None, preset: str) -> RunEnded:
        """Load everything, then create or open the run, so that a failed start leaves nothing behind."""
        c = self.config
        self.state("loading")
        if self.resume:
            self.folder = open_to_train(self.resume, Path(c.run.dir))
        else:
            check_name_is_free(c)
        if preferences is None:
            preferences, warnings = load_preferences(c.data)
            self.warnings += warnings
        functions = load_functions(c.reward, trust=self.trust)
        model = load_backbone(c.model)
        rewards = self._rewards(model, functions)
        self.warnings += filter(None, (blas_warning(measure_matmul()), quantize_warning(c.model)))
        data = load_pairs(list(preferences), model, c)
        self.warnings += data.warnings
        pairs = fingerprint([*data.train, *data.held_out])
        if self.resume:
            _check_pairs(self.folder.pairs, pairs, c.data)
        self.dpo = DPO(c, model, data, rewards, emit=self.emit, control=self.control)
        self.snapshot = self.dpo.snapshot()
        if not self.resume:
            self.folder = create_run(c, preset, pairs=pairs)
        with self.folder.lock() as self.lock:
            if self.resume:
                write_config(self.folder, c)  # the config that applies from now on
            names, settings = c.run.trackers, c.model_dump()
            trackers = functools.partial(build_trackers, names, self.folder.name, self.folder.root, settings)
            self.open(trackers, shared=c.run.shared)
            return self.guarded(lambda: self._steps(model, data))

    def save(self) -> None:
        """Save the last whole step, unless it is saved already."""
        self.guard.check()
        if self.iteration == self.saved_at or not self.is_prepared:
            return
        self.state("saving")
        started = time.perf_counter()
        path = self.folder.checkpoint(self.iteration)
        save_checkpoint(path, self.snapshot)
        self.saved_at = self.iteration
        prune_checkpoints(self.folder, self.config.checkpoint.keep)
        where, seconds = str(path.relative_to(self.folder.root)), time.perf_counter() - started
        self.emit(CheckpointSaved(iteration=self.saved_at, path=where, seconds=seconds))

    def move_to(self, folder: RunFolder) -> None:
        """Use `folder` as the run's folder from now on."""
        self.folder, self.saved_at = folder, -1
        write_config(folder, self.config)

    def _rewards(self, model: LoadedModel, modules: dict[str, ModuleType]) -> Rewards | None:
        """Build the rewards that score samples; None if nothing is to be sampled."""
        c = self.config
        if not c.reward.sources:
            return None
        how: Any = {"micro_batch_tokens": c.optim.micro_batch_tokens, "heed": self.control.check, "trust": self.trust}
        how |= {"max_new_tokens": c.rollout.max_new_tokens, "modules": modules}
        return build_rewards(c.reward, backbone=model, **how)

    def _begin(self, model: LoadedModel, data: Pairs) -> None:
        adapter_config = self.dpo.actor.adapter_config
        loaded, problems = load_newest(self.folder, lambda path: load_checkpoint(path, adapter_config))
        if loaded is not None:
            self.snapshot = loaded
            self.dpo.restore(self.snapshot)
            self.saved_at, self.is_prepared = self.snapshot.iteration, True
        self.begin(
            self.config,
            model,
            trainable=list(self.snapshot.policy.values()),
            prompts=len(data.train),
            eval_prompts=len(data.held_out),
            iterations=self.dpo.total_steps,
            kind=self.config.kind,
        )
        self.tell_damaged(problems)

    def _steps(self, model: LoadedModel, data: Pairs) -> str:
        """Take the steps that are left, and return why there are no more."""
        self._begin(model, data)
        dpo, every = self.dpo, self.config.checkpoint.every
        if not self.is_prepared:
            self.state("evaluating")
            dpo.evaluate()
            self.is_prepared = True
            if every:
                self.save()
        while dpo.number < dpo.total_steps:
            self.state("training")
            self.control.between_iterations()
            dpo.step()
            if dpo.is_evaluation_due():
                self.state("evaluating")
                dpo.evaluate()
            # Only now: a run that ends during its evaluation takes the step again, and evaluates again.
            self.snapshot = dpo.snapshot()
            if every and self.iteration % every == 0:
                self.save()
        return f"{dpo.number} steps done"


def _check_pairs(file: Path, pairs: str, config: PreferenceDataConfig) -> None:
    try:
        began_with = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise StorageError(f"cannot read '{file}': {error.strerror}; start a new run") from None
    if began_with != pairs:
        raise UsageError(
            f"the preferences in '{config.preferences}' are not those that this run began with: start a new run"
        )
