"""A whole PPO run: from a configuration to a trained policy, with a journal, samples and checkpoints on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from trainer.config import Config, config_warnings, load_config, resolve_paths, with_seed
from trainer.control.control import Control
from trainer.control.lifecycle import RunUnderWay, closing
from trainer.control.live_settings import Change, changes, in_words, with_setting
from trainer.control.questions import Answer, Question
from trainer.data import Prompt, load_prompts
from trainer.errors import TrainerError
from trainer.evaluation.held_out import evaluate, reference_baseline
from trainer.events import Alarm, Alert, Evaluation, Event, RolledBack, RunEnded, SettingChanged
from trainer.models.adapters import reason_of
from trainer.models.backbone import load_backbone, quantize_warning
from trainer.models.cpu.blas import blas_warning, measure_matmul
from trainer.monitoring import Monitor
from trainer.ppo.checkpoint import Rollback, Snapshot, load_checkpoint
from trainer.ppo.value_init import check_value_init
from trainer.rewards import Rewards, Trust, load_functions, trust_all
from trainer.rewards.model_reward import keep_models, unfinished_models, with_checkpoints
from trainer.runs.checkpoint_files import load_newest
from trainer.runs.folder import RunFolder, write_config
from trainer.runs.journal import read_journal
from trainer.runs.sinks import Sink, Sinks
from trainer.session.artifacts import forget_best, keep_best, older_checkpoint, save_if_new, save_samples
from trainer.session.policy import STATISTICS_RESTARTED, TrainedPolicy
from trainer.session.prompts import run_prompts


def train(
    config: Config,
    *,
    resume: Path | None = None,
    preset: str = "run",
    sinks: Sequence[Sink] = (),
    control: Control | None = None,
    trust: Trust = trust_all,
) -> RunEnded:
    """Train as `config` says, all on the calling thread, and return how the run ended.

    resume: folder of a run to continue from its newest whole checkpoint, with `config` as its configuration. preset:
    stem of a new run's folder if run.name is empty. sinks: receive every event, in order, and are closed at the end.
    control: lets another thread steer the run, as the run folder's `control/` lets another process. trust: raises
    UntrustedCodeError for Python code that no reward may run, also if it is requested later. Raises TrainerError for
    what a user can fix; the journal then says why.
    """
    out, control = Sinks(sinks), control or Control()
    with closing(out, control):
        return _Run(config, resume, out, control, trust).train(preset)


def release_thread() -> None:
    """Release MLX at the end of a thread that trained; otherwise MLX may abort the process at exit.

    The thread cannot use MLX afterwards.
    """
    mx.clear_cache()  # the next model cannot use the buffers of this one
    mx.clear_streams()


class _Run(RunUnderWay):
    """One PPO run from its first event to its last. Requests of others apply between its iterations."""

    config: Config
    policy: TrainedPolicy

    def __init__(self, config: Config, resume: Path | None, out: Sinks, control: Control, trust: Trust) -> None:
        self.began_in = Path.cwd()
        super().__init__(with_seed(with_checkpoints(resolve_paths(config, self.began_in))), resume, out, control)
        self.trust = trust
        self.warnings = config_warnings(self.config) + unfinished_models(self.config)
        self.requested = self.config  # with the live settings that apply from the next iteration on
        self.requested_rollback: tuple[int | None, str] | None = None  # the iteration to return to, and the reason
        self.watch = Monitor(lambda: self.config)
        self.saved: Config | None = None  # of a resumed run, as it was trained until now

    # From the first event to the last

    def train(self, preset: str) -> RunEnded:
        """Load everything, then create or open the run, so that a failed start leaves nothing behind."""
        self.find_folder()
        self.saved = _saved_config(self.folder) if self.resume else None
        rows = load_prompts(self.config.data)
        functions = load_functions(self.config.reward, trust=self.trust)
        check_value_init(self.config.model)
        model = load_backbone(self.config.model)
        keep_models(self.config)
        self.policy = TrainedPolicy(model, self.control, self.trust)
        rewards = self.policy.build_rewards(self.config, functions)
        self.warnings += filter(None, (blas_warning(measure_matmul()), quantize_warning(self.config.model)))
        prompts, held_out, warnings = run_prompts(self.config, rows, model)
        self.warnings += warnings
        self.policy.begin(self.config, prompts, rewards, self.emit, new=not self.resume)
        self.held_out = held_out[: self.config.eval.prompts]
        self.baseline = reference_baseline(self.policy.ppo, self.held_out) if self.config.eval.reference else None
        return self.in_folder(preset, lambda: self._iterations(prompts))

    def _iterations(self, prompts: Sequence[Prompt]) -> str:
        """Run the remaining iterations; return why there are no more."""
        self._begin(prompts)
        c = self.config  # settings read from `c` here are not live
        reason = f"{c.ppo.iterations} iterations done"
        if self.iteration == 0 and not self.is_evaluated:
            self._evaluate(0)
        first = self.iteration + 1
        for number in range(first, c.ppo.iterations + 1):
            decision = self.watch.due(number - 1)
            if decision and decision.action == "stop":
                reason = decision.message
                break
            self.state("training")
            if number > first:  # a step requested before ends with the first iteration
                self.control.between_iterations()
            else:
                self.control.check()
            if decision and not self.requested_rollback:
                self.requested_rollback = (None, decision.message)
            self._apply_requests()
            result = self.policy.ppo.iteration(number)
            self.guard.check()
            self.emit(save_samples(self.folder, c, number, result))
            self.emit(result.metrics)
            is_due = number == c.ppo.iterations or (c.eval.every and number % c.eval.every == 0)
            evaluation = self._evaluate(number) if is_due else None
            # Only now: a run that ends during its evaluation repeats the iteration, and so the evaluation.
            self.policy.keep(number)
            if evaluation:
                keep_best(self.checkpoints, self.policy.snapshot, evaluation, c.checkpoint.best)
            if c.checkpoint.every and number % c.checkpoint.every == 0:
                self.save()
        self.save()
        self.control.take_rest()
        self._refuse_requests()
        return reason

    def _begin(self, prompts: Sequence[Prompt]) -> None:
        actor = self.policy.ppo.actor
        loaded, problems = load_newest(self.folder, lambda path: load_checkpoint(path, actor.adapter_config))
        if loaded is not None:
            # First: what does not fit the model must not be saved again.
            self.checkpoints.saved_at = loaded.iteration
            if self.policy.restore(loaded) and self.config.reward.normalize == "running":
                self.warnings.append(STATISTICS_RESTARTED)
        elif self.resume:
            self.policy.begin_again()
        self.begin(
            self.policy.model,
            trainable=[*actor.policy_parameters().values(), *actor.value_parameters().values()],
            prompts=len(prompts),
            eval_prompts=len(self.held_out),
            iterations=self.config.ppo.iterations,
        )
        if self.saved:
            self._report(changes(self.saved, self.config))
        self.tell_damaged(problems)
        self._replay_journal(loaded)

    def _replay_journal(self, loaded: Snapshot | None) -> None:
        """Learn from the journal what happened, and finish what a killed process had begun after its checkpoint."""
        past = read_journal(self.folder.events).events
        self.watch = Monitor(lambda: self.config, past)
        evaluations = [event for event in past if isinstance(event, Evaluation)]
        self.is_evaluated = bool(evaluations)
        if loaded is None:
            return
        if rollback := loaded.rollback:
            expected = RolledBack(iteration=loaded.iteration, to=rollback.to, reason=rollback.reason)
            if [event for event in past if isinstance(event, RolledBack)][-1:] != [expected]:
                self._finish_rollback(rollback)
        elif loaded.iteration and evaluations and evaluations[-1].iteration == loaded.iteration:
            keep_best(self.checkpoints, loaded, evaluations[-1], self.config.checkpoint.best)

    def _evaluate(self, number: int) -> Evaluation | None:
        """Evaluate the policy after iteration `number` on held-out prompts; None if disabled or there are none."""
        if not self.config.eval.every or not self.held_out:
            return None
        self.state("evaluating")
        evaluation = evaluate(self.policy.ppo, self.held_out, number, self.baseline)
        self.emit(evaluation)
        return evaluation

    # Events and checkpoints

    @property
    def iteration(self) -> int:
        """Number of the last whole iteration."""
        return self.policy.snapshot.iteration

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
                message = f"paused by alarm '{alert.code}' (health.pause = true): deal with it, then resume"
                self.alert("warning", "paused", message)

    def alert(self, level: Literal["info", "warning"], code: str, message: str) -> None:
        """Report something that a user should know, for the current iteration."""
        number = min(self.iteration + 1, self.config.ppo.iterations)
        self.emit(Alert(iteration=number, level=level, code=code, message=message))

    def save(self) -> None:
        """Save the last whole iteration, unless it is saved already."""
        save_if_new(self.checkpoints, self.policy.snapshot)

    def _save_within(self) -> None:
        """Save the last whole iteration, and report again the state that the run is in."""
        if self.iteration != self.checkpoints.saved_at:
            super().checkpoint()

    # Requests: handled at once, or applied before the next iteration

    def answer(self, question: Question, check: Callable[[], None]) -> Answer:
        """Answer with the policy of the last whole iteration."""
        return self.policy.answer(question, check)

    def checkpoint(self) -> None:
        """Save the last whole iteration, in the middle of the next one."""
        if self.iteration == self.checkpoints.saved_at:
            self.alert("info", "checkpoint_there", f"iteration {self.iteration} already has a checkpoint")
        self._save_within()

    def rollback(self, to: int | None, reason: str) -> None:
        """Schedule a rollback before the next iteration."""
        self.requested_rollback = (to, reason)

    def set(self, key: str, value: Any) -> None:
        """Schedule a setting for the next iteration, or report why it is refused."""
        try:
            self.requested = with_setting(self.requested, key, value)
        except TrainerError as refusal:
            self.alert("warning", "setting_refused", f"{'; '.join(str(refusal).splitlines())}; nothing is changed")

    def stopped(self) -> None:
        """Apply pending requests for when the run is resumed, which then builds what it needs."""
        self._apply_requests(build=False)

    def _apply_requests(self, *, build: bool = True) -> None:
        """Apply pending requests. build: whether this process goes on, and needs what the settings name."""
        if self.requested_rollback:
            (to, reason), self.requested_rollback = self.requested_rollback, None
            self._roll_back(to, reason, build=build)
        self._apply_settings(build=build)

    def _refuse_requests(self) -> None:
        """Report requests that can no longer apply, because there is no next iteration."""
        for change in changes(self.config, self.requested):
            what = f"{change.key} = {in_words(change.value)}"
            self.alert("warning", "setting_refused", f"{what} came in the last iteration; nothing is changed")
        if self.requested_rollback:
            message = "the rollback came in the last iteration; nothing is changed"
            self.alert("warning", "rollback_refused", message)

    def _roll_back(self, to: int | None, reason: str, *, build: bool) -> None:
        """Continue from an older checkpoint. Iterations keep counting: none is repeated.

        A process killed on the way has changed nothing, or has left a checkpoint that says what to finish.
        """
        self.guard.check()
        try:
            path = older_checkpoint(self.folder, to, before=self.iteration)
            older = load_checkpoint(path, self.policy.ppo.actor.adapter_config)
        except TrainerError as refusal:
            self.alert("warning", "rollback_refused", f"{refusal}; the run continues unchanged")
            return
        factor, optim = self.config.convergence.rollback_lr, self.requested.optim
        rollback = Rollback(older.iteration, reason, optim.policy_lr * factor, optim.value_lr * factor)
        self.policy.roll_back(older, rollback)
        forget_best(self.folder, self.iteration)
        self.checkpoints.saved_at = -1  # an existing checkpoint of this iteration contains another state
        self._save_within()
        self._finish_rollback(rollback, build=build)

    def _finish_rollback(self, rollback: Rollback, *, build: bool = True) -> None:
        """Finish a rollback whose checkpoint is written: set the learning rates and report it."""
        for key, rate in (("optim.policy_lr", rollback.policy_lr), ("optim.value_lr", rollback.value_lr)):
            self.requested = with_setting(self.requested, key, rate)
        self._apply_settings(build=build)
        self.emit(RolledBack(iteration=self.iteration, to=rollback.to, reason=rollback.reason))

    def _apply_settings(self, *, build: bool) -> None:
        """Apply requested settings from the next iteration on, here and in a resumed run."""
        rewards, warnings = (
            self._requested_rewards(build) if self.requested.reward != self.config.reward else (None, [])
        )
        if not (changed := changes(self.config, self.requested)):
            return
        self.guard.check()
        self._save_within()  # earlier iterations must not be repeated with the new settings
        self.config = self.requested
        write_config(self.folder, self.config)
        self._report(changed)
        self.policy.ppo.configure(self.config, rewards)
        if rewards and self.config.reward.normalize == "running":
            self.alert("info", "reward_statistics", STATISTICS_RESTARTED)
        for warning in config_warnings(self.config) + warnings:
            if warning not in self.warnings:
                self.warnings.append(warning)
                self.alert("warning", "config", warning)

    def _report(self, changed: Sequence[Change]) -> None:
        """Report settings that apply from the next iteration on."""
        for change in changed:
            self.emit(SettingChanged(iteration=self.iteration + 1, **change._asdict()))

    def _requested_rewards(self, build: bool) -> tuple[Rewards | None, list[str]]:
        """Build the requested rewards, if they are available, and return them with warnings for the user.

        If they are not, cancel the request and report why.
        """
        now = self.now
        try:
            self.requested = with_checkpoints(resolve_paths(self.requested, self.began_in))
            if not build or self.requested.reward == self.config.reward:
                return None, []
            self.state("loading")
            keep_models(self.requested)
            return self.policy.build_rewards(self.requested), unfinished_models(self.requested)
        except Exception as error:  # noqa: BLE001  whatever is wrong with that reward, the run has one
            self.requested = self.requested.model_copy(update={"reward": self.config.reward})
            reason = str(error) if isinstance(error, TrainerError) else reason_of(error)
            self.alert("warning", "setting_refused", f"{'; '.join(reason.splitlines())}; the reward is unchanged")
            return None, []
        finally:
            if self.now != now:
                self.state(now)


def _saved_config(folder: RunFolder) -> Config | None:
    """Return the configuration that a run was trained with until now; None if its file is damaged."""
    try:
        return load_config(folder.config)
    except TrainerError:
        return None
