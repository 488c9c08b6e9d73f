"""Reward models as a reward source: ours or sequence classifiers, one or an ensemble. This module imports MLX."""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import mlx.core as mx
import numpy as np

from trainer.config.fields import Section
from trainer.config.pairs import DPOConfig
from trainer.config.reward_sources import ModelSource
from trainer.config.schema import BackboneConfig, Config
from trainer.data import last_tokens
from trainer.data.encoding import NO_COLUMNS, rendered, template_options
from trainer.distributed.ranks import ALONE, Ranks
from trainer.errors import DataError, ModelError, RewardError, TrainerError
from trainer.models.backbone import LoadedModel, load_backbone
from trainer.models.forward import hidden_states
from trainer.models.peft_adapters import SETTINGS, check_peft, is_peft
from trainer.pairs.encoders import Sequenced
from trainer.preferences.records import Text, answered, as_messages
from trainer.reward_model.loaded import LoadedRewardModel, load_reward_model, reward_model_folder
from trainer.reward_model.network import score_sequences, states_at
from trainer.reward_model.snapshot import read_card
from trainer.reward_types import RewardInput, SourceScores, sequence_name
from trainer.runs.checkpoint_files import checkpoints, keep_for_others
from trainer.runs.folder import RunFolder

Rewarded = TypeVar("Rewarded", Config, DPOConfig)


class ClassifierModel:
    """Sequence-classification checkpoint with one label, or a PEFT adapter of one: a trunk and `score.weight`.

    Score r(sequence) = w . h, with h the hidden state of the last real token after the final norm. This is the score of
    transformers, scaled by the mean and the deviation in config.json, if it has them. Only the thread that created the
    model may use it.

    chat: what goes through the model's chat template: `auto` (messages only), `always` (strings too), or `never`. A
    conversation is rendered to the very end of the template, as in the training of such models. Raises ModelError for
    what `load_backbone` refuses, for a checkpoint without `score.weight`, and for one with several labels.
    """

    def __init__(self, folder: Path, chat: str = "auto") -> None:
        self._loaded = load_backbone(classifier_config(folder), classifier=True)
        if self._loaded.head is None:
            raise ModelError(
                "the model has no score.weight, so it is not a sequence classifier: name the run of a reward model, "
                "or a checkpoint of ...ForSequenceClassification"
            )
        self._head = self._loaded.head
        self._chat = chat

    def encode(self, prompt: Text, completion: Text, columns: Mapping[str, Any] = NO_COLUMNS) -> Sequenced:
        """Encode prompt and completion as tokens; only the last ones that fit its context. Raises DataError."""
        tokenizer, limit = self._loaded.tokenizer, self._loaded.context
        if isinstance(prompt, str) and isinstance(completion, str) and self._chat != "always":
            tokens = list(tokenizer.encode(prompt + completion))
        else:
            if self._chat == "never":
                raise DataError("it is a list of messages, and chat = 'never': set chat = 'auto'")
            messages, (answer,) = as_messages(prompt, [completion])
            options = template_options({}, columns)
            text = rendered(answered(messages, answer), tokenizer, options, is_whole=True)[1]
            tokens = list(tokenizer.encode(text, add_special_tokens=False))
        if not tokens:
            raise DataError("it has no tokens: remove empty prompts")
        is_cut = 0 < limit < len(tokens)
        kept = last_tokens(tokens, limit, tokenizer.bos_token_id) if is_cut else tokens
        return Sequenced(kept, len(kept), is_cut=is_cut)  # where the completion begins makes no difference to its score

    def score(
        self,
        sequences: Sequence[Sequenced],
        *,
        micro_batch_tokens: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[float]:
        """Return one score per sequence."""
        tokens = [one.tokens for one in sequences]
        return [float(score) for score in score_sequences(self.scores, tokens, micro_batch_tokens, progress)]

    def scores(self, sequences: mx.array, lengths: mx.array, starts: mx.array | None = None) -> mx.array:
        """Compute scores [N] or [N, K], as `RewardModel.scores` does."""
        last = states_at(hidden_states(self._loaded.backbone, sequences), lengths)
        weight, mean, std = self._head
        return (last.astype(mx.float32) @ weight - mean) / std


ScoringModel = LoadedRewardModel | ClassifierModel


@dataclass(slots=True)
class ModelReward:
    """Reward from one or several reward models. Each tokenises the text of prompt and completion itself.

    It starts from the text even if the policy has the same tokenizer, because the preferences in its training were
    tokenised in that way. `combine` turns several scores into one; the detail `disagreement` is their standard
    deviation.
    """

    name: str
    models: Sequence[ScoringModel]
    combine: Literal["mean", "min"] = "mean"
    micro_batch_tokens: int = 2048
    between_passes: Callable[[], None] = lambda: None
    ranks: Ranks = ALONE

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Return one score per sequence. Raises RewardError if one cannot be encoded or its score is not finite."""
        rows = self.ranks.rows(len(batch))
        shares = self.ranks.together(lambda: [self._scores(model, batch, rows) for model in self.models])
        found = np.concatenate([np.array(share) for share in shares], axis=1)  # [models, B]
        combined = found.mean(axis=0) if self.combine == "mean" else found.min(axis=0)
        details = {"disagreement": found.std(axis=0).tolist()} if len(self.models) > 1 else {}
        return SourceScores(combined.tolist(), details=details)

    def _scores(self, model: ScoringModel, batch: Sequence[RewardInput], rows: Sequence[int]) -> list[float]:
        sequences = []
        for index in rows:
            row = batch[index]
            try:
                sequences.append(model.encode(row.prompt, row.completion, row.columns))
            except DataError as error:
                sample = sequence_name(index, row.prompt)
                raise RewardError(f"reward source '{self.name}' cannot read {sample}: {error}") from error
        scores = model.score(
            sequences, micro_batch_tokens=self.micro_batch_tokens, progress=lambda done, total: self.between_passes()
        )
        for index, score in zip(rows, scores, strict=True):
            if not math.isfinite(score):
                sample = sequence_name(index, batch[index].prompt)
                raise RewardError(
                    f"reward source '{self.name}': {sample} has score {score}: must be finite; use another checkpoint"
                )
        return scores


def load_model_reward(
    source: ModelSource,
    backbones: list[LoadedModel],
    *,
    micro_batch_tokens: int,
    between_passes: Callable[[], None] = lambda: None,
    ranks: Ranks | None = None,
) -> ModelReward:
    """Load the reward models that `source` names, on the calling thread.

    backbones: backbones in memory. Each model uses the one that it was trained on; if that is not among them, it is
    loaded and added. micro_batch_tokens, between_passes: as for `build_rewards`. Raises RewardError.
    """
    models: list[ScoringModel] = []
    names = []
    for path in source.paths:
        given, folder = Path(path), Path(_place(path))
        names.append(given.parent.parent.name if given.parent.name == "checkpoints" else given.name)  # that of the run
        with _errors_of(path):
            if _is_classifier(folder):
                models.append(ClassifierModel(folder, source.chat))
                continue
            model = load_reward_model(folder, *backbones)
        models.append(model)
        if not model.shares_backbone:
            backbones.append(model.base)
    return ModelReward(
        f"model:{'+'.join(names)}",
        models,
        combine=source.combine,
        micro_batch_tokens=micro_batch_tokens,
        between_passes=between_passes,
        ranks=ranks or ALONE,
    )


def with_checkpoints(config: Rewarded) -> Rewarded:
    """Return `config` with runs of reward models replaced by their checkpoints, so that resuming uses the same ones.

    Raises RewardError if the path of a source does not name a reward model. A `model.value_init` that names none stays
    as it is: a run with a checkpoint does not need it.
    """
    sources = [
        source.model_copy(update={"path": _place(source.path), "ensemble": [_place(path) for path in source.ensemble]})
        if isinstance(source, ModelSource)
        else source
        for source in config.reward.sources
    ]
    tables: dict[str, Section] = {"reward": config.reward.model_copy(update={"sources": sources})}
    if value_init := getattr(config.model, "value_init", ""):
        with contextlib.suppress(TrainerError):
            begin = reward_model_folder(Path(value_init).expanduser())
            tables["model"] = config.model.model_copy(update={"value_init": str(begin)})
    return config.model_copy(update=tables)


def keep_models(config: Config | DPOConfig) -> list[str]:
    """Have the checkpoints of reward models in `config` kept by their own runs. Raises RewardError.

    Call it before loading takes minutes, in which such a run may delete them. Returns a warning for each that is not
    kept.
    """
    used = [Path(_place(path)) for path in _paths(config)]
    if value_init := getattr(config.model, "value_init", ""):
        used.append(Path(value_init).expanduser())
    return [warning for path in used if (warning := keep_for_others(path))]


def unfinished_models(config: Config | DPOConfig) -> list[str]:
    """Return a warning for each reward model in `config` whose training is not complete. Raises RewardError."""
    found = []
    for path in _paths(config):
        folder = Path(_place(path))
        with _errors_of(path):
            if _is_classifier(folder) or read_card(folder).get("finished", True):
                continue
        found.append(
            f"reward model '{path}' is not fully trained, so its scores are not scaled to mean 0, deviation 1: finish "
            "it with `ppo-workbench reward-model train --resume`"
        )
    return found


def _paths(config: Config | DPOConfig) -> list[str]:
    return [path for source in config.reward.sources if isinstance(source, ModelSource) for path in source.paths]


def _place(path: str) -> str:
    """Return `path` if it is a checkpoint or a sequence classifier, or the newest checkpoint if it is a run."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        beside: Iterator[Path] = folder.parent.iterdir() if folder.parent.is_dir() else iter(())
        names = sorted(one.name for one in beside if one.is_dir() and not one.name.startswith("."))
        close = difflib.get_close_matches(folder.name, names, n=1)
        offer = f": did you mean '{folder.parent / close[0]}'?" if close else f"; paths are relative to {Path.cwd()}"
        raise RewardError(f"reward source '{path}': no such folder{offer}")
    if _is_classifier(folder):
        return path
    saved = checkpoints(RunFolder(folder)).paths
    if (folder / "policy").is_dir() or (saved and (saved[-1] / "policy").is_dir()):
        raise RewardError(
            f"reward source '{path}' is a run of PPO or DPO, which has no reward model: name a run of "
            "`ppo-workbench reward-model train`"
        )
    with _errors_of(path):
        return str(reward_model_folder(folder))


@contextlib.contextmanager
def _errors_of(path: str) -> Iterator[None]:
    """Turn a TrainerError into a RewardError that names the source."""
    try:
        yield
    except RewardError:  # it names the source already
        raise
    except TrainerError as error:
        raise RewardError(f"reward source '{path}': {error}") from error


def classifier_config(folder: Path) -> BackboneConfig:
    """Return how to load the sequence classifier in `folder`, a checkpoint or a PEFT adapter. Raises ModelError."""
    if not is_peft(folder):
        return BackboneConfig(path=str(folder))
    base = check_peft(folder, "the adapter").get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ModelError(f"'{folder / SETTINGS}' does not name the base model: set base_model_name_or_path in it")
    return BackboneConfig(path=base, adapter=str(folder))


def _is_classifier(folder: Path) -> bool:
    return (folder / "config.json").is_file() or is_peft(folder)
