"""Grouping of preferences: encoded, and joined where they judge the same completions to one prompt."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from trainer.config.reward_model import PreferenceDataConfig
from trainer.errors import DataError
from trainer.plurals import counted
from trainer.preference_data.encoders import Encoder
from trainer.preference_data.groups import Groups, GroupTable, JudgedRows, Pair, Ranking, Said
from trainer.preferences.records import Preference, ranked_pairs, tied_pairs


def group_preferences(
    preferences: Iterable[Preference], encoder: Encoder, config: PreferenceDataConfig
) -> tuple[Groups, list[str]]:
    """Encode `preferences` and put those of one prompt that share a completion into one group.

    Each preference can be freed once it is read. Returns the groups in the order of the source, and warnings for the
    user, one line each.

    Judgements `both_bad` and `skip` and pairs of completions with the same tokens are ignored, and so are comparisons
    with a too long sequence if `too_long = "drop"`; the warnings count them. Raises DataError without a decided pair.
    """
    counts: Counter[str] = Counter()
    problems: list[str] = []
    rows, prompts = _encoded(preferences, encoder, config, counts, problems)
    table = GroupTable(rows)
    by_prompt = np.argsort(prompts, kind="stable").tolist()
    ends = np.cumsum(np.bincount(prompts)).tolist()
    for prompt, (start, end) in enumerate(pairwise([0, *ends])):
        _add_groups(table, prompt, by_prompt[start:end], counts)
    _check(counts, config, problems)
    warnings = [*sorted(encoder.notes), *_warnings(counts, config)]
    if problems:
        warnings.append(f"{counted(len(problems), 'comparison')} skipped as broken; the first: {problems[0]}")
    return Groups(table, np.arange(len(table.prompts)), table.judged, with_texts=True), warnings


def _encoded(
    preferences: Iterable[Preference],
    encoder: Encoder,
    config: PreferenceDataConfig,
    counts: Counter[str],
    problems: list[str],
) -> tuple[JudgedRows, array[int]]:
    """Return the judgements to learn from, and the number of the prompt of each; prompts are numbered as they come.

    problems: gets a line for each that cannot be rendered, where `skip_broken` leaves it out.
    """
    rows, prompts = JudgedRows(), array("i")
    numbers: dict[bytes, int] = {}
    for number, preference in enumerate(encoder.ahead(preferences)):
        counts["all"] += 1
        judgement, comparison = preference.judgement, preference.comparison
        if judgement.verdict != "ranked":
            counts[judgement.verdict] += 1
            continue
        place = preference.place or f"preference {number} (counted from 0)"
        try:
            sequences = [
                encoder.sequence(comparison.prompt, text, comparison.columns, place) for text in comparison.completions
            ]
        except DataError as error:
            if not config.skip_broken:
                raise DataError(f"{error} (data.skip_broken = true leaves such rows out)") from error
            problems.append(str(error))
            continue
        if any(sequence.is_cut for sequence in sequences):
            counts["cut"] += 1
            if config.too_long == "drop":
                continue
        rows.append(number, preference, sequences)
        text = json.dumps(comparison.prompt, sort_keys=True).encode()
        digest = hashlib.blake2b(text, digest_size=16).digest()  # takes less memory than a long prompt
        prompts.append(numbers.setdefault(digest, len(numbers)))
    return rows, prompts


def _add_groups(table: GroupTable, prompt: int, judged: Sequence[int], counts: Counter[str]) -> None:
    """Add the groups of one prompt: judgements, by their rows, that share completions go into one group."""
    rows = table.rows
    tokens = {row: [rows.tokens[sequence].tobytes() for sequence in rows.sequences(row)] for row in judged}
    leaders = _leaders(tokens.values())
    groups: dict[bytes, list[int]] = {}
    for row in judged:
        groups.setdefault(leaders[tokens[row][0]], []).append(row)
    for members in groups.values():
        _add_group(table, prompt, members, tokens, counts)


def _leaders(linked: Iterable[Sequence[bytes]]) -> dict[bytes, bytes]:
    """Return one of the completions that are `linked` with each, the same one for all of them."""
    leader: dict[bytes, bytes] = {}

    def find(tokens: bytes) -> bytes:
        while leader.setdefault(tokens, tokens) != tokens:
            tokens = leader[tokens]
        return tokens

    for first, *others in linked:
        for other in others:
            leader[find(other)] = find(first)
    return {tokens: find(tokens) for tokens in leader}


def _add_group(
    table: GroupTable, prompt: int, members: Sequence[int], tokens: dict[int, list[bytes]], counts: Counter[str]
) -> None:
    """Add the group of the rows `members`, unless it has no pair."""
    rows = table.rows
    places: dict[bytes, int] = {}
    sequences: list[int] = []
    judged: dict[int, tuple[tuple[Pair, ...], Ranking | None]] = {}
    seen: set[tuple[object, ...]] = set()
    for row in members:
        keys, said = tokens[row], rows.said(row)
        for key, sequence in zip(keys, rows.sequences(row), strict=True):
            if key not in places:
                places[key] = len(sequences)
                sequences.append(sequence)
        pairs, ranking = _pairs(said, [places[key] for key in keys], counts)
        if pairs:
            judged[row] = pairs, ranking
        words = (frozenset(keys), tuple(frozenset(keys[place] for place in rank) for rank in said.judgement.ranking))
        counts["repeated"] += words in seen
        seen.add(words)
    if judged:
        table.append(prompt, members[0], sequences, judged)


def _pairs(said: Said, places: Sequence[int], counts: Counter[str]) -> tuple[tuple[Pair, ...], Ranking | None]:
    judgement, pairs = said.judgement, []
    for is_tie, found in ((False, ranked_pairs(judgement)), (True, tied_pairs(judgement))):
        for better, worse in found:
            if places[better] == places[worse]:
                counts["equal"] += 1
                continue
            pairs.append(Pair(places[better], places[worse], is_tie, judgement.strength, said.source))
            counts["ties" if is_tie else "decided"] += 1
    ranks = {places[place]: rank for rank, group in enumerate(judgement.ranking) for place in group}
    return tuple(pairs), Ranking(tuple(ranks), tuple(ranks.values())) if len(ranks) > 2 else None


def _check(counts: Counter[str], config: PreferenceDataConfig, problems: Sequence[str]) -> None:
    if counts["decided"]:
        return
    if problems:
        raise DataError(f"no preference to learn from: {problems[0]}")
    if not counts["all"]:
        raise DataError(f"data.preferences = '{config.preferences}' has no preferences: label some, or name another")
    found = [
        f"{counts[name]} {words}"
        for name, words in (
            ("ties", "tied"),
            ("both_bad", "where both are bad"),
            ("skip", "skipped"),
            ("equal", "between equal completions"),
            ("cut", f"longer than data.max_tokens = {config.max_tokens}"),
        )
        if counts[name]
    ]
    raise DataError(
        f"no preference to learn from in data.preferences = '{config.preferences}': of "
        f"{counted(counts['all'], 'judgement')} none puts one completion above another ({', '.join(found)}): label more"
    )


def _warnings(counts: Counter[str], config: PreferenceDataConfig) -> list[str]:
    done = "ignored" if config.too_long == "drop" else "only the last tokens are kept"
    found = (
        (counts["both_bad"] + counts["skip"], "judgement", "skipped or both bad, ignored"),
        (counts["cut"], "comparison", f"longer than data.max_tokens = {config.max_tokens}, {done}"),
        (counts["equal"], "pair", "of the same tokens twice, ignored"),
        (counts["repeated"], "judgement", "of completions judged before; together they count once"),
    )
    return [f"{counted(count, noun)} {words}" for count, noun, words in found if count]
