"""PPO as a run trains it: its data, rewards, samples, evaluations, snapshots and answers."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np

from trainer.arrays import Purpose, key_for
from trainer.config import Config, split_seed
from trainer.data import Prompt, PromptRow, column_names, encode_prompts, load_prompts, split_prompts
from trainer.engine.answers import answer
from trainer.engine.artifacts import save_samples
from trainer.engine.initial import check_init, init_policy, init_value_model
from trainer.engine.trainable import Trainable
from trainer.errors import ChangedPromptsError, DataError, StorageError, counted, storage_error, writing
from trainer.evaluation.held_out import ReferenceBaseline, evaluate
from trainer.events import DataChanged, Evaluation, Event, Phase
from trainer.files import PRIVATE, SHARED, is_file, read_regular, write_whole
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import LoadedModel, load_backbone
from trainer.policy_checkpoint import Rollback, Snapshot, restore_snapshot, take_snapshot
from trainer.ppo.loop import PPO, IterationResult
from trainer.questions import Answer, Question
from trainer.reward_types import refuse_to_wait
from trainer.rewards import Rewards, build_rewards, load_functions
from trainer.rewards.model_reward import keep_models
from trainer.rollout.token_texts import TokenTexts
from trainer.runs.checkpoint_files import newest_checkpoint, remove_best
from trainer.runs.folder import PROMPTS_BYTES, RunFolder

STATISTICS_RESTARTED = "reward.sources changed: the running statistics of reward.normalize start again"


class PPOTraining(Trainable):
    """A policy under training by PPO; see `Trainable`. A snapshot names the reward's sources with their statistics."""

    ppo: PPO

    def __init__(self, config: Config, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        self.is_evaluated = False
        """True once the journal has an evaluation on the present prompts."""
        self._check, self._wait = self.hooks.check, self.hooks.wait
        self._changed_data = ""  # how the prompts of a resumed run differ from those that it trained on, if accepted
        self._left: IterationResult | Evaluation | None = None  # by the last work, and not reported yet

    def load(self, folder: RunFolder | None) -> Sequence[Any]:
        """Read prompts and model; return the prompts. Raises ChangedPromptsError if those of `folder` were others."""
        config = self.config
        skipped: list[DataError] = []
        rows = load_prompts(config.data, skipped.append)
        self._columns = column_names(rows)
        self._functions: dict[str, ModuleType] = {}
        if self.ranks.leads:
            self._functions = load_functions(config.reward, trust=self._trust, columns=self._columns)
            if folder is None or newest_checkpoint(folder)[0] is None:
                check_init(config.model)
            self.warnings += keep_models(config)
        self.model = load_backbone(config.model)
        found = run_prompts(config, rows, self.model, skipped)
        self._train, self._held_out = found.train, found.held_out[: config.eval.prompts]
        self.total, self.prompts, self.eval_prompts = config.ppo.iterations, len(self._train), len(self._held_out)
        longest = max(len(prompt.tokens) for prompt in self._train)
        self.sizes = (longest, longest + config.rollout.max_new_tokens)
        self.warnings += found.warnings
        if not self.ranks.leads:
            return [row[:3] for row in rows]
        self._record = prompts_record(found)
        self._changed_data = changed_since(folder, found) if folder else ""
        if folder and self._changed_data and not self._accept_data:
            raise ChangedPromptsError(
                f"the prompts of run '{folder.name}' have changed ({self._changed_data}): restore them, or go on with "
                "these by --accept-data, which begins a new series of evaluations"
            )
        return [row[:3] for row in rows]

    def build(self) -> None:
        """Put adapters and a critic on the model, and build the rewards."""
        config = self.config
        with self.ranks.all_or_none(ends=True):
            rewards = self.build_rewards(config, self._functions)
        actor = ActorCriticLLM(self.model.backbone, config.model, key=key_for(config.run.seed, Purpose.ADAPTER))
        report, clock, tokenizer = self.hooks.report, self.hooks.clock, self.model.tokenizer
        self.ppo = PPO(config, actor, tokenizer, self._train, rewards, report=report, clock=clock, ranks=self.ranks)
        self.actor, self.phases = actor, self.ppo.phases
        trained = (*actor.policy_parameters().values(), *actor.value_parameters().values())
        self.trainable = sum(array.size for array in trained)
        self._token_texts = TokenTexts(tokenizer)
        self._baseline: ReferenceBaseline | None = None
        if config.eval.reference:
            self._baseline = ReferenceBaseline(self._held_out, draws=config.eval.best_of)

    def build_rewards(self, config: Config, modules: dict[str, ModuleType] | None = None) -> Rewards:
        """Build the rewards of `config`. Raises RewardError.

        modules: as for `build_rewards`; None to load them here, and to check the judges.
        """
        if modules is None and self.ranks.leads:
            modules = load_functions(config.reward, trust=self._trust, columns=self._columns)
        return build_rewards(
            config.reward,
            backbone=self.model,
            max_new_tokens=config.rollout.max_new_tokens,
            micro_batch_tokens=config.optim.micro_batch_tokens,
            trust=self._trust,
            between_passes=lambda: self._check(),
            modules=modules,
            ranks=self.ranks,
            columns=self._columns,
            answers=self.answers,
            wait=lambda why, is_over: self._wait(why, is_over),
        )

    def initialise(self) -> None:
        """Initialise policy and critic from what `model` names."""
        init_policy(self.ppo.actor, self.config.model)
        init_value_model(self.ppo.actor, self.model, self.config.model)

    def begin_in(self, folder: RunFolder) -> None:
        """Remember the prompts that the run trains on, and begin a new series of evaluations if they are others."""
        if self._changed_data:
            message = f"the prompts have changed ({self._changed_data}): evaluations before this cannot be compared"
            self.hooks.report(DataChanged(iteration=self.number, message=message))
            remove_best(folder)
        if self._changed_data or not is_file(folder.prompts):
            with writing(f"'{folder.prompts}'"):
                write_whole(folder.prompts, self._record, mode=SHARED if self.config.run.shared else PRIVATE)

    def opening(self) -> Callable[[], Evaluation] | None:
        """Return the evaluation of the untrained policy, unless there is one."""
        wanted = self.config.eval.every and self._held_out and not self.number and not self.is_evaluated
        return self.evaluate if wanted else None

    def step(self) -> None:
        """Run the next iteration."""
        self._left = self.ppo.iteration(self.number + 1)
        self.number += 1

    def due(self) -> Iterator[Callable[[], Evaluation]]:
        """Yield `evaluate` after every so many iterations, and after the last."""
        every = self.config.eval.every
        if every and self._held_out and (self.ending() or self.number % every == 0):
            yield self.evaluate

    def evaluate(self) -> Evaluation:
        """Evaluate the policy on held-out prompts."""
        self._left = found = evaluate(self.ppo, self._held_out, self.number, self._baseline)
        self.is_evaluated = True
        return found

    def leave(self, folder: RunFolder) -> None:
        """Write the samples of an iteration, and report it or an evaluation."""
        left, self._left = self._left, None
        report: Callable[[Event], None] = self.hooks.report
        if isinstance(left, IterationResult):
            report(save_samples(folder, self.config, left, self._token_texts))
            report(left.metrics)
            self.peaks = cast("Mapping[Phase, int]", left.metrics.memory)
        elif left is not None:
            report(left)

    def ending(self) -> str:
        """Return why nothing is left to do, if all iterations are done."""
        total = self.config.ppo.iterations
        return f"{counted(total, 'iteration')} done" if self.number >= total else ""

    def configure(self, config: Config, rewards: Rewards | None = None) -> None:
        """Use `config` from the next iteration on. rewards: its own; None to build them where they differ."""
        if rewards is None and config.reward != self.config.reward and not self.ranks.leads:
            rewards = self.build_rewards(config)
        self.config = config
        self.ppo.configure(config, rewards)

    def snapshot(self) -> Snapshot:
        """Return the current state."""
        return take_snapshot(self.number, self.ppo)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot as if the run had never ended, with new statistics for other sources of rewards."""
        if self.config.reward.normalize == "running" and not snapshot.has_statistics_of(self.config.reward):
            self.warnings.append(STATISTICS_RESTARTED)
        if self._changed_data and snapshot.walk:  # those that rest were other prompts
            snapshot = snapshot._replace(walk={**snapshot.walk, "resting": []})
        restore_snapshot(snapshot, self.ppo)
        self.number = snapshot.iteration

    def roll_back(self, older: Snapshot, now: Snapshot, rollback: Rollback) -> Snapshot:
        """Continue from `older`, while iterations, tokens, prompts and the place in the learning-rate schedule go on.

        Returns the new state.
        """
        older = older._replace(tokens=now.tokens, optimizer_steps=now.optimizer_steps, walk=now.walk)
        restore_snapshot(older, self.ppo)
        self.ppo.skipped.in_a_row = 0
        self.number = now.iteration
        return self.snapshot()._replace(rollback=rollback)

    def answer(self, question: Question, check: Callable[[], None], snapshot: Snapshot) -> Answer:
        """Answer with the policy of `snapshot`, whatever arrays the current one has in the model.

        check: called between small steps instead of the run's own, so that no other question is answered meanwhile.
        """
        ppo = self.ppo
        before = self._check, self._wait
        self._check, self._wait = check, refuse_to_wait  # the answer says that a judge is down
        try:
            with ppo.actor.policy(snapshot.policy), self.ranks.apart():
                return answer(
                    question,
                    actor=ppo.actor,
                    model=self.model,
                    score=functools.partial(ppo.rewards, update_statistics=False),
                    config=ppo.config,
                    iteration=snapshot.iteration,
                    progress=check,
                )
        finally:
            self._check, self._wait = before


class RunPrompts(NamedTuple):
    """Prompts to train on, prompts to evaluate on, and warnings for the user, one line each."""

    train: list[Prompt]
    held_out: list[Prompt]
    warnings: list[str]


def prompts_record(found: RunPrompts) -> str:
    """Return what a run remembers of its prompts: a line for each, in order, with its side of the split and a hash."""
    lines = []
    for side, prompts in (("train", found.train), ("held-out", found.held_out)):
        for prompt in prompts:  # what a model and a reward see of it
            columns = json.dumps([prompt.prompt, prompt.columns], sort_keys=True, default=str)
            seen = np.array(prompt.tokens, np.int32).tobytes() + columns.encode()
            lines.append(f"{side} {hashlib.blake2b(seen, digest_size=8).hexdigest()}\n")
    return "".join(lines)


def changed_since(folder: RunFolder, found: RunPrompts) -> str:
    """Return how the prompts `found` differ from those that the run in `folder` remembers; empty if they are the same.

    Raises StorageError if what it remembers cannot be read or is damaged.
    """
    if not is_file(folder.prompts):
        return ""
    with storage_error(f"cannot read '{folder.prompts}'"):
        record = read_regular(folder.prompts, PROMPTS_BYTES).decode("ascii", "replace")
    before, now = ([line.partition(" ")[::2] for line in each.splitlines()] for each in (record, prompts_record(found)))
    if not all(side in ("train", "held-out") and len(digest) == 16 for side, digest in before):
        raise StorageError(f"'{folder.prompts}' is damaged: restore a copy, or delete it to go on with today's prompts")
    if before == now:
        return ""
    known, given = (Counter(digest for _, digest in lines) for lines in (before, now))
    new, lost = (given - known).total(), (known - given).total()
    replaced = min(new, lost)
    counts = ((replaced, "replaced"), (new - replaced, "added"), (lost - replaced, "removed"))
    parts = [", ".join(f"{count} {what}" for count, what in counts if count) or "the same in another order"]
    prompts = zip((*found.train, *found.held_out), now, strict=True)
    if places := [prompt.index for prompt, (_, digest) in prompts if digest not in known]:
        parts.append(f"the first new one is prompt {min(places)}, counted from 0")
    held_out = {digest for side, digest in before if side == "held-out"}
    if moved := len(held_out & {digest for side, digest in now if side == "train"}):
        parts.append(f"{counted(moved, 'held-out prompt')} would be trained on")
    return "; ".join(parts)


def run_prompts(
    config: Config, rows: Sequence[PromptRow], model: LoadedModel, skipped: Sequence[DataError] = ()
) -> RunPrompts:
    """Encode `rows` for `model` and split them. Raises DataError if prompt and response would exceed its context.

    skipped: errors of rows that were left out as they were read.
    """
    c = config
    encoded = encode_prompts(rows, model.tokenizer, c.data)
    warnings = list(encoded.notes)
    if broken := [*skipped, *encoded.skipped]:
        warnings.append(
            f"{counted(len(broken), 'prompt')} skipped as broken (data.skip_broken); the first: {broken[0]}"
        )
    if changed := encoded.dropped or encoded.truncated:
        done = "dropped" if encoded.dropped else "cut to the last tokens"
        warnings.append(
            f"{changed} of {counted(len(rows), 'prompt')} {done}: longer than data.max_prompt_tokens = "
            f"{c.data.max_prompt_tokens}"
        )
    room = max(len(prompt.tokens) for prompt in encoded.prompts) + c.rollout.max_new_tokens
    if model.context and room > model.context:
        longest = c.data.max_prompt_tokens + c.rollout.max_new_tokens
        raise DataError(
            f"the longest prompt and rollout.max_new_tokens = {c.rollout.max_new_tokens} need {room} tokens of up "
            f"to {longest} allowed, but the model's context is {model.context}: lower data.max_prompt_tokens or "
            "rollout.max_new_tokens"
        )
    return RunPrompts(*split_prompts(encoded.prompts, c.data.eval_fraction, split_seed(c)), warnings)
