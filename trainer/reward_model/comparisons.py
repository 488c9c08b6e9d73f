"""Comparisons of a run: tokenised to a length that the model can take, with a part held out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from trainer.config.reward_model import RewardModelConfig
from trainer.errors import DataError
from trainer.models.loading import LoadedModel
from trainer.preferences.records import Preference
from trainer.reward_model.encoding import Encoder
from trainer.reward_model.pairs import Group, group_preferences, split_groups


class Comparisons(NamedTuple):
    """Groups to train on, groups to evaluate on, and warnings for the user, one line each."""

    train: list[Group]
    held_out: list[Group]
    warnings: list[str]


def comparisons(preferences: Iterable[Preference], model: LoadedModel, config: RewardModelConfig) -> Comparisons:
    """Return `preferences` as comparisons for `model`.

    Raises DataError if no preference is left to learn from, or one exceeds the model's context.
    """
    groups, warnings = group_preferences(preferences, Encoder(model.tokenizer, config.data), config.data)
    longest = max(group.longest for group in groups)
    if model.context and longest > model.context:
        raise DataError(
            f"the longest prompt and completion has {longest} tokens, but the model's context is {model.context}: "
            f"lower data.max_tokens = {config.data.max_tokens} to at most {model.context}"
        )
    train, held_out = split_groups(groups, config.data.eval_fraction, config.run.seed)
    if not any(not pair.is_tie for group in train for pair in group.pairs):
        raise DataError(
            f"there is no preference to learn from among the {len(train)} comparisons that data.eval_fraction = "
            f"{config.data.eval_fraction} leaves for training: all are ties; label more, or lower it"
        )
    if not held_out and config.data.eval_fraction > 0:
        warnings.append(
            "all comparisons are of one prompt, or of too few, so none is held out: how good the model is stays unknown"
        )
    widest = max(group.longest * len(group.sequences) for group in train)
    if widest > config.optim.micro_batch_tokens:
        warnings.append(
            f"optim.micro_batch_tokens = {config.optim.micro_batch_tokens} is less than the {widest} tokens of the "
            "largest comparison: a micro-batch of it will exceed that"
        )
    return Comparisons(train, held_out, warnings)
