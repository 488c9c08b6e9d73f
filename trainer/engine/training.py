"""A whole PPO run: from a configuration to a trained policy, with a journal, samples and checkpoints on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from trainer.config import Config, config_warnings, load_config, resolve_paths, with_seed
from trainer.data import Prompt, column_names, load_prompts
from trainer.distributed.ranks import ALONE, Ranks
from trainer.engine.artifacts import forget_best, keep_best, older_checkpoint, save_if_new, save_samples
from trainer.engine.checkpoint import Rollback, Snapshot, load_checkpoint
from trainer.engine.control import Control
from trainer.engine.follower import check_shares
from trainer.engine.lifecycle import RunUnderWay, closing
from trainer.engine.live_settings import Change, changes, in_words, with_setting
from trainer.engine.policy import STATISTICS_RESTARTED, TrainedPolicy
from trainer.engine.policy_init import check_policy_init
from trainer.engine.prompts import RunPrompts, changed_since, prompts_record, run_prompts
from trainer.engine.value_init import check_value_init
from trainer.errors import ChangedPromptsError, DataError, Interrupted, OutOfMemoryError, TrainerError
from trainer.evaluation.held_out import evaluate, reference_baseline
from trainer.events import DataChanged, Evaluation, Phase, RolledBack, RunEnded, SettingChanged
from trainer.files import PRIVATE, SHARED, is_file, remove, write_whole
from trainer.fitting.memory_limit import (
    REFUSED,
    Smaller,
    fit,
    lowered,
    set_memory_limit,
    smaller_parts,
    until_it_fits,
)
from trainer.memory.estimate import changed
from trainer.models.adapters import reason_of, with_saved_layers
from trainer.models.backbone import load_backbone, quantize_warning
from trainer.models.cpu.blas import blas_warning, measure_matmul
from trainer.monitoring import Monitor
from trainer.plurals import counted
from trainer.ppo.loop import IterationResult
from trainer.questions import Answer, Question
from trainer.rewards import Rewards, Trust, load_functions, trust_all
from trainer.rewards.model_reward import keep_models, unfinished_models, with_checkpoints
from trainer.runs.checkpoint_files import load_newest, newest_checkpoint
from trainer.runs.folder import RunFolder, write_config
from trainer.runs.journal import read_journal
from trainer.runs.sample_index import complete_index
from trainer.runs.sinks import Sink, Sinks


def train(
    config: Config,
    *,
    resume: Path | None = None,
    preset: str = "run",
    sinks: Sequence[Sink] = (),
    control: Control | None = None,
    trust: Trust = trust_all,
    ranks: Ranks = ALONE,
    accept_data: bool = False,
) -> RunEnded:
    """Train as `config` says, all on the calling thread, and return how the run ended.

    resume: folder of a run to continue from its newest whole checkpoint, with `config` as its configuration. preset:
    preset or path that a new run is named after if run.name is empty. sinks: receive every event, in order, and are
    closed at the end. control: lets another thread steer the run, as the run folder's `control/` lets another process.
    trust: raises UntrustedCodeError for Python code that no reward may run, also if it is requested later. ranks: of
    which this process is the first; the others `follow`. accept_data: go on with other prompts than those that the
    resumed run trained on, which raises ChangedPromptsError otherwise. Raises TrainerError for what a user can fix; the
    journal then says why.
    """
    out, control = Sinks(sinks), control or Control()
    with closing(out, control):
        try:
            return _PPORun(config, resume, out, control, trust, ranks, accept_data=accept_data).train(preset)
        finally:
            ranks.end()


def release_thread() -> None:
    """Release MLX at the end of a thread that trained; otherwise MLX may abort the process at exit.

    The thread cannot use MLX afterwards.
    """
    mx.clear_cache()  # the next model cannot use the buffers of this one
    mx.clear_streams()


class _PPORun:
    """A PPO run from its first iteration to its last. Requests of others apply between its iterations."""

    policy: TrainedPolicy
    watch: Monitor

    def __init__(
        self,
        config: Config,
        resume: Path | None,
        out: Sinks,
        control: Control,
        trust: Trust,
        ranks: Ranks,
        *,
        accept_data: bool,
    ) -> None:
        self.began_in = Path.cwd()
        self.config = with_seed(with_checkpoints(resolve_paths(config, self.began_in)))
        self.run = RunUnderWay(self, resume, out, control, steering=self, ranks=ranks)
        self.ranks = ranks
        self.control = control
        self.trust = trust
        self.run.warnings = config_warnings(self.config) + unfinished_models(self.config)
        self.requested = self.config  # with the live settings that apply from the next iteration on
        self.requested_rollback: tuple[int | None, str] | None = None  # the iteration to return to, and the reason
        self.accept_data = accept_data
        self.changed_data = ""  # how the prompts of a resumed run differ from those that it trained on, if accepted
        self.saved: Config | None = None  # of a resumed run, as it was trained until now

    def train(self, preset: str) -> RunEnded:
        """Load everything, then create or open the run, so that a failed start leaves nothing behind."""
        run = self.run
        check_shares(self.config, self.ranks)
        self.ranks.timeout = self.config.run.rank_timeout
        self.ranks.tell("load", config=self.config.model_dump(mode="json"))
        run.find_folder()
        self.saved = _saved_config(run.folder) if run.resume else None
        skipped: list[DataError] = []
        rows = load_prompts(self.config.data, skipped.append)
        columns = column_names(rows)
        functions = load_functions(self.config.reward, trust=self.trust, columns=columns)
        saved, _ = newest_checkpoint(run.folder) if run.resume else (None, [])  # loading it reports damaged ones
        if saved is None:
            check_policy_init(self.config.model)
            check_value_init(self.config.model)
        run.warnings += keep_models(self.config)
        with self.ranks.all_or_none(ends=True):
            limit = set_memory_limit(self.config.model)
            model = load_backbone(self.config.model)
        self.ranks.check_same(model.folder, [row[:3] for row in rows])
        self.memory_limit = min(self.ranks.gather(limit))  # bytes
        self.policy = TrainedPolicy(model, self.control, self.trust, self.ranks, columns)
        run.warnings += filter(None, (blas_warning(measure_matmul()), quantize_warning(self.config.model)))
        with self.ranks.all_or_none(ends=True):
            rewards = self.policy.build_rewards(self.config, functions)
            found = run_prompts(self.config, rows, model, skipped)
        prompts, held_out, warnings = found
        self._check_data(found)
        run.warnings += warnings
        config = with_saved_layers(self.config, saved / "policy") if saved else self.config
        self.policy.begin(config, prompts, rewards, run.emit, new=not run.resume)
        self.ranks.tell("begin", config=config.model_dump(mode="json"))
        self.ranks.idle = True
        self._fit(prompts)
        self.held_out = held_out[: self.config.eval.prompts]
        self.baseline = reference_baseline(self.policy.ppo, self.held_out) if self.config.eval.reference else None
        return run.in_folder(preset, lambda: self._train(prompts), self.config.ppo.iterations)

    def _check_data(self, found: RunPrompts) -> None:
        """Compare the prompts of a resumed run with those that it remembers. Raises ChangedPromptsError."""
        self.record = prompts_record(found)
        self.changed_data = changed_since(self.run.folder, found) if self.run.resume else ""
        if self.changed_data and not self.accept_data:
            raise ChangedPromptsError(
                f"the prompts of run '{self.run.folder.name}' have changed ({self.changed_data}): restore them, or go "
                "on with these by --accept-data, which begins a new series of evaluations"
            )

    def _keep_data(self) -> None:
        """Remember the prompts that the run trains on, and begin a new series of evaluations if they are others."""
        folder = self.run.folder
        if self.changed_data:
            message = f"the prompts have changed ({self.changed_data}): evaluations before this cannot be compared"
            self.run.emit(DataChanged(iteration=self.iteration, message=message))
            remove(folder.best)
        if self.changed_data or not is_file(folder.prompts):
            write_whole(folder.prompts, self.record, mode=SHARED if self.config.run.shared else PRIVATE)

    def _train(self, prompts: Sequence[Prompt]) -> str:
        """Run the remaining iterations; return why there are no more."""
        try:
            return self._iterations(prompts)
        except Interrupted as interruption:
            if interruption.save:
                self.save()
                self._apply_requests(build=False)  # for when the run is resumed, which then builds what it needs
            raise

    def _iterations(self, prompts: Sequence[Prompt]) -> str:
        self._begin(prompts)
        c = self.config  # settings read from `c` here are not live
        reason = f"{counted(c.ppo.iterations, 'iteration')} done"
        if self.iteration == 0 and not self.is_evaluated:
            self._evaluate(0)
        first = self.iteration + 1
        for number in range(first, c.ppo.iterations + 1):
            decision = self.watch.due(number - 1)
            if decision and decision.action == "stop":
                reason = decision.message
                break
            self.run.state("training")
            if number > first:  # a step requested before ends with the first iteration
                self.control.between_iterations()
            else:
                self.control.check()
            if decision and not self.requested_rollback:
                self.requested_rollback = (None, decision.message)
            self._apply_requests()
            config = self.policy.ppo.config  # that of this iteration
            result = self._iteration(number)
            self.run.guard.check()
            texts, trains_policy = self.policy.token_texts, self.policy.ppo.trains_policy(number)
            self.run.emit(save_samples(self.run.folder, config, result, texts, trains_policy=trains_policy))
            self.run.emit(result.metrics)
            is_due = number == c.ppo.iterations or (c.eval.every and number % c.eval.every == 0)
            evaluation = self._evaluate(number) if is_due else None
            # Only now: a run that ends during its evaluation repeats the iteration, and so the evaluation.
            self.policy.keep(number)
            if evaluation:
                keep_best(self.run.checkpoints, self.policy.snapshot, evaluation, c.checkpoint.best)
            if c.checkpoint.every and number % c.checkpoint.every == 0:
                self.save()
            if number < c.ppo.iterations:  # after the last one, nothing is left to make smaller
                self._stay_within(result.metrics.memory)
        self.save()
        self.control.take_rest()
        self._refuse_requests()
        return reason

    def _fit(self, prompts: Sequence[Prompt]) -> None:
        """Make the parts of an iteration as small as the memory requires, before the first one."""
        self.longest = max(len(prompt.tokens) for prompt in prompts)  # tokens
        ppo = self.policy.ppo
        widest = self.longest + self.config.rollout.max_new_tokens
        lower, lines = fit(ppo.config, self.longest, widest, self.memory_limit)
        for change in lower:
            self.config = changed(self.config, *change)
            ppo.configure(changed(ppo.config, *change))
        self.requested = self.config
        self.run.warnings += lines

    def _iteration(self, number: int) -> IterationResult:
        """Run an iteration; when an allocation fails, repeat it from its start in smaller parts."""

        def make_smaller() -> None:
            self.policy.restore(self.policy.snapshot)
            self._make_smaller(self.policy.ppo.phases.latest or "update", REFUSED)
            self._apply_settings(build=False)

        return until_it_fits(lambda: self.policy.led("iteration", number, self.policy.ppo.iteration), make_smaller)

    def _make_smaller(self, phase: Phase, peak: int) -> list[Smaller]:
        """Request that the parts of `phase`, whose peak was `peak` bytes, are half as large from the next iteration on.

        Returns the changes. Raises OutOfMemoryError if the parts are single sequences already.
        """
        widest = self.longest + self.requested.rollout.max_new_tokens
        changes = smaller_parts(self.requested, phase, widest, self.memory_limit)
        for change in changes:
            self.run.alert("warning", "out_of_memory", lowered(self.requested, change, phase, peak, self.memory_limit))
            self.requested = with_setting(self.requested, *change)
        return changes

    def _stay_within(self, peaks: Mapping[str, int]) -> None:
        """Make the parts of the phase with the highest peak smaller if it is above the limit and they can be."""
        phase, peak = max(peaks.items(), key=lambda found: found[1])
        if peak > self.memory_limit:
            with contextlib.suppress(OutOfMemoryError):  # it did fit, if barely
                self._make_smaller(cast("Phase", phase), peak)

    def _begin(self, prompts: Sequence[Prompt]) -> None:
        actor = self.policy.ppo.actor
        loaded, problems = load_newest(self.run.folder, lambda path: load_checkpoint(path, actor.adapter_config))
        if loaded is not None:
            # First: what does not fit the model must not be saved again.
            self.run.checkpoints.saved_at = loaded.iteration
            if self.policy.restore(loaded) and self.config.reward.normalize == "running":
                self.run.warnings.append(STATISTICS_RESTARTED)
        elif self.run.resume:
            self.policy.begin_again()
        self.run.begin(
            self.policy.model,
            trainable=[*actor.policy_parameters().values(), *actor.value_parameters().values()],
            prompts=len(prompts),
            eval_prompts=len(self.held_out),
        )
        if self.saved:
            self._report(changes(self.saved, self.config))
        self._keep_data()
        self.run.report_damaged(problems)
        if self.config.run.save_samples:
            complete_index(self.run.folder.samples, self.iteration)
        self._replay_journal(loaded)

    def _replay_journal(self, loaded: Snapshot | None) -> None:
        """Learn from the journal what happened, and finish what a killed process had begun after its checkpoint."""
        past = read_journal(self.run.folder.events).events
        self.watch = self.run.watch = Monitor(lambda: self.config, past)
        series = max((place for place, event in enumerate(past) if isinstance(event, DataChanged)), default=0)
        evaluations = [event for event in past[series:] if isinstance(event, Evaluation)]
        self.is_evaluated = bool(evaluations)
        if loaded is None:
            return
        if rollback := loaded.rollback:
            expected = RolledBack(iteration=loaded.iteration, to=rollback.to, reason=rollback.reason)
            if [event for event in past if isinstance(event, RolledBack)][-1:] != [expected]:
                self._finish_rollback(rollback)
        elif loaded.iteration and evaluations and evaluations[-1].iteration == loaded.iteration:
            keep_best(self.run.checkpoints, loaded, evaluations[-1], self.config.checkpoint.best)

    def _evaluate(self, number: int) -> Evaluation | None:
        """Evaluate the policy after iteration `number` on held-out prompts; None if disabled or there are none."""
        if not self.config.eval.every or not self.held_out:
            return None
        self.run.state("evaluating")

        def make_smaller() -> None:  # at once, because an evaluation changes nothing that a resumed run repeats
            for change in self._make_smaller("evaluate", REFUSED):
                self.policy.ppo.configure(changed(self.policy.ppo.config, *change))

        def evaluated(number: int) -> Evaluation:
            return evaluate(self.policy.ppo, self.held_out, number, self.baseline)

        evaluation = until_it_fits(lambda: self.policy.led("evaluation", number, evaluated), make_smaller)
        self.run.emit(evaluation)
        return evaluation

    @property
    def iteration(self) -> int:
        """Number of the last whole iteration."""
        return self.policy.snapshot.iteration

    def save(self) -> None:
        """Save the last whole iteration, unless it is saved already."""
        save_if_new(self.run.checkpoints, self.policy.snapshot)

    def answer(self, question: Question, check: Callable[[], None]) -> Answer:
        """Answer with the policy of the last whole iteration."""
        return self.policy.answer(question, check)

    def rollback(self, to: int | None, reason: str) -> None:
        """Schedule a rollback before the next iteration."""
        self.requested_rollback = (to, reason)

    def set(self, key: str, value: Any) -> None:
        """Schedule a setting for the next iteration, or report why it is refused."""
        try:
            self.requested = with_setting(self.requested, key, value)
        except TrainerError as refusal:
            self.run.alert("warning", "setting_refused", f"{'; '.join(str(refusal).splitlines())}; nothing is changed")

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
            self.run.alert("warning", "setting_refused", f"{what} came in the last iteration; nothing is changed")
        if self.requested_rollback:
            message = "the rollback came in the last iteration; nothing is changed"
            self.run.alert("warning", "rollback_refused", message)

    def _roll_back(self, to: int | None, reason: str, *, build: bool) -> None:
        """Continue from an older checkpoint. Iterations keep counting: none is repeated.

        A process killed on the way has changed nothing, or has left a checkpoint that says what to finish.
        """
        self.run.guard.check()
        try:
            path = older_checkpoint(self.run.folder, to, before=self.iteration)
            older = load_checkpoint(path, self.policy.ppo.actor.adapter_config)
        except TrainerError as refusal:
            self.run.alert("warning", "rollback_refused", f"{refusal}; the run continues unchanged")
            return
        factor, optim = self.config.convergence.rollback_lr, self.requested.optim
        rollback = Rollback(older.iteration, reason, optim.policy_lr * factor, optim.value_lr * factor)
        self.policy.roll_back(older, rollback)
        forget_best(self.run.folder, self.iteration)
        self.run.checkpoints.saved_at = -1  # an existing checkpoint of this iteration contains another state
        self.run.save_within()
        self._finish_rollback(rollback, build=build)

    def _finish_rollback(self, rollback: Rollback, *, build: bool = True) -> None:
        """Finish a rollback whose checkpoint is written: set the learning rates and report it."""
        for key, rate in (("optim.policy_lr", rollback.policy_lr), ("optim.value_lr", rollback.value_lr)):
            self.requested = with_setting(self.requested, key, rate)
        self._apply_settings(build=build)
        self.run.emit(RolledBack(iteration=self.iteration, to=rollback.to, reason=rollback.reason))

    def _apply_settings(self, *, build: bool) -> None:
        """Apply requested settings from the next iteration on, here and in a resumed run."""
        rewards, warnings = (
            self._requested_rewards(build) if self.requested.reward != self.config.reward else (None, [])
        )
        if not (changed := changes(self.config, self.requested)):
            return
        self.run.guard.check()
        self.run.save_within()  # earlier iterations must not be repeated with the new settings
        self.config = self.requested
        write_config(self.run.folder, self.config)
        self._report(changed)
        self.policy.ppo.configure(self.config, rewards)
        if rewards and self.config.reward.normalize == "running":
            self.run.alert("info", "reward_statistics", STATISTICS_RESTARTED)
        for warning in config_warnings(self.config) + warnings:
            if warning not in self.run.warnings:
                self.run.warnings.append(warning)
                self.run.alert("warning", "config", warning)

    def _report(self, changed: Sequence[Change]) -> None:
        """Report settings that apply from the next iteration on."""
        for change in changed:
            self.run.emit(SettingChanged(iteration=self.iteration + 1, **change._asdict()))

    def _requested_rewards(self, build: bool) -> tuple[Rewards | None, list[str]]:
        """Build the requested rewards, if they are available, and return them with warnings for the user.

        If they are not, cancel the request and report why.
        """
        now = self.run.now
        try:
            self.requested = with_checkpoints(resolve_paths(self.requested, self.began_in))
            if not build or self.requested.reward == self.config.reward:
                return None, []
            self.run.state("loading")
            warnings = keep_models(self.requested) + unfinished_models(self.requested)
            return self.policy.build_rewards(self.requested), warnings
        except Exception as error:  # noqa: BLE001  whatever is wrong with that reward, the run has one
            self.requested = self.requested.model_copy(update={"reward": self.config.reward})
            reason = str(error) if isinstance(error, TrainerError) else reason_of(error)
            self.run.alert("warning", "setting_refused", f"{'; '.join(reason.splitlines())}; the reward is unchanged")
            return None, []
        finally:
            if self.run.now != now:
                self.run.state(now)


def _saved_config(folder: RunFolder) -> Config | None:
    """Return the configuration that a run was trained with until now; None if its file is damaged."""
    try:
        return load_config(folder.config)
    except TrainerError:
        return None
