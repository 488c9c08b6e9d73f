"""The policy of a PPO run under training: algorithm, rewards, and the snapshot of the last whole iteration."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any, Literal, TypeVar

from trainer.config import Config
from trainer.data import Prompt
from trainer.distributed.ranks import ALONE, Ranks
from trainer.engine.answers import answer
from trainer.engine.checkpoint import (
    Rollback,
    Snapshot,
    arrays_of,
    plain_state,
    restore_snapshot,
    take_snapshot,
    with_state,
)
from trainer.engine.control import Control
from trainer.engine.lifecycle import reporting
from trainer.engine.policy_init import init_policy
from trainer.engine.value_init import init_value_model
from trainer.events import Event
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import LoadedModel
from trainer.ppo.loop import PPO
from trainer.questions import Answer, Question
from trainer.rewards import Rewards, Trust, build_run_rewards
from trainer.rollout.token_texts import TokenTexts
from trainer.seeding import Purpose, key_for

Result = TypeVar("Result")
STATISTICS_RESTARTED = "reward.sources changed: the running statistics of reward.normalize start again"


class TrainedPolicy:
    """Policy of a PPO run, its rewards and its latest snapshot, which names the reward's sources with their statistics.

    control: its `check` is called between small steps. trust, columns: as for `build_rewards`.
    """

    ppo: PPO
    snapshot: Snapshot

    def __init__(
        self,
        model: LoadedModel,
        control: Control,
        trust: Trust,
        ranks: Ranks = ALONE,
        columns: Collection[str] | None = None,
    ) -> None:
        self.model = model
        self.ranks = ranks
        self._control = control
        self._trust = trust
        self._columns = columns
        self.token_texts = TokenTexts(model.tokenizer)
        self._check: Callable[[], None] = control.check if ranks.alone else lambda: None  # see Phases.report

    def build_rewards(self, config: Config, modules: dict[str, ModuleType] | None = None) -> Rewards:
        """Build the rewards of `config`. modules: as for `build_rewards`. Raises RewardError."""
        return build_run_rewards(
            config,
            self.model,
            trust=self._trust,
            between_passes=lambda: self._check(),
            modules=modules,
            ranks=self.ranks,
            columns=self._columns,
        )

    def begin(
        self, config: Config, prompts: Sequence[Prompt], rewards: Rewards, emit: Callable[[Event], None], *, new: bool
    ) -> None:
        """Put adapters and a critic on the model. new: initialise both, as no checkpoint will."""
        key = key_for(config.run.seed, Purpose.ADAPTER)
        actor = ActorCriticLLM(self.model.backbone, config.model, key=key)
        if new:
            init_policy(actor, config.model)
            init_value_model(actor, self.model, config.model)
        report = reporting(emit, self._control, self.ranks)
        clock, tokenizer = self._control.clock, self.model.tokenizer
        self.ppo = PPO(config, actor, tokenizer, prompts, rewards, report=report, clock=clock, ranks=self.ranks)
        self.keep(0)

    def begin_again(self) -> None:
        """Initialise policy and critic of a resumed run without a checkpoint as those of a new one."""
        init_policy(self.ppo.actor, self.ppo.config.model)
        init_value_model(self.ppo.actor, self.model, self.ppo.config.model)
        self.keep(0)

    def keep(self, number: int) -> None:
        """Make the present state the snapshot after iteration `number`."""
        snapshot = take_snapshot(number, self.ppo)
        self.snapshot = snapshot._replace(rewards={**snapshot.rewards, "sources": self._sources})

    def restore(self, loaded: Snapshot) -> bool:
        """Continue from a checkpoint as if the run had never ended.

        Returns whether the reward's statistics start again, because those of the checkpoint are of other sources.
        """
        self.ranks.same_state = False
        self.snapshot = self._with_statistics(loaded)
        restore_snapshot(self.snapshot, self.ppo)
        return self.snapshot is not loaded

    def roll_back(self, older: Snapshot, rollback: Rollback) -> None:
        """Continue from `older`, while iterations, tokens and the position in the learning-rate schedule go on."""
        self.ranks.same_state = False
        now = self.snapshot
        restored = self._with_statistics(older)._replace(tokens=now.tokens, optimizer_steps=now.optimizer_steps)
        restore_snapshot(restored, self.ppo)
        self.ppo.skipped.in_a_row = 0
        self.keep(now.iteration)
        self.snapshot = self.snapshot._replace(rollback=rollback)

    def answer(self, question: Question, check: Callable[[], None]) -> Answer:
        """Answer with the policy of the last whole iteration, whatever arrays the current one has in the model.

        check: called between small steps instead of the run's own, so that no other question is answered meanwhile.
        """
        ppo = self.ppo
        before, self._check = self._check, check
        try:
            with ppo.actor.policy(self.snapshot.policy), self.ranks.apart():
                return answer(
                    question,
                    actor=ppo.actor,
                    model=self.model,
                    score=functools.partial(ppo.rewards, update_statistics=False),
                    config=ppo.config,
                    iteration=self.snapshot.iteration,
                    progress=check,
                )
        finally:
            self._check = before

    def led(self, do: Literal["iteration", "evaluation"], number: int, work: Callable[[int], Result]) -> Result:
        """Return `work` of `number`, which all ranks do together, from the first one's state and settings.

        Called on the first rank; `follower.follow_ppo` does the same on the others.
        """
        return self.ranks.lead(
            do,
            lambda: work(number),
            lambda: plain_state(self.snapshot),
            lambda: arrays_of(self.snapshot),
            number=number,
            config=self.ppo.config.model_dump(mode="json"),
        )

    def follow(self, state: dict[str, Any]) -> None:
        """Take over the state that the first rank sends by `led`."""
        here = self.snapshot
        restore_snapshot(with_state(here, state, self.ranks.from_first(arrays_of(here))), self.ppo)

    def _with_statistics(self, snapshot: Snapshot) -> Snapshot:
        """Return `snapshot`, with the current reward statistics if its own are of other sources."""
        if snapshot.rewards.get("sources", self._sources) == self._sources:
            return snapshot
        return snapshot._replace(rewards=self.snapshot.rewards)

    @property
    def _sources(self) -> list[dict[str, Any]]:
        """`reward.sources` as plain values."""
        return [source.model_dump() for source in self.ppo.config.reward.sources]
