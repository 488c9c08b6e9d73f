"""Everything known of a preference as plain values: in rows of our own format, and in columns beside another's.

In such columns, what has no fixed shape is JSON in a string, so that every row has the same types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Literal, NamedTuple

from trainer.data.readers import SourceRow
from trainer.errors import DataError, shortened
from trainer.preferences.formats.values import (
    ColumnNames,
    Fits,
    checked_fields,
    completion_cells,
    from_json,
    is_number,
    other_columns,
    plain,
    plain_json,
    text,
    text_cell,
)
from trainer.preferences.records import LATEST, STRENGTHS, Comparison, Judgement, Origin, Preference, Verdict, is_tie

VERSION = 1
Row = dict[str, Any]
Ties = Literal["keep", "drop"]

_VERDICTS = ("ranked", "both_bad", "skip")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list_of(value: Any, fits: Fits) -> bool:
    return isinstance(value, list) and all(map(fits, value))


_TEXT: tuple[Fits, str] = (_is_text, "a string")
_WHOLE: tuple[Fits, str] = (_is_whole, "a whole number")
_JUDGEMENT: dict[str, tuple[Fits, str]] = {
    "strength": (lambda one: _is_whole(one) and one in STRENGTHS, f"one of {', '.join(map(str, STRENGTHS))}"),
    "labeller": _TEXT,
    "note": _TEXT,
    "flags": (lambda one: _is_list_of(one, _is_text), "a list of strings"),
    "seconds": (lambda one: is_number(one) and 0 <= one < LATEST, f"a number from 0 to {LATEST:,}"),
    "order_shown": (lambda one: _is_list_of(one, _is_whole), "places"),  # which ones depends on the comparison
    "guidelines": _TEXT,
    "time": (lambda one: is_number(one) and 0 <= one < LATEST, f"seconds since 1970, below {LATEST:,}"),
}
_ORIGIN = {"source": _TEXT, "run": _TEXT, "iteration": _WHOLE, "row": _WHOLE, "checkpoint": _TEXT, "writer": _TEXT}
_ORIGIN_FIELDS = tuple(field.name for field in fields(Origin))
_FIELDS = ("version", "prompt", "completions", "verdict", "ranking", *_JUDGEMENT, "origins", "columns")


class WriteOptions(NamedTuple):
    """Options of a file that is written. left_out: counts what a format leaves out, by reason."""

    ties: Ties
    provenance: bool
    left_out: Counter[str]


class Provenance(NamedTuple):
    """Contents of the columns for what is known besides texts and choice."""

    judgement: dict[str, Any]
    origins: tuple[Origin, ...]
    columns: dict[str, Any]


def k_way_rows(preference: Preference, options: WriteOptions) -> Iterator[Row]:
    """Yield the row of a preference; none for a tie that is to be dropped."""
    if options.ties == "drop" and is_tie(preference.judgement):
        options.left_out["tie"] += 1
    else:
        yield k_way_row(preference)


def k_way_row(preference: Preference) -> Row:
    """Return everything in `preference` but the id, which belongs to a store."""
    comparison, judgement = preference.comparison, preference.judgement
    return {
        "version": VERSION,
        "prompt": comparison.prompt,
        "completions": list(comparison.completions),
        "verdict": judgement.verdict,
        "ranking": [list(group) for group in judgement.ranking],
        **_judgement_values(judgement),
        "origins": [_origin_values(origin) for origin in comparison.origins],
        "columns": comparison.columns,
    }


def read_k_way(row: SourceRow, _names: ColumnNames, _source: str) -> Preference:
    """Read the preference in such a row; prompt, completions and ranking are enough, unknown fields go to the columns.

    What was recorded is kept as it is: equal completions that were ranked apart stay so. Raises DataError.
    """
    place, version = row.place, row.columns.get("version")
    if version is not None and version != VERSION:
        raise DataError(f"{place}: version is {shortened(repr(version))}, this program reads {VERSION}: update it")
    given = completion_cells(row)
    completions = tuple(text(one, place, f"completion {number}") for number, one in enumerate(given, 1))
    k = len(completions)
    verdict: Verdict = row.columns.get("verdict") or "ranked"
    if verdict not in _VERDICTS:
        raise DataError(f"{place}: verdict is {shortened(repr(verdict))}: must be one of {', '.join(_VERDICTS)}")
    origins = row.columns.get("origins") or []
    if not isinstance(origins, list) or len(origins) not in (0, k):
        raise DataError(f"{place}: origins must be a list of {k}, one for each completion, or left out")
    columns = row.columns.get("columns") or {}
    if not isinstance(columns, dict):
        raise DataError(f"{place}: columns is {shortened(repr(columns))}: must be an object")
    return Preference(
        comparison=Comparison(
            prompt=text_cell(row, "prompt"),
            completions=completions,
            origins=tuple(_origin(one, place) for one in origins),
            columns={**other_columns(row, *_FIELDS), **plain(columns)},
        ),
        judgement=Judgement(
            ranking=_ranking(row, k, verdict), verdict=verdict, **judgement_fields(row.columns, k, place)
        ),
    )


def _ranking(row: SourceRow, k: int, verdict: str) -> tuple[tuple[int, ...], ...]:
    ranking = row.columns.get("ranking") or []
    fits = _is_list_of(ranking, lambda group: bool(group) and _is_list_of(group, _is_whole))
    places = sorted(place for group in ranking for place in group) if fits else None
    if verdict == "ranked" and places != list(range(k)):
        raise DataError(
            f"{row.place}: ranking is {shortened(repr(ranking))}: must be groups of the places 0 to {k - 1}, "
            "best first, as in [[1], [0, 2]]"
        )
    if verdict != "ranked" and places != []:
        raise DataError(
            f"{row.place}: ranking is {shortened(repr(ranking))}: must be left out where the verdict is {verdict}"
        )
    return tuple(tuple(group) for group in ranking)


def provenance_values(preference: Preference, sides: Sequence[str]) -> dict[str, Any]:
    """Return the columns of `preference`, whose completions are called `sides` in their order."""
    comparison = preference.comparison
    origins: list[dict[str, Any] | None] = [
        _origin_values(origin) | {"sampling": plain_json(origin.sampling)} for origin in comparison.origins
    ]
    columns = plain_json(comparison.columns)
    values = (*(origins or [None for _ in sides]), _judgement_values(preference.judgement), columns)
    return dict(zip(_provenance_columns(sides), values, strict=True))


def read_provenance(row: SourceRow, sides: Sequence[str]) -> Provenance | None:
    """Read what `provenance_values` wrote; None if the row lacks one of the columns. Raises DataError."""
    names = _provenance_columns(sides)
    if not row.columns.keys() >= set(names):
        return None
    *given, judgement, columns = (from_json(row.columns[name] or None, row.place, name) for name in names)
    origins = tuple(_origin(origin, row.place) for origin in given if origin is not None)
    if len(origins) not in (0, len(sides)):
        raise DataError(f"{row.place}: {' and '.join(names[: len(sides)])} must be given together or not at all")
    for name, value in (("judgement", judgement), ("columns", columns)):
        if not isinstance(value or {}, dict):
            raise DataError(f"{row.place}: {name} must be an object")
    return Provenance(judgement or {}, origins, columns or {})


def judgement_fields(values: dict[str, Any], k: int, place: str) -> dict[str, Any]:
    """Return the keyword arguments of a Judgement of `k` completions, but verdict and ranking.

    values: some or all of them, as plain values. Raises DataError for a value that breaks a rule.
    """
    order_shown: tuple[Fits, str] = (
        lambda one: _is_list_of(one, _is_whole) and len(set(one)) == len(one) and set(one) <= set(range(k)),
        f"places from 0 to {k - 1}, none twice",
    )
    return checked_fields(values, _JUDGEMENT | {"order_shown": order_shown}, place)


def _provenance_columns(sides: Sequence[str]) -> tuple[str, ...]:
    return (*(f"{side}_origin" for side in sides), "judgement", "columns")


def _judgement_values(judgement: Judgement) -> dict[str, Any]:
    """Return all fields of a judgement but verdict and ranking, which each format writes its own way."""
    values = {name: getattr(judgement, name) for name in _JUDGEMENT}
    return values | {"flags": list(judgement.flags), "order_shown": list(judgement.order_shown)}


def _origin_values(origin: Origin) -> dict[str, Any]:
    return {name: getattr(origin, name) for name in _ORIGIN_FIELDS}


def _origin(values: Any, place: str) -> Origin:
    """Build the Origin from its plain values; sampling is an object or its JSON. Raises DataError."""
    if not isinstance(values, dict):
        raise DataError(f"{place}: an origin must be an object")
    sampling = from_json(values.get("sampling") or {}, place, "sampling")
    if not isinstance(sampling, dict):
        raise DataError(f"{place}: sampling must be an object")
    return Origin(sampling=sampling, **checked_fields(values, _ORIGIN, place))
