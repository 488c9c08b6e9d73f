"""Held-out pairs of a reward model as a JSON Lines file."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

from trainer.errors import TrainerError, cannot_write
from trainer.files import PRIVATE, open_file
from trainer.plurals import counted
from trainer.reward_model.predictions import PairPrediction
from workbench.kit.dialog import TextPromptScreen
from workbench.kit.file_names import no_name, path_to_write, unused
from workbench.kit.pane import Pane


async def ask_and_write(pane: Pane, pairs: Sequence[PairPrediction]) -> None:
    """Ask for a file, and save the pairs in it."""
    name = await asyncio.to_thread(unused, Path("pairs.jsonl"))

    async def write(text: str) -> str:
        try:
            path = await asyncio.to_thread(lambda: write_pairs(pairs, path_to_write(text)))
        except TrainerError as error:
            return str(error)
        pane.confirm(f"Saved '{path}'")
        return ""

    pane.app.push_screen(TextPromptScreen(f"Save {counted(len(pairs), 'pair')} as", str(name), no_name, write))


def write_pairs(pairs: Sequence[PairPrediction], path: Path) -> Path:
    """Write a row for each pair, with its texts, rewards, lengths and lead, to a new file; return its path.

    The columns prompt, chosen and rejected can be imported as preferences. Raises StorageError if the file cannot be
    written.
    """
    try:
        with os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(pair._asdict())}\n" for pair in pairs)
    except OSError as error:
        raise cannot_write(f"'{path}'", error) from None
    return path
