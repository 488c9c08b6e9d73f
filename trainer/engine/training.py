"""Training of a run of any kind: from a configuration to trained weights, with a journal and checkpoints on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from trainer.config import AnyConfig, Config, config_warnings, load_config, resolve_paths, with_seed
from trainer.config.dpo import DPOConfig
from trainer.config.problems import validate_as
from trainer.config.reward_model import RewardModelConfig
from trainer.distributed.ranks import ALONE, Ranks
from trainer.engine.artifacts import forget_best, keep_best, older_checkpoint
from trainer.engine.control import Control
from trainer.engine.dpo import DPO
from trainer.engine.live_settings import Change, changes, in_words, with_setting
from trainer.engine.ppo import STATISTICS_RESTARTED, PPOTraining
from trainer.engine.reward_model import RewardModelTraining
from trainer.engine.run import Run, closing, hooks_of
from trainer.engine.trainable import Hooks, Trainable
from trainer.errors import Interrupted, OutOfMemoryError, TrainerError, UsageError, one_line
from trainer.events import DataChanged, Evaluation, Phase, RolledBack, RunEnded, SettingChanged, ignored
from trainer.fitting.memory_limit import (
    REFUSED,
    Smaller,
    fit,
    free_memory,
    lowered,
    set_memory_limit,
    smaller_parts,
    until_it_fits,
)
from trainer.memory.estimate import changed
from trainer.models.backbone import quantize_warning
from trainer.models.blas import blas_warning, measure_matmul
from trainer.monitoring import Monitor
from trainer.plurals import counted
from trainer.policy_checkpoint import Rollback
from trainer.preferences.records import Preference
from trainer.questions import Answer, Question
from trainer.rewards import Trust, trust_all
from trainer.rewards.model_reward import keep_models, unfinished_models, with_checkpoints
from trainer.runs.checkpoint_files import load_newest, newest_checkpoint
from trainer.runs.folder import RunFolder, write_config
from trainer.runs.journal import read_journal
from trainer.runs.sinks import Sink, Sinks

Kind = Callable[[Any, Ranks, Hooks], Trainable]


def train(
    config: AnyConfig,
    *,
    preferences: Iterable[Preference] | None = None,
    resume: Path | None = None,
    preset: str = "",
    sinks: Sequence[Sink] = (),
    control: Control | None = None,
    trust: Trust = trust_all,
    ranks: Ranks = ALONE,
    accept_data: bool = False,
) -> RunEnded:
    """Train what `config` configures, all on the calling thread, and return how the run ended.

    preferences: those to train on, instead of `config.data.preferences`, which the other ranks read. resume: folder of
    a run to continue from its newest whole checkpoint, with `config` as its configuration. preset: preset or path that
    a new run is named after if run.name is empty. sinks: receive every event, in order, and are closed at the end.
    control: lets another thread steer the run, as the run folder's `control/` lets another process. trust: raises
    UntrustedCodeError for Python code that no reward may run, also if it is requested later. ranks: of which this
    process is the first; the others `follow`. accept_data: go on with other prompts than those that the resumed run
    trained on, which raises ChangedPromptsError otherwise. Raises TrainerError for what a user can fix; the journal
    then says why.
    """
    kind: Kind
    match config:
        case RewardModelConfig():
            kind, name = partial(RewardModelTraining, preferences=preferences), "reward-model"
        case DPOConfig():
            kind, name = partial(DPO, preferences=preferences, trust=trust), "dpo"
        case Config():
            kind, name = partial(PPOTraining, trust=trust, accept_data=accept_data), "run"
    out, control = Sinks(sinks), control or Control()
    with closing(out, control):
        try:
            return Training(config, kind, resume, out, control, ranks).train(preset or name)
        finally:
            ranks.end()


train_dpo = train_reward_model = train  # the kind is that of the configuration


def follow(ranks: Ranks, config: AnyConfig) -> None:
    """Train with the first rank, which has sent `config`, until it ends the run; write no files and print nothing.

    Raises TrainerError.
    """
    ranks.timeout = config.run.rank_timeout
    kinds: dict[type, Kind] = {Config: PPOTraining, DPOConfig: DPO, RewardModelConfig: RewardModelTraining}
    kind = kinds[type(config)](config, ranks, hooks_of(ignored, Control(), ranks))
    _load(kind, ranks, None)
    if (order := ranks.receive())["do"] == "end":
        return
    kind.build(validate_as(type(config), order["config"]))

    def work(order: dict[str, Any]) -> None:
        config = validate_as(type(kind.config), order["config"])
        if config != kind.config:
            kind.configure(config)
        if order["state"] is not None:
            kind.take_over(order["state"])
        getattr(kind, order["do"])()

    ranks.follow(work, free_memory)


def release_thread() -> None:
    """Release MLX at the end of a thread that trained; otherwise MLX may abort the process at exit.

    The thread cannot use MLX afterwards.
    """
    mx.clear_cache()  # the next model cannot use the buffers of this one
    mx.clear_streams()


def _load(kind: Trainable, ranks: Ranks, folder: RunFolder | None) -> int:
    """Load model and data on every rank, which must have the same; return the bytes of memory that all may take."""
    with ranks.all_or_none(ends=True):
        limit = set_memory_limit(kind.config.model)
        data = kind.load(folder)
    ranks.check_same(kind.model.folder, data)
    return min(ranks.gather(limit))


class Training:
    """A run from its first iteration to its last. Requests of others apply between its iterations."""

    snapshot: Any
    """State after the last whole iteration."""

    def __init__(
        self, config: Any, make: Kind, resume: Path | None, out: Sinks, control: Control, ranks: Ranks
    ) -> None:
        self.began_in = Path.cwd()
        self.config: Any = resolve_paths(config, self.began_in)
        if not isinstance(config, RewardModelConfig):
            self.config = with_checkpoints(self.config)
        self.config = with_seed(self.config)
        self.requested: Any = self.config  # with the settings that apply from the next iteration on
        self.requested_rollback: tuple[int | None, str] | None = None  # the iteration to return to, and the reason
        self.ranks = ranks
        self.control = control
        self.run = run = Run(self, resume, out, control, ranks)
        self.kind: Trainable = make(self.config, ranks, hooks_of(run.emit, control, ranks))
        run.warnings = config_warnings(self.config)
        if not isinstance(self.config, RewardModelConfig):
            run.warnings += unfinished_models(self.config)

    def train(self, preset: str) -> RunEnded:
        """Load everything, then create or open the run and train. A failed start leaves nothing behind."""
        run, kind, ranks = self.run, self.kind, self.ranks
        check_shares(self.config, ranks)
        ranks.timeout = self.config.run.rank_timeout
        run.find_folder()
        ranks.send("load", config=self.config.model_dump(mode="json"))
        self.memory_limit = _load(kind, ranks, run.folder if run.resume else None)  # bytes
        ranks.idle = True
        saved, _ = newest_checkpoint(run.folder) if run.resume else (None, [])  # loading it reports damaged ones
        ranks.send("begin", config=self.config.model_dump(mode="json"))
        kind.build(self.config)
        ranks.idle = True
        if saved is None:
            kind.initialise()
        run.warnings += kind.warnings
        run.warnings += filter(None, (blas_warning(measure_matmul()), quantize_warning(self.config.model)))
        smaller, lines = fit(kind.config, *kind.sizes(), self.memory_limit)
        run.warnings += lines
        for change in smaller:  # before the first iteration
            self.config = changed(self.config, *change)
            kind.configure(changed(kind.config, *change))
        self.requested = self.config
        self.snapshot = kind.snapshot()
        self.before: Config | None = None  # of a resumed run, as it was trained until now
        if run.resume and isinstance(self.config, Config):
            with contextlib.suppress(TrainerError):  # a damaged file
                self.before = load_config(run.folder.config)
        return run.in_folder(preset, self._loop, kind.total, pairs=kind.fingerprint)

    def _loop(self) -> str:
        """Do the remaining iterations; return why there are no more."""
        try:
            return self._iterations()
        except Interrupted as interruption:
            if interruption.save:
                self.save()
                self._apply_requests(build=False)  # for when the run is resumed, which then builds what it needs
            raise

    def _iterations(self) -> str:
        self._begin()
        run, kind, every = self.run, self.kind, self.config.checkpoint.every
        if work := kind.opening():
            self._evaluate(work)
            if kind.opening() is None:
                self.snapshot = kind.snapshot()
            self._apply_settings(build=True)
            if every and not isinstance(self.config, Config):
                self.save()
        between = self.control.check  # a step requested before ends with the first one
        while not kind.is_finished:
            decision = run.watch.due(self.iteration) if run.watch else None
            if decision and decision.action == "stop":
                return decision.message
            run.state("training")
            between()
            between = self.control.between_iterations
            if decision and not self.requested_rollback:
                self.requested_rollback = (None, decision.message)
            self._apply_requests()
            self._step()
            evaluations = [self._evaluate(work) for work in kind.due()]
            # Only now: a run that ends during its evaluation repeats the iteration, and so the evaluation.
            self.snapshot = kind.snapshot()
            for evaluation in evaluations:
                self._keep_best(evaluation)
            if every and self.iteration % every == 0:
                self.save()
            if not kind.is_finished:  # after the last one, nothing is left to make smaller
                self._stay_within(kind.peaks())
        self.save()
        self.control.take_rest()
        self._refuse_requests()
        return kind.reason

    def _begin(self) -> None:
        """Continue from the newest checkpoint, if there is one, and report how the run begins."""
        run, kind = self.run, self.kind
        loaded, problems = load_newest(run.folder, kind.read)
        if loaded is not None:
            self.snapshot = loaded  # first: what does not fit the model must not be saved again
            run.checkpoints.saved_at = loaded.iteration
            self._restore(loaded)
            self.snapshot = kind.snapshot()
        elif run.resume:
            kind.initialise()
            self.snapshot = kind.snapshot()
        run.warnings += [warning for warning in kind.warnings if warning not in run.warnings]
        run.begin(kind.model, trainable=kind.trainable(), prompts=kind.prompts, eval_prompts=kind.eval_prompts)
        self._report(changes(self.before, self.config) if self.before else [])
        kind.begin_in(run.folder)
        for problem in problems:
            message = f"{problem}: resumed after iteration {self.iteration} instead"
            run.alert("warning", "checkpoint_damaged", message, self.iteration)
        if isinstance(kind, PPOTraining):
            self._replay_journal(kind, loaded)

    def _replay_journal(self, kind: PPOTraining, loaded: Any) -> None:
        """Replay the journal, and finish what a killed process had begun after its checkpoint."""
        past = read_journal(self.run.folder.events).events
        self.run.watch = Monitor(lambda: self.config, past)
        series = max((place for place, event in enumerate(past) if isinstance(event, DataChanged)), default=0)
        evaluations = [event for event in past[series:] if isinstance(event, Evaluation)]
        kind.is_evaluated = bool(evaluations)
        if loaded is None:
            return
        if rollback := loaded.rollback:
            expected = RolledBack(iteration=loaded.iteration, to=rollback.to, reason=rollback.reason)
            if [event for event in past if isinstance(event, RolledBack)][-1:] != [expected]:
                self._finish_rollback(rollback)
        elif loaded.iteration and evaluations and evaluations[-1].iteration == loaded.iteration:
            self._keep_best(evaluations[-1])

    def _step(self) -> None:
        """Do an iteration; when an allocation fails, repeat it from its start in smaller parts."""

        def make_smaller() -> None:
            self._restore(self.snapshot)
            self._shrink(self.kind.phase, REFUSED)
            self._apply_settings(build=True)

        until_it_fits(lambda: self._lead(self.kind.step), make_smaller)
        self.kind.leave(self.run.folder)

    def _evaluate(self, work: Callable[[], Any]) -> Any:
        """Return the result of an evaluation; when an allocation fails, repeat it in smaller parts."""
        self.run.state("evaluating")

        def make_smaller() -> None:  # at once, because an evaluation changes nothing that a resumed run repeats
            for change in self._shrink("evaluate", REFUSED):
                self.kind.configure(changed(self.kind.config, *change))

        found = until_it_fits(lambda: self._lead(work), make_smaller)
        self.kind.leave(self.run.folder)
        return found

    def _lead(self, work: Callable[[], Any]) -> Any:
        """Return the result of a method of `kind`, which all ranks call."""
        if self.ranks.alone:
            return work()
        kind, config = self.kind, self.kind.config.model_dump(mode="json")
        return self.ranks.lead(work.__name__, work, kind.shared_state, config=config)

    def _restore(self, snapshot: Any) -> None:
        self.ranks.same_state = False
        self.kind.restore(snapshot)

    def _shrink(self, phase: Phase, peak: int) -> list[Smaller]:
        """Request that the parts of `phase`, whose peak was `peak` bytes, are half as large from the next iteration on.

        Returns the changes. Raises OutOfMemoryError if the parts are single sequences already.
        """
        smaller = smaller_parts(self.requested, phase, self.kind.sizes()[1], self.memory_limit)
        for change in smaller:
            message = lowered(self.requested, change, phase, peak, self.memory_limit)
            self.run.alert("warning", "out_of_memory", message)
            self.requested = changed(self.requested, *change)
        return smaller

    def _stay_within(self, peaks: Mapping[Phase, int]) -> None:
        """Make the parts of the phase with the highest peak smaller if it is above the limit and they can be."""
        phase, peak = max(peaks.items(), key=lambda found: found[1])
        if peak > self.memory_limit:
            with contextlib.suppress(OutOfMemoryError):  # it did fit, if barely
                self._shrink(phase, peak)

    def _keep_best(self, evaluation: Any) -> None:
        if isinstance(self.config, Config) and isinstance(evaluation, Evaluation):
            keep_best(self.run.checkpoints, self.snapshot, evaluation, self.config.checkpoint.best)

    @property
    def iteration(self) -> int:
        """Number of the last whole iteration."""
        return int(self.snapshot.iteration)

    def save(self) -> None:
        """Save the last whole iteration, unless it is saved already. Raises StorageError."""
        if isinstance(self.config, Config) or self.kind.opening() is None:
            self.run.checkpoints.save(self.iteration, lambda path: self.kind.write(path, self.snapshot))

    # Requests of the user, other threads and other processes

    def answer(self, question: Question, check: Callable[[], None]) -> Answer | None:
        """Answer with the policy of the last whole iteration; None if this kind of run has none."""
        return self.kind.answer(question, check, self.snapshot) if isinstance(self.kind, PPOTraining) else None

    def rollback(self, to: int | None, reason: str) -> None:
        """Schedule a rollback before the next iteration."""
        if isinstance(self.kind, PPOTraining):
            self.requested_rollback = (to, reason)
        else:
            self.run.alert("warning", "rollback_refused", "this kind of run cannot be rolled back")

    def set(self, key: str, value: Any) -> None:
        """Schedule a setting for the next iteration, or report why it is refused."""
        if not isinstance(self.kind, PPOTraining):
            self.run.alert("warning", "setting_refused", f"{key} cannot change in this kind of run")
            return
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
            self.run.alert("warning", "setting_refused", f"{what} ignored: the run is in its last iteration")
        if self.requested_rollback:
            message = "rollback ignored: the run is in its last iteration"
            self.run.alert("warning", "rollback_refused", message)

    def _roll_back(self, to: int | None, reason: str, *, build: bool) -> None:
        """Continue from an older checkpoint. Iterations keep counting: none is repeated.

        If killed midway, either nothing changed or the checkpoint says what to finish.
        """
        kind = cast("PPOTraining", self.kind)
        try:
            path = older_checkpoint(self.run.folder, to, before=self.iteration)
            older = kind.read(path)
        except TrainerError as refusal:
            self.run.alert("warning", "rollback_refused", f"{refusal}; the run continues unchanged")
            return
        factor, optim = self.config.convergence.rollback_lr, self.requested.optim
        rollback = Rollback(older.iteration, reason, optim.policy_lr * factor, optim.value_lr * factor)
        self.ranks.same_state = False
        self.snapshot = kind.roll_back(older, self.snapshot, rollback)
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
        rewards, warnings = self._requested_rewards(build)
        if not (found := changes(self.config, self.requested)):
            return
        self.run.save_within()  # earlier iterations must not be repeated with the new settings
        self.config = self.requested
        write_config(self.run.folder, self.config)
        self._report(found)
        self.kind.configure(self.config, rewards)
        if rewards and self.config.reward.normalize == "running":
            self.run.alert("info", "reward_statistics", STATISTICS_RESTARTED)
        for warning in config_warnings(self.config) + warnings:
            if warning not in self.run.warnings:
                self.run.warnings.append(warning)
                self.run.alert("warning", "config", warning)

    def _report(self, found: Sequence[Change]) -> None:
        """Report settings that apply from the next iteration on."""
        for change in found:
            self.run.emit(SettingChanged(iteration=self.iteration + 1, **change._asdict()))

    def _requested_rewards(self, build: bool) -> tuple[Any, list[str]]:
        """Build the requested rewards, if they are new and available, and return them with warnings for the user.

        If they are not available, cancel the request and report why.
        """
        kind, now = self.kind, self.run.now
        if not isinstance(kind, PPOTraining) or self.requested.reward == self.config.reward:
            return None, []
        try:
            self.requested = with_checkpoints(resolve_paths(self.requested, self.began_in))
            if not build or self.requested.reward == self.config.reward:
                return None, []
            self.run.state("loading")
            warnings = keep_models(self.requested) + unfinished_models(self.requested)
            return kind.build_rewards(self.requested), warnings
        except Exception as error:  # noqa: BLE001  whatever is wrong with that reward, the run has one
            self.requested = self.requested.model_copy(update={"reward": self.config.reward})
            reason = str(error) if isinstance(error, TrainerError) else one_line(error, 200)
            self.run.alert("warning", "setting_refused", f"{'; '.join(reason.splitlines())}; the reward is unchanged")
            return None, []
        finally:
            if self.run.now != now:
                self.run.state(now)


def check_shares(config: Any, ranks: Ranks) -> None:
    """Raise UsageError if an optimiser step does not give each rank a sequence or a comparison."""
    if isinstance(config, Config):
        size, what = config.rollout.batch_size // config.ppo.minibatches, "sequence"
        name, raised = "rollout.batch_size / ppo.minibatches", "rollout.batch_size"
    else:
        size, what, name, raised = config.train.batch_size, "comparison", "train.batch_size", "train.batch_size"
    if size < ranks.size:
        part = "minibatch" if isinstance(config, Config) else "step"
        raise UsageError(
            f"a {part} of {counted(size, what)} ({name}) is too small for {ranks.size} ranks: raise {raised} or start "
            "fewer ranks"
        )
