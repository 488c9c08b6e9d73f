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
from trainer.events import Alert, Evaluation, RunEnded, SettingChanged, Sink, Sinks
from trainer.journal import read_journal
from trainer.live_settings import changes, in_words, with_setting
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import reason_of
from trainer.models.blas import blas_warning, measure_matmul
from trainer.models.loading import LoadedModel, load_backbone, quantize_warning
from trainer.ppo import PPO
from trainer.questions import Answer, Question
from trainer.rewards import Rewards, build_rewards
from trainer.rewards.model import unfinished_models, with_checkpoints
from trainer.run_prompts import run_prompts
from trainer.run_record import RunRecord
from trainer.run_under_way import RunUnderWay
from trainer.seeding import Purpose, key_for
from trainer.trackers import build_trackers

_STATISTICS_ANEW = "reward.sources are other ones, so the running statistics of reward.normalize begin anew"


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
        self.began_in = Path.cwd()
        config = with_checkpoints(resolve_paths(config, self.began_in))
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
        rewards = self._rewards(self.config)
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
        """Let the settings that were asked for hold when the run is resumed, which builds what they need."""
        self._apply_settings(build=False)

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
        self.snapshot = self._snapshot(0)
        found = runs.checkpoints(self.folder)
        if found.paths:
            self.snapshot = self._of_these_sources(load_checkpoint(found.paths[-1], ppo.actor.adapter_config))
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
        if self.iteration == 0 and not self._was_evaluated():
            self._evaluate(0)
        first = self.snapshot.iteration + 1
        for number in range(first, c.ppo.iterations + 1):
            self.state("training")
            if number > first:  # a step that was asked for before ends with the first iteration
                self.control.between_iterations()
            else:
                self.control.check()
            self._apply_settings()
            result = ppo.iteration(number)
            self.record.write_samples(number, result)
            self.emit(result.metrics)
            if number == c.ppo.iterations or (c.eval.every and number % c.eval.every == 0):
                self._evaluate(number)
            # Only now: a run that ends within its evaluation does the iteration again, and the evaluation with it.
            self.snapshot = self._snapshot(number)
            if c.checkpoint.every and number % c.checkpoint.every == 0:
                self.save()
        self.save()
        for change in changes(self.config, self.wanted):
            message = f"{change.key} = {in_words(change.value)} came in the last iteration; nothing is changed"
            self.alert("warning", "setting_refused", message)
        return f"{c.ppo.iterations} iterations done"

    def _was_evaluated(self) -> bool:
        """Whether a run that begins anew, for it was broken off before its first checkpoint, has been evaluated."""
        return self.resume is not None and any(
            isinstance(event, Evaluation) for event in read_journal(self.folder.events).events
        )

    def _evaluate(self, number: int) -> None:
        if not self.config.eval.every or not self.held_out:
            return
        self.state("evaluating")
        self.emit(evaluate(self.ppo, self.held_out, number))

    def _apply_settings(self, *, build: bool = True) -> None:
        """Let the settings that were asked for hold from the next iteration on, here and in a resumed run.

        build: whether this one goes on, and needs what they name.
        """
        rewards, warnings = self._wanted_rewards(build) if self.wanted.reward != self.config.reward else (None, [])
        if not (changed := changes(self.config, self.wanted)):
            return
        self._save_in_between()  # what came before must not be done anew by what holds from here on
        self.config = self.wanted
        runs.write_config(self.folder, self.config)
        for change in changed:
            self.emit(SettingChanged(iteration=self.snapshot.iteration + 1, **change._asdict()))
        self.ppo.configure(self.config, rewards)
        if rewards and self.config.reward.normalize == "running":
            self.alert("info", "reward_statistics", _STATISTICS_ANEW)
        for warning in config_warnings(self.config) + warnings:
            if warning not in self.warnings:
                self.warnings.append(warning)
                self.alert("warning", "config", warning)

    def _wanted_rewards(self, build: bool) -> tuple[Rewards | None, list[str]]:
        """The rewards that were asked for, where they can be had, and what a user should know of them.

        Takes them back, and tells why, where they cannot.
        """
        now = self.now
        try:
            self.wanted = with_checkpoints(resolve_paths(self.wanted, self.began_in))
            if not build or self.wanted.reward == self.config.reward:
                return None, []
            self.state("loading")
            return self._rewards(self.wanted), unfinished_models(self.wanted)
        except Exception as error:  # noqa: BLE001  whatever is wrong with that reward, the run has one
            self.wanted = self.wanted.model_copy(update={"reward": self.config.reward})
            reason = str(error) if isinstance(error, TrainerError) else reason_of(error)
            self.alert("warning", "setting_refused", f"{'; '.join(reason.splitlines())}; the reward is as before")
            return None, []
        finally:
            if self.now != now:
                self.state(now)

    def _rewards(self, config: Config) -> Rewards:
        return build_rewards(
            config.reward,
            backbone=self.model,
            micro_batch_tokens=config.optim.micro_batch_tokens,
            heed=lambda: self.heed(),
        )

    def _snapshot(self, number: int) -> Snapshot:
        """What the run is after iteration `number`; its reward's statistics say of which sources they are."""
        ppo = self.ppo
        snapshot = take_snapshot(number, ppo.tokens, ppo.actor, ppo.learner, ppo.rewards)
        return snapshot._replace(rewards={**snapshot.rewards, "sources": self._sources})

    def _of_these_sources(self, snapshot: Snapshot) -> Snapshot:
        """`snapshot`, with the reward's statistics as they begin where its own are of other sources."""
        if snapshot.rewards.get("sources", self._sources) == self._sources:
            return snapshot
        if self.config.reward.normalize == "running":
            self.warnings.append(_STATISTICS_ANEW)
        return snapshot._replace(rewards=self._snapshot(0).rewards)

    @property
    def _sources(self) -> list[dict[str, Any]]:
        """`reward.sources` as plain values."""
        return [source.model_dump() for source in self.config.reward.sources]

    def _save_in_between(self) -> None:
        if self.iteration != self.record.saved_at:
            now = self.now
            self.save()
            self.state(now)

    def _trackers(self) -> list[Sink]:
        names, settings = self.config.run.trackers, self.config.model_dump()
        return build_trackers(names, self.folder.name, self.folder.root, settings)
