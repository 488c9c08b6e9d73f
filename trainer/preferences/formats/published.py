"""Rows of each format, read and made: TRL, HH-RLHF, UltraFeedback, Arena, KTO, columns with a choice, and k-way."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any, get_args

from trainer.data.readers import SourceRow
from trainer.errors import DataError, UsageError, shortened
from trainer.preferences.formats.columns import (
    ColumnNames,
    WriteOptions,
    number_of,
    other_columns,
    plain,
    prompt_cell,
    provenance_values,
    read_provenance,
    split_cells,
    split_messages,
    split_transcripts,
    text_cell,
)
from trainer.preferences.records import (
    ASSISTANT,
    Choice,
    Comparison,
    Judgement,
    Origin,
    Preference,
    Text,
    as_messages,
    is_tie,
    ranked_pairs,
    tied_pairs,
)
from trainer.preferences.rows import (
    K_WAY_FIELDS,
    VERSION,
    Row,
    cell,
    completions_of,
    preference_values,
    read_judgement,
    read_preference,
    text,
)

_TRL_SIDES = ("chosen", "rejected")
_CHOICE_SIDES = ("a", "b")
_CHOICES: dict[Any, Choice] = {
    1: "a",
    2: "b",
    "model_a": "a",
    "model_b": "b",
    **dict.fromkeys(("both bad", "bothbad", "tie (bothbad)", "tie (both bad)"), "both_bad"),
    **{name: name for name in get_args(Choice)},
}
_ARENA_SIDES = (("conversation_a", "conversation_b"), ("response_a", "response_b"))
_WINNERS: dict[str, Choice] = {"winner_model_a": "a", "winner_model_b": "b", "winner_tie": "tie"}  # one of them is 1
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
    used = (names.prompt, names.chosen, names.rejected)
    return _pair(row, names, source, (prompt, chosen, rejected), used)


def read_trl_implicit(row: SourceRow, names: ColumnNames, source: str) -> Preference:
    """Read a row whose prompt is what both texts begin with: messages, turns of a transcript, or words.

    Raises DataError.
    """
    return _pair(row, names, source, split_cells(row, names.chosen, names.rejected), (names.chosen, names.rejected))


def read_hh(row: SourceRow, names: ColumnNames, source: str) -> Preference:
    """Read a row of two transcripts, cut after the last "Assistant:" that both begin with. Raises DataError."""
    chosen, rejected = text_cell(row, names.chosen), text_cell(row, names.rejected)
    parts = split_transcripts(chosen, rejected) if isinstance(chosen, str) and isinstance(rejected, str) else None
    if parts is None:
        raise DataError(
            f"{row.place}: {names.chosen} and {names.rejected} share no {ASSISTANT!r}: must be transcripts "
            "that begin alike; remove the row, or read the source as trl-implicit"
        )
    return _pair(row, names, source, parts, (names.chosen, names.rejected))


def trl_rows(preference: Preference, options: WriteOptions) -> Iterator[Row]:
    """Yield a row for every two completions where one is better."""
    judgement = preference.judgement
    if judgement.verdict != "ranked":
        options.left_out[judgement.verdict] += 1
    elif tied := sum(1 for _ in tied_pairs(judgement)):
        options.left_out["tie"] += tied
    for places in ranked_pairs(judgement):
        pair = preference.at(*places)
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
    return _pair(row, names, source, parts, used, _choice(row, names), _CHOICE_SIDES)


def arena_sides(columns: Collection[str]) -> tuple[str, str] | None:
    """Return the columns of the two conversations or responses in a row of Arena; None in another row."""
    return next((sides for sides in _ARENA_SIDES if {*sides} <= {*columns}), None)


def read_arena(row: SourceRow, names: ColumnNames, source: str) -> Preference:
    """Read a row of Arena: conversations, or a prompt and responses, of model_a and model_b, and which one won.

    The winner is a word in `winner`, or a 1 in one of winner_model_a, winner_model_b and winner_tie. Raises DataError.
    """
    sides = arena_sides(row.columns)
    assert sides is not None
    is_dialogue = sides == _ARENA_SIDES[0]
    used = sides if is_dialogue else ("prompt", *sides)
    values = {name: cell(row.columns, name, row.place) for name in used}
    for name, value in values.items():
        if isinstance(value, str) and value.startswith("["):  # a list as JSON, as in CSV
            with contextlib.suppress(ValueError):
                values[name] = json.loads(value)
    prompts, *answers = values.values()
    if not is_dialogue and isinstance(prompts, list) and all(isinstance(one, list) for one in answers):  # its turns
        if len({*map(len, (prompts, *answers))}) > 1:
            raise DataError(f"{row.place}: prompt, {' and '.join(sides)} must have the same number of turns")
        for name, side in zip(sides, answers, strict=True):
            values[name] = [
                {"role": role, "content": content}
                for turn in zip(prompts, side, strict=True)
                for role, content in zip(("user", "assistant"), turn, strict=True)
            ]
        is_dialogue = True
    whole = SourceRow(row.place, values)
    if is_dialogue:
        parts = split_cells(whole, *sides)
    else:
        parts = prompt_cell(whole, "prompt"), text_cell(whole, sides[0]), text_cell(whole, sides[1])
    if "winner" in row.columns or not row.columns.keys() & _WINNERS.keys():
        choice = _choice(row, replace(names, choice="winner"))
    else:
        won = [name for name in _WINNERS if number_of(row.columns.get(name)) == 1]
        if len(won) != 1:
            given = ", ".join(f"{name} = {shortened(repr(row.columns.get(name)))}" for name in _WINNERS)
            raise DataError(f"{row.place}: {given}: exactly one must be 1")
        choice = _WINNERS[won[0]]
    return _pair(row, names, source, parts, (*used, "winner", *_WINNERS), choice, _CHOICE_SIDES)


def column_rows(preference: Preference, options: WriteOptions) -> Iterator[Row]:
    """Yield a row for every two completions, in the order of the comparison; ties as the options say."""
    judgement, k = preference.judgement, len(preference.comparison.completions)
    pairs, ties = list(ranked_pairs(judgement)), list(tied_pairs(judgement))
    if judgement.verdict == "skip":
        options.left_out["skip"] += 1
    elif judgement.verdict == "both_bad":
        pairs = list(combinations(range(k), 2))
    elif ties and options.ties == "drop":
        options.left_out["tie"] += len(ties)
        ties = []
    for places in (*pairs, *ties):
        pair = preference.at(*sorted(places))
        a, b = pair.comparison.completions
        row: Row = {"prompt": pair.comparison.prompt, "a": a, "b": b, "choice": pair.judgement.choice}
        yield row | (provenance_values(pair, _CHOICE_SIDES) if options.provenance else {})


def _choice(row: SourceRow, names: ColumnNames) -> Choice:
    """Return the choice in a row. Raises DataError, and UsageError for numbers of which the meaning is not known."""
    given = cell(row.columns, names.choice, row.place)
    value = given.strip().lower() if isinstance(given, str) else given
    value = {"true": True, "false": False}.get(value, number_of(value)) if isinstance(value, str) else number_of(value)
    wrong = f"{row.place}: column '{names.choice}' is {shortened(repr(given))}"
    if names.first and isinstance(value, int):
        if value not in (0, 1):
            raise UsageError(f"{wrong}: must be 0 or 1, or a word, with the column first={names.first}")
        return "a" if value == int(names.first) else "b"
    if isinstance(value, bool) or value == 0:
        # Not a broken row to be skipped: the rows with a 1 would then be read as if the first were 1 and the second 2.
        raise UsageError(
            f"{wrong}: which one means that {names.a} is better? Name it among the columns, as in `preferences "
            "import --column first=0` (0 is the first, 1 the second) or first=1 (1 is the first, 0 the second)"
        )
    if isinstance(value, int | float) and value not in (1, 2):
        raise UsageError(f"{wrong}: numbers must be 1 for {names.a} and 2 for {names.b}; write the choices as words")
    choice = _CHOICES.get(value) if isinstance(value, str | int) else None
    if choice is None:
        raise DataError(f"{wrong}: must be a or 1, b or 2, tie, both_bad or skip")
    return choice


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
        one = provenance_values(preference.at(place), ("completion",)) if options.provenance else {}
        yield row | one


def read_k_way(row: SourceRow, _names: ColumnNames, _source: str) -> Preference:
    """Read everything in a preference; prompt, completions and ranking are enough, unknown fields go to the columns.

    What was recorded is kept as it is: equal completions that were ranked apart stay so. Raises DataError.
    """
    version = row.columns.get("version")
    if version is not None and version != VERSION:
        raise DataError(f"{row.place}: version is {shortened(repr(version))}, this program reads {VERSION}: update it")
    found = read_preference(row.columns, row.place)
    columns = {**other_columns(row, *K_WAY_FIELDS), **plain(found.comparison.columns)}
    return replace(found, comparison=replace(found.comparison, columns=columns))


def k_way_rows(preference: Preference, options: WriteOptions) -> Iterator[Row]:
    """Yield the row of a preference; none for a tie that is to be dropped."""
    if options.ties == "drop" and is_tie(preference.judgement):
        options.left_out["tie"] += 1
    else:
        yield preference_values(preference)


def is_unjudged(row: SourceRow, names: ColumnNames) -> bool:
    """Return whether `row` can be judged: prompt with completions, prompt with a and b, or a row of Arena."""
    columns = row.columns
    completions = columns.get("completions")
    if isinstance(completions, list):
        judged = {"ranking", "verdict"} & columns.keys() or any(isinstance(one, dict) for one in completions)
        return names.prompt in columns and not judged
    return {names.prompt, names.a, names.b} <= columns.keys() or arena_sides(columns) is not None


def read_unjudged(row: SourceRow, names: ColumnNames, source: str) -> Preference:
    """Read a row that is yet to be judged, as a skip; a choice in it is left out. Raises DataError."""
    judged = (names.choice, "winner", *_WINNERS)
    row = SourceRow(row.place, {name: value for name, value in row.columns.items() if name not in judged})
    columns = row.columns
    if "completions" not in columns:
        is_arena = arena_sides(columns) is not None and not {names.prompt, names.a, names.b} <= columns.keys()
        read, choice = (read_arena, "winner") if is_arena else (read_columns, names.choice)
        return read(SourceRow(row.place, {**columns, choice: "skip"}), names, source)
    given = completions_of(columns, row.place)
    return Preference(
        comparison=Comparison(
            prompt=prompt_cell(row, names.prompt),
            completions=tuple(text(one, row.place, f"completion {number}") for number, one in enumerate(given, 1)),
            origins=(Origin(source=source),) * len(given),
            columns=other_columns(row, names.prompt, "completions"),
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
    for number, completion in enumerate(completions_of(row.columns, row.place), 1):
        fields = completion if isinstance(completion, dict) else {}
        texts.append(text(fields.get("response"), row.place, f"response {number}"))
        score: Any = fields.get(_SCORE)
        if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) < 1e300:
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


def _pair(
    row: SourceRow,
    names: ColumnNames,
    source: str,
    parts: tuple[Text, Text, Text],
    used: tuple[str, ...],
    choice: Choice = "a",
    sides: tuple[str, str] = _TRL_SIDES,
) -> Preference:
    """Build the preference of a prompt and two completions, which our provenance columns call `sides`.

    Columns not `used` stay with it. Raises DataError for values that break a rule.
    """
    known = read_provenance(row, sides)
    if known is None:
        roles = {"strength": names.strength, "labeller": names.labeller, "note": names.note}
        given = {field: row.columns.get(name) for field, name in roles.items() if name}
        if "strength" in given:
            given["strength"] = number_of(given["strength"])
        writers = ("model_a", "model_b") if arena_sides(row.columns) else ("", "")
        known = {
            "judgement": {field: value for field, value in given.items() if value != ""},
            "origins": tuple(Origin(source=source, writer=str(row.columns.get(one) or "")) for one in writers),
            "columns": other_columns(row, *used, *roles.values()),
        }
    chosen = Judgement.chosen(choice)
    judgement = known.pop("judgement") | {"verdict": chosen.verdict, "ranking": chosen.ranking}
    return Preference(
        comparison=Comparison(prompt=parts[0], completions=parts[1:], **known),
        judgement=read_judgement(judgement, 2, row.place),
    )
