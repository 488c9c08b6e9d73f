"""A PPO run that others steer: settings, rewards, checkpoints, rollbacks and questions."""

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
    """One PPO run under way, its model, and the requests of others, which apply from the next iteration on.

    A subclass loads the parts and runs the iterations, with `between_iterations` before each.
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
        self.heed = control.check  # called between the micro-batches of a reward model
        self.warnings = config_warnings(self.config) + unfinished_models(self.config)
        self.wanted = self.config  # with the requested live settings that are not active yet
        self.wanted_rollback: tuple[int | None, str] | None = None  # the iteration to go back to, and the reason
        self.watch = RunWatch(lambda: self.config, ())

    @property
    def iteration(self) -> int:
        """Number of the last whole iteration."""
        return self.snapshot.iteration

    @property
    def open_alarms(self) -> dict[str, str]:
        """Code and level of the open alarms."""
        return self.watch.open_alarms

    def emit(self, event: Event) -> None:
        """Pass an event to every sink, followed by the alerts that it causes."""
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
        """Report something that a user should know, for the current iteration."""
        number = min(self.iteration + 1, self.config.ppo.iterations)
        self.emit(Alert(iteration=number, level=level, code=code, message=message))

    def save(self) -> None:
        """Save the last whole iteration, unless it is saved already."""
        self.record.save(self.snapshot)

    def move_to(self, folder: RunFolder) -> None:
        """Use `folder` as the run's own from now on."""
        self.folder = self.record.folder = folder
        self.record.saved_at = -1
        write_config(folder, self.config)

    def between_iterations(self, decision: Decision | None) -> None:
        """Apply pending requests. The rollback of `decision` applies unless another one is pending."""
        if decision and not self.wanted_rollback:
            self.wanted_rollback = (None, decision.message)
        self._roll_back()
        self._apply_settings()

    def stopped(self) -> None:
        """Apply pending requests for when the run is resumed, which then builds what it needs."""
        self._roll_back(build=False)
        self._apply_settings(build=False)

    def tell_too_late(self) -> None:
        """Report requests that can no longer apply, because there is no next iteration."""
        for change in changes(self.config, self.wanted):
            what = f"{change.key} = {in_words(change.value)}"
            self.alert("warning", "setting_refused", f"{what} came in the last iteration; nothing is changed")
        if self.wanted_rollback:
            message = "the rollback came in the last iteration; nothing is changed"
            self.alert("warning", "rollback_refused", message)

    def checkpoint(self) -> None:
        """Save the last whole iteration, in the middle of the next one."""
        at = self.snapshot.iteration
        if at == self.record.saved_at:
            self.alert("info", "checkpoint_there", f"the checkpoint after iteration {at} is there already")
        self._save_in_between()

    def rollback(self, to: int | None, reason: str) -> None:
        """Schedule a rollback before the next iteration."""
        self.wanted_rollback = (to, reason)

    def set(self, key: str, value: Any) -> None:
        """Schedule a setting for the next iteration, or report why it is refused."""
        try:
            self.wanted = with_setting(self.wanted, key, value)
        except TrainerError as refusal:
            self.alert("warning", "setting_refused", f"{'; '.join(str(refusal).splitlines())}; nothing is changed")

    def answer(self, question: Question, heed: Callable[[], None]) -> Answer:
        """Answer with the policy of the last whole iteration, whatever arrays the current one has in the model."""
        ppo, before = self.ppo, self.heed
        self.heed = heed  # answers no other questions meanwhile
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
        """Continue from a checkpoint as if the run had never ended."""
        self.snapshot = self._of_these_sources(loaded)
        self.record.saved_at = self.snapshot.iteration  # first: what does not fit the model must not be saved again
        if self.snapshot is not loaded and self.config.reward.normalize == "running":
            self.warnings.append(STATISTICS_ANEW)
        restore_snapshot(self.snapshot, self.ppo)

    def take_snapshot(self, number: int) -> Snapshot:
        """Return the run's state after iteration `number`; its reward statistics name their sources."""
        snapshot = take_snapshot(number, self.ppo)
        return snapshot._replace(rewards={**snapshot.rewards, "sources": self._sources})

    def build_rewards(self, config: Config, modules: dict[str, ModuleType] | None = None) -> Rewards:
        """Build the rewards of `config` for this run. modules: as for `build_rewards`. Raises RewardError."""
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
        """Finish a rollback whose checkpoint is written: set the learning rates and report it."""
        for key, rate in (("optim.policy_lr", rollback.policy_lr), ("optim.value_lr", rollback.value_lr)):
            self.wanted = with_setting(self.wanted, key, rate)
        self._apply_settings(build=build)
        self.emit(RolledBack(iteration=self.iteration, to=rollback.to, reason=rollback.reason))

    def _roll_back(self, *, build: bool = True) -> None:
        """Continue from an older checkpoint if a rollback is pending. Iterations keep counting: none is repeated.

        A process killed on the way has changed nothing, or has left a checkpoint that says what to finish.
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
        # The token count and the position in the learning-rate schedule continue.
        here = self._of_these_sources(found)._replace(tokens=now.tokens, optimizer_steps=now.optimizer_steps)
        restore_snapshot(here, ppo)
        ppo.skipped_in_a_row = 0
        factor, optim = self.config.convergence.rollback_lr, self.wanted.optim
        rollback = Rollback(found.iteration, reason, optim.policy_lr * factor, optim.value_lr * factor)
        self.snapshot = self.take_snapshot(now.iteration)._replace(rollback=rollback)
        forget_best(self.folder, now.iteration)
        self.record.saved_at = -1  # an existing checkpoint of this iteration contains another state
        self._save_in_between()
        self.finish_rollback(rollback, build=build)

    def _apply_settings(self, *, build: bool = True) -> None:
        """Apply requested settings from the next iteration on, here and in a resumed run.

        build: whether this process goes on, and needs what the settings name.
        """
        rewards, warnings = self._wanted_rewards(build) if self.wanted.reward != self.config.reward else (None, [])
        if not (changed := changes(self.config, self.wanted)):
            return
        self.guard.check()
        self._save_in_between()  # earlier iterations must not be repeated with the new settings
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
        """Build the requested rewards, if they are available, and return them with warnings for the user.

        If they are not, cancel the request and report why.
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
        """Return `snapshot`, with the current reward statistics if its own are of other sources."""
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
