"""Prompts as the model reads them: rendered by the chat template, tokenised, no longer than allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from trainer.config.schema import DataConfig
from trainer.data.sources import PromptRow
from trainer.errors import DataError


class Prompt(NamedTuple):
    """A prompt that is ready for the model."""

    index: int  # type: ignore[assignment]  # position in the source, from 0; hides tuple.index
    prompt: str | list[dict[str, str]]  # as in the source; reward functions get it
    text: str  # what the model reads: rendered, and cut if `tokens` are
    tokens: list[int]
    columns: dict[str, Any]  # the row's other columns


class EncodedPrompts(NamedTuple):
    """The prompts that are left, in the order of the source, and how many were dropped or truncated."""

    prompts: list[Prompt]
    dropped: int  # prompts left out because they are too long
    truncated: int  # prompts cut to their last tokens


def encode_prompts(rows: Sequence[PromptRow], tokenizer: Any, config: DataConfig) -> EncodedPrompts:
    """Render and tokenise `rows` with `tokenizer`, mlx-lm's wrapper or one of transformers.

    Messages go through the chat template; strings do so if `chat = "always"`. A template brings its own special tokens.
    Plain text gets those that the tokenizer adds by default, except an end token, because the model continues the text.
    A last message of the assistant is continued, not closed.

    A prompt of more than `max_prompt_tokens` tokens is dropped, refused, or cut to its last tokens. A begin token in
    front stays, because models that were trained with one fail without it.

    Raises DataError for messages without a chat template or under `chat = "never"`, a template that refuses them, a
    prompt without tokens, one that is too long under `too_long = "error"`, and if no prompt is left.
    """
    limit = config.max_prompt_tokens
    prompts: list[Prompt] = []
    too_long: list[int] = []
    for row in rows:
        text, tokens = _encode(row, tokenizer, config)
        if len(tokens) > limit:
            too_long.append(len(tokens))
            if config.too_long == "error":
                raise DataError(
                    f"{_name(row)} has {len(tokens)} tokens, data.max_prompt_tokens = {limit}: raise it, "
                    "or set data.too_long to 'drop' or 'truncate'"
                )
            if config.too_long == "drop":
                continue
            tokens = _last_tokens(tokens, limit, tokenizer.bos_token_id)
            text = tokenizer.decode(tokens)
        prompts.append(Prompt(row.index, row.prompt, text, tokens, row.columns))
    if too_long and not prompts:
        shortest, longest = min(too_long), max(too_long)
        raise DataError(
            f"all {len(too_long)} prompts are longer than data.max_prompt_tokens = {limit}: they have "
            f"{shortest} to {longest} tokens; raise it to {longest}, or set data.too_long = 'truncate'"
        )
    dropped = len(rows) - len(prompts)
    return EncodedPrompts(prompts, dropped, len(too_long) - dropped)


def _encode(row: PromptRow, tokenizer: Any, config: DataConfig) -> tuple[str, list[int]]:
    if isinstance(row.prompt, str) and config.chat != "always":
        text = row.prompt
        tokens = _plain_tokens(text, tokenizer)
    else:
        text = _rendered(row, tokenizer, config)
        tokens = list(tokenizer.encode(text, add_special_tokens=False))
    if not tokens:
        raise DataError(f"{_name(row)} has no tokens after rendering: take the row out")
    return text, tokens


def _plain_tokens(text: str, tokenizer: Any) -> list[int]:
    bos, eos = tokenizer.bos_token, tokenizer.eos_token
    written_out = bos is not None and text.startswith(bos)
    tokens = list(tokenizer.encode(text, add_special_tokens=not written_out))
    if len(tokens) > 1 and tokens[-1] == tokenizer.eos_token_id and not text.endswith(eos):
        tokens.pop()
    return tokens


def _rendered(row: PromptRow, tokenizer: Any, config: DataConfig) -> str:
    if config.chat == "never":
        raise DataError(
            f"{_name(row)} is a list of messages, and data.chat = 'never' keeps it from the chat template: "
            "set data.chat = 'auto'"
        )
    if not _has_chat_template(tokenizer):
        what = "data.chat = 'always'" if isinstance(row.prompt, str) else f"{_name(row)} is a list of messages"
        raise DataError(
            f"{what}, but the tokenizer has no chat template: choose an instruct model, or prompts "
            "that are strings with data.chat = 'auto'"
        )
    messages = [{"role": "user", "content": row.prompt}] if isinstance(row.prompt, str) else list(row.prompt)
    if config.system and all(message["role"] != "system" for message in messages):
        messages.insert(0, {"role": "system", "content": config.system})
    answering = messages[-1]["role"] == "assistant"
    turn = {"continue_final_message": True} if answering else {"add_generation_prompt": True}
    try:
        # A template is a program by the model's authors: many raise for a system message or two user turns.
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **turn))
    except Exception as error:
        roles = ", ".join(message["role"] for message in messages)
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{_name(row)}: the chat template refuses the roles {roles}: {reason}; change the messages or data.system"
        ) from error


def _has_chat_template(tokenizer: Any) -> bool:
    # mlx-lm also finds templates that are not in the tokenizer's own attribute.
    return bool(getattr(tokenizer, "has_chat_template", False) or tokenizer.chat_template)


def _last_tokens(tokens: list[int], limit: int, bos: int | None) -> list[int]:
    if limit > 1 and tokens[0] == bos:
        return tokens[:1] + tokens[1 - limit :]
    return tokens[-limit:]


def _name(row: PromptRow) -> str:
    return f"prompt {row.index} (counted from 0)"
