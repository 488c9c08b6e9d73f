"""Prompts from a shipped set, a file, or a dataset of the `datasets` library."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from trainer.config import PRESETS
from trainer.config.schema import DataConfig
from trainer.data.files import READERS, SourceRow, read_rows, suffix
from trainer.errors import DataError

SHIPPED = PRESETS / "prompts"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


class PromptRow(NamedTuple):
    """A prompt as it is in its source."""

    index: int  # type: ignore[assignment]  # position in the source, from 0, blank lines not counted
    prompt: str | list[dict[str, str]]  # plain text, or chat messages with the keys role and content
    columns: dict[str, Any]  # the row's other columns, for the reward functions


def shipped_sets() -> list[str]:
    """Return the names of the prompt sets that come with the trainer."""
    return sorted(path.stem for path in SHIPPED.glob("*.jsonl"))


def load_prompts(config: DataConfig) -> list[PromptRow]:
    """Load the first `limit` prompts (0: all) of `config.prompts`, in the order of the source.

    `config.prompts` is the name of a shipped set, a .jsonl, .json (list of objects), .csv, .parquet or .txt (one prompt
    per line) file, a folder written by `Dataset.save_to_disk`, or else a name for `datasets.load_dataset`.

    Raises DataError for a source that cannot be read, has no rows, or has a row without a usable prompt.
    """
    rows = islice(_rows(config), config.limit or None)
    prompts = [_prompt_row(index, row, config.column) for index, row in enumerate(rows)]
    if not prompts:
        raise DataError(f"data.prompts = '{config.prompts}' has no prompts: it must have at least one row")
    return prompts


def _rows(config: DataConfig) -> Iterator[SourceRow]:
    name = config.prompts
    if name in shipped_sets():
        return read_rows(SHIPPED / f"{name}.jsonl", config.column)
    try:
        path = Path(name).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:
        raise DataError(f"data.prompts = '{name}' cannot be read: {error}") from None
    if is_folder:
        return _dataset_rows(config, path)
    if exists:
        return read_rows(path, config.column)
    if suffix(path) in READERS or not _HUB_NAME.fullmatch(name):
        raise DataError(f"data.prompts = '{name}': no such file: paths are relative to {Path.cwd()}")
    # Before asking the hub: a mistyped name should not cost an import and a time-out.
    if close := difflib.get_close_matches(name, shipped_sets(), n=1, cutoff=0.8):
        raise DataError(f"data.prompts = '{name}': no such file or shipped set: did you mean '{close[0]}'?")
    return _dataset_rows(config, None)


def _dataset_rows(config: DataConfig, folder: Path | None) -> Iterator[SourceRow]:
    import datasets  # 5 s

    # Progress bars would draw over a terminal interface.
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        if folder is None:
            data = datasets.load_dataset(config.prompts, split=config.split)
        else:
            data = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise DataError(_not_loaded(config.prompts, folder, error)) from error
    finally:
        if not bars:
            datasets.enable_progress_bars()
    if isinstance(data, datasets.DatasetDict):
        if config.split not in data:
            splits = ", ".join(data)
            raise DataError(f"data.split = '{config.split}': '{config.prompts}' has the splits {splits}")
        data = data[config.split]
    return (SourceRow(f"{config.prompts}[{index}]", row) for index, row in enumerate(data))


def _not_loaded(name: str, folder: Path | None, error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    if folder is not None:
        return f"data.prompts = '{name}': a folder must be one that Dataset.save_to_disk wrote: {reason}"
    sets, suffixes = ", ".join(shipped_sets()), ", ".join(READERS)
    return (
        f"data.prompts = '{name}': neither a file nor a shipped set ({sets}), and datasets cannot load it: "
        f"{reason}; connect to the hub, or give a file ({suffixes})"
    )


def _prompt_row(index: int, row: SourceRow, column: str) -> PromptRow:
    if column not in row.columns:
        names = [str(name) for name in row.columns]
        close = difflib.get_close_matches(column, names, n=1)
        hint = f"did you mean '{close[0]}'?" if close else "set data.column to one of them"
        listed = ", ".join(names) or "none"
        raise DataError(f"{row.place}: no column '{column}' (data.column): the columns are {listed}; {hint}")
    prompt = row.columns[column]
    _check(prompt, row.place, column)
    return PromptRow(index, prompt, {key: value for key, value in row.columns.items() if key != column})


def _check(prompt: Any, place: str, column: str) -> None:
    if isinstance(prompt, str):
        texts = [prompt]
    elif isinstance(prompt, list) and all(_is_message(message) for message in prompt):
        texts = [message["content"] for message in prompt]
    else:
        raise DataError(
            f"{place}: column '{column}' is {_shortened(prompt)}: must be a string, or a list of messages "
            '{"role": "user", "content": "..."}'
        )
    if not any(text.strip() for text in texts):
        raise DataError(f"{place}: column '{column}' is empty: take the row out")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        unit = f"\\u{ord(error.object[error.start]):04x}"
        raise DataError(
            f"{place}: column '{column}' has half a surrogate pair ({unit}), which is no text: take it out"
        ) from None


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
