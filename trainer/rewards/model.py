"""Reward models as a reward source: one, or an ensemble. Unlike the rest of the package, this imports MLX."""

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
from trainer.runs.checkpoint_index import newest_checkpoint
from trainer.runs.folder import RunFolder


class ScoringModel(Protocol):
    """A reward model of any kind."""

    def encode(self, prompt: Text, completion: Text) -> list[int]:
        """Encode prompt and completion as tokens. Raises DataError."""

    def score(
        self, sequences: Sequence[Sequence[int]], *, micro_batch_tokens: int, progress: Callable[[int, int], None]
    ) -> list[float]:
        """Return one score per sequence of tokens, reporting progress (done, total)."""


class ModelReward:
    """Reward from one or several reward models. Each tokenises the text of prompt and completion itself.

    It starts from the text even if the policy has the same tokenizer, because the preferences in its training were
    tokenised in that way. `combine` turns several scores into one; the detail `disagreement` is their standard
    deviation.
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
        """Return one score per sequence. Raises RewardError if one cannot be encoded or its score is not finite."""
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
    """Load the reward models that `source` names, on the calling thread.

    backbones: backbones in memory. Each model uses the one that it was trained on; if that is not among them, it is
    loaded and added. micro_batch_tokens, heed: as for `build_rewards`. Raises RewardError.
    """
    models = [_loaded(path, source.chat, backbones) for path in source.paths]
    name = f"model:{'+'.join(_name(Path(path)) for path in source.paths)}"
    return ModelReward(name, models, combine=source.combine, micro_batch_tokens=micro_batch_tokens, heed=heed)


def with_checkpoints(config: Config) -> Config:
    """Return `config` with runs of reward models replaced by their checkpoints, so that resuming keeps the reward.

    Raises RewardError if a path does not name a reward model.
    """
    sources = [
        source.model_copy(update={"path": _place(source.path), "ensemble": [_place(path) for path in source.ensemble]})
        if isinstance(source, ModelSource)
        else source
        for source in config.reward.sources
    ]
    return config.model_copy(update={"reward": config.reward.model_copy(update={"sources": sources})})


def unfinished_models(config: Config) -> list[str]:
    """Return a warning for each reward model in `config` whose training is not complete. Raises RewardError."""
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
    """Return the one of `backbones` that the reward model was trained on, or None."""
    try:
        wanted = BackboneConfig.model_validate(_card(path).get("model"))
    except ValidationError:
        return None  # loading the model reports what is wrong with the card
    return next((backbone for backbone in backbones if is_same_backbone(backbone, wanted)), None)


def _card(path: str) -> dict[str, Any]:
    """Read reward_model.json of the model that `path` names; empty for a sequence-classification model."""
    folder = Path(_place(path))
    try:
        return {} if _is_classifier(folder) else read_card(folder)
    except TrainerError as error:
        raise RewardError(f"reward source '{path}': {error}") from error


def _place(path: str) -> str:
    """Return `path` if it is a checkpoint or a sequence classifier, or the newest checkpoint if it is a run."""
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
    """Return the name of the run if `folder` is one of its checkpoints, otherwise that of the folder."""
    return folder.parent.parent.name if folder.parent.name == "checkpoints" else folder.name
