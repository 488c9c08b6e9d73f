"""Formats that others publish and train on: TRL's, HH-RLHF's, UltraFeedback's, KTO's, and columns with a choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any, get_args

from trainer.data.readers import SourceRow
from trainer.errors import DataError, shortened
from trainer.preferences.conversations import (
    ASSISTANT,
    HUMAN,
    as_messages,
    split_messages,
    split_texts,
    split_transcripts,
)
from trainer.preferences.formats.k_way import (
    Provenance,
    Row,
    WriteOptions,
    judgement_fields,
    provenance_values,
    read_provenance,
)
from trainer.preferences.formats.values import (
    ColumnNames,
    cell,
    completion_cells,
    is_number,
    number_of,
    other_columns,
    prompt_cell,
    text,
    text_cell,
)
from trainer.preferences.records import (
    Choice,
    Comparison,
    Judgement,
    Origin,
    Preference,
    Text,
    columns_at,
    is_tie,
    ranked_pairs,
    tied_pairs,
)

_TRL_SIDES = ("chosen", "rejected")
_CHOICE_SIDES = ("a", "b")
_CHOICES: dict[Any, Choice] = {1: "a", 2: "b", "both bad": "both_bad", **{name: name for name in get_args(Choice)}}
_SCORE = "overall_score"  # of a completion in UltraFeedback


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
    return _chosen(row, names, source, (prompt, chosen, rejected), names.prompt)


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
    return _chosen(row, names, source, parts)


def read_hh(row: SourceRow, names: ColumnNames, source: str) -> Preference:
    """Read a row of two transcripts, cut after the last "Assistant:" that both begin with. Raises DataError."""
    chosen, rejected = text_cell(row, names.chosen), text_cell(row, names.rejected)
    parts = split_transcripts(chosen, rejected) if isinstance(chosen, str) and isinstance(rejected, str) else None
    if parts is None:
        raise DataError(
            f"{row.place}: {names.chosen} and {names.rejected} share no {ASSISTANT!r}: must be transcripts "
            "that begin alike; remove the row, or read the source as trl-implicit"
        )
    return _chosen(row, names, source, parts)


def trl_rows(preference: Preference, options: WriteOptions) -> Iterator[Row]:
    """Yield a row for every two completions where one is better."""
    judgement = preference.judgement
    if judgement.verdict != "ranked":
        options.left_out[judgement.verdict] += 1
        return
    if tied := sum(1 for _ in tied_pairs(judgement)):
        options.left_out["tie"] += tied
    for places in ranked_pairs(judgement):
        pair = _part(preference, places, replace(judgement, ranking=((0,), (1,))))
        chosen, rejected = pair.comparison.completions
        row: Row = {"prompt": pair.comparison.prompt, "chosen": chosen, "rejected": rejected}
        yield row | (provenance_values(pair, _TRL_SIDES) if options.provenance else {})


def trl_implicit_rows(preference: Preference, options: WriteOptions) -> Iterator[Row]:
    """Yield rows as `trl_rows` does, with the prompt at the beginning of both texts."""
    for row in trl_rows(preference, options):
        prompt = row.pop("prompt")
        yield row | {side: prompt + row[side] for side in _TRL_SIDES}


def read_columns(row: SourceRow, names: ColumnNames, source: str) -> Preference:
    """Read a row of a prompt, two completions and a choice between them. Raises DataError."""
    parts = (prompt_cell(row, names.prompt), text_cell(row, names.a), text_cell(row, names.b))
    used = (names.prompt, names.a, names.b, names.choice)
    return _pair(row, names, source, parts, _choice(row, names.choice), _CHOICE_SIDES, used)


def column_rows(preference: Preference, options: WriteOptions) -> Iterator[Row]:
    """Yield a row for every two completions, in the order of the comparison; ties as the options say."""
    judgement, k = preference.judgement, len(preference.comparison.completions)
    if judgement.verdict == "skip":
        options.left_out["skip"] += 1
    elif judgement.verdict == "both_bad":
        for places in combinations(range(k), 2):
            yield _choice_row(_part(preference, places, judgement), options)
    else:
        for first, second in ranked_pairs(judgement):
            places, ranking = ((first, second), ((0,), (1,))) if first < second else ((second, first), ((1,), (0,)))
            yield _choice_row(_part(preference, places, replace(judgement, ranking=ranking)), options)
        for first, second in tied_pairs(judgement):
            if options.ties == "drop":
                options.left_out["tie"] += 1
            else:
                places = (min(first, second), max(first, second))
                yield _choice_row(_part(preference, places, replace(judgement, ranking=((0, 1),))), options)


def _choice(row: SourceRow, name: str) -> Choice:
    given = cell(row, name)
    value = number_of(given)
    value = value.strip().lower() if isinstance(value, str) else value
    choice = _CHOICES.get(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
    if choice is None:
        raise DataError(
            f"{row.place}: column '{name}' is {shortened(repr(given))}: must be a or 1, b or 2, tie, both_bad or skip"
        )
    return choice


def _choice_row(pair: Preference, options: WriteOptions) -> Row:
    a, b = pair.comparison.completions
    row: Row = {"prompt": pair.comparison.prompt, "a": a, "b": b, "choice": pair.judgement.choice}
    return row | (provenance_values(pair, _CHOICE_SIDES) if options.provenance else {})


def kto_rows(preference: Preference, options: WriteOptions) -> Iterator[Row]:
    """Yield the best completions as desirable and the worst as not; those between are left out."""
    comparison, judgement = preference.comparison, preference.judgement
    if judgement.verdict == "skip" or is_tie(judgement):
        options.left_out["skip" if judgement.verdict == "skip" else "tie"] += 1
        return
    labels = dict.fromkeys(range(len(comparison.completions)), False)
    if judgement.verdict == "ranked":
        best, *between, worst = judgement.ranking
        labels = dict.fromkeys(best, True) | dict.fromkeys(worst, False)
        if between:
            options.left_out["completion between the best and the worst"] += sum(map(len, between))
    for place, label in labels.items():
        row: Row = {"prompt": comparison.prompt, "completion": comparison.completions[place], "label": label}
        one = _part(preference, (place,), judgement)
        yield row | (provenance_values(one, ("completion",)) if options.provenance else {})


def is_unjudged(row: SourceRow) -> bool:
    """Return whether `row` is yet to be judged: prompt and completions, or prompt, a and b."""
    columns = row.columns
    completions = columns.get("completions")
    if isinstance(completions, list):
        judged = {"ranking", "verdict"} & columns.keys() or any(isinstance(one, dict) for one in completions)
        return "prompt" in columns and not judged
    return {"prompt", "a", "b"} <= columns.keys() and "choice" not in columns


def read_unjudged(row: SourceRow, _names: ColumnNames, source: str) -> Preference:
    """Read a row that is yet to be judged, as a skip. Raises DataError."""
    columns = row.columns
    given = completion_cells(row) if "completions" in columns else [columns.get(name) for name in _CHOICE_SIDES]
    completions = tuple(text(one, row.place, f"completion {number}") for number, one in enumerate(given, 1))
    return Preference(
        comparison=Comparison(
            prompt=prompt_cell(row, "prompt"),
            completions=completions,
            origins=(Origin(source=source),) * len(completions),
            columns=other_columns(row, "prompt", "completions", *_CHOICE_SIDES),
        ),
        judgement=Judgement.chosen("skip"),
    )


def read_ultrafeedback(row: SourceRow, names: ColumnNames, source: str) -> Preference:
    """Read all completions of a row, ranked by their score; equal scores are a tie. Raises DataError.

    The model that wrote a completion goes to its origin, the scores to the column `scores`; critiques and the scores'
    parts are left out.
    """
    prompt = names.prompt if names.prompt in row.columns else "instruction"
    texts, scores, origins = [], [], []
    for number, completion in enumerate(completion_cells(row), 1):
        fields = completion if isinstance(completion, dict) else {}
        texts.append(text(fields.get("response"), row.place, f"response {number}"))
        score: Any = fields.get(_SCORE)
        if not is_number(score):
            shown = shortened(repr(score))
            raise DataError(f"{row.place}: {_SCORE} of completion {number} is {shown}: must be a number")
        scores.append(float(score))
        origins.append(Origin(source=source, writer=str(fields.get("model") or "")))
    ranking = tuple(
        tuple(place for place, one in enumerate(scores) if one == score) for score in sorted(set(scores), reverse=True)
    )
    return Preference(
        comparison=Comparison(
            prompt=prompt_cell(row, prompt),
            completions=tuple(texts),
            origins=tuple(origins),
            columns={**other_columns(row, prompt, "completions", "models"), "scores": scores},
        ),
        judgement=Judgement(ranking=ranking),
    )


def _chosen(row: SourceRow, names: ColumnNames, source: str, parts: tuple[Text, Text, Text], *used: str) -> Preference:
    used = (*used, names.chosen, names.rejected)
    return _pair(row, names, source, parts, "a", _TRL_SIDES, used)


def _pair(
    row: SourceRow,
    names: ColumnNames,
    source: str,
    parts: tuple[Text, Text, Text],
    choice: Choice,
    sides: tuple[str, str],
    used: tuple[str, ...],
) -> Preference:
    """Build the preference of a prompt and two completions, which our provenance columns call `sides`.

    Columns not `used` stay with it. Raises DataError for values that break a rule.
    """
    prompt, *completions = parts
    known = read_provenance(row, sides)
    if known is None:
        given: dict[str, Any] = {
            "strength": names.strength and number_of(row.columns.get(names.strength)),
            "labeller": names.labeller and row.columns.get(names.labeller),
            "note": names.note and row.columns.get(names.note),
        }
        known = Provenance(
            {field: value for field, value in given.items() if value not in ("", None)},
            (Origin(source=source),) * 2,
            other_columns(row, *used, names.strength, names.labeller, names.note),
        )
    return Preference(
        comparison=Comparison(
            prompt=prompt, completions=tuple(completions), origins=known.origins, columns=known.columns
        ),
        judgement=Judgement.chosen(choice, **judgement_fields(known.judgement, 2, row.place)),
    )


def _part(preference: Preference, places: tuple[int, ...], judgement: Judgement) -> Preference:
    """Return `preference` with only the completions at `places`, in that order, judged by `judgement`."""
    comparison = preference.comparison
    shown = preference.judgement.order_shown
    return Preference(
        comparison=Comparison(
            prompt=comparison.prompt,
            completions=tuple(comparison.completions[place] for place in places),
            origins=tuple(comparison.origins[place] for place in places) if comparison.origins else (),
            columns=columns_at(comparison.columns, places, len(comparison.completions)),
        ),
        judgement=replace(judgement, order_shown=tuple(places.index(place) for place in shown if place in places)),
    )
