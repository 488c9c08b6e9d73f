"""A run's prompts in the files that other trainers read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainer.config import Config, split_seed
from trainer.data import Prompt, chat_messages, encode_prompts, load_prompts, split_prompts
from trainer.data.templates import rendered, template_options
from trainer.errors import DataError
from trainer.plurals import counted
from trainer.preferences.formats import write_rows
from trainer.preferences.records import Text

TRAIN, HELD_OUT = "prompts", "prompts-held-out"


class ExportPrompts(NamedTuple):
    """Prompts as other trainers read them, and a warning, which may be empty."""

    train: list[Prompt]
    held_out: list[Prompt]
    messages: bool  # all of them are chat messages; otherwise all are texts
    warning: str


def export_prompts(config: Config, tokenizer: Any) -> ExportPrompts:
    """Return the prompts of a run, split as in the run, and as messages where its chat template applies.

    A text that was cut to its last tokens is cut here too; a conversation that was cut is left out. Raises DataError
    for texts and conversations in one file.
    """
    rows = load_prompts(config.data)
    kinds = {isinstance(row.prompt, str) and config.data.chat != "always" for row in rows}
    if len(kinds) > 1:
        raise DataError(
            f"data.prompts = '{config.data.prompts}' has both texts and messages, which no other trainer reads: set "
            "data.chat = 'always' for a new run"
        )
    messages = kinds == {False}
    data = config.data
    if messages and data.too_long == "truncate":
        data = data.model_copy(update={"too_long": "drop"})
    encoded = encode_prompts(rows, tokenizer, data)
    left_out = encoded.dropped if data is not config.data else 0
    shown = [
        prompt._replace(prompt=_shown(prompt, tokenizer, config) if messages else prompt.text)
        for prompt in encoded.prompts
    ]
    warning = left_out and (
        f"{counted(left_out, 'conversation')} left out: longer than data.max_prompt_tokens = {data.max_prompt_tokens}"
    )
    return ExportPrompts(*split_prompts(shown, data.eval_fraction, split_seed(config)), messages, warning or "")


def _shown(prompt: Prompt, tokenizer: Any, config: Config) -> Text:
    """Return the messages that the run's template rendered: with its system message, as far as it knows any."""
    options = template_options(config.data.template, prompt.columns)
    turns, _ = rendered(chat_messages(prompt.prompt, config.data.system), tokenizer, options)
    return [dict(turn) for turn in turns]


def write_prompts(folder: Path, found: ExportPrompts) -> None:
    """Write the JSON lines that TRL and OpenRLHF read: `prompt`, and the other columns of its row."""
    for name, prompts in ((TRAIN, found.train), (HELD_OUT, found.held_out)):
        if prompts:
            rows = [{**prompt.columns, "prompt": prompt.prompt} for prompt in prompts]
            write_rows(folder / f"{name}.jsonl", rows, overwrite=True)


def write_verl_prompts(folder: Path, found: ExportPrompts) -> None:
    """Write the Parquet files that verl reads. A text becomes the message of a user; other columns become JSON."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    for name, prompts in ((TRAIN, found.train), (HELD_OUT, found.held_out)):
        if prompts:
            table = pyarrow.Table.from_pylist(_verl_rows(prompts))
            pyarrow.parquet.write_table(table, folder / f"{name}.parquet")


def _verl_rows(prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    return [
        {
            "data_source": "ppo-workbench",
            "prompt": [{"role": "user", "content": one.prompt}] if isinstance(one.prompt, str) else one.prompt,
            "ability": "",
            "reward_model": {"style": "model", "ground_truth": ""},
            "extra_info": {"index": one.index, "columns": json.dumps(one.columns)},
        }
        for one in prompts
    ]
