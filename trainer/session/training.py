"""A whole run: from a configuration to a trained policy, with a journal, samples and checkpoints on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from trainer.config import Config
from trainer.control.control import Control
from trainer.control.lifecycle import closing
from trainer.data import Prompt, load_prompts
from trainer.evaluation.measure import evaluate, reference_baseline
from trainer.events import Evaluation, RolledBack, RunEnded
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.cpu.blas import blas_warning, measure_matmul
from trainer.models.loading import load_backbone, quantize_warning
from trainer.monitoring.watch import RunWatch
from trainer.ppo.checkpoint import Snapshot, load_checkpoint
from trainer.ppo.loop import PPO
from trainer.ppo.value_init import check_value_init, init_value_model
from trainer.rewards import Trust, load_functions, trust_all
from trainer.runs.checkpoint_files import load_newest
from trainer.runs.folder import check_name_is_free, create_run, open_to_train, write_config
from trainer.runs.journal import read_journal
from trainer.runs.sinks import Sink, Sinks
from trainer.runs.trackers import build_trackers
from trainer.seeding import Purpose, key_for
from trainer.session.prompts import run_prompts
from trainer.session.record import RunRecord
from trainer.session.steered_run import SteeredRun


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


class _Run(SteeredRun):
    """One run from its first event to its last: loading, and the loop over iterations."""

    def train(self, preset: str) -> RunEnded:
        """Load everything, then create or open the run, so that a failed start leaves nothing behind."""
        self.state("loading")
        if self.resume:
            self.folder = open_to_train(self.resume, Path(self.config.run.dir))
        else:
            check_name_is_free(self.config)
        rows = load_prompts(self.config.data)
        functions = load_functions(self.config.reward, trust=self.trust)
        check_value_init(self.config.model)
        self.model = model = load_backbone(self.config.model)
        rewards = self.build_rewards(self.config, functions)
        self.warnings += filter(None, (blas_warning(measure_matmul()), quantize_warning(self.config.model)))
        prompts, held_out, warnings = run_prompts(self.config, rows, model)
        self.warnings += warnings
        key = key_for(self.config.run.seed, Purpose.ADAPTER)
        actor = ActorCriticLLM(model.backbone, self.config.model, key=key)
        if not self.resume:  # otherwise the critic comes from the checkpoint
            init_value_model(actor, model, self.config.model)
        self.ppo = PPO(self.config, actor, model.tokenizer, prompts, rewards, emit=self.emit, control=self.control)
        self.held_out = held_out[: self.config.eval.prompts]
        self.baseline = reference_baseline(self.ppo, self.held_out) if self.config.eval.reference else None
        if not self.resume:
            self.folder = create_run(self.config, preset)
        with self.folder.lock() as self.lock:
            if self.resume:
                write_config(self.folder, self.config)  # what runs from here on
            self.open(self._trackers, shared=self.config.run.shared)
            self.record = RunRecord(self.folder, self.config, self.emit, self.guard.check)
            return self.guarded(lambda: self._iterations(prompts))

    def _begin(self, prompts: Sequence[Prompt]) -> None:
        ppo = self.ppo
        self.snapshot = self.take_snapshot(0)
        loaded, problems = load_newest(self.folder, lambda path: load_checkpoint(path, ppo.actor.adapter_config))
        if loaded is not None:
            self.take_up(loaded)
        self.begin(
            self.config,
            self.model,
            trainable=[*ppo.actor.policy_parameters().values(), *ppo.actor.value_parameters().values()],
            prompts=len(prompts),
            eval_prompts=len(self.held_out),
            iterations=self.config.ppo.iterations,
        )
        self.tell_damaged(problems)
        self._catch_up(loaded)

    def _catch_up(self, loaded: Snapshot | None) -> None:
        """Replay the journal and finish what a killed process had begun after its checkpoint."""
        past = read_journal(self.folder.events).events
        self.watch = RunWatch(lambda: self.config, past)
        evaluations = [event for event in past if isinstance(event, Evaluation)]
        self.is_evaluated = bool(evaluations)
        if loaded is None:
            return
        if rollback := loaded.rollback:
            told = RolledBack(iteration=loaded.iteration, to=rollback.to, reason=rollback.reason)
            if [event for event in past if isinstance(event, RolledBack)][-1:] != [told]:
                self.finish_rollback(rollback)
        elif loaded.iteration and evaluations and evaluations[-1].iteration == loaded.iteration:
            self.record.keep_best(loaded, evaluations[-1])

    def _iterations(self, prompts: Sequence[Prompt]) -> str:
        """Run the remaining iterations; return why there are no more."""
        self._begin(prompts)
        c, ppo = self.config, self.ppo  # settings read from `c` here are not live
        reason = f"{c.ppo.iterations} iterations done"
        if self.iteration == 0 and not self.is_evaluated:
            self._evaluate(0)
        first = self.snapshot.iteration + 1
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
            self.between_iterations(decision)
            result = ppo.iteration(number)
            self.record.write_samples(number, result)
            self.emit(result.metrics)
            is_due = number == c.ppo.iterations or (c.eval.every and number % c.eval.every == 0)
            evaluation = self._evaluate(number) if is_due else None
            # Only now: a run that ends during its evaluation repeats the iteration, and so the evaluation.
            self.snapshot = self.take_snapshot(number)
            if evaluation:
                self.record.keep_best(self.snapshot, evaluation)
            if c.checkpoint.every and number % c.checkpoint.every == 0:
                self.save()
        self.save()
        self.tell_too_late()
        return reason

    def _evaluate(self, number: int) -> Evaluation | None:
        """Evaluate the policy after iteration `number` on held-out prompts; None if disabled or there are none."""
        if not self.config.eval.every or not self.held_out:
            return None
        self.state("evaluating")
        evaluation = evaluate(self.ppo, self.held_out, number, self.baseline)
        self.emit(evaluation)
        return evaluation

    def _trackers(self) -> list[Sink]:
        names, settings = self.config.run.trackers, self.config.model_dump()
        return build_trackers(names, self.folder.name, self.folder.root, settings)
