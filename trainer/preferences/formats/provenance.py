"""Columns for what is known of a preference besides its texts and its choice, and back.

What has no fixed shape is JSON in a string, so that every row has the same types and any reader loads the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from trainer.data.files import SourceRow
from trainer.errors import DataError
from trainer.preferences.formats.judgements import judgement_values, origin_of, origin_values
from trainer.preferences.formats.values import from_json, plain
from trainer.preferences.records import Origin, Preference


class Provenance(NamedTuple):
    """Contents of those columns in a row."""

    judgement: dict[str, Any]
    origins: tuple[Origin, ...]
    columns: dict[str, Any]


def provenance_columns(sides: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns, for completions that a format calls `sides`."""
    return (*(f"{side}_origin" for side in sides), "judgement", "columns")


def provenance_values(preference: Preference, sides: Sequence[str]) -> dict[str, Any]:
    """Return the columns of `preference`, whose completions are called `sides` in their order."""
    comparison = preference.comparison
    origins: list[dict[str, Any] | None] = [_flat(origin) for origin in comparison.origins]
    values = (*(origins or [None for _ in sides]), judgement_values(preference.judgement), _json(comparison.columns))
    return dict(zip(provenance_columns(sides), values, strict=True))


def read_provenance(row: SourceRow, sides: Sequence[str]) -> Provenance | None:
    """Read what `provenance_values` wrote; None if the row lacks one of the columns. Raises DataError."""
    names = provenance_columns(sides)
    if not row.columns.keys() >= set(names):
        return None
    *given, judgement, columns = (from_json(row.columns[name] or None, row.place, name) for name in names)
    origins = tuple(origin_of(origin, row.place) for origin in given if origin is not None)
    if len(origins) not in (0, len(sides)):
        raise DataError(f"{row.place}: {', '.join(names[: len(sides)])} must be told together or not at all")
    for name, value in (("judgement", judgement), ("columns", columns)):
        if not isinstance(value or {}, dict):
            raise DataError(f"{row.place}: {name} must be an object")
    return Provenance(judgement or {}, origins, columns or {})


def _flat(origin: Origin) -> dict[str, Any]:
    return origin_values(origin) | {"sampling": _json(origin.sampling)}


def _json(value: dict[str, Any]) -> str:
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)
