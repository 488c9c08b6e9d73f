"""Groups of completions to one prompt that were compared: what training reads; made from preferences, and parted."""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainer.config.pairs import PreferenceDataConfig
from trainer.errors import DataError, UsageError, counted
from trainer.fitting.optimisation import micro_batch_rows
from trainer.pairs.encoders import Encoder, start_of
from trainer.preferences.records import Comparison, Judgement, Preference, Text, ranked_pairs, tied_pairs

Progress = Callable[[int, int], None]  # groups done, groups in all


class Pair(NamedTuple):
    """Two completions of a group, by their index in it."""

    better: int
    worse: int
    is_tie: bool  # if true, neither is better
    strength: int
    source: str  # where it comes from; "" if unknown


class Ranking(NamedTuple):
    """Three or more completions of a group, by their index in it."""

    places: tuple[int, ...]
    ranks: tuple[int, ...]  # rank of each; 0 is the best


Judged = Sequence[tuple[Sequence[Pair], Ranking | None]]
"""The pairs and the ranking of each judgement of a group."""


class EncodedPreference(NamedTuple):
    """A preference as it is kept while groups are made; compact, because there may be a million.

    content: JSON of prompt, completions and columns; as objects they take more memory and slow the garbage collector.
    """

    number: int  # in the source, from 0
    sequences: Sequence[array[int]]  # prompt and completion
    completions: Sequence[int]  # length of each completion, tokens
    judgement: Judgement  # ranking and strength alone; most are alike, so each is stored once
    source: str
    content: bytes

    @property
    def comparison(self) -> Comparison:
        """The comparison without its origins."""
        prompt, completions, columns = json.loads(self.content)
        return Comparison(prompt=prompt, completions=tuple(completions), columns=columns)


@dataclass(slots=True)
class Group:
    """Completions to one prompt that judgements link. Each is encoded once, however often it is judged."""

    prompt: int  # number of the prompt; groups with the same prompt stay on one side of the split
    sequences: Sequence[Sequence[int]] = ()  # prompt and completion
    completions: Sequence[int] = ()  # length of each completion, tokens
    judged: Judged = ()
    number: int = 0  # of its first preference, counted from 0
    given: Sequence[EncodedPreference] = ()  # one for each of `judged`; empty where nobody reads the texts

    @property
    def pairs(self) -> list[Pair]:
        """All pairs of all judgements."""
        return [pair for pairs, _ in self.judged for pair in pairs]

    @property
    def starts(self) -> list[int]:
        """Place where the completion begins, of each of `sequences`."""
        lengths = map(len, self.sequences)
        return [start_of(length, own) for length, own in zip(lengths, self.completions, strict=True)]

    @property
    def longest(self) -> int:
        """Length of its longest sequence, tokens."""
        return max(map(len, self.sequences))

    @property
    def tokens(self) -> int:
        """Length of its sequences together, tokens."""
        return sum(map(len, self.sequences))

    def pairs_with_texts(self) -> Iterator[tuple[Pair, str, Text, Text, Text]]:
        """Yield each of `pairs` with the key of its comparison, the prompt, the better and the worse completion."""
        comparisons = [one.comparison for one in self.given]
        texts: dict[bytes, Text] = {}
        for one, comparison in zip(self.given, comparisons, strict=True):
            for tokens, text in zip(one.sequences, comparison.completions, strict=True):
                texts.setdefault(tokens.tobytes(), text)
        of_place = [texts[array("i", tokens).tobytes()] for tokens in self.sequences]
        for (pairs, _), comparison in zip(self.judged, comparisons, strict=True):
            for pair in pairs:
                yield pair, comparison.key, comparisons[0].prompt, of_place[pair.better], of_place[pair.worse]


def group_preferences(
    preferences: Iterable[Preference], encoder: Encoder, config: PreferenceDataConfig
) -> tuple[list[Group], list[str]]:
    """Encode `preferences` and put those of one prompt that share a completion into one group.

    Each preference can be freed once it is read. Returns the groups in the order of the source, and warnings for the
    user, one line each.

    Judgements `both_bad` and `skip` and pairs of completions with the same tokens are ignored, and so are comparisons
    with a too long sequence if `too_long = "drop"`; the warnings count them. Raises DataError without a decided pair.
    """
    counts: Counter[str] = Counter()
    problems: list[str] = []
    groups: list[Group] = []
    known: dict[Judged, Judged] = {}
    for prompt, encoded in enumerate(_encoded(preferences, encoder, config, counts, problems)):
        for linked in _linked(encoded):
            group = _grouped(prompt, linked, counts)
            if group.judged:
                group.judged = known.setdefault(group.judged, group.judged)
                groups.append(group)
        encoded.clear()
    if not counts["decided"]:
        raise _nothing_to_learn(counts, config, problems)
    done = "ignored" if config.too_long == "drop" else "only the last tokens are kept"
    found = (
        (counts["both_bad"] + counts["skip"], "judgement", "skipped or both bad, ignored"),
        (counts["cut"], "comparison", f"longer than data.max_tokens = {config.max_tokens}, {done}"),
        (counts["equal"], "pair", "of the same tokens twice, ignored"),
        (counts["repeated"], "judgement", "of completions judged before; together they count once"),
    )
    warnings = [*sorted(encoder.notes), *(f"{counted(count, noun)} {words}" for count, noun, words in found if count)]
    if problems:
        warnings.append(f"{counted(len(problems), 'comparison')} skipped as broken; the first: {problems[0]}")
    return groups, warnings


def _encoded(
    preferences: Iterable[Preference],
    encoder: Encoder,
    config: PreferenceDataConfig,
    counts: Counter[str],
    problems: list[str],
) -> Iterable[list[EncodedPreference]]:
    """Return the preferences to learn from, by prompt, in the order of the source.

    problems: gets a line for each that cannot be rendered, where `skip_broken` leaves it out.
    """
    by_prompt: dict[bytes, list[EncodedPreference]] = {}
    known: dict[Judgement, Judgement] = {}
    for number, preference in enumerate(preferences):
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
        judgement = Judgement(ranking=judgement.ranking, strength=judgement.strength)
        content = [comparison.prompt, comparison.completions, comparison.columns]
        prompt = json.dumps(comparison.prompt, sort_keys=True).encode()
        digest = hashlib.blake2b(prompt, digest_size=16).digest()  # takes less memory than a long prompt
        by_prompt.setdefault(digest, []).append(
            EncodedPreference(
                number=number,
                sequences=tuple(array("i", sequence.tokens) for sequence in sequences),  # less memory than a list
                completions=tuple(sequence.completion for sequence in sequences),
                judgement=known.setdefault(judgement, judgement),
                source=sys.intern(comparison.origins[0].source) if comparison.origins else "",
                content=json.dumps(content, ensure_ascii=False).encode(),
            )
        )
    return by_prompt.values()


def _linked(encoded: Sequence[EncodedPreference]) -> Iterable[list[EncodedPreference]]:
    """Return the preferences of one prompt in parts that share completions, directly or through others."""
    if len(encoded) == 1:
        return [[*encoded]]
    leader: dict[bytes, bytes] = {}

    def find(one: bytes) -> bytes:
        while leader.setdefault(one, one) != one:
            one = leader[one]
        return one

    for given in encoded:
        for tokens in given.sequences[1:]:
            leader[find(tokens.tobytes())] = find(given.sequences[0].tobytes())
    parts: dict[bytes, list[EncodedPreference]] = {}
    for given in encoded:
        parts.setdefault(find(given.sequences[0].tobytes()), []).append(given)
    return parts.values()


def _grouped(prompt: int, linked: Iterable[EncodedPreference], counts: Counter[str]) -> Group:
    """Return the group of linked preferences; without judgements if no two of its completions differ."""
    places: dict[bytes, int] = {}
    sequences: list[array[int]] = []
    completions: list[int] = []
    judged: list[tuple[tuple[Pair, ...], Ranking | None]] = []
    given: list[EncodedPreference] = []
    seen: set[tuple[object, ...]] = set()
    for one in linked:
        judgement, keys = one.judgement, [tokens.tobytes() for tokens in one.sequences]
        for key, tokens, completion in zip(keys, one.sequences, one.completions, strict=True):
            if places.setdefault(key, len(sequences)) == len(sequences):
                sequences.append(tokens)
                completions.append(completion)
        at, pairs = [places[key] for key in keys], []
        for is_tie, found in ((False, ranked_pairs(judgement)), (True, tied_pairs(judgement))):
            for better, worse in found:
                if at[better] == at[worse]:
                    counts["equal"] += 1
                else:
                    pairs.append(Pair(at[better], at[worse], is_tie, judgement.strength, one.source))
                    counts["ties" if is_tie else "decided"] += 1
        if pairs:
            ranks = {at[place]: rank for rank, ranked in enumerate(judgement.ranking) for place in ranked}
            judged.append((tuple(pairs), Ranking(tuple(ranks), tuple(ranks.values())) if len(ranks) > 2 else None))
            given.append(one)
        words = (frozenset(keys), tuple(frozenset(keys[place] for place in rank) for rank in judgement.ranking))
        counts["repeated"] += words in seen
        seen.add(words)
    number = given[0].number if given else 0
    return Group(prompt, tuple(sequences), tuple(completions), tuple(judged), number, tuple(given))


def _nothing_to_learn(counts: Counter[str], config: PreferenceDataConfig, problems: Sequence[str]) -> DataError:
    if problems:
        return DataError(f"no preference to learn from: {problems[0]}")
    if not counts["all"]:
        return DataError(f"data.preferences = '{config.preferences}' has no preferences: label some, or name another")
    words = {
        "ties": "tied",
        "both_bad": "where both are bad",
        "skip": "skipped",
        "equal": "between equal completions",
        "cut": f"longer than data.max_tokens = {config.max_tokens}",
    }
    found = ", ".join(f"{counts[name]} {text}" for name, text in words.items() if counts[name])
    return DataError(
        f"no preference to learn from in data.preferences = '{config.preferences}': of "
        f"{counted(counts['all'], 'judgement')} none puts one completion above another ({found}): label more"
    )


def sequences_of(groups: Iterable[Group]) -> tuple[list[Sequence[int]], list[int]]:
    """Return all sequences of `groups`, and where their completions begin."""
    found = list(groups)
    return [one for group in found for one in group.sequences], [start for group in found for start in group.starts]


def micro_batches(groups: Sequence[Group], budget: int, progress: Progress) -> Iterator[list[Group]]:
    """Yield `groups` in parts of similar length whose padded tokens stay within `budget`, the longest first.

    A group over the budget forms its own part. progress: called after each part.
    """
    longest, counts = [group.longest for group in groups], [len(group.sequences) for group in groups]
    for rows in micro_batch_rows(longest, budget, counts=counts, progress=progress):
        yield [groups[row] for row in rows]


def fingerprint(groups: Iterable[Group]) -> str:
    """Return a SHA-256 hash of everything in `groups` that a model learns from, including their order.

    The hashed text is a JSON list, written group by group, so that it is never whole in memory.
    """
    digest, encode = hashlib.sha256(b"["), json.JSONEncoder().encode
    for place, group in enumerate(groups):
        content = encode([group.prompt, [list(tokens) for tokens in group.sequences], group.judged])
        digest.update((f", {content}" if place else content).encode())
    digest.update(b"]")
    return digest.hexdigest()


def changed_preferences(config: PreferenceDataConfig) -> UsageError:
    """Return the error for a run that is resumed on other preferences than it began with."""
    return UsageError(f"the preferences in '{config.preferences}' have changed since this run began; start a new run")
