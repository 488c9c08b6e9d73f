"""Training of a run of any kind: from a configuration to trained weights, with a journal and checkpoints on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from trainer.config import AnyConfig, Config, config_warnings, load_config, resolve_paths, with_seed
from trainer.config.pairs import DPOConfig, RewardModelConfig
from trainer.config.problems import validate_as
from trainer.distributed.ranks import ALONE, Ranks
from trainer.engine.artifacts import keep_best, older_checkpoint
from trainer.engine.control import NO_ANSWERS, Control
from trainer.engine.dpo import DPO
from trainer.engine.live_settings import changes, in_words, with_setting
from trainer.engine.ppo import STATISTICS_RESTARTED, PPOTraining
from trainer.engine.reward_model import RewardModelTraining
from trainer.engine.run import Run
from trainer.engine.trainable import Hooks, Trainable, check_shares
from trainer.errors import OutOfMemoryError, TrainerError
from trainer.events import DataChanged, Evaluation, Event, Phase, PhaseProgress, RolledBack, RunEnded, State
from trainer.fitting.memory_limit import (
    REFUSED,
    Smaller,
    fit,
    free_memory,
    set_memory_limit,
    smaller_parts,
    until_it_fits,
)
from trainer.memory.estimate import changed
from trainer.models.backbone import quantize_warning
from trainer.models.blas import blas_warning, measure_matmul
from trainer.monitoring import Monitor
from trainer.policy_checkpoint import Rollback
from trainer.preferences.records import Preference
from trainer.questions import Answer, Question, unanswered
from trainer.rewards import Trust, trust_all
from trainer.rewards.model_reward import keep_models, unfinished_models, with_checkpoints
from trainer.runs.checkpoint_files import load_newest, newest_checkpoint, read_best, remove_best
from trainer.runs.folder import RunFolder, check_name_is_free, open_to_train, write_config
from trainer.runs.journal import read_journal
from trainer.runs.sinks import Sink

KINDS: dict[type, tuple[type[Trainable], str]] = {
    Config: (PPOTraining, "run"),
    DPOConfig: (DPO, "dpo"),
    RewardModelConfig: (RewardModelTraining, "reward-model"),
}
"""For each class of configuration: the class that trains it, and the default name of a run."""


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
    kind, name = KINDS[type(config)]
    out, control = list(sinks), control or Control()
    try:
        training = Training(config, resume, out, control, ranks)
        check = control.check if ranks.alone else lambda: None
        hooks = Hooks(training.run.emit, control.clock, check, training.run.wait)
        training.run.kind = kind(
            training.run.config, ranks, hooks, preferences=preferences, trust=trust, accept_data=accept_data
        )
        return training.train(preset or name)
    finally:
        ranks.end()
        control.detach()
        for sink in out:
            with contextlib.suppress(TrainerError):  # what cannot be written has ended the run already
                sink.close()


def follow(ranks: Ranks, config: AnyConfig) -> None:
    """Train with the first rank, which has sent `config`, until it ends the run; write no files and print nothing.

    Raises TrainerError.
    """

    def report(event: Event) -> None:
        if isinstance(event, PhaseProgress) and event.done == 0:
            ranks.meet(lambda: None)

    ranks.timeout = config.run.rank_timeout
    kind = KINDS[type(config)][0](config, ranks, Hooks(report))
    _load(kind, None)
    if ranks.receive()["do"] == "end":
        return
    kind.build()

    def work(order: dict[str, Any]) -> None:
        config = validate_as(type(kind.config), order["config"])
        if config != kind.config:
            kind.configure(config)
        if order["state"] is not None:
            here = kind.snapshot()._replace(**order["state"])
            kind.restore(here._replace(**ranks.from_first(here.parts()[1])))
        ranks.begin()
        getattr(kind, order["do"])()

    ranks.follow(work, free_memory)


def release_thread() -> None:
    """Release MLX at the end of a thread that trained; otherwise MLX may abort the process at exit.

    The thread cannot use MLX afterwards.
    """
    mx.clear_cache()  # the next model cannot use the buffers of this one
    mx.clear_streams()


def _load(kind: Trainable, folder: RunFolder | None) -> int:
    """Load model and data on every rank, which must have the same; return the bytes of memory that all may take."""
    with kind.ranks.all_or_none(ends=True):
        limit = set_memory_limit(kind.config.model)
        data = kind.load(folder)
    kind.ranks.check_same(kind.model.folder, data)
    return min(kind.ranks.gather(limit))


class Training:
    """The iterations of a run from its first to its last. Requests of others apply between them."""

    def __init__(
        self, config: AnyConfig, resume: Path | None, sinks: list[Sink], control: Control, ranks: Ranks
    ) -> None:
        self.began_in = Path.cwd()
        used: Any = resolve_paths(config, self.began_in)
        if not isinstance(config, RewardModelConfig):
            used = with_checkpoints(used)
        used = with_seed(used)
        self.requested: Any = used  # with the settings that apply from the next iteration on
        self.requested_rollback: tuple[int | None, str] | None = None  # the iteration to return to, and the reason
        self.paused_in: State = "loading"
        self.ranks = ranks
        self.control = control
        self.run = Run(used, resume, sinks, control, ranks)
        self.run.warnings = config_warnings(used)
        if not isinstance(used, RewardModelConfig):
            self.run.warnings += unfinished_models(used)

    def train(self, preset: str) -> RunEnded:
        """Load everything, then create or open the run and train. A failed start leaves nothing behind."""
        run, kind, ranks, config = self.run, self.run.kind, self.ranks, self.run.config
        check_shares(config, ranks)
        ranks.timeout = config.run.rank_timeout
        with contextlib.ExitStack() as held:
            run.state("loading")
            if run.resume:
                run.folder = open_to_train(run.resume, Path(config.run.dir))
                held.enter_context(run.folder.lock())  # or another process could change what this one has read
            else:
                check_name_is_free(config)
            ranks.send("load", config=config.model_dump(mode="json"))
            self.memory_limit = _load(kind, run.folder if run.resume else None)  # bytes
            ranks.idle = True
            saved, _ = newest_checkpoint(run.folder) if run.resume else (None, [])  # loading it reports damaged ones
            ranks.send("begin")
            kind.build()
            ranks.idle = True
            if saved is None:
                kind.initialise()
            run.warnings += kind.warnings
            run.warnings += filter(None, (blas_warning(measure_matmul()), quantize_warning(config.model)))
            for change in fit(kind.config, *kind.sizes, self.memory_limit):  # before the first iteration
                run.warnings.append(change.line)
                run.config = changed(run.config, change.key, change.value)
                kind.configure(changed(kind.config, change.key, change.value))
            self.requested = run.config
            run.snapshot = kind.snapshot()
            return run.in_folder(preset, self, self._loop)

    def _loop(self) -> str:
        """Do the remaining iterations; return why there are no more."""
        run, kind, every = self.run, self.run.kind, self.run.config.checkpoint.every
        self._begin()
        if work := kind.opening():
            self._do(work)
            if kind.opening() is None:
                run.snapshot = kind.snapshot()
            self._apply_requests()
            if every and not isinstance(run.config, Config):
                run.save()
        step_done = False  # a step requested before ends with the first one
        while not kind.ending():
            decision = run.watch.due(run.iteration) if run.watch else None
            if decision and decision.action == "stop":
                return decision.message
            run.state("training")
            self.control.check(step_done=step_done)
            step_done = True
            if decision and not self.requested_rollback:
                self.requested_rollback = (None, decision.message)
            self._apply_requests()
            self._do(kind.step)
            evaluations = [self._do(work) for work in kind.due()]
            # Only now: a run that ends during its evaluation repeats the iteration, and so the evaluation.
            run.snapshot = kind.snapshot()
            for evaluation in evaluations:
                if isinstance(evaluation, Evaluation) and isinstance(kind, PPOTraining):
                    keep_best(run.checkpoints, run.snapshot, evaluation, run.config.checkpoint.best)
            if every and run.iteration % every == 0:
                run.save()
            phase, peak = max(kind.peaks.items(), key=lambda found: found[1])
            if peak > self.memory_limit and not kind.ending():  # after the last one, nothing is left to make smaller
                with contextlib.suppress(OutOfMemoryError):  # it did fit, if barely
                    self._shrink(phase, peak)
        run.save()
        self.control.take_rest()
        for change in changes(run.config, self.requested, run.iteration + 1):
            what = f"{change.key} = {in_words(change.value)}"
            run.alert("warning", "setting_refused", f"{what} ignored: the run is in its last iteration")
        if self.requested_rollback:
            run.alert("warning", "rollback_refused", "rollback ignored: the run is in its last iteration")
        return kind.ending()

    def _begin(self) -> None:
        """Continue from the newest checkpoint, if there is one, and report how the run begins."""
        run, kind = self.run, self.run.kind
        kind.answers.keep_in(run.folder.judge, shared=run.config.run.shared)
        before: Config | None = None  # of a resumed run, as it was trained until now
        if run.resume and isinstance(run.config, Config):
            with contextlib.suppress(TrainerError):  # a damaged file
                before = load_config(run.folder.config)
        loaded, problems = load_newest(run.folder, kind.read)
        if loaded is not None:
            run.snapshot = loaded  # first: what does not fit the model must not be saved again
            run.checkpoints.saved_at = loaded.iteration
            self.ranks.same_state = False
            kind.restore(loaded)
            run.snapshot = kind.snapshot()
        elif run.resume:
            kind.initialise()
            run.snapshot = kind.snapshot()
        run.warnings += [warning for warning in kind.warnings if warning not in run.warnings]
        run.begin()
        for change in changes(before or run.config, run.config, run.iteration + 1):
            run.emit(change)
        for problem in problems:
            message = f"{problem}: resumed after iteration {run.iteration} instead"
            run.alert("warning", "checkpoint_damaged", message, run.iteration)
        if isinstance(kind, PPOTraining):
            self._replay_journal(kind, loaded)

    def _replay_journal(self, kind: PPOTraining, loaded: Any) -> None:
        """Replay the journal, and finish what a killed process had begun after its checkpoint."""
        kind.begin_in(self.run.folder)
        past = read_journal(self.run.folder.events).events
        self.run.watch = Monitor(lambda: self.run.config, past)
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
            keep_best(self.run.checkpoints, self.run.snapshot, evaluations[-1], self.run.config.checkpoint.best)

    def _do(self, work: Callable[[], Any]) -> Any:
        """Return the result of a method of what is trained; when an allocation fails, repeat it in smaller parts."""
        run, kind = self.run, self.run.kind

        def make_smaller() -> None:
            if work == kind.step:  # from the start of the iteration
                self.ranks.same_state = False
                kind.restore(run.snapshot)
                self._shrink(kind.phases.latest or "update", REFUSED)
                self._apply_requests()
                return
            for change in self._shrink("evaluate", REFUSED):  # at once: a resumed run repeats nothing of it
                kind.configure(changed(kind.config, change.key, change.value))

        if work != kind.step:
            run.state("evaluating")
        found = until_it_fits(
            lambda: self.ranks.lead(
                work.__name__, work, lambda: kind.snapshot().parts(), config=kind.config.model_dump(mode="json")
            ),
            make_smaller,
        )
        kind.leave(run.folder)
        return found

    def _shrink(self, phase: Phase, peak: int) -> list[Smaller]:
        """Request that the parts of `phase`, whose peak was `peak` bytes, are half as large from the next iteration on.

        Returns the changes. Raises OutOfMemoryError if the parts are single sequences already.
        """
        smaller = smaller_parts(self.requested, phase, peak, self.run.kind.sizes[1], self.memory_limit)
        for change in smaller:
            self.run.alert("warning", "out_of_memory", change.line)
            self.requested = changed(self.requested, change.key, change.value)
        return smaller

    # Requests of the user, other threads and other processes

    def handle(self, request: str, *values: Any) -> None:
        """Handle a request as `Steered` names them; settings and rollbacks wait for the next iteration."""
        run, is_ppo = self.run, isinstance(self.run.kind, PPOTraining)
        match request, *values:
            case ("paused",):
                self.paused_in = run.now
                run.state("paused")
            case ("resumed",):
                run.state(self.paused_in)
            case ("stopped",):
                self._apply_requests(build=False)  # for when the run is resumed, which then builds what it needs
            case ("checkpoint",):
                if run.iteration == run.checkpoints.saved_at:
                    run.alert("info", "checkpoint_there", f"iteration {run.iteration} already has a checkpoint")
                run.save_within()
            case ("report", event):
                run.emit(event)
            case ("rollback", to, reason) if is_ppo:
                self.requested_rollback = (to, reason)
            case ("rollback", *_):
                run.alert("warning", "rollback_refused", "this kind of run cannot be rolled back")
            case ("set", key, value) if is_ppo:
                try:
                    self.requested = with_setting(self.requested, key, value)
                except TrainerError as refusal:
                    lines = "; ".join(str(refusal).splitlines())
                    run.alert("warning", "setting_refused", f"{lines}; nothing is changed")
            case ("set", key, _):
                run.alert("warning", "setting_refused", f"{key} cannot change in this kind of run")

    def answer(self, question: Question, check: Callable[[], None]) -> Answer:
        """Answer with the policy of the last whole iteration, if this kind of run has one."""
        if isinstance(self.run.kind, PPOTraining):
            return self.run.kind.answer(question, check, self.run.snapshot)
        return unanswered(question, NO_ANSWERS)

    def _apply_requests(self, *, build: bool = True) -> None:
        """Roll back and change settings as requested, from the next iteration on, here and in a resumed run.

        build: whether this process goes on, and needs what the settings name.
        """
        if self.requested_rollback:
            (to, reason), self.requested_rollback = self.requested_rollback, None
            self._roll_back(to, reason, build=build)
        run = self.run
        rewards, warnings = self._requested_rewards(build)
        if not (found := changes(run.config, self.requested, run.iteration + 1)):
            return
        run.save_within()  # earlier iterations must not be repeated with the new settings
        run.config = self.requested
        write_config(run.folder, run.config)
        for change in found:
            run.emit(change)
        run.kind.configure(run.config, rewards)
        if rewards and run.config.reward.normalize == "running":
            run.alert("info", "reward_statistics", STATISTICS_RESTARTED)
        for warning in config_warnings(run.config) + warnings:
            if warning not in run.warnings:
                run.warnings.append(warning)
                run.alert("warning", "config", warning)

    def _roll_back(self, to: int | None, reason: str, *, build: bool) -> None:
        """Continue from an older checkpoint. Iterations keep counting: none is repeated.

        If killed midway, either nothing changed or the checkpoint says what to finish.
        """
        run, kind = self.run, cast("PPOTraining", self.run.kind)
        try:
            path = older_checkpoint(run.folder, to, before=run.iteration)
            older = kind.read(path)
        except TrainerError as refusal:
            run.alert("warning", "rollback_refused", f"{refusal}; the run continues unchanged")
            return
        factor, optim = run.config.convergence.rollback_lr, self.requested.optim
        value_lr = optim.value_lr * (1.0 if self.requested.model.value_model == "fitted" else factor)
        rollback = Rollback(older.iteration, reason, optim.policy_lr * factor, value_lr)
        self.ranks.same_state = False
        run.snapshot = kind.roll_back(older, run.snapshot, rollback)
        if (best := read_best(run.folder)) and best.iteration == run.iteration:  # that will contain another state
            remove_best(run.folder)
        run.checkpoints.saved_at = -1  # an existing checkpoint of this iteration contains another state
        run.save_within()
        self._finish_rollback(rollback, build=build)

    def _finish_rollback(self, rollback: Rollback, *, build: bool = True) -> None:
        """Finish a rollback whose checkpoint is written: set the learning rates and report it."""
        for key, rate in (("optim.policy_lr", rollback.policy_lr), ("optim.value_lr", rollback.value_lr)):
            self.requested = with_setting(self.requested, key, rate)
        self._apply_requests(build=build)
        self.run.emit(RolledBack(iteration=self.run.iteration, to=rollback.to, reason=rollback.reason))

    def _requested_rewards(self, build: bool) -> tuple[Any, list[str]]:
        """Build the requested rewards, if they are new and available, and return them with warnings for the user.

        If they are not available, cancel the request and report why.
        """
        run, kind, now = self.run, self.run.kind, self.run.now
        if not isinstance(kind, PPOTraining) or self.requested.reward == run.config.reward:
            return None, []
        try:
            self.requested = with_checkpoints(resolve_paths(self.requested, self.began_in))
            if not build or self.requested.reward == run.config.reward:
                return None, []
            run.state("loading")
            warnings = keep_models(self.requested) + unfinished_models(self.requested)
            return kind.build_rewards(self.requested), warnings
        except (TrainerError, RuntimeError, MemoryError) as error:  # the last two: the model does not fit
            self.requested = self.requested.model_copy(update={"reward": run.config.reward})
            reason = "; ".join(str(error).splitlines())
            run.alert("warning", "setting_refused", f"{reason}; the reward is unchanged")
            return None, []
        finally:
            if run.now != now:
                run.state(now)
