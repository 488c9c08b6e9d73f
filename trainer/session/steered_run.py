"""What a PPO run does when it is steered: settings, rewards, checkpoints, rollbacks and questions."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from trainer.config import Config, config_warnings
from trainer.config.loading import resolve_paths
from trainer.control.control import Control
from trainer.control.lifecycle import RunUnderWay
from trainer.control.live_settings import changes, in_words, with_setting
from trainer.control.questions import Answer, Question
from trainer.errors import TrainerError
from trainer.events import Alarm, Alert, Decision, Event, RolledBack, SettingChanged
from trainer.models.adapters import reason_of
from trainer.models.loading import LoadedModel
from trainer.monitoring.watch import RunWatch
from trainer.ppo.checkpoint import Rollback, Snapshot, load_checkpoint, restore_snapshot, take_snapshot
from trainer.ppo.loop import PPO
from trainer.rewards import Rewards, Trust, build_rewards
from trainer.rewards.model import unfinished_models, with_checkpoints
from trainer.runs.folder import RunFolder, write_config
from trainer.runs.sinks import Sinks
from trainer.session.answers import answer
from trainer.session.record import RunRecord
from trainer.session.rollback import forget_best, older_checkpoint

STATISTICS_ANEW = "reward.sources are other ones, so the running statistics of reward.normalize begin anew"


class SteeredRun(RunUnderWay):
    """One PPO run under way, its model and what others ask of it; what was asked holds from the next iteration on.

    A subclass loads, and trains by iterations, with `between_iterations` before each.
    """

    snapshot: Snapshot
    record: RunRecord
    model: LoadedModel
    ppo: PPO

    def __init__(self, config: Config, resume: Path | None, out: Sinks, control: Control, trust: Trust) -> None:
        super().__init__(resume, out, control)
        self.trust = trust
        self.began_in = Path.cwd()
        config = with_checkpoints(resolve_paths(config, self.began_in))
        seed = config.run.seed if config.run.seed >= 0 else secrets.randbelow(2**32)
        self.config = config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})
        self.heed = control.check  # between the micro-batches of a reward model
        self.warnings = config_warnings(self.config) + unfinished_models(self.config)
        self.wanted = self.config  # with the live settings that were asked for and do not hold yet
        self.wanted_rollback: tuple[int | None, str] | None = None  # to what, and why
        self.watch = RunWatch(lambda: self.config, ())

    @property
    def iteration(self) -> int:
        """The last whole iteration."""
        return self.snapshot.iteration

    @property
    def open_alarms(self) -> dict[str, str]:
        """Code and level of the alarms that are not over."""
        return self.watch.open_alarms

    def emit(self, event: Event) -> None:
        """Hand an event to every sink, and then what those who watch the run have to say of it."""
        super().emit(event)
        for alert in self.watch.take(event):
            self.emit(alert)
            if isinstance(alert, Alarm) and alert.level == "error" and self.config.health.pause:
                self.control.pause()
                message = (
                    f"paused for the alarm '{alert.code}', as health.pause has it: resume it once that is dealt with"
                )
                self.alert("warning", "paused", message)

    def alert(self, level: Literal["info", "warning"], code: str, message: str) -> None:
        """Tell something that a user should know, of the iteration under way."""
        number = min(self.iteration + 1, self.config.ppo.iterations)
        self.emit(Alert(iteration=number, level=level, code=code, message=message))

    def save(self) -> None:
        """Save the last whole iteration, unless it is saved already."""
        self.record.save(self.snapshot)

    def move_to(self, folder: RunFolder) -> None:
        """Make `folder` the run's own from here on."""
        self.folder = self.record.folder = folder
        self.record.saved_at = -1
        write_config(folder, self.config)

    def between_iterations(self, decision: Decision | None) -> None:
        """Let what was asked for hold from the next iteration on, or the rollback of `decision`."""
        if decision and not self.wanted_rollback:
            self.wanted_rollback = (None, decision.message)
        self._roll_back()
        self._apply_settings()

    def stopped(self) -> None:
        """Let what was asked for hold when the run is resumed, which builds what it needs."""
        self._roll_back(build=False)
        self._apply_settings(build=False)

    def tell_too_late(self) -> None:
        """Tell of what was asked for and cannot hold any more, for there is no next iteration."""
        for change in changes(self.config, self.wanted):
            what = f"{change.key} = {in_words(change.value)}"
            self.alert("warning", "setting_refused", f"{what} came in the last iteration; nothing is changed")
        if self.wanted_rollback:
            message = "the rollback came in the last iteration; nothing is changed"
            self.alert("warning", "rollback_refused", message)

    def checkpoint(self) -> None:
        """Save the last whole iteration, in the midst of the next one."""
        at = self.snapshot.iteration
        if at == self.record.saved_at:
            self.alert("info", "checkpoint_there", f"the checkpoint after iteration {at} is there already")
        self._save_in_between()

    def rollback(self, to: int | None, reason: str) -> None:
        """Keep in mind to roll back before the next iteration."""
        self.wanted_rollback = (to, reason)

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

    def take_up(self, loaded: Snapshot) -> None:
        """Go on from a checkpoint as if the run had never ended."""
        self.snapshot = self._of_these_sources(loaded)
        if self.snapshot is not loaded and self.config.reward.normalize == "running":
            self.warnings.append(STATISTICS_ANEW)
        restore_snapshot(self.snapshot, self.ppo)
        self.record.saved_at = self.snapshot.iteration

    def take_snapshot(self, number: int) -> Snapshot:
        """What the run is after iteration `number`; its reward's statistics say of which sources they are."""
        snapshot = take_snapshot(number, self.ppo)
        return snapshot._replace(rewards={**snapshot.rewards, "sources": self._sources})

    def build_rewards(self, config: Config, modules: dict[str, ModuleType] | None = None) -> Rewards:
        """The rewards of `config`, as this run uses them. modules: as for `build_rewards`. Raises RewardError."""
        return build_rewards(
            config.reward,
            backbone=self.model,
            max_new_tokens=config.rollout.max_new_tokens,
            micro_batch_tokens=config.optim.micro_batch_tokens,
            heed=lambda: self.heed(),
            trust=self.trust,
            modules=modules,
        )

    def finish_rollback(self, rollback: Rollback, *, build: bool = True) -> None:
        """Do what is left of a rollback once its checkpoint is there: learning rates, and to tell of it."""
        for key, rate in (("optim.policy_lr", rollback.policy_lr), ("optim.value_lr", rollback.value_lr)):
            self.wanted = with_setting(self.wanted, key, rate)
        self._apply_settings(build=build)
        self.emit(RolledBack(iteration=self.iteration, to=rollback.to, reason=rollback.reason))

    def _roll_back(self, *, build: bool = True) -> None:
        """Where a rollback was asked for, go on from an older checkpoint, but count on: no iteration is done anew.

        A process that is killed on the way has done nothing, or has left a checkpoint that says what is to be finished.
        """
        if not self.wanted_rollback:
            return
        (to, reason), self.wanted_rollback = self.wanted_rollback, None
        now, ppo = self.snapshot, self.ppo
        self.guard.check()
        try:
            path = older_checkpoint(self.folder, to, before=now.iteration)
            found = load_checkpoint(path, ppo.actor.adapter_config)
        except TrainerError as refusal:
            self.alert("warning", "rollback_refused", f"{refusal}; the run goes on as it is")
            return
        # Tokens are counted on, and so is the place in the schedule of the learning rates.
        here = self._of_these_sources(found)._replace(tokens=now.tokens, optimizer_steps=now.optimizer_steps)
        restore_snapshot(here, ppo)
        ppo.skipped_in_a_row = 0
        factor, optim = self.config.convergence.rollback_lr, self.wanted.optim
        rollback = Rollback(found.iteration, reason, optim.policy_lr * factor, optim.value_lr * factor)
        self.snapshot = self.take_snapshot(now.iteration)._replace(rollback=rollback)
        forget_best(self.folder, now.iteration)
        self.record.saved_at = -1  # what is there of this iteration is another state
        self._save_in_between()
        self.finish_rollback(rollback, build=build)

    def _apply_settings(self, *, build: bool = True) -> None:
        """Let the settings that were asked for hold from the next iteration on, here and in a resumed run.

        build: whether this one goes on, and needs what they name.
        """
        rewards, warnings = self._wanted_rewards(build) if self.wanted.reward != self.config.reward else (None, [])
        if not (changed := changes(self.config, self.wanted)):
            return
        self.guard.check()
        self._save_in_between()  # what came before must not be done anew by what holds from here on
        self.config = self.wanted
        write_config(self.folder, self.config)
        for change in changed:
            self.emit(SettingChanged(iteration=self.snapshot.iteration + 1, **change._asdict()))
        self.ppo.configure(self.config, rewards)
        if rewards and self.config.reward.normalize == "running":
            self.alert("info", "reward_statistics", STATISTICS_ANEW)
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
            return self.build_rewards(self.wanted), unfinished_models(self.wanted)
        except Exception as error:  # noqa: BLE001  whatever is wrong with that reward, the run has one
            self.wanted = self.wanted.model_copy(update={"reward": self.config.reward})
            reason = str(error) if isinstance(error, TrainerError) else reason_of(error)
            self.alert("warning", "setting_refused", f"{'; '.join(reason.splitlines())}; the reward is as before")
            return None, []
        finally:
            if self.now != now:
                self.state(now)

    def _of_these_sources(self, snapshot: Snapshot) -> Snapshot:
        """`snapshot`, with the reward's statistics of now where its own are of other sources."""
        if snapshot.rewards.get("sources", self._sources) == self._sources:
            return snapshot
        return snapshot._replace(rewards=self.snapshot.rewards)

    @property
    def _sources(self) -> list[dict[str, Any]]:
        """`reward.sources` as plain values."""
        return [source.model_dump() for source in self.config.reward.sources]

    def _save_in_between(self) -> None:
        if self.iteration != self.record.saved_at:
            now = self.now
            self.save()
            self.state(now)
