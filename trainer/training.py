"""A whole run: from a configuration to a trained policy, with a journal, samples and checkpoints on disk."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from trainer import runs
from trainer.arrays import leaves
from trainer.checkpoint import Snapshot, load_checkpoint, restore_snapshot, save_checkpoint, take_snapshot
from trainer.config import Config, config_warnings
from trainer.config.loading import resolve_paths
from trainer.control import Control, Interrupted
from trainer.data import Prompt, PromptRow, encode_prompts, load_prompts, split_prompts
from trainer.errors import DataError, StorageError, TrainerError
from trainer.evaluate import evaluate
from trainer.events import (
    Alert,
    CheckpointSaved,
    EndState,
    Event,
    RunEnded,
    RunStarted,
    SamplePreview,
    SamplesWritten,
    Sink,
    Sinks,
    State,
    StateChanged,
)
from trainer.journal import Journal
from trainer.metrics import sample_rows
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.blas import blas_warning, measure_matmul
from trainer.models.loading import LoadedModel, load_backbone
from trainer.ppo import PPO, IterationResult
from trainer.rewards import build_rewards
from trainer.runs import RunFolder
from trainer.samples import write_samples
from trainer.seeding import Purpose, key_for
from trainer.trackers import build_trackers

PREVIEWS = 3


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
    control: lets another thread stop the run. Raises TrainerError for what a user can mend; the journal then says why.
    """
    out = Sinks(sinks)
    try:
        return _Run(config, resume, preset, out, control or Control()).train()
    finally:
        out.close()


def release_thread() -> None:
    """Call at the end of a thread that trained, before it ends: else MLX may abort the process at exit.

    The thread can use MLX no more afterwards.
    """
    mx.clear_streams()


class _Run:
    """One run under way: its folder, its model and the loop over iterations."""

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
        self.saved_at = -1  # iteration of the newest checkpoint of this process

    def train(self) -> RunEnded:
        """Load everything, then create or open the run, so that a broken start leaves nothing behind."""
        self._state("loading")
        if self.resume:
            self.folder = runs.open_run(self.resume, Path(self.config.run.dir))
        else:
            runs.check_name_is_free(self.config)
        rows = load_prompts(self.config.data)
        rewards = build_rewards(self.config.reward)
        model = load_backbone(self.config.model)
        if slow := blas_warning(measure_matmul()):
            self.warnings.append(slow)
        prompts, held_out = self._prompts(rows, model)
        key = key_for(self.config.run.seed, Purpose.ADAPTER)
        actor = ActorCriticLLM(model.backbone, self.config.model, key=key)
        self.ppo = PPO(self.config, actor, model.tokenizer, prompts, rewards, emit=self.emit, control=self.control)
        self.held_out = held_out[: self.config.eval.prompts]
        if not self.resume:
            self.folder = runs.create_run(self.config, self.preset)
        with self.folder.lock():
            if self.resume:
                runs.write_config(self.folder, self.config)  # what runs from here on
            self._open_sinks()
            return self._guarded(model, prompts)

    def emit(self, event: Event) -> None:
        """Hand an event to every sink."""
        self.out.emit(event)

    def _open_sinks(self) -> None:
        try:
            self.out.add_first(Journal(self.folder.events))
            self.out.add(self._trackers())
        except TrainerError:
            if not self.resume:
                shutil.rmtree(self.folder.root, ignore_errors=True)
            raise

    def _guarded(self, model: LoadedModel, prompts: Sequence[Prompt]) -> RunEnded:
        """The loop, with what must happen however it ends: a checkpoint where one can be had, and an `end` event."""
        try:
            state, exit_code, reason = self._until_the_end(model, prompts)
        except Exception as error:
            self._failed(error)
            raise
        return self._end(state, exit_code, reason)

    def _until_the_end(self, model: LoadedModel, prompts: Sequence[Prompt]) -> tuple[EndState, int, str]:
        try:
            self._begin(model, prompts)
            self._loop()
        except Interrupted as interruption:
            if interruption.save:
                self._save(self.snapshot)
            return "stopped", 130, interruption.reason
        self._save(self.snapshot)
        return "done", 0, f"{self.config.ppo.iterations} iterations done"

    def _failed(self, error: Exception) -> None:
        """Save the last good state and tell why the run ended; a full disk on the way must not hide `error`."""
        with contextlib.suppress(StorageError):
            if not isinstance(error, StorageError):
                self._save(self.snapshot)
        with contextlib.suppress(StorageError):
            if isinstance(error, TrainerError):
                self._end("failed", error.exit_code, str(error))
            else:
                self._end("failed", 1, f"{type(error).__name__}: {error}")

    def _begin(self, model: LoadedModel, prompts: Sequence[Prompt]) -> None:
        ppo = self.ppo
        self.snapshot = take_snapshot(0, 0, ppo.actor, ppo.learner, ppo.rewards)
        found = runs.checkpoints(self.folder)
        if found.paths:
            self.snapshot = load_checkpoint(found.paths[-1], ppo.actor.adapter_config)
            restore_snapshot(self.snapshot, ppo.actor, ppo.learner, ppo.rewards)
            ppo.tokens = self.snapshot.tokens
            self.saved_at = self.snapshot.iteration
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
        c, ppo = self.config, self.ppo
        for number in range(self.snapshot.iteration + 1, c.ppo.iterations + 1):
            self._state("training")
            result = ppo.iteration(number)
            self._write_samples(number, result)
            self.emit(result.metrics)
            if c.eval.every and self.held_out and number % c.eval.every == 0:
                self._state("evaluating")
                self.emit(evaluate(ppo, self.held_out, number))
            # Only now: a run that ends within its evaluation does the iteration again, and the evaluation with it.
            self.snapshot = take_snapshot(number, ppo.tokens, ppo.actor, ppo.learner, ppo.rewards)
            if c.checkpoint.every and number % c.checkpoint.every == 0:
                self._save(self.snapshot)

    def _save(self, snapshot: Snapshot) -> None:
        if snapshot.iteration == self.saved_at:
            return
        self._state("saving")
        started = time.perf_counter()
        path = self.folder.checkpoint(snapshot.iteration)
        save_checkpoint(path, snapshot)
        self.saved_at = snapshot.iteration
        runs.prune_checkpoints(self.folder, self.config.checkpoint.keep)
        where = str(path.relative_to(self.folder.root))
        seconds = time.perf_counter() - started
        self.emit(CheckpointSaved(iteration=snapshot.iteration, path=where, seconds=seconds))

    def _write_samples(self, number: int, result: IterationResult) -> None:
        rows = sample_rows(result.batch, result.prompts, result.rewards.parts, self.config.rollout.samples_per_prompt)
        path = self.folder.samples_file(number)
        if self.config.run.save_samples:
            write_samples(path, rows, number)
        previews = [
            SamplePreview(
                prompt=row["prompt"],
                completion=row["completion"],
                score=row["score"],
                kl=sum(row["logprobs"]) - sum(row["ref_logprobs"]),
                truncated=row["truncated"],
            )
            for row in rows[:PREVIEWS]
        ]
        where = str(path.relative_to(self.folder.root)) if self.config.run.save_samples else ""
        self.emit(SamplesWritten(iteration=number, path=where, rows=len(rows), previews=previews))

    def _prompts(self, rows: Sequence[PromptRow], model: LoadedModel) -> tuple[list[Prompt], list[Prompt]]:
        c = self.config
        longest = c.data.max_prompt_tokens + c.rollout.max_new_tokens
        encoded = encode_prompts(rows, model.tokenizer, c.data)
        if changed := encoded.dropped or encoded.truncated:
            done = "dropped" if encoded.dropped else "cut to their last tokens"
            self.warnings.append(
                f"{changed} of {len(rows)} prompts are longer than data.max_prompt_tokens = {c.data.max_prompt_tokens} "
                f"and were {done}"
            )
        room = max(len(prompt.tokens) for prompt in encoded.prompts) + c.rollout.max_new_tokens
        if model.context and room > model.context:
            raise DataError(
                f"the longest prompt and rollout.max_new_tokens = {c.rollout.max_new_tokens} need {room} tokens of up "
                f"to {longest} allowed, but the model's context is {model.context}: lower data.max_prompt_tokens or "
                "rollout.max_new_tokens"
            )
        return split_prompts(encoded.prompts, c.data.eval_fraction, c.run.seed)

    def _trackers(self) -> list[Sink]:
        names, settings = self.config.run.trackers, self.config.model_dump()
        return build_trackers(names, self.folder.name, self.folder.root, settings)

    def _state(self, state: State) -> None:
        self.emit(StateChanged(state=state))

    def _end(self, state: EndState, exit_code: int, reason: str) -> RunEnded:
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
