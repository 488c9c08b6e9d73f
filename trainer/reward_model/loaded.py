"""A reward model from a run's folder, ready to score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
from pydantic import ValidationError

from trainer.config.reward_model import RewardModelConfig
from trainer.config.schema import BackboneConfig
from trainer.errors import StorageError, UsageError
from trainer.models.loading import LoadedModel, load_backbone, model_folder, precision
from trainer.preferences.records import Text
from trainer.reward_model.checkpoint import CARD, Scale, load_parameters, read_whole_card
from trainer.reward_model.encoding import Encoder
from trainer.reward_model.model import RewardModel
from trainer.reward_model.scoring import score_sequences
from trainer.runs.folder import RunFolder, newest_checkpoint
from trainer.seeding import Purpose, key_for

_MICRO_BATCH_TOKENS = 4096  # of a forward pass, padding counted


class LoadedRewardModel:
    """A trained reward model on the calling thread, which alone may use it.

    card: reward_model.json; shares_backbone: whether it stands on the backbone that it was given.
    """

    def __init__(self, folder: Path, backbone: LoadedModel | None = None) -> None:
        self.folder = folder
        self.card = card = read_whole_card(folder)
        try:
            self.config = RewardModelConfig.model_validate({"model": card["model"], "data": card["data"]})
            scale = Scale(**card["scale"])
            key = key_for(card["seed"], Purpose.ADAPTER)
        except (ValidationError, KeyError, TypeError) as error:
            raise StorageError(f"reward model '{folder}': {CARD} is damaged: use an older checkpoint") from error
        self.shares_backbone = backbone is not None and is_same_backbone(backbone, self.config.model)
        self.base = backbone if backbone is not None and self.shares_backbone else load_backbone(self.config.model)
        self.encoder = Encoder(self.base.tokenizer, self.config.data)
        self.model = RewardModel(self.base.backbone, self.config, key=key)  # untrained: as its training began
        self.model.mean, self.model.std, self.model.logit_std = scale
        self.untrained = self.model.parameters()
        self.trained = load_parameters(folder)
        if missing := self.untrained.keys() - self.trained.keys():
            raise StorageError(f"reward model '{folder}' lacks {min(missing)}: use an older checkpoint")
        self.model.update(self.trained)
        mx.eval(self.model.parameters())

    @property
    def is_finished(self) -> bool:
        """Whether its training came to the end; before that its scores are of no set mean and deviation."""
        return bool(self.card["finished"])

    def encode(self, prompt: Text, completion: Text) -> list[int]:
        """Prompt and completion, texts or chat messages, as tokens to score. Raises DataError."""
        return self.encoder.sequence(prompt, completion).tokens

    def score(
        self,
        sequences: Sequence[str] | Sequence[Sequence[int]],
        *,
        micro_batch_tokens: int = _MICRO_BATCH_TOKENS,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[float]:
        """Scores of prompt and completion in one, of mean 0 and deviation 1 on the reference samples.

        sequences: texts as they are, or tokens of this model's tokenizer: of both the last max_tokens are read, and of
        tokens a last end token is not. An empty sequence raises ValueError.
        """
        encoder = self.encoder
        tokens = [encoder.text(one) if isinstance(one, str) else encoder.tokens(one) for one in sequences]
        if not all(tokens):
            raise ValueError(f"sequence {[len(one) for one in tokens].index(0)} has no tokens")
        if not tokens:
            return []
        scores = score_sequences(self.model, tokens, micro_batch_tokens, progress)
        return [float(score) for score in (scores - self.model.mean) / self.model.std]


def load_reward_model(folder: Path, backbone: LoadedModel | None = None) -> LoadedRewardModel:
    """The reward model in `folder`: that of a checkpoint, or of the newest one of a run.

    backbone: stands under it too, where it is the same model in the same precision; else its own is loaded. Must run
    on the thread that is to score. Raises UsageError when there is none, StorageError for a damaged one, ModelError
    when its base model cannot be loaded.
    """
    return LoadedRewardModel(reward_model_folder(folder), backbone)


def reward_model_folder(folder: Path) -> Path:
    """The checkpoint that `folder` is, or the newest of the run that it is. Raises UsageError."""
    if (folder / CARD).is_file():
        return folder
    found = newest_checkpoint(RunFolder(folder))
    if found is None or not (found / CARD).is_file():
        raise UsageError(
            f"'{folder}' holds no reward model: name a run of `ppo-workbench reward-model train`, or one of its "
            "checkpoints"
        )
    return found


def is_same_backbone(loaded: LoadedModel, config: BackboneConfig) -> bool:
    """Whether `loaded` has the very weights that `config` would load."""
    return (
        (loaded.adapter, loaded.quantize) == (config.adapter, config.quantize)
        and loaded.dtype == precision(config.dtype)
        and loaded.folder.resolve() == model_folder(config).resolve()
    )
