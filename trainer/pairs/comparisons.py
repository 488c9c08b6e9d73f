"""Comparisons of a run: read, encoded to a length that the model can take, and split into training and held-out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from trainer.arrays import Purpose
from trainer.config.pairs import DPOConfig, PreferenceDataConfig, RewardModelConfig
from trainer.data import Prompt, split_examples
from trainer.errors import DataError, counted
from trainer.models.backbone import LoadedModel, LoadedTokenizer, load_backbone, load_tokenizer
from trainer.pairs.encoders import Encoder
from trainer.pairs.groups import Group, fingerprint, group_preferences
from trainer.preferences.formats import Reading, read_preferences
from trainer.preferences.records import Preference
from trainer.preferences.store import PreferenceStore

Model = LoadedModel | LoadedTokenizer
Schema = TypeVar("Schema", RewardModelConfig, DPOConfig)
_STORES = (".db", ".sqlite", ".sqlite3")


class Comparisons(NamedTuple):
    """Groups to train on, groups to evaluate on, and warnings for the user, one line each."""

    train: list[Group]
    held_out: list[Group]  # those of the held-out ones that are evaluated
    warnings: list[str]
    fingerprint: str  # of the groups to train on and all that are held out
    longest: int  # tokens of the longest sequence to train on
    widest: int  # tokens of the largest group to train on, padding included
    prompts: list[Prompt]  # of held-out groups, for a policy to sample responses to


def load_preferences(config: PreferenceDataConfig) -> Reading:
    """Open the first `config.limit` preferences (0: all) of `config.preferences`, in the order of the source.

    They are read lazily and once, so that a million are never all in memory; skips are included. Raises UsageError,
    DataError or StorageError if the source is missing or cannot be read; reading on raises them for a later row.
    """
    source = config.preferences
    if Path(source).suffix.lower() in _STORES:
        store = PreferenceStore(Path(source).expanduser(), create=False)
        reading = Reading(source, "store", preferences=_stored(store))
    else:
        reading = read_preferences(source, format=config.format, split=config.split, skip_broken=config.skip_broken)
    reading.preferences = islice(reading.preferences, config.limit or None)
    return reading


def load_material(
    config: Schema,
    preferences: Iterable[Preference] | None,
    compare: Callable[[Iterable[Preference], LoadedTokenizer, Schema], Comparisons],
) -> tuple[LoadedModel, Comparisons, Sequence[str]]:
    """Read the preferences of `config`, or `preferences` instead, then load the model: a broken row costs no loading.

    Returns the model before the adapter is put on, the comparisons, and warnings of reading them.

    compare: returns them as comparisons. Raises TrainerError.
    """
    loaded = load_preferences(config.data) if preferences is None else None
    tokenizer = load_tokenizer(config.model)
    data = compare(loaded or preferences or (), tokenizer, config)
    classifier = isinstance(config, RewardModelConfig)
    model = load_backbone(config.model, classifier=classifier, tokenizer=tokenizer)
    return model, data, loaded.warnings if loaded else []


def _stored(store: PreferenceStore) -> Iterator[Preference]:
    with store:
        yield from store.preferences(with_skips=True)


def reward_comparisons(preferences: Iterable[Preference], model: Model, config: RewardModelConfig) -> Comparisons:
    """Return `preferences` as comparisons for a reward model on `model`.

    Raises DataError if no preference is left to learn from, or one exceeds the model's context.
    """
    train, held_out, warnings = _split(preferences, model, config)
    found = _comparisons(train, held_out, warnings, [], config)
    if found.widest > config.optim.micro_batch_tokens:
        warnings.append(
            f"optim.micro_batch_tokens = {config.optim.micro_batch_tokens} is less than the {found.widest} tokens of "
            "the largest comparison: a micro-batch of it will exceed that"
        )
    return found


def policy_comparisons(preferences: Iterable[Preference], model: Model, config: DPOConfig) -> Comparisons:
    """Return `preferences` as comparisons for the policy of `model`; those to train on are without ties.

    The same prompts are held out as by a reward model with these data and this seed and, if each prompt has one pair,
    as by PPO. Raises DataError if no pair is left to learn from, or one exceeds the model's context.
    """
    train, held_out, warnings = _split(preferences, model, config)
    ties = 0
    for group in train:
        decided = [(tuple(pair for pair in pairs if not pair.is_tie), ranking) for pairs, ranking in group.judged]
        ties += len(group.pairs) - sum(len(pairs) for pairs, _ in decided)
        group.judged = tuple(one for one in decided if one[0])
    if ties:
        warnings.append(f"{counted(ties, 'tie')} ignored: DPO learns only from decided pairs")
    prompts = _held_out_prompts(held_out, model, config) if config.reward.sources else []
    return _comparisons([group for group in train if group.judged], held_out, warnings, prompts, config)


def _split(
    preferences: Iterable[Preference], model: Model, config: RewardModelConfig | DPOConfig
) -> tuple[list[Group], list[Group], list[str]]:
    groups, warnings = group_preferences(preferences, Encoder(model.tokenizer, config.data), config.data)
    longest = max(group.longest for group in groups)
    if model.context and longest > model.context:
        raise DataError(
            f"the longest prompt and completion has {longest} tokens, but the model's context is {model.context}: "
            f"lower data.max_tokens = {config.data.max_tokens} to at most {model.context}"
        )
    train, held_out = split_examples(groups, lambda group: group.prompt, config.data.eval_fraction, config.run.seed)
    for group in train:
        group.given = ()  # nobody reads its texts
    if not any(not pair.is_tie for group in train for pair in group.pairs):
        raise DataError(
            f"no preference to learn from among the {len(train)} comparisons that data.eval_fraction = "
            f"{config.data.eval_fraction} leaves for training: all are ties; label more, or lower it"
        )
    if not held_out and config.data.eval_fraction > 0:
        trained = "policy" if isinstance(config, DPOConfig) else "model"
        warnings.append(f"too few prompts to hold any out: the {trained} cannot be evaluated")
    return train, held_out, warnings


def _comparisons(
    train: list[Group],
    held_out: list[Group],
    warnings: list[str],
    prompts: list[Prompt],
    config: RewardModelConfig | DPOConfig,
) -> Comparisons:
    """Return the comparisons, with a random part of `held_out` to evaluate on if that is larger than asked for."""
    learnt, most = fingerprint(chain(train, held_out)), config.eval.comparisons
    if most and len(held_out) > most:
        seed = [config.run.seed, Purpose.EVALUATION, most]
        places = np.random.default_rng(seed).choice(len(held_out), most, replace=False)
        held_out = [held_out[place] for place in np.sort(places).tolist()]
    longest = max(group.longest for group in train)
    widest = max(group.longest * len(group.sequences) for group in train)
    return Comparisons(train, held_out, warnings, learnt, longest, widest, prompts)


def _held_out_prompts(held_out: Sequence[Group], model: Model, config: DPOConfig) -> list[Prompt]:
    """Return the first `eval.prompts` prompts of `held_out`, in PPO's form.

    Raises DataError if one leaves no room in the model's context for a response.
    """
    of_prompt: dict[int, Group] = {}
    for group in sorted(held_out, key=lambda group: group.number):
        of_prompt.setdefault(group.prompt, group)
    prompts = []
    for group in list(of_prompt.values())[: config.eval.prompts]:
        start = list(group.sequences[0][: len(group.sequences[0]) - group.completions[0]])
        text = model.tokenizer.decode(start)
        first = group.given[0].comparison
        prompts.append(Prompt(group.number, first.prompt, text, start, first.columns))
    room = max((len(prompt.tokens) for prompt in prompts), default=0) + config.rollout.max_new_tokens
    if model.context and room > model.context:
        raise DataError(
            f"the longest prompt and rollout.max_new_tokens = {config.rollout.max_new_tokens} need {room} tokens, but "
            f"the model's context is {model.context}: lower data.max_tokens or rollout.max_new_tokens"
        )
    return prompts
