"""The policy that a run left in a checkpoint, for questions outside training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.config import load_config
from trainer.control.questions import Answer, Question
from trainer.errors import RewardError, UntrustedCodeError, UsageError
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.loading import load_backbone
from trainer.ppo.checkpoint import load_checkpoint
from trainer.rewards import RewardInput, RewardResult, Trust, build_rewards
from trainer.rewards.code import trust_none
from trainer.runs.checkpoint_index import checkpoints
from trainer.runs.folder import RunFolder
from trainer.seeding import Purpose, key_for
from trainer.session.answers import answer


class SavedPolicy:
    """Model, adapter and reward of the run in `folder`, loaded on the calling thread, which alone may use them.

    checkpoint: name of its folder; empty for the newest, or for the untrained policy of a run that has none. trust: as
    for `build_rewards`; without it no Python code of the run is executed. If the reward cannot be built, the answers
    say so. Raises a TrainerError if anything else is not available.
    """

    def __init__(self, folder: RunFolder, checkpoint: str = "", *, trust: Trust = trust_none) -> None:
        self.iteration = 0  # completed iterations of the policy's training
        self._folder = folder
        self._at: Path | None = None
        self._config = load_config(folder.config)
        self._model = load_backbone(self._config.model)
        key = key_for(self._config.run.seed, Purpose.ADAPTER)
        self._actor = ActorCriticLLM(self._model.backbone, self._config.model, key=key)
        self._reward_problem = ""
        try:
            self._rewards = build_rewards(
                self._config.reward,
                backbone=self._model,
                max_new_tokens=self._config.rollout.max_new_tokens,
                micro_batch_tokens=self._config.optim.micro_batch_tokens,
                trust=trust,
            )
        except UntrustedCodeError as error:
            self._reward_problem = f"not scored: {error}"
        except RewardError as error:  # a function that was moved away, say: the policy can still write
            self._reward_problem = str(error)
        self.use(checkpoint)

    def use(self, checkpoint: str) -> None:
        """Answer with the policy of another checkpoint from now on; the backbone stays. Raises a TrainerError."""
        path = self._path_of(checkpoint)
        if path is None or path == self._at:
            return
        snapshot = load_checkpoint(path, self._actor.adapter_config)
        self._actor.update_policy(snapshot.policy)
        sources = [source.model_dump() for source in self._config.reward.sources]
        if not self._reward_problem and snapshot.rewards.get("sources", sources) == sources:
            self._rewards.restore(snapshot.rewards)  # statistics of other sources would mean nothing
        self._at, self.iteration = path, snapshot.iteration

    def answer(self, question: Question, progress: Callable[[], None]) -> Answer:
        """Answer like `trainer.session.answers.answer`; raises only what `progress` raises."""
        return answer(
            question,
            actor=self._actor,
            model=self._model,
            score=self._score,
            config=self._config,
            iteration=self.iteration,
            progress=progress,
        )

    def _score(self, batch: Sequence[RewardInput]) -> RewardResult:
        if self._reward_problem:
            raise RewardError(self._reward_problem)
        return self._rewards(batch, update_statistics=False)

    def _path_of(self, checkpoint: str) -> Path | None:
        paths = checkpoints(self._folder).paths
        if not checkpoint:
            return paths[-1] if paths else None
        for path in paths:
            if path.name == checkpoint:
                return path
        there = ", ".join(path.name for path in paths) or "none"
        raise UsageError(f"run '{self._folder.name}' has no whole checkpoint '{checkpoint}': there is {there}")
