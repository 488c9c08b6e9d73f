"""Prompts of a run: tokens of a length that the model can take, some of them held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainer.config import Config, split_seed
from trainer.data import Prompt, PromptRow, encode_prompts, split_prompts
from trainer.errors import DataError
from trainer.models.backbone import LoadedModel
from trainer.plurals import counted


class RunPrompts(NamedTuple):
    """Prompts to train on, prompts to evaluate on, and warnings for the user, one line each."""

    train: list[Prompt]
    held_out: list[Prompt]
    warnings: list[str]


def run_prompts(
    config: Config, rows: Sequence[PromptRow], model: LoadedModel, skipped: Sequence[DataError] = ()
) -> RunPrompts:
    """Encode `rows` for `model` and split them. Raises DataError if prompt and response would exceed its context.

    skipped: errors of rows that were left out as they were read.
    """
    c = config
    encoded = encode_prompts(rows, model.tokenizer, c.data)
    warnings = list(encoded.notes)
    if broken := [*skipped, *encoded.skipped]:
        warnings.append(
            f"{counted(len(broken), 'prompt')} skipped as broken (data.skip_broken); the first: {broken[0]}"
        )
    if changed := encoded.dropped or encoded.truncated:
        done = "dropped" if encoded.dropped else "cut to the last tokens"
        warnings.append(
            f"{changed} of {counted(len(rows), 'prompt')} {done}: longer than data.max_prompt_tokens = "
            f"{c.data.max_prompt_tokens}"
        )
    room = max(len(prompt.tokens) for prompt in encoded.prompts) + c.rollout.max_new_tokens
    if model.context and room > model.context:
        longest = c.data.max_prompt_tokens + c.rollout.max_new_tokens
        raise DataError(
            f"the longest prompt and rollout.max_new_tokens = {c.rollout.max_new_tokens} need {room} tokens of up "
            f"to {longest} allowed, but the model's context is {model.context}: lower data.max_prompt_tokens or "
            "rollout.max_new_tokens"
        )
    return RunPrompts(*split_prompts(encoded.prompts, c.data.eval_fraction, split_seed(c)), warnings)
