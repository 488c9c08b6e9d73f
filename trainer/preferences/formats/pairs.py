"""Preferences from rows of two completions, whatever their columns are called."""

from __future__ import annotations

from typing import Any

from trainer.data.files import SourceRow
from trainer.preferences.formats.judgements import judgement_fields
from trainer.preferences.formats.provenance import Provenance, read_provenance
from trainer.preferences.formats.values import ColumnNames, number_of, others
from trainer.preferences.records import Choice, Comparison, Judgement, Origin, Preference, Text


def pair_preference(
    row: SourceRow,
    names: ColumnNames,
    source: str,
    prompt: Text,
    completions: tuple[Text, Text],
    choice: Choice,
    *,
    sides: tuple[str, str],
    used: tuple[str, ...],
) -> Preference:
    """Build the preference of two completions that `row` calls `sides`; columns not `used` stay with it.

    Raises DataError for values that break a rule.
    """
    known = read_provenance(row, sides) or _known(row, names, source, used)
    return Preference(
        comparison=Comparison(prompt=prompt, completions=completions, origins=known.origins, columns=known.columns),
        judgement=Judgement.chosen(choice, **judgement_fields(known.judgement, 2, row.place)),
    )


def _known(row: SourceRow, names: ColumnNames, source: str, used: tuple[str, ...]) -> Provenance:
    given: dict[str, Any] = {
        "strength": names.strength and number_of(row.columns.get(names.strength)),
        "labeller": names.labeller and row.columns.get(names.labeller),
        "note": names.note and row.columns.get(names.note),
    }
    judgement = {field: value for field, value in given.items() if value not in ("", None)}
    columns = others(row, *used, names.strength, names.labeller, names.note)
    return Provenance(judgement, (Origin(source=source),) * 2, columns)
