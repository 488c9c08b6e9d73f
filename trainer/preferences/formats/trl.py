"""Rows of a chosen and a rejected text: TRL's preference formats and HH-RLHF's transcripts."""

from __future__ import annotations

from trainer.data.files import SourceRow
from trainer.errors import DataError
from trainer.preferences.conversations import (
    ASSISTANT,
    HUMAN,
    as_messages,
    split_messages,
    split_texts,
    split_transcripts,
)
from trainer.preferences.formats.pairs import pair_preference
from trainer.preferences.formats.values import ColumnNames, prompt_cell, text_cell
from trainer.preferences.records import Preference, Text

SIDES = ("chosen", "rejected")


def read_trl(row: SourceRow, names: ColumnNames, source: str) -> Preference:
    """Read a row with a column for the prompt. Raises DataError.

    If some of the three are text and some messages, all become messages. A conversation that repeats the text of the
    prompt, as in UltraFeedback binarized, is cut where the answers begin.
    """
    prompt = prompt_cell(row, names.prompt)
    chosen, rejected = text_cell(row, names.chosen), text_cell(row, names.rejected)
    if isinstance(prompt, str) and isinstance(chosen, list) and isinstance(rejected, list):
        beginning, *answers = split_messages(chosen, rejected)
        if any(message["content"] == prompt for message in beginning):
            prompt, (chosen, rejected) = beginning, answers
    if len({isinstance(one, str) for one in (prompt, chosen, rejected)}) > 1:
        prompt, (chosen, rejected) = as_messages(prompt, (chosen, rejected))
    parts = (prompt, chosen, rejected)
    return _preference(row, names, source, parts, (names.prompt, names.chosen, names.rejected))


def read_trl_implicit(row: SourceRow, names: ColumnNames, source: str) -> Preference:
    """Read a row whose prompt is what both texts begin with: messages, turns of a transcript, or words.

    Raises DataError.
    """
    chosen, rejected = text_cell(row, names.chosen), text_cell(row, names.rejected)
    parts: tuple[Text, Text, Text] | None = None
    if isinstance(chosen, list) and isinstance(rejected, list):
        parts = split_messages(chosen, rejected)
    elif isinstance(chosen, str) and isinstance(rejected, str):
        both = chosen.startswith(HUMAN) and rejected.startswith(HUMAN)
        parts = split_transcripts(chosen, rejected) if both else split_texts(chosen, rejected)
    if parts is None or not parts[0]:
        raise DataError(
            f"{row.place}: {names.chosen} and {names.rejected} have no common beginning to be the prompt: "
            "give it a column of its own"
        )
    return _preference(row, names, source, parts, (names.chosen, names.rejected))


def read_hh(row: SourceRow, names: ColumnNames, source: str) -> Preference:
    """Read a row of two transcripts, cut after the last "Assistant:" that both begin with. Raises DataError."""
    chosen, rejected = text_cell(row, names.chosen), text_cell(row, names.rejected)
    parts = split_transcripts(chosen, rejected) if isinstance(chosen, str) and isinstance(rejected, str) else None
    if parts is None:
        raise DataError(
            f"{row.place}: {names.chosen} and {names.rejected} share no {ASSISTANT!r}: must be transcripts "
            "that begin alike; take the row out, or read the source as trl-implicit"
        )
    return _preference(row, names, source, parts, (names.chosen, names.rejected))


def _preference(
    row: SourceRow, names: ColumnNames, source: str, parts: tuple[Text, Text, Text], used: tuple[str, ...]
) -> Preference:
    prompt, *completions = parts
    return pair_preference(row, names, source, prompt, (completions[0], completions[1]), "a", sides=SIDES, used=used)
