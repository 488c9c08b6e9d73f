"""Reward models loaded from a run's folder: they score sequences, and are evaluated on comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from trainer.arrays import Purpose, key_for
from trainer.config.loading import load_config_as
from trainer.config.pairs import RewardModelConfig
from trainer.config.schema import BackboneConfig
from trainer.data.encoding import NO_COLUMNS
from trainer.errors import StorageError, UsageError
from trainer.models.backbone import LoadedModel, load_backbone, model_folder, precision
from trainer.pairs.comparisons import load_preferences, reward_comparisons
from trainer.pairs.encoders import Encoder, Sequenced
from trainer.pairs.groups import group_preferences, sequences_of
from trainer.preferences.records import Text
from trainer.reward_model.network import RewardModel, Scale, score_sequences
from trainer.reward_model.pair_evaluation import Outcomes, baseline, outcomes_of, report_on
from trainer.reward_model.predictions import RewardModelReport
from trainer.reward_model.snapshot import CARD, card_config, load_parameters, read_card, read_state
from trainer.runs.checkpoint_files import newest_checkpoint
from trainer.runs.folder import RunFolder

_MICRO_BATCH_TOKENS = 4096  # of a forward pass, padding included


class LoadedRewardModel:
    """A trained reward model. Only the thread that created it may use it.

    card: the content of reward_model.json. is_finished: whether training is complete; until then, mean and deviation of
    the scores are not normalised. shares_backbone: whether the model uses a backbone that it was given.
    """

    def __init__(self, folder: Path, backbones: Sequence[LoadedModel]) -> None:
        self.folder = folder
        self.card = card = read_card(folder, whole=True)
        self.is_finished = bool(card["finished"])
        self.config = card_config(folder, card)
        key = key_for(card["seed"], Purpose.ADAPTER)
        shared = next((one for one in backbones if is_same_backbone(one, self.config.model)), None)
        self.shares_backbone = shared is not None
        self.base = load_backbone(self.config.model, classifier=True) if shared is None else shared
        self.encoder = Encoder(self.base.tokenizer, self.config.data)
        self.model = RewardModel(self.base.backbone, self.config, key=key, head=self.base.head)  # as before training
        self.model.scale = Scale(**card["scale"])
        self.untrained = self.model.parameters()
        self.trained = load_parameters(folder)
        if missing := self.untrained.keys() - self.trained.keys():
            raise StorageError(f"reward model '{folder}' lacks {min(missing)}: use an older checkpoint")
        self.model.update(self.trained)
        mx.eval(self.model.parameters())

    def encode(self, prompt: Text, completion: Text, columns: Mapping[str, Any] = NO_COLUMNS) -> Sequenced:
        """Encode prompt and completion, texts or chat messages, as tokens to score. Raises DataError.

        columns: of the prompt's row, which may have options of the chat template.
        """
        return self.encoder.sequence(prompt, completion, columns=columns)

    def score(
        self,
        sequences: Sequence[Sequenced],
        *,
        micro_batch_tokens: int = _MICRO_BATCH_TOKENS,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[float]:
        """Score what `encode` returned; mean 0 and deviation 1 on the reference samples."""
        tokens, starts = [one.tokens for one in sequences], [one.start for one in sequences]
        scores = score_sequences(self.model.scores, tokens, micro_batch_tokens, progress, starts)
        scale = self.model.scale
        return [float(score) for score in (scores - scale.mean) / scale.std]


def load_reward_model(folder: Path, *backbones: LoadedModel) -> LoadedRewardModel:
    """Load the reward model in `folder`, which is a checkpoint or a run; of a run, load the newest checkpoint.

    backbones: one is shared if it is the same model in the same precision; otherwise the reward model loads its own.
    Call this on the thread that will score. Raises UsageError if there is no reward model, StorageError if it is
    damaged, ModelError if its base model cannot be loaded.
    """
    return LoadedRewardModel(reward_model_folder(folder), backbones)


def reward_model_folder(folder: Path) -> Path:
    """Return `folder` if it is a checkpoint, or the newest checkpoint if it is a run.

    An older one is never taken in its place: its scores are others. Raises UsageError, StorageError if it is damaged.
    """
    if (folder / CARD).is_file():
        return folder
    found, damaged = newest_checkpoint(RunFolder(folder))
    if damaged:
        older = f"to use the one before, name '{found}'" if found else "none before it is whole"
        raise StorageError(f"{'; '.join(damaged)}: restore a copy; {older}")
    if found is None or not (found / CARD).is_file():
        raise UsageError(
            f"'{folder}' holds no reward model: name a run of `ppo-workbench reward-model train`, or one of its "
            "checkpoints"
        )
    return found


def is_same_backbone(loaded: LoadedModel, config: BackboneConfig) -> bool:
    """Return whether `loaded` has exactly the weights that `config` would load."""
    return (
        (loaded.adapter, loaded.quantize) == (config.adapter, config.quantize)
        and loaded.dtype == precision(config.dtype, loaded.backbone)
        and loaded.folder.resolve() == model_folder(config).resolve()
    )


def evaluate(loaded: LoadedRewardModel, source: str | RunFolder) -> tuple[RewardModelReport, list[str]]:
    """Evaluate the model, and return warnings on its comparisons too, one line each.

    source: all preferences of a store, file or dataset, or what its own run held out. Raises TrainerError.
    """
    if isinstance(source, RunFolder):
        config = load_config_as(RewardModelConfig, source.config)
        preferences = load_preferences(config.data)
        data = reward_comparisons(preferences, loaded.base, config)
        groups, warnings = data.held_out, data.warnings
        if read_state(loaded.folder)["fingerprint"] != data.fingerprint:
            warnings.insert(0, "the preferences are not those of the training: some may have been trained on")
        if not groups:
            raise UsageError(f"run '{source.name}' held nothing out: name a source by --data")
    else:
        data_config = loaded.config.data.model_copy(update={"preferences": source})
        preferences = load_preferences(data_config)
        groups, warnings = group_preferences(preferences, loaded.encoder, data_config)
    sequences, starts = sequences_of(groups)

    def found() -> Outcomes:
        budget = loaded.config.optim.micro_batch_tokens
        scores = score_sequences(loaded.model.scores, sequences, budget, starts=starts)
        return outcomes_of(groups, scores, loaded.model.scale.logit_std)

    loaded.model.update(loaded.untrained)
    try:
        untrained = baseline(found().decided().leads)
    finally:
        loaded.model.update(loaded.trained)
    slope, log_nu = loaded.card["length_slope"], loaded.model.log_nu
    return report_on(found(), length_slope=slope, untrained=untrained, log_nu=log_nu), preferences.warnings + warnings
