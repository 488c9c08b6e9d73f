"""A whole run: from a configuration to a trained policy, with a journal, samples and checkpoints on disk."""

from __future__ import annotations

import contextlib
import functools
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from trainer import runs
from trainer.answers import answer
from trainer.arrays import leaves
from trainer.checkpoint import Snapshot, load_checkpoint, restore_snapshot, take_snapshot
from trainer.config import Config, config_warnings
from trainer.config.loading import resolve_paths
from trainer.control import Control, Interrupted, Steered
from trainer.data import Prompt, load_prompts
from trainer.errors import StorageError, TrainerError
from trainer.evaluate import evaluate
from trainer.events import (
    Alert,
    EndState,
    Event,
    RunEnded,
    RunStarted,
    SettingChanged,
    Sink,
    Sinks,
    State,
    StateChanged,
)
from trainer.inbox import Inbox
from trainer.journal import Journal
from trainer.live_settings import changes, with_setting
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.blas import blas_warning, measure_matmul
from trainer.models.loading import LoadedModel, load_backbone
from trainer.ppo import PPO
from trainer.progress import ProgressFile
from trainer.questions import Answer, Question
from trainer.rewards import build_rewards
from trainer.run_prompts import run_prompts
from trainer.run_record import RunRecord
from trainer.runs import RunFolder
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


class _Run(Steered):
    """One run under way: its folder, its model, the loop over iterations, and what it does when it is steered."""

    def __init__(self, config: Config, resume: Path | None, preset: str, out: Sinks, control: Control) -> None:
        config = resolve_paths(config, Path.cwd())
        seed = config.run.seed if config.run.seed >= 0 else secrets.randbelow(2**32)
        self.config = config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})
        self.resume = resume
        self.preset = preset
        self.out = out
        self.control = control
        self.started = time.perf_counter()
        self.warnings = config_warnings(self.config)
        self.folder: RunFolder
        self.snapshot: Snapshot
        self.record: RunRecord
        self.state: State = "loading"
        self.before_pause: State = "loading"
        self.model: LoadedModel
        self.wanted = self.config  # with the live settings that were asked for and do not hold yet

    def train(self) -> RunEnded:
        """Load everything, then create or open the run, so that a broken start leaves nothing behind."""
        self._state("loading")
        if self.resume:
            self.folder = runs.open_run(self.resume, Path(self.config.run.dir))
        else:
            runs.check_name_is_free(self.config)
        rows = load_prompts(self.config.data)
        rewards = build_rewards(self.config.reward)
        self.model = model = load_backbone(self.config.model)
        if slow := blas_warning(measure_matmul()):
            self.warnings.append(slow)
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
            self._open()
            return self._guarded(prompts)

    def emit(self, event: Event) -> None:
        """Hand an event to every sink."""
        if isinstance(event, StateChanged):
            self.state = event.state
        self.out.emit(event)

    def paused(self) -> None:
        """Tell that the run is held."""
        self.before_pause = self.state
        self._state("paused")

    def resumed(self) -> None:
        """Tell that it goes on with what it was at."""
        self._state(self.before_pause)

    def checkpoint(self) -> None:
        """Save the last whole iteration, in the midst of the next one."""
        at = self.snapshot.iteration
        if at == self.record.saved_at:
            self._alert("info", "checkpoint_there", f"the checkpoint after iteration {at} is there already")
        self._save_in_between()

    def set(self, key: str, value: Any) -> None:
        """Keep the setting for the next iteration, or tell why it cannot be."""
        try:
            self.wanted = with_setting(self.wanted, key, value)
        except TrainerError as refusal:
            self._alert("warning", "setting_refused", f"{'; '.join(str(refusal).splitlines())}; nothing is changed")

    def answer(self, question: Question, heed: Callable[[], None]) -> Answer:
        """Let the policy of the last whole iteration write, whatever arrays the one under way has in the model."""
        ppo = self.ppo
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

    def _open(self) -> None:
        try:
            self.control.attach(self, Inbox(self.folder.control, self._complain).take)
            self.out.add_first(Journal(self.folder.events))
            self.out.add([ProgressFile(self.folder.progress), *self._trackers()])
        except TrainerError:
            if not self.resume:
                shutil.rmtree(self.folder.root, ignore_errors=True)
            raise

    def _guarded(self, prompts: Sequence[Prompt]) -> RunEnded:
        """The loop, with what must happen however it ends: a checkpoint where one can be had, and an `end` event."""
        try:
            state, exit_code, reason = self._until_the_end(prompts)
        except Exception as error:
            self._failed(error)
            raise
        return self._end(state, exit_code, reason)

    def _until_the_end(self, prompts: Sequence[Prompt]) -> tuple[EndState, int, str]:
        try:
            self._begin(prompts)
            self._loop()
        except Interrupted as interruption:
            if interruption.save:
                self.record.save(self.snapshot)
                self._apply_settings()  # they hold when the run is resumed
            return "stopped", 130, interruption.reason
        self.record.save(self.snapshot)
        for change in changes(self.config, self.wanted):
            message = f"{change.key} = {change.value} came in the last iteration; nothing is changed"
            self._alert("warning", "setting_refused", message)
        return "done", 0, f"{self.config.ppo.iterations} iterations done"

    def _failed(self, error: Exception) -> None:
        """Save the last good state and tell why the run ended; a full disk on the way must not hide `error`."""
        with contextlib.suppress(StorageError):
            if not isinstance(error, StorageError):
                self.record.save(self.snapshot)
        with contextlib.suppress(StorageError):
            if isinstance(error, TrainerError):
                self._end("failed", error.exit_code, str(error))
            else:
                self._end("failed", 1, f"{type(error).__name__}: {error}")

    def _begin(self, prompts: Sequence[Prompt]) -> None:
        ppo, model = self.ppo, self.model
        self.snapshot = take_snapshot(0, 0, ppo.actor, ppo.learner, ppo.rewards)
        found = runs.checkpoints(self.folder)
        if found.paths:
            self.snapshot = load_checkpoint(found.paths[-1], ppo.actor.adapter_config)
            restore_snapshot(self.snapshot, ppo.actor, ppo.learner, ppo.rewards)
            ppo.tokens = self.snapshot.tokens
            self.record.saved_at = self.snapshot.iteration
        trainable = [*ppo.actor.policy_parameters().values(), *ppo.actor.value_parameters().values()]
        self.emit(
            RunStarted(
                name=self.folder.name,
                folder=str(self.folder.root),
                model=self.config.model.path,
                device="GPU" if mx.default_device() == mx.Device(mx.gpu) else "CPU",
                dtype=str(model.dtype).removeprefix("mlx.core."),
                parameters=sum(array.size for array in leaves(model.backbone.parameters())),
                trainable=sum(array.size for array in trainable),
                prompts=len(prompts),
                eval_prompts=len(self.held_out),
                iterations=self.config.ppo.iterations,
                seed=self.config.run.seed,
                versions=runs.versions(),
                warnings=self.warnings,
                resumed_at=self.snapshot.iteration if self.resume else None,
            )
        )
        at = self.snapshot.iteration
        for problem in found.problems:
            message = f"{problem}: resumed after iteration {at} instead"
            self.emit(Alert(iteration=at, level="warning", code="checkpoint_damaged", message=message))

    def _loop(self) -> None:
        c, ppo = self.config, self.ppo  # what is read of `c` here is not live
        for number in range(self.snapshot.iteration + 1, c.ppo.iterations + 1):
            self._state("training")
            self.control.between_iterations()
            self._apply_settings()
            result = ppo.iteration(number)
            self.record.write_samples(number, result)
            self.emit(result.metrics)
            if c.eval.every and self.held_out and number % c.eval.every == 0:
                self._state("evaluating")
                self.emit(evaluate(ppo, self.held_out, number))
            # Only now: a run that ends within its evaluation does the iteration again, and the evaluation with it.
            self.snapshot = take_snapshot(number, ppo.tokens, ppo.actor, ppo.learner, ppo.rewards)
            if c.checkpoint.every and number % c.checkpoint.every == 0:
                self.record.save(self.snapshot)

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
                self._alert("warning", "config", warning)

    def _save_in_between(self) -> None:
        if self.snapshot.iteration != self.record.saved_at:
            state = self.state
            self.record.save(self.snapshot)
            self._state(state)

    def _trackers(self) -> list[Sink]:
        names, settings = self.config.run.trackers, self.config.model_dump()
        return build_trackers(names, self.folder.name, self.folder.root, settings)

    def _state(self, state: State) -> None:
        self.emit(StateChanged(state=state))

    def _alert(self, level: Literal["info", "warning"], code: str, message: str) -> None:
        """Of the iteration under way."""
        number = min(self.snapshot.iteration + 1, self.config.ppo.iterations)
        self.emit(Alert(iteration=number, level=level, code=code, message=message))

    def _complain(self, message: str) -> None:
        self._alert("warning", "request_broken", message)

    def _end(self, state: EndState, exit_code: int, reason: str) -> RunEnded:
        self.control.detach()  # who waits for an answer hears of the end while the folder is still ours
        newest = runs.newest_checkpoint(self.folder)
        event = RunEnded(
            state=state,
            exit_code=exit_code,
            reason=reason,
            iteration=self.snapshot.iteration,
            checkpoint=str(newest.relative_to(self.folder.root)) if newest else "",
            seconds=time.perf_counter() - self.started,
        )
        self.emit(event)
        return event
