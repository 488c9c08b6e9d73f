"""Reward models as a source of rewards: one, or an ensemble. Unlike the rest of the package, this imports MLX."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import ValidationError

from trainer.config.reward_sources import ModelSource
from trainer.config.schema import BackboneConfig, Config
from trainer.errors import DataError, RewardError, TrainerError
from trainer.models.loading import LoadedModel
from trainer.preferences.records import Text
from trainer.reward_model.checkpoint import read_card
from trainer.reward_model.loaded import is_same_backbone, load_reward_model, reward_model_folder
from trainer.rewards.classifier import ClassifierModel
from trainer.rewards.records import RewardInput, SourceScores, sequence_name
from trainer.runs.folder import RunFolder, newest_checkpoint


class ScoringModel(Protocol):
    """A reward model of any kind."""

    def encode(self, prompt: Text, completion: Text) -> list[int]:
        """Prompt and completion as the tokens that it reads. Raises DataError."""

    def score(
        self, sequences: Sequence[Sequence[int]], *, micro_batch_tokens: int, progress: Callable[[int, int], None]
    ) -> list[float]:
        """One score a sequence of tokens; tells how many are done."""


class ModelReward:
    """Scores by reward models, each of which reads the text of prompt and completion by its own tokenizer.

    The text also where the policy has the same tokenizer: the preferences that it learnt from were tokenised so.
    Of several, `combine` makes one score, and the detail `disagreement` is their standard deviation.
    """

    def __init__(
        self,
        name: str,
        models: Sequence[ScoringModel],
        *,
        combine: Literal["mean", "min"] = "mean",
        micro_batch_tokens: int = 2048,
        heed: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._models = models
        self._combine = combine
        self._micro_batch_tokens = micro_batch_tokens
        self._heed = heed

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """One score a sequence. Raises RewardError for one that cannot be read, or whose score is not finite."""
        found = np.array([self._scores(model, batch) for model in self._models])  # [models, B]
        combined = found.mean(axis=0) if self._combine == "mean" else found.min(axis=0)
        details = {"disagreement": found.std(axis=0).tolist()} if len(self._models) > 1 else {}
        return SourceScores(combined.tolist(), details=details)

    def _scores(self, model: ScoringModel, batch: Sequence[RewardInput]) -> list[float]:
        sequences = [self._encoded(model, index, row) for index, row in enumerate(batch)]
        scores = model.score(
            sequences, micro_batch_tokens=self._micro_batch_tokens, progress=lambda done, total: self._heed()
        )
        for index, score in enumerate(scores):
            if not math.isfinite(score):
                sample = sequence_name(index, batch[index].prompt)
                raise RewardError(
                    f"reward source '{self.name}': {sample} has score {score}: must be finite; is the model in float16?"
                )
        return scores

    def _encoded(self, model: ScoringModel, index: int, row: RewardInput) -> list[int]:
        try:
            return model.encode(row.prompt, row.completion)
        except DataError as error:
            sample = sequence_name(index, row.prompt)
            raise RewardError(f"reward source '{self.name}' cannot read {sample}: {error}") from error


def load_model_reward(
    source: ModelSource,
    backbones: list[LoadedModel],
    *,
    micro_batch_tokens: int,
    heed: Callable[[], None] = lambda: None,
) -> ModelReward:
    """The reward models that `source` names, loaded on the calling thread.

    backbones: those in memory, of which each model takes the one that it was trained on; what is loaded besides is
    added. micro_batch_tokens, heed: as for `build_rewards`. Raises RewardError.
    """
    models = [_loaded(path, source.chat, backbones) for path in source.paths]
    name = f"model:{'+'.join(_name(Path(path)) for path in source.paths)}"
    return ModelReward(name, models, combine=source.combine, micro_batch_tokens=micro_batch_tokens, heed=heed)


def with_checkpoints(config: Config) -> Config:
    """`config` with the reward models' checkpoints in place of their runs, so that a resumed run has the same reward.

    Raises RewardError for a path that names no reward model.
    """
    sources = [
        source.model_copy(update={"path": _place(source.path), "ensemble": [_place(path) for path in source.ensemble]})
        if isinstance(source, ModelSource)
        else source
        for source in config.reward.sources
    ]
    return config.model_copy(update={"reward": config.reward.model_copy(update={"sources": sources})})


def unfinished_models(config: Config) -> list[str]:
    """A warning for each reward model in `config` whose training has not come to its end. Raises RewardError."""
    return [
        f"reward model '{path}' is not trained to the end, and its scores are not brought to mean 0, deviation 1: let "
        "`ppo-workbench reward-model train --resume` finish it"
        for source in config.reward.sources
        if isinstance(source, ModelSource)
        for path in source.paths
        if not _card(path).get("finished", True)
    ]


def _loaded(path: str, chat: str, backbones: list[LoadedModel]) -> ScoringModel:
    folder = Path(_place(path))
    try:
        if _is_classifier(folder):
            return ClassifierModel(folder, chat)
        model = load_reward_model(folder, _shared(path, backbones))
    except TrainerError as error:
        raise RewardError(f"reward source '{path}': {error}") from error
    if not model.shares_backbone:
        backbones.append(model.base)
    return model


def _shared(path: str, backbones: Sequence[LoadedModel]) -> LoadedModel | None:
    """The one of `backbones` that the reward model was trained on, if it is there."""
    try:
        wanted = BackboneConfig.model_validate(_card(path).get("model"))
    except ValidationError:
        return None  # what is wrong with the card is told when it is loaded
    return next((backbone for backbone in backbones if is_same_backbone(backbone, wanted)), None)


def _card(path: str) -> dict[str, Any]:
    """reward_model.json of the model that `path` names; empty for a sequence-classification model."""
    folder = Path(_place(path))
    try:
        return {} if _is_classifier(folder) else read_card(folder)
    except TrainerError as error:
        raise RewardError(f"reward source '{path}': {error}") from error


def _place(path: str) -> str:
    """The checkpoint that `path` is, the newest of the run that it is, or the folder of a sequence classifier."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise RewardError(f"reward source '{path}': no such folder{_offer(folder)}")
    if _is_classifier(folder):
        return path
    newest = newest_checkpoint(RunFolder(folder))
    if (folder / "policy").is_dir() or (newest and (newest / "policy").is_dir()):
        raise RewardError(
            f"reward source '{path}' is a run of PPO, which has no reward model: name a run of `ppo-workbench "
            "reward-model train`"
        )
    try:
        return str(reward_model_folder(folder))
    except TrainerError as error:
        raise RewardError(f"reward source '{path}': {error}") from error


def _is_classifier(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _offer(folder: Path) -> str:
    beside: Iterator[Path] = folder.parent.iterdir() if folder.parent.is_dir() else iter(())
    names = sorted(path.name for path in beside if path.is_dir() and not path.name.startswith("."))
    if close := difflib.get_close_matches(folder.name, names, n=1):
        return f": did you mean '{folder.parent / close[0]}'?"
    return f"; paths are relative to {Path.cwd()}"


def _name(folder: Path) -> str:
    """The run's name for one of its checkpoints, else the folder's."""
    return folder.parent.parent.name if folder.parent.name == "checkpoints" else folder.name
