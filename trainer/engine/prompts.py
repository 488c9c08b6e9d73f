"""Prompts of a run: tokens of a length that the model can take, some of them held out."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainer.config import Config, split_seed
from trainer.data import Prompt, PromptRow, encode_prompts, split_prompts
from trainer.errors import DataError, storage_error
from trainer.files import is_file, read_regular
from trainer.models.backbone import LoadedModel
from trainer.plurals import counted
from trainer.runs.folder import PROMPTS_BYTES, RunFolder


class RunPrompts(NamedTuple):
    """Prompts to train on, prompts to evaluate on, and warnings for the user, one line each."""

    train: list[Prompt]
    held_out: list[Prompt]
    warnings: list[str]


def prompts_record(found: RunPrompts) -> str:
    """Return what a run remembers of its prompts: a line for each, in order, with its side of the split and a hash."""
    sides = (("train", found.train), ("held-out", found.held_out))
    return "".join(f"{side} {_hash(prompt)}\n" for side, prompts in sides for prompt in prompts)


def changed_since(folder: RunFolder, found: RunPrompts) -> str:
    """Return how the prompts `found` differ from those that the run in `folder` remembers, as `changed_prompts`.

    Raises StorageError if what it remembers cannot be read.
    """
    if not is_file(folder.prompts):
        return ""
    with storage_error(f"cannot read '{folder.prompts}'"):
        record = read_regular(folder.prompts, PROMPTS_BYTES).decode("ascii", "replace")
    return changed_prompts(record, found)


def changed_prompts(record: str, found: RunPrompts) -> str:
    """Return how the prompts `found` differ from those of an earlier `record`; empty if they are the same."""
    before, now = ([line.partition(" ")[::2] for line in each.splitlines()] for each in (record, prompts_record(found)))
    if before == now:
        return ""
    known, given = (Counter(digest for _, digest in lines) for lines in (before, now))
    new, lost = (given - known).total(), (known - given).total()
    replaced = min(new, lost)
    counts = ((replaced, "replaced"), (new - replaced, "added"), (lost - replaced, "removed"))
    parts = [", ".join(f"{count} {what}" for count, what in counts if count) or "the same in another order"]
    if places := [one.index for one in (*found.train, *found.held_out) if _hash(one) not in known]:
        parts.append(f"the first new one is prompt {min(places)}, counted from 0")
    held_out = {digest for side, digest in before if side == "held-out"}
    if moved := len(held_out & {digest for side, digest in now if side == "train"}):
        parts.append(f"{counted(moved, 'held-out prompt')} would be trained on")
    return "; ".join(parts)


def _hash(prompt: Prompt) -> str:
    """Return a hash of what a model and a reward see of `prompt`."""
    columns = json.dumps([prompt.prompt, prompt.columns], sort_keys=True, default=str)
    return hashlib.blake2b(np.array(prompt.tokens, np.int32).tobytes() + columns.encode(), digest_size=8).hexdigest()


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
