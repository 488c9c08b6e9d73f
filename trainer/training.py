"""A whole run: from a configuration to a trained policy, with a journal, samples and checkpoints on disk."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from trainer import runs
from trainer.answers import answer
from trainer.checkpoint import Snapshot, load_checkpoint, restore_snapshot, take_snapshot
from trainer.config import Config, config_warnings
from trainer.config.loading import resolve_paths
from trainer.control import Control
from trainer.data import Prompt, load_prompts
from trainer.errors import TrainerError
from trainer.evaluate import evaluate
from trainer.events import (
    Alert,
    RunEnded,
    SettingChanged,
    Sink,
    Sinks,
)
from trainer.live_settings import changes, with_setting
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.blas import blas_warning, measure_matmul
from trainer.models.loading import LoadedModel, load_backbone, quantize_warning
from trainer.ppo import PPO
from trainer.questions import Answer, Question
from trainer.rewards import build_rewards
from trainer.rewards.model import unfinished_models, with_checkpoints
from trainer.run_prompts import run_prompts
from trainer.run_record import RunRecord
from trainer.run_under_way import RunUnderWay
from trainer.seeding import Purpose, key_for
from trainer.trackers import build_trackers


def train(
    config: Config,
    *,
    resume: Path | None = None,
    preset: str = "run",
    sinks: Sequence[Sink] = (),
    control: Control | None = None,
) -> RunEnded:
    """Train as `config` says, wholly on the calling thread, and return how the run ended.

    resume: folder of a run to continue from its newest whole checkpoint, with `config` as its configuration. preset:
    stem of a new run's folder when run.name is empty. sinks: get every event, in order, and are closed at the end.
    control: lets another thread steer the run, as the run folder's `control/` lets another process. Raises TrainerError
    for what a user can mend; the journal then says why.
    """
    out, control = Sinks(sinks), control or Control()
    try:
        return _Run(config, resume, preset, out, control).train()
    finally:
        control.detach()
        out.close()


def release_thread() -> None:
    """Call at the end of a thread that trained, before it ends: else MLX may abort the process at exit.

    The thread can use MLX no more afterwards.
    """
    mx.clear_streams()


class _Run(RunUnderWay):
    """One run under way: its model, the loop over iterations, and what it does when it is steered."""

    snapshot: Snapshot
    record: RunRecord
    model: LoadedModel

    def __init__(self, config: Config, resume: Path | None, preset: str, out: Sinks, control: Control) -> None:
        super().__init__(resume, out, control)
        config = with_checkpoints(resolve_paths(config, Path.cwd()))
        seed = config.run.seed if config.run.seed >= 0 else secrets.randbelow(2**32)
        self.config = config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})
        self.preset = preset
        self.heed = control.check  # between the micro-batches of a reward model
        self.warnings = config_warnings(self.config) + unfinished_models(self.config)
        self.wanted = self.config  # with the live settings that were asked for and do not hold yet

    @property
    def iteration(self) -> int:
        """The last whole iteration."""
        return self.snapshot.iteration

    def train(self) -> RunEnded:
        """Load everything, then create or open the run, so that a broken start leaves nothing behind."""
        self.state("loading")
        if self.resume:
            self.folder = runs.open_run(self.resume, Path(self.config.run.dir))
        else:
            runs.check_name_is_free(self.config)
        rows = load_prompts(self.config.data)
        self.model = model = load_backbone(self.config.model)
        rewards = build_rewards(
            self.config.reward,
            backbone=model,
            micro_batch_tokens=self.config.optim.micro_batch_tokens,
            heed=lambda: self.heed(),
        )
        self.warnings += filter(None, (blas_warning(measure_matmul()), quantize_warning(self.config.model)))
        prompts, held_out, warnings = run_prompts(self.config, rows, model)
        self.warnings += warnings
        key = key_for(self.config.run.seed, Purpose.ADAPTER)
        actor = ActorCriticLLM(model.backbone, self.config.model, key=key)
        self.ppo = PPO(self.config, actor, model.tokenizer, prompts, rewards, emit=self.emit, control=self.control)
        self.held_out = held_out[: self.config.eval.prompts]
        if not self.resume:
            self.folder = runs.create_run(self.config, self.preset)
        with self.folder.lock():
            if self.resume:
                runs.write_config(self.folder, self.config)  # what runs from here on
            self.record = RunRecord(self.folder, self.config, self.emit)
            self.open(self._trackers)
            return self.guarded(lambda: self._iterations(prompts))

    def alert(self, level: Literal["info", "warning"], code: str, message: str) -> None:
        """Tell something that a user should know, of the iteration under way."""
        number = min(self.iteration + 1, self.config.ppo.iterations)
        self.emit(Alert(iteration=number, level=level, code=code, message=message))

    def save(self) -> None:
        """Save the last whole iteration, unless it is saved already."""
        self.record.save(self.snapshot)

    def stopped(self) -> None:
        """Let the settings that were asked for hold when the run is resumed."""
        self._apply_settings()

    def checkpoint(self) -> None:
        """Save the last whole iteration, in the midst of the next one."""
        at = self.snapshot.iteration
        if at == self.record.saved_at:
            self.alert("info", "checkpoint_there", f"the checkpoint after iteration {at} is there already")
        self._save_in_between()

    def set(self, key: str, value: Any) -> None:
        """Keep the setting for the next iteration, or tell why it cannot be."""
        try:
            self.wanted = with_setting(self.wanted, key, value)
        except TrainerError as refusal:
            self.alert("warning", "setting_refused", f"{'; '.join(str(refusal).splitlines())}; nothing is changed")

    def answer(self, question: Question, heed: Callable[[], None]) -> Answer:
        """Let the policy of the last whole iteration write, whatever arrays the one under way has in the model."""
        ppo, before = self.ppo, self.heed
        self.heed = heed  # which answers no other question in the midst of this one
        try:
            with ppo.actor.policy(self.snapshot.policy):
                return answer(
                    question,
                    actor=ppo.actor,
                    model=self.model,
                    score=functools.partial(ppo.rewards, update_statistics=False),
                    config=self.config,
                    iteration=self.snapshot.iteration,
                    progress=heed,
                )
        finally:
            self.heed = before

    def _begin(self, prompts: Sequence[Prompt]) -> None:
        ppo = self.ppo
        self.snapshot = take_snapshot(0, 0, ppo.actor, ppo.learner, ppo.rewards)
        found = runs.checkpoints(self.folder)
        if found.paths:
            self.snapshot = load_checkpoint(found.paths[-1], ppo.actor.adapter_config)
            restore_snapshot(self.snapshot, ppo.actor, ppo.learner, ppo.rewards)
            ppo.tokens = self.snapshot.tokens
            self.record.saved_at = self.snapshot.iteration
        self.begin(
            self.config,
            self.model,
            trainable=[*ppo.actor.policy_parameters().values(), *ppo.actor.value_parameters().values()],
            prompts=len(prompts),
            eval_prompts=len(self.held_out),
            iterations=self.config.ppo.iterations,
        )
        self.tell_damaged(found.problems)

    def _iterations(self, prompts: Sequence[Prompt]) -> str:
        """Do the iterations that are left; returns why there are no more."""
        self._begin(prompts)
        c, ppo = self.config, self.ppo  # what is read of `c` here is not live
        for number in range(self.snapshot.iteration + 1, c.ppo.iterations + 1):
            self.state("training")
            self.control.between_iterations()
            self._apply_settings()
            result = ppo.iteration(number)
            self.record.write_samples(number, result)
            self.emit(result.metrics)
            if c.eval.every and self.held_out and number % c.eval.every == 0:
                self.state("evaluating")
                self.emit(evaluate(ppo, self.held_out, number))
            # Only now: a run that ends within its evaluation does the iteration again, and the evaluation with it.
            self.snapshot = take_snapshot(number, ppo.tokens, ppo.actor, ppo.learner, ppo.rewards)
            if c.checkpoint.every and number % c.checkpoint.every == 0:
                self.save()
        self.save()
        for change in changes(self.config, self.wanted):
            message = f"{change.key} = {change.value} came in the last iteration; nothing is changed"
            self.alert("warning", "setting_refused", message)
        return f"{c.ppo.iterations} iterations done"

    def _apply_settings(self) -> None:
        """Let the settings that were asked for hold from the next iteration on, here and in a resumed run."""
        if not (changed := changes(self.config, self.wanted)):
            return
        self._save_in_between()  # what came before must not be done anew by what holds from here on
        self.config = self.wanted
        runs.write_config(self.folder, self.config)
        for change in changed:
            self.emit(SettingChanged(iteration=self.snapshot.iteration + 1, **change._asdict()))
        self.ppo.configure(self.config)
        for warning in config_warnings(self.config):
            if warning not in self.warnings:
                self.warnings.append(warning)
                self.alert("warning", "config", warning)

    def _save_in_between(self) -> None:
        if self.iteration != self.record.saved_at:
            now = self.now
            self.save()
            self.state(now)

    def _trackers(self) -> list[Sink]:
        names, settings = self.config.run.trackers, self.config.model_dump()
        return build_trackers(names, self.folder.name, self.folder.root, settings)
