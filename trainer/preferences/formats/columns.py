"""Rows of a prompt, two completions and a choice between them."""

from __future__ import annotations

from typing import Any

from trainer.data.files import SourceRow
from trainer.errors import DataError
from trainer.preferences.formats.pairs import pair_preference
from trainer.preferences.formats.values import ColumnNames, cell, number_of, prompt_cell, shortened, text_cell
from trainer.preferences.records import Choice, Preference

SIDES = ("a", "b")
_CHOICES: dict[Any, Choice] = {
    1: "a",
    2: "b",
    "a": "a",
    "b": "b",
    "tie": "tie",
    "both_bad": "both_bad",
    "both bad": "both_bad",
    "skip": "skip",
}


def read_columns(row: SourceRow, names: ColumnNames, source: str) -> Preference:
    """Read the preference in such a row. Raises DataError."""
    prompt = prompt_cell(row, names.prompt)
    completions = (text_cell(row, names.a), text_cell(row, names.b))
    used = (names.prompt, names.a, names.b, names.choice)
    return pair_preference(row, names, source, prompt, completions, _choice(row, names.choice), sides=SIDES, used=used)


def _choice(row: SourceRow, name: str) -> Choice:
    given = cell(row, name)
    value = number_of(given)
    value = value.strip().lower() if isinstance(value, str) else value
    choice = _CHOICES.get(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
    if choice is None:
        raise DataError(
            f"{row.place}: column '{name}' is {shortened(given)}: must be a or 1, b or 2, tie, both_bad or skip"
        )
    return choice
