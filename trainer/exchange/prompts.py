"""A run's prompts in the files that other trainers read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer.config import Config, split_seed
from trainer.data import Prompt, chat_messages, encode_prompts, load_prompts, split_prompts
from trainer.data.encoding import rendered, template_options
from trainer.errors import DataError, counted
from trainer.preferences.formats import write_rows
from trainer.preferences.records import Text


def write_prompts(folder: Path, config: Config, tokenizer: Any) -> tuple[dict[str, str], str]:
    """Write the prompts of a run to `folder`; return what each file is, and a warning, which may be empty.

    They are split as in the run, and messages where its chat template applies. A text that was cut to its last tokens
    is cut here too; a conversation that was cut is left out. JSON lines for TRL and OpenRLHF: `prompt`, and the other
    columns of its row. Parquet for verl: a text becomes the message of a user, other columns become JSON. Raises
    DataError for texts and conversations in one file.
    """
    import pyarrow
    import pyarrow.parquet

    data, rows = config.data, load_prompts(config.data)
    kinds = {isinstance(row.prompt, str) and data.chat != "always" for row in rows}
    if len(kinds) > 1:
        raise DataError(
            f"data.prompts = '{data.prompts}' has both texts and messages, which no other trainer reads: set "
            "data.chat = 'always' for a new run"
        )
    messages, warning = kinds == {False}, ""
    leave_out = messages and data.too_long == "truncate"
    encoded = encode_prompts(rows, tokenizer, data.model_copy(update={"too_long": "drop"}) if leave_out else data)
    if leave_out and encoded.dropped:
        left_out = counted(encoded.dropped, "conversation")
        warning = f"{left_out} left out: longer than data.max_prompt_tokens = {data.max_prompt_tokens}"
    shown: list[Prompt] = []
    for prompt in encoded.prompts:
        text: Text = prompt.text
        if messages:  # with the template's system message, as far as it knows any
            options = template_options(data.template, prompt.columns)
            turns, _ = rendered(chat_messages(prompt.prompt, data.system), tokenizer, options)
            text = [dict(turn) for turn in turns]
        shown.append(prompt._replace(prompt=text))
    contents = {}
    (folder / "verl").mkdir(parents=True, exist_ok=True)
    parts = split_prompts(shown, data.eval_fraction, split_seed(config))
    for name, part in zip(("prompts", "prompts-held-out"), parts, strict=True):
        if part:
            write_rows(folder / f"{name}.jsonl", [one.columns | {"prompt": one.prompt} for one in part], overwrite=True)
            contents[f"{name}.jsonl"] = f"{name.replace('-', ', ', 1)}, for TRL and OpenRLHF"
            verl: list[dict[str, Any]] = [
                {
                    "data_source": "ppo-workbench",
                    "prompt": [{"role": "user", "content": one.prompt}] if isinstance(one.prompt, str) else one.prompt,
                    "ability": "",
                    "reward_model": {"style": "model", "ground_truth": ""},
                    "extra_info": {"index": one.index, "columns": json.dumps(one.columns)},
                }
                for one in part
            ]
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(verl), folder / "verl" / f"{name}.parquet")
            contents[f"verl/{name}.parquet"] = "the same, for verl"
    return contents, warning
