"""Prompts of a run, from their source to the order in which they are visited: loaded, encoded, split, ordered."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from trainer.config import PRESETS
from trainer.config.pairs import PreferenceDataConfig
from trainer.config.schema import DataConfig
from trainer.data.encoding import rendered, template_options
from trainer.data.readers import OnBroken, SourceRow, is_dataset, refuse, source_rows
from trainer.errors import DataError, shortened

Example = TypeVar("Example")
SHIPPED = PRESETS / "prompts"
_CHECKED = 100  # prompts that `check_prompts` loads


class PromptRow(NamedTuple):
    """A prompt as it is in its source."""

    index: int  # type: ignore[assignment]  # position in the source, from 0, blank lines not counted
    prompt: str | list[dict[str, str]]  # plain text, or chat messages with the keys role and content
    columns: dict[str, Any]  # the row's other columns, for the reward functions
    place: str = ""  # file and line, for messages


def column_names(rows: Iterable[PromptRow]) -> list[str]:
    """Return the names of all columns that reward functions get besides the prompt."""
    return list(dict.fromkeys(name for row in rows for name in row.columns))


def shipped_sets() -> list[str]:
    """Return the names of the prompt sets that come with the trainer."""
    return sorted(path.stem for path in SHIPPED.glob("*.jsonl"))


def load_prompts(config: DataConfig, skipped: OnBroken = lambda error: None) -> list[PromptRow]:
    """Load the first `limit` prompts (0: all) of `config.prompts`, in the order of the source.

    skipped: gets the error of each row that `config.skip_broken` leaves out.

    `config.prompts` is the name of a shipped set, a .jsonl, .json (list of objects), .csv, .parquet or .txt (one prompt
    per line) file, a folder written by `Dataset.save_to_disk`, or else a name for `datasets.load_dataset`.

    Raises DataError for a source that cannot be read, has no rows, or has a row without a usable prompt.
    """
    name, sets = config.prompts, shipped_sets()
    source = str(SHIPPED / f"{name}.jsonl") if name in sets else name
    broken = skipped if config.skip_broken else refuse
    rows = source_rows(source, config.split, broken, column=config.column, prompt_sets=sets)
    prompts: list[PromptRow] = []
    for row in islice(rows, config.limit or None):
        try:
            prompts.append(_prompt_row(len(prompts), row, config.column))
        except DataError as error:
            broken(error)
    if not prompts:
        raise DataError(f"data.prompts = '{name}' has no prompts: it must have at least one row")
    return prompts


def check_prompts(config: DataConfig) -> None:
    """Raise DataError if the first prompts cannot be loaded. What the library `datasets` would load is not checked."""
    name, sets = config.prompts, shipped_sets()
    if name in sets or not is_dataset(name, sets):
        load_prompts(config.model_copy(update={"limit": min(config.limit or _CHECKED, _CHECKED)}))


def _prompt_row(index: int, row: SourceRow, column: str) -> PromptRow:
    """Return the prompt in `column` of `row`, the position `index` of its source. Raises DataError."""
    if column not in row.columns:
        names = [str(name) for name in row.columns]
        close = difflib.get_close_matches(column, names, n=1)
        hint = f"did you mean '{close[0]}'?" if close else "set data.column to one of them"
        listed = ", ".join(names) or "none"
        raise DataError(f"{row.place}: no column '{column}' (data.column): the columns are {listed}; {hint}")
    prompt, named = row.columns[column], f"{row.place}: column '{column}'"
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    for message in messages:
        fields = [message.get(key) for key in ("role", "content")] if isinstance(message, dict) else [None]
        if not all(isinstance(field, str) for field in fields):
            raise DataError(
                f"{named} is {shortened(repr(prompt))}: must be a string, or a list of messages "
                '{"role": "user", "content": "..."}'
            )
    texts = [message["content"] for message in messages]
    if not any(text.strip() for text in texts):
        raise DataError(f"{named} is empty: remove the row")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        unit = f"\\u{ord(error.object[error.start]):04x}"
        raise DataError(f"{named} has half a surrogate pair ({unit}), which is not text: remove it") from None
    return PromptRow(index, prompt, {key: value for key, value in row.columns.items() if key != column}, row.place)


class Prompt(NamedTuple):
    """A prompt that is ready for the model."""

    index: int  # type: ignore[assignment]  # position in the source, from 0; hides tuple.index
    prompt: str | list[dict[str, str]]  # as in the source; reward functions get it
    text: str  # what the model reads: rendered, and cut if `tokens` are
    tokens: list[int]
    columns: dict[str, Any]  # the row's other columns


NO_SYSTEM = "the chat template knows no system messages: their text was put before that of the first user message"


class EncodedPrompts(NamedTuple):
    """The prompts that are left, in the order of the source, and how many were dropped or truncated."""

    prompts: list[Prompt]
    dropped: int  # prompts that are too long
    truncated: int  # prompts cut to their last tokens
    skipped: list[DataError]  # of rows that cannot be rendered, where data.skip_broken leaves them out
    notes: list[str]  # on how they were rendered, for the user


def encode_prompts(rows: Sequence[PromptRow], tokenizer: Any, config: DataConfig) -> EncodedPrompts:
    """Render and tokenise `rows` with `tokenizer`, mlx-lm's wrapper or one of transformers.

    Messages go through the chat template (`encoding.rendered`); strings do so if `chat = "always"`. A template brings
    its own special tokens. Plain text gets those that the tokenizer adds by default, except an end token, because the
    model continues the text.

    A prompt of more than `max_prompt_tokens` tokens is dropped, refused, or cut to its last tokens. A begin token in
    front stays, because models that were trained with one fail without it.

    Raises DataError for messages without a chat template or under `chat = "never"`, a template that refuses them and a
    prompt without tokens unless `skip_broken` leaves them out, one that is too long under `too_long = "error"`, and if
    no prompt is left.
    """
    limit = config.max_prompt_tokens
    prompts: list[Prompt] = []
    too_long: list[int] = []
    skipped: list[DataError] = []
    notes: set[str] = set()
    for row in rows:
        try:
            prompt = render_prompt(row, tokenizer, config, notes)
        except DataError as error:
            skipped.append(error)
            if not config.skip_broken:
                raise DataError(f"{error} (data.skip_broken = true leaves such rows out)") from error
            continue
        if (count := len(prompt.tokens)) > limit:
            too_long.append(count)
            if config.too_long == "error":
                raise DataError(
                    f"{_name(row)} has {count} tokens, data.max_prompt_tokens = {limit}: raise it, "
                    "or set data.too_long to 'drop' or 'truncate'"
                )
            if config.too_long == "drop":
                continue
            tokens = last_tokens(prompt.tokens, limit, tokenizer.bos_token_id)
            prompt = prompt._replace(text=tokenizer.decode(tokens), tokens=tokens)
        prompts.append(prompt)
    if too_long and not prompts:
        shortest, longest = min(too_long), max(too_long)
        raise DataError(
            f"every prompt is longer than data.max_prompt_tokens = {limit}: prompts have "
            f"{shortest} to {longest} tokens; raise it to {longest}, or set data.too_long = 'truncate'"
        )
    if not prompts:
        raise skipped[0]
    dropped = len(rows) - len(prompts) - len(skipped)
    return EncodedPrompts(prompts, dropped, len(too_long) - dropped, skipped, sorted(notes))


def render_prompt(
    row: PromptRow, tokenizer: Any, config: DataConfig | PreferenceDataConfig, notes: set[str] | None = None
) -> Prompt:
    """Render and tokenise `row` as `encode_prompts` does, whatever its length. Raises DataError.

    notes: gets a line for the user if its system message had to become a part of another one.
    """
    if isinstance(row.prompt, str) and config.chat != "always":
        text, begin = row.prompt, tokenizer.bos_token
        has_begin = begin is not None and text.startswith(begin)
        tokens = list(tokenizer.encode(text, add_special_tokens=not has_begin))
        if len(tokens) > 1 and tokens[-1] == tokenizer.eos_token_id and not text.endswith(tokenizer.eos_token):
            tokens.pop()
    else:
        if config.chat == "never":
            raise DataError(
                f"{_name(row)} is a list of messages, and data.chat = 'never' keeps it from the chat template: "
                "set data.chat = 'auto'"
            )
        # mlx-lm also finds templates that are not in the tokenizer's own attribute.
        if not (getattr(tokenizer, "has_chat_template", False) or tokenizer.chat_template):
            what = "data.chat = 'always'" if isinstance(row.prompt, str) else f"{_name(row)} is a list of messages"
            raise DataError(
                f"{what}, but the tokenizer has no chat template: choose an instruct model, or prompts "
                "that are strings with data.chat = 'auto'"
            )
        messages = chat_messages(row.prompt, config.system)
        try:
            read, text = rendered(messages, tokenizer, template_options(config.template, row.columns))
        except DataError as error:
            raise DataError(f"{_name(row)}: {error}") from error
        if read is not messages and notes is not None:
            notes.add(NO_SYSTEM)
        tokens = list(tokenizer.encode(text, add_special_tokens=False))
    if not tokens:
        raise DataError(f"{_name(row)} has no tokens after rendering: remove the row")
    return Prompt(row.index, row.prompt, text, tokens, row.columns)


def chat_messages(prompt: str | list[dict[str, str]], system: str) -> list[dict[str, str]]:
    """Return `prompt` as chat messages, with the message `system` in front if it is not empty and they have none."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if system and all(message["role"] != "system" for message in messages):
        messages.insert(0, {"role": "system", "content": system})
    return messages


def last_tokens(tokens: list[int], limit: int, bos: int | None) -> list[int]:
    """Return the last `limit` tokens, but keep a begin token in front: models trained with one fail without it."""
    if limit > 1 and tokens[0] == bos:
        return tokens[:1] + tokens[1 - limit :]
    return tokens[-limit:]


def _name(row: PromptRow) -> str:
    return row.place or f"prompt {row.index} (counted from 0)"


def split_prompts(prompts: Sequence[Prompt], eval_fraction: float, seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """Split `prompts` as `split_examples` does; those with the same tokens stay on one side."""
    return split_examples(prompts, lambda prompt: tuple(prompt.tokens), eval_fraction, seed)


def split_examples(
    examples: Sequence[Example], group_of: Callable[[Example], Hashable], eval_fraction: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """Split `examples` into (training, held-out), both in the order of the source; all of a group are on one side.

    The held-out side has `eval_fraction` of all examples, rounded, and at least one if the fraction is not 0. It has
    fewer if only larger groups are left, and never all. The same seed gives the same split.
    """
    wanted = min(max(1, round(eval_fraction * len(examples))), len(examples) - 1) if eval_fraction > 0 else 0
    numbers: dict[Hashable, int] = {}  # of the groups, in the order in which they come
    group = [numbers.setdefault(group_of(example), len(numbers)) for example in examples]
    sizes, held_out = Counter(group), set[int]()
    for number in np.random.default_rng(seed).permutation(len(numbers)).tolist():
        if sizes[number] <= wanted:
            held_out.add(number)
            wanted -= sizes[number]
    sides = list(zip(examples, group, strict=True))
    return [one for one, side in sides if side not in held_out], [one for one, side in sides if side in held_out]
