"""Our own rows: a comparison of any number of completions, with all that is known of it and its judgement."""

from __future__ import annotations

from typing import Any

from trainer.data.files import SourceRow
from trainer.errors import DataError
from trainer.preferences.formats.judgements import (
    is_order,
    judgement_fields,
    judgement_values,
    origin_of,
    origin_values,
)
from trainer.preferences.formats.values import (
    ColumnNames,
    cell,
    is_list_of,
    is_whole,
    others,
    plain,
    shortened,
    text,
    text_cell,
)
from trainer.preferences.records import Comparison, Judgement, Preference, Verdict

VERSION = 1
_VERDICTS = ("ranked", "both_bad", "skip")
_FIELDS = (
    "version",
    "prompt",
    "completions",
    "verdict",
    "ranking",
    *judgement_values(Judgement()),
    "origins",
    "columns",
)


def k_way_row(preference: Preference) -> dict[str, Any]:
    """Return everything in `preference` but the id, which belongs to a store."""
    comparison, judgement = preference.comparison, preference.judgement
    return {
        "version": VERSION,
        "prompt": comparison.prompt,
        "completions": list(comparison.completions),
        "verdict": judgement.verdict,
        "ranking": [list(group) for group in judgement.ranking],
        **judgement_values(judgement),
        "origins": [origin_values(origin) for origin in comparison.origins],
        "columns": comparison.columns,
    }


def read_k_way(row: SourceRow, _names: ColumnNames, _source: str) -> Preference:
    """Read the preference in such a row; prompt, completions and ranking are enough, unknown fields go to the columns.

    What was recorded is kept as it is: equal completions that were ranked apart stay so. Raises DataError.
    """
    place, version = row.place, row.columns.get("version")
    if version is not None and version != VERSION:
        raise DataError(f"{place}: version is {shortened(version)}, this program reads {VERSION}: update it")
    given = cell(row, "completions")
    if not isinstance(given, list) or len(given) < 2:
        raise DataError(f"{place}: completions is {shortened(given)}: must be a list of two or more")
    completions = tuple(text(one, place, f"completion {number}") for number, one in enumerate(given, 1))
    k = len(completions)
    verdict: Verdict = row.columns.get("verdict") or "ranked"
    if verdict not in _VERDICTS:
        raise DataError(f"{place}: verdict is {shortened(verdict)}: must be one of {', '.join(_VERDICTS)}")
    origins = row.columns.get("origins") or []
    if not isinstance(origins, list) or len(origins) not in (0, k):
        raise DataError(f"{place}: origins must be a list of {k}, one for each completion, or left out")
    columns = row.columns.get("columns") or {}
    if not isinstance(columns, dict):
        raise DataError(f"{place}: columns is {shortened(columns)}: must be an object")
    return Preference(
        comparison=Comparison(
            prompt=text_cell(row, "prompt"),
            completions=completions,
            origins=tuple(origin_of(one, place) for one in origins),
            columns={**others(row, *_FIELDS), **plain(columns)},
        ),
        judgement=Judgement(
            ranking=_ranking(row, k, verdict), verdict=verdict, **judgement_fields(row.columns, k, place)
        ),
    )


def _ranking(row: SourceRow, k: int, verdict: str) -> tuple[tuple[int, ...], ...]:
    ranking = row.columns.get("ranking") or []
    fits = is_list_of(ranking, lambda group: bool(group) and is_list_of(group, is_whole))
    places = [place for group in ranking for place in group] if fits else None
    if verdict == "ranked":
        if not is_order(places, k):
            raise DataError(
                f"{row.place}: ranking is {shortened(ranking)}: must be groups of the places 0 to {k - 1}, best first, "
                "as in [[1], [0, 2]]"
            )
    elif places != []:
        raise DataError(
            f"{row.place}: ranking is {shortened(ranking)}: must be left out where the verdict is {verdict}"
        )
    return tuple(tuple(group) for group in ranking)
