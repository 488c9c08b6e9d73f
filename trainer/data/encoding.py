"""Chat messages as the text that a model reads, by its chat template, a program of its authors; and texts as tokens."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from trainer.config.fields import TEMPLATE_RESERVED
from trainer.errors import DataError, one_line, shortened

COLUMNS = ("chat_template_kwargs", "tools")
"""Columns of a row that its template gets, as in TRL: options, and JSON schemas of tools; JSON where they are text."""

NO_COLUMNS: Mapping[str, Any] = MappingProxyType({})

_OVERLAP = 100  # characters of a prefix that the generation prompt may have already

Messages = Sequence[Mapping[str, str]]


def template_options(template: Mapping[str, Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a row's template: those for all rows, then its own. Raises DataError for broken ones."""
    options, tools = (_cell(columns, name, kind) for name, kind in zip(COLUMNS, (dict, list), strict=True))
    if reserved := sorted(TEMPLATE_RESERVED & set(options or {})):
        raise DataError(f"column '{COLUMNS[0]}' has '{reserved[0]}', which the program sets: remove it")
    return {**template, **(options or {}), **({"tools": tools} if tools else {})}


def _cell(columns: Mapping[str, Any], name: str, kind: type) -> Any:
    value = columns.get(name)
    if isinstance(value, str) and value.strip():
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    if value is None or value == "":
        return None
    if not isinstance(value, kind):
        wanted = "a table of options" if kind is dict else "a list of JSON schemas"
        raise DataError(f"column '{name}' is {shortened(repr(value))}: the chat template needs {wanted}, or rename it")
    return _without_none(value)


def _without_none(value: Any) -> Any:
    """Return `value` without the keys that a Parquet file fills in where a row lacks them."""
    if isinstance(value, dict):
        return {key: _without_none(one) for key, one in value.items() if one is not None}
    return [_without_none(one) for one in value] if isinstance(value, list) else value


def rendered(
    messages: Messages, tokenizer: Any, options: Mapping[str, Any], *, is_whole: bool = False
) -> tuple[Messages, str]:
    """Return `messages` and their text, which ends where the assistant goes on, or is that of a whole conversation.

    A last message of the assistant is the beginning of what the assistant writes. If the template refuses system
    messages, or leaves them out, their text goes before that of the first user message; the messages that are returned
    are then changed in this way.

    Raises DataError with the roles and the template's own words if it refuses the messages.
    """

    def apply(turns: Messages, **turn: bool) -> str:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, **options, **turn))

    def write(turns: Messages) -> str:
        return apply(turns) if is_whole else _up_to_answer(turns, apply)

    text, refusal = "", None
    try:
        text = write(messages)
    except Exception as error:  # noqa: BLE001  many raise for a system message or two user turns
        refusal = error
    # With the system messages at the start put before the first user message.
    start = next((place for place, one in enumerate(messages) if one["role"] != "system"), 0)
    if start and messages[start]["role"] == "user":
        content = "\n\n".join(message["content"] for message in messages[: start + 1])
        folded = [{**messages[start], "content": content}, *messages[start + 1 :]]
        unread = any(one["content"].strip() not in text for one in messages if one["role"] == "system")
        if refusal or unread:
            with contextlib.suppress(Exception):
                again = write(folded)
                if content.strip() in again:
                    return folded, again
    if refusal:
        roles = ", ".join(message["role"] for message in messages)
        reason = shortened(one_line(refusal), 300)
        raise DataError(f"the chat template rejects the roles {shortened(roles, 200)}: {reason}") from refusal
    return messages, text


def _up_to_answer(messages: Messages, apply: Callable[..., str]) -> str:
    *before, last = messages
    if last["role"] != "assistant":
        return apply(messages, add_generation_prompt=True)
    prefix = last["content"]
    if prefix.strip() and "think>" not in prefix:  # templates drop or rewrite thoughts
        try:
            text = apply(messages, continue_final_message=True).rstrip()
        except Exception:  # the template rewrites that message, or refuses it at the end
            if before and before[-1]["role"] == "assistant":
                raise
        else:
            if text.endswith(prefix.strip()):
                return text + prefix[len(prefix.rstrip()) :]
    start = apply(before, add_generation_prompt=True)
    there = (prefix[:end] for end in range(min(len(prefix), _OVERLAP), 0, -1))
    already = next((part for part in there if part.strip() and start.endswith(part)), "")
    return start + prefix.removeprefix(already)
