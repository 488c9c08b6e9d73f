"""Comparisons of a DPO run, split as for a reward model, and the prompts to sample responses to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainer.config.dpo import DPOConfig
from trainer.data import Prompt
from trainer.dpo.encoding import PolicyEncoder
from trainer.errors import DataError
from trainer.models.loading import LoadedModel
from trainer.preferences.records import Preference
from trainer.reward_model.pairs import Group, group_preferences, split_groups


class Pairs(NamedTuple):
    """Groups to train on, groups to evaluate on, prompts to sample, and warnings for the user, one line each."""

    train: list[Group]  # without ties
    held_out: list[Group]
    prompts: list[Prompt]  # of held-out groups, to sample responses to
    warnings: list[str]


def load_pairs(preferences: Sequence[Preference], model: LoadedModel, config: DPOConfig) -> Pairs:
    """Encode `preferences` as pairs for the policy of `model`, and split them.

    The same prompts are held out as by a reward model with these data and this seed and, if each prompt has one pair,
    as by PPO. Raises DataError if no pair is left to learn from, or one exceeds the model's context.
    """
    encoder = PolicyEncoder(model.tokenizer, config.data)
    groups, warnings = group_preferences(preferences, encoder, config.data)
    longest = max(group.longest for group in groups)
    if model.context and longest > model.context:
        raise DataError(
            f"the longest prompt and completion has {longest} tokens, but the model's context is {model.context}: "
            f"lower data.max_tokens = {config.data.max_tokens} to at most {model.context}"
        )
    train, held_out = split_groups(groups, config.data.eval_fraction, config.run.seed)
    if ties := sum(pair.is_tie for group in train for pair in group.pairs):
        warnings.append(f"{ties} pairs are ties and were left out: DPO learns from those that are decided")
    train = [decided for group in train if (decided := _without_ties(group)).judged]
    if not train:
        raise DataError(
            "there is no preference to learn from among the comparisons that data.eval_fraction = "
            f"{config.data.eval_fraction} leaves for training: all are ties; label more, or lower it"
        )
    if not held_out and config.data.eval_fraction > 0:
        warnings.append(
            "all comparisons are of one prompt, or of too few, so none is held out: how good the policy is stays "
            "unknown"
        )
    prompts = held_out_prompts(preferences, held_out, model, config) if config.reward.sources else []
    return Pairs(train, held_out, prompts, warnings)


def held_out_prompts(
    preferences: Sequence[Preference], held_out: Sequence[Group], model: LoadedModel, config: DPOConfig
) -> list[Prompt]:
    """Return the first `eval.prompts` prompts of `held_out`, in PPO's form.

    Raises DataError if one leaves no room in the model's context for a response.
    """
    encoder = PolicyEncoder(model.tokenizer, config.data)
    wanted = min(config.eval.prompts, len({group.prompt for group in held_out}))
    known = {tuple(tokens): group.prompt for group in held_out for tokens in group.sequences}
    found: dict[int, Prompt] = {}
    for number, preference in enumerate(preferences):
        if len(found) == wanted:
            break
        if preference.judgement.verdict != "ranked":
            continue
        comparison = preference.comparison
        tokens, completion, _ = encoder.sequence(comparison.prompt, comparison.completions[0], number)
        prompt = known.get(tuple(tokens))
        if prompt is not None and prompt not in found:
            start = tokens[: len(tokens) - completion]
            text = model.tokenizer.decode(start)
            found[prompt] = Prompt(number, comparison.prompt, text, start, comparison.columns)
    room = max((len(prompt.tokens) for prompt in found.values()), default=0) + config.rollout.max_new_tokens
    if model.context and room > model.context:
        raise DataError(
            f"the longest prompt and rollout.max_new_tokens = {config.rollout.max_new_tokens} need {room} tokens, but "
            f"the model's context is {model.context}: lower data.max_tokens or rollout.max_new_tokens"
        )
    return list(found.values())


def _without_ties(group: Group) -> Group:
    judged = [([pair for pair in pairs if not pair.is_tie], ranking) for pairs, ranking in group.judged]
    return Group(group.prompt, group.sequences, group.completions, [one for one in judged if one[0]])
