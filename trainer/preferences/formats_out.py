"""Preferences written in the formats of other trainers, and in our own, which can hold all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trainer.errors import DataError, UsageError
from trainer.preferences.conversations import as_messages
from trainer.preferences.formats.k_way import k_way_row
from trainer.preferences.formats.provenance import provenance_values
from trainer.preferences.formats.writers import write_rows
from trainer.preferences.rankings import is_tie, ranked_pairs, tied_pairs
from trainer.preferences.records import Comparison, Judgement, Preference

Ties = Literal["keep", "drop"]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """Result of writing preferences: rows in the file, and how much was left out, by reason."""

    path: Path
    rows: int
    left_out: dict[str, int]


class FormatOut(NamedTuple):
    """A format to write: how to make the rows of a preference, and the suffixes that can hold them."""

    rows: Callable[[Preference, _Options, Counter[str]], Iterator[Row]]
    suffixes: tuple[str, ...] = (".jsonl", ".parquet")
    conversational: bool = False  # all texts become messages


class _Options(NamedTuple):
    ties: Ties
    provenance: bool


def write_preferences(
    preferences: Iterable[Preference],
    path: Path,
    *,
    format: str,
    ties: Ties = "keep",
    provenance: bool = False,
    overwrite: bool = False,
) -> Written:
    """Write `preferences` to `path` in one of FORMATS_OUT.

    ties: keep those that the format can hold, or drop all of them. provenance: add columns with everything else that is
    known: origins, judgement, the source's other columns. overwrite: replace an existing file.

    Raises UsageError for an unknown format, a suffix that the format does not support, and an existing file; DataError
    if nothing is left to write, or if text and messages are mixed in a format that keeps both as they are; StorageError
    if the file cannot be written. On an error, nothing is left behind.
    """
    if format not in FORMATS_OUT:
        raise UsageError(f"format '{format}': must be one of {', '.join(FORMATS_OUT)}")
    chosen = FORMATS_OUT[format]
    if path.suffix.lower() not in chosen.suffixes:
        raise UsageError(f"'{path}': format {format} is written to {' or '.join(chosen.suffixes)}")
    left_out: Counter[str] = Counter()
    rows = _rows(preferences, chosen, _Options(ties, provenance), left_out)
    count = 0

    def counted() -> Iterator[Row]:
        nonlocal count
        first = next(rows, None)
        if first is None:
            raise DataError(f"no preference to write as {format}{_told(left_out)}")
        for row in chain([first], rows if chosen.rows is _k_way else _alike(first, rows, format)):
            count += 1
            yield row

    write_rows(path, counted(), overwrite=overwrite)
    return Written(path, count, dict(sorted(left_out.items())))


def _rows(
    preferences: Iterable[Preference], format: FormatOut, options: _Options, left_out: Counter[str]
) -> Iterator[Row]:
    for preference in preferences:
        given = preference if format.rows is _k_way else _uniform(preference, always=format.conversational)
        yield from format.rows(given, options, left_out)


def _uniform(preference: Preference, *, always: bool) -> Preference:
    """Return `preference` with texts of one kind: messages if one of them is, or if `always`."""
    comparison = preference.comparison
    if not always and len({isinstance(text, str) for text in (comparison.prompt, *comparison.completions)}) == 1:
        return preference
    prompt, completions = as_messages(comparison.prompt, comparison.completions)
    return replace(preference, comparison=replace(comparison, prompt=prompt, completions=completions))


def _alike(first: Row, rows: Iterator[Row], format: str) -> Iterator[Row]:
    """Yield `rows`; raise DataError where their texts are not of the kind of the first one's.

    Other trainers assume that all rows of a file are like the first one.
    """
    [(name, text), *_] = first.items()
    for number, row in enumerate(rows, 2):
        if isinstance(row[name], str) != isinstance(text, str):
            kinds = ("text", "messages") if isinstance(text, str) else ("messages", "text")
            raise DataError(
                f"format {format}: row 1 is {kinds[0]}, row {number} is {kinds[1]}: write messages for all, "
                "with trl-conversational or kto-conversational"
            )
        yield row


def _trl(preference: Preference, options: _Options, left_out: Counter[str]) -> Iterator[Row]:
    for pair in _pairs(preference, left_out):
        chosen, rejected = pair.comparison.completions
        row: Row = {"prompt": pair.comparison.prompt, "chosen": chosen, "rejected": rejected}
        yield row | (provenance_values(pair, ("chosen", "rejected")) if options.provenance else {})


def _trl_implicit(preference: Preference, options: _Options, left_out: Counter[str]) -> Iterator[Row]:
    for row in _trl(preference, options, left_out):
        prompt = row.pop("prompt")
        yield row | {side: prompt + row[side] for side in ("chosen", "rejected")}


def _kto(preference: Preference, options: _Options, left_out: Counter[str]) -> Iterator[Row]:
    """Yield the best completions as desirable and the worst as not; those between are left out."""
    comparison, judgement = preference.comparison, preference.judgement
    if judgement.verdict == "skip" or is_tie(judgement):
        left_out["skip" if judgement.verdict == "skip" else "tie"] += 1
        return
    labels = dict.fromkeys(range(len(comparison.completions)), False)
    if judgement.verdict == "ranked":
        best, *between, worst = judgement.ranking
        labels = dict.fromkeys(best, True) | dict.fromkeys(worst, False)
        left_out.update({"completion between the best and the worst": sum(map(len, between))} if between else {})
    for place, label in labels.items():
        row: Row = {"prompt": comparison.prompt, "completion": comparison.completions[place], "label": label}
        one = _part(preference, (place,), judgement)
        yield row | (provenance_values(one, ("completion",)) if options.provenance else {})


def _columns(preference: Preference, options: _Options, left_out: Counter[str]) -> Iterator[Row]:
    judgement, k = preference.judgement, len(preference.comparison.completions)
    if judgement.verdict == "skip":
        left_out["skip"] += 1
    elif judgement.verdict == "both_bad":
        for first in range(k):
            for second in range(first + 1, k):
                yield _choice_row(_part(preference, (first, second), judgement), options)
    else:
        for first, second in ranked_pairs(judgement):
            places, ranking = ((first, second), ((0,), (1,))) if first < second else ((second, first), ((1,), (0,)))
            yield _choice_row(_part(preference, places, replace(judgement, ranking=ranking)), options)
        for first, second in tied_pairs(judgement):
            if options.ties == "drop":
                left_out["tie"] += 1
            else:
                places = (min(first, second), max(first, second))
                yield _choice_row(_part(preference, places, replace(judgement, ranking=((0, 1),))), options)


def _choice_row(pair: Preference, options: _Options) -> Row:
    a, b = pair.comparison.completions
    row: Row = {"prompt": pair.comparison.prompt, "a": a, "b": b, "choice": pair.judgement.choice}
    return row | (provenance_values(pair, ("a", "b")) if options.provenance else {})


def _k_way(preference: Preference, options: _Options, left_out: Counter[str]) -> Iterator[Row]:
    if options.ties == "drop" and is_tie(preference.judgement):
        left_out["tie"] += 1
    else:
        yield k_way_row(preference)


def _pairs(preference: Preference, left_out: Counter[str]) -> Iterator[Preference]:
    """Yield every two completions where one is better, that one first."""
    judgement = preference.judgement
    if judgement.verdict != "ranked":
        left_out[judgement.verdict] += 1
        return
    if tied := sum(1 for _ in tied_pairs(judgement)):
        left_out["tie"] += tied
    for places in ranked_pairs(judgement):
        yield _part(preference, places, replace(judgement, ranking=((0,), (1,))))


def _part(preference: Preference, places: tuple[int, ...], judgement: Judgement) -> Preference:
    """Return `preference` with only the completions at `places`, in that order, judged by `judgement`."""
    comparison = preference.comparison
    shown = preference.judgement.order_shown
    return Preference(
        comparison=Comparison(
            prompt=comparison.prompt,
            completions=tuple(comparison.completions[place] for place in places),
            origins=tuple(comparison.origins[place] for place in places) if comparison.origins else (),
            columns=comparison.columns,
        ),
        judgement=replace(judgement, order_shown=tuple(places.index(place) for place in shown if place in places)),
    )


def _told(left_out: Counter[str]) -> str:
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
    return f": left out {counts}" if counts else ": there are none"


FORMATS_OUT: dict[str, FormatOut] = {
    "trl": FormatOut(_trl),
    "trl-implicit": FormatOut(_trl_implicit),
    "trl-conversational": FormatOut(_trl, conversational=True),
    "kto": FormatOut(_kto),
    "kto-conversational": FormatOut(_kto, conversational=True),
    "columns": FormatOut(_columns, (".jsonl", ".parquet", ".csv")),
    "k-way": FormatOut(_k_way, (".jsonl",)),
}
