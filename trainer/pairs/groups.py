"""Groups of completions to one prompt that were compared: what training reads, in arrays; made, split and parted."""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, cast, overload

import numpy as np
import numpy.typing as npt

from trainer.config.reward_model import PreferenceDataConfig
from trainer.data import split_places
from trainer.errors import DataError, UsageError
from trainer.fitting.gradients import micro_batch_rows
from trainer.pairs.encoders import Encoder, start_of
from trainer.plurals import counted
from trainer.preferences.records import Comparison, Judgement, Preference, Text, ranked_pairs, tied_pairs

Progress = Callable[[int, int], None]  # groups done, groups in all
Places = npt.NDArray[np.int64]


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


@dataclass(slots=True)
class Group:
    """Completions to one prompt that judgements link. Each is encoded once, however often it is judged."""

    prompt: int  # number of the prompt; groups with the same prompt stay on one side of the split
    sequences: Sequence[Sequence[int]] = ()  # prompt and completion
    completions: Sequence[int] = ()  # length of each completion, tokens
    judged: Judged = ()
    number: int = 0  # of its first preference, counted from 0
    prompt_text: Text = ""
    columns: dict[str, Any] = field(default_factory=dict)  # of its first comparison
    texts: Sequence[Text] = ()  # text of each completion
    keys: Sequence[str] = ()  # key of the comparison of each judgement

    @property
    def pairs(self) -> list[Pair]:
        """All pairs of all judgements."""
        return [pair for pairs, _ in self.judged for pair in pairs]

    @property
    def pair_keys(self) -> list[str]:
        """The key of the comparison of each of `pairs`."""
        return [key for (pairs, _), key in zip(self.judged, self.keys, strict=True) for _ in pairs]

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


class RaggedArray:
    """Lists of whole numbers, end to end in one array: a list of Python's takes nine times the memory."""

    def __init__(self) -> None:
        self.values = array("i")
        self.ends = array("q", [0])  # where each list ends, after the start of the first

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, place: int) -> array[int]:
        return self.values[self.ends[place] : self.ends[place + 1]]

    def append(self, numbers: Sequence[int]) -> None:
        """Add a list."""
        self.values.extend(numbers)
        self.ends.append(len(self.values))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Length of each list."""
        return np.diff(np.asarray(self.ends))


@dataclass(slots=True)
class _Table:
    """Judged comparisons, one a row, and groups of them, in arrays: as objects, a million would take a gigabyte more.

    Sequences are numbered row by row. What judgements say is mostly alike, and each is stored once. Texts are JSON,
    because objects take more memory and slow down the garbage collector.
    """

    numbers: array[int] = field(default_factory=lambda: array("i"))  # of the preferences in their source, from 0
    tokens: RaggedArray = field(default_factory=RaggedArray)  # prompt and completion, by sequence
    completions: array[int] = field(default_factory=lambda: array("i"))  # length of each completion, by sequence
    first_sequences: array[int] = field(default_factory=lambda: array("q", [0]))  # of each row, and of the next one
    said: list[tuple[Judgement, str]] = field(default_factory=list)  # ranking and strength alone, and the source
    texts: dict[int, bytes] = field(default_factory=dict)  # JSON of each row's prompt, completions and columns
    prompts: array[int] = field(default_factory=lambda: array("i"))  # this and all below: by group
    first_rows: array[int] = field(default_factory=lambda: array("i"))
    sequences: RaggedArray = field(default_factory=RaggedArray)
    judgements: RaggedArray = field(default_factory=RaggedArray)  # rows that have pairs
    judged: list[Judged] = field(default_factory=list)

    def row_sequences(self, row: int) -> range:
        """Return the numbers of the sequences of `row`."""
        return range(self.first_sequences[row], self.first_sequences[row + 1])

    def comparison(self, row: int) -> Comparison:
        """Return the comparison of `row`, without its origins."""
        prompt, completions, columns = json.loads(self.texts[row])
        return Comparison(prompt=prompt, completions=tuple(completions), columns=columns)

    def group(self, place: int, judged: Judged, *, with_texts: bool) -> Group:
        """Build a group, with its texts and columns if they are asked for."""
        sequences, first_row = self.sequences[place], self.first_rows[place]
        group = Group(
            self.prompts[place],
            [self.tokens[sequence] for sequence in sequences],
            [self.completions[sequence] for sequence in sequences],
            judged,
            self.numbers[first_row],
        )
        if with_texts:
            first = self.comparison(first_row)
            group.prompt_text, group.columns = first.prompt, first.columns
            rows = [bisect_right(self.first_sequences, sequence) - 1 for sequence in sequences]
            group.texts = [
                self.comparison(row).completions[sequence - self.first_sequences[row]]
                for row, sequence in zip(rows, sequences, strict=True)
            ]
            group.keys = [self.comparison(row).key for row in self.judgements[place]]
        return group


class Groups(Sequence[Group]):
    """Groups in arrays, each of them built when it is asked for.

    places: of the groups in `table`; judged: instead of `table.judged`; with_texts: whether groups have their texts and
    columns.
    """

    def __init__(self, table: _Table, places: Places, judged: Sequence[Judged], *, with_texts: bool) -> None:
        self._table = table
        self._places = places
        self._judged = judged
        self._with_texts = with_texts

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Group: ...

    @overload
    def __getitem__(self, index: slice) -> Groups: ...

    def __getitem__(self, index: int | slice) -> Group | Groups:
        if isinstance(index, slice):
            return Groups(self._table, self._places[index], self._judged, with_texts=self._with_texts)
        place = int(self._places[index])
        return self._table.group(place, self._judged[place], with_texts=self._with_texts)

    def select(self, places: Places, *, with_texts: bool) -> Groups:
        """Return the groups at `places`, without their texts if nobody reads them."""
        return Groups(self._table, self._places[places], self._judged, with_texts=with_texts)

    def without_texts(self) -> Groups:
        """Return the same groups without their texts."""
        return Groups(self._table, self._places, self._judged, with_texts=False)

    def without_ties(self) -> Groups:
        """Return the groups with their decided pairs alone; those that have none are left out."""
        decided: dict[Judged, Judged] = {}  # most groups are judged alike
        for judged in self._judged:
            if judged not in decided:
                found = [(tuple(pair for pair in pairs if not pair.is_tie), ranking) for pairs, ranking in judged]
                decided[judged] = tuple(one for one in found if one[0])
        kept = np.array([bool(decided[self._judged[place]]) for place in self._places.tolist()], bool)
        return Groups(self._table, self._places[kept], [decided[one] for one in self._judged], with_texts=False)

    def drop_other_texts(self) -> None:
        """Free the texts of all groups but these, also for whoever shares the table."""
        table, places = self._table, self._places.tolist()
        kept = {row for place in places for row in (table.first_rows[place], *table.judgements[place])}
        table.texts = {row: table.texts[row] for row in kept}

    @property
    def prompts(self) -> list[int]:
        """The number of each group's prompt."""
        return cast("list[int]", np.asarray(self._table.prompts)[self._places].tolist())

    @property
    def sizes(self) -> Places:
        """Number of sequences of each group: [G]."""
        return self._table.sequences.lengths[self._places]

    @property
    def longest(self) -> Places:
        """Length of each group's longest sequence: [G], tokens."""
        lengths = self._table.tokens.lengths[np.asarray(self._table.sequences.values)]
        longest = np.maximum.reduceat(lengths, np.asarray(self._table.sequences.ends)[:-1])
        return cast("Places", longest[self._places])

    def sequences_at(self, numbers: Places) -> tuple[list[Sequence[int]], list[int]]:
        """Return the sequences with these numbers, and where their completions begin.

        The sequences of all groups are numbered one after the other.
        """
        ends = np.cumsum(self.sizes)
        groups = np.searchsorted(ends, numbers, side="right")
        firsts = (ends - self.sizes)[groups]
        found = [(self[group], int(place)) for group, place in zip(groups, numbers - firsts, strict=True)]
        return [group.sequences[place] for group, place in found], [group.starts[place] for group, place in found]


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
    table, prompts = _encoded(preferences, encoder, config, counts, problems)
    by_prompt = np.argsort(prompts, kind="stable").tolist()
    ends = np.cumsum(np.bincount(prompts)).tolist()
    known: dict[Judged, Judged] = {}
    for prompt, (start, end) in enumerate(pairwise([0, *ends])):
        rows = by_prompt[start:end]
        tokens = {row: [table.tokens[one].tobytes() for one in table.row_sequences(row)] for row in rows}
        for members in _linked(tokens):
            _add_group(table, prompt, {row: tokens[row] for row in members}, known, counts)
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
    return Groups(table, np.arange(len(table.prompts)), table.judged, with_texts=True), warnings


def _encoded(
    preferences: Iterable[Preference],
    encoder: Encoder,
    config: PreferenceDataConfig,
    counts: Counter[str],
    problems: list[str],
) -> tuple[_Table, array[int]]:
    """Return the judgements to learn from, and the number of the prompt of each; prompts are numbered as they come.

    problems: gets a line for each that cannot be rendered, where `skip_broken` leaves it out.
    """
    table, prompts = _Table(), array("i")
    numbers: dict[bytes, int] = {}
    known: dict[tuple[Judgement, str], tuple[Judgement, str]] = {}
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
        for sequence in sequences:
            table.tokens.append(sequence.tokens)
            table.completions.append(sequence.completion)
        source = comparison.origins[0].source if comparison.origins else ""
        said = Judgement(ranking=judgement.ranking, strength=judgement.strength), source
        table.said.append(known.setdefault(said, said))
        texts = [comparison.prompt, comparison.completions, comparison.columns]
        table.texts[len(table.numbers)] = json.dumps(texts, ensure_ascii=False).encode()
        table.numbers.append(number)
        table.first_sequences.append(len(table.tokens))
        text = json.dumps(comparison.prompt, sort_keys=True).encode()
        digest = hashlib.blake2b(text, digest_size=16).digest()  # takes less memory than a long prompt
        prompts.append(numbers.setdefault(digest, len(numbers)))
    return table, prompts


def _linked(tokens: dict[int, list[bytes]]) -> Iterable[list[int]]:
    """Return rows, given with the tokens of their completions, in parts that share some, directly or through others."""
    leader: dict[bytes, bytes] = {}

    def find(one: bytes) -> bytes:
        while leader.setdefault(one, one) != one:
            one = leader[one]
        return one

    for first, *others in tokens.values():
        for other in others:
            leader[find(other)] = find(first)
    parts: dict[bytes, list[int]] = {}
    for row, (first, *_) in tokens.items():
        parts.setdefault(find(first), []).append(row)
    return parts.values()


def _add_group(
    table: _Table, prompt: int, members: dict[int, list[bytes]], known: dict[Judged, Judged], counts: Counter[str]
) -> None:
    """Add the group of some rows, given with the tokens of their completions, unless it has no pair."""
    places: dict[bytes, int] = {}
    sequences: list[int] = []
    judged: dict[int, tuple[tuple[Pair, ...], Ranking | None]] = {}
    seen: set[tuple[object, ...]] = set()
    for row, keys in members.items():
        judgement, source = table.said[row]
        for key, sequence in zip(keys, table.row_sequences(row), strict=True):
            if places.setdefault(key, len(sequences)) == len(sequences):
                sequences.append(sequence)
        at, pairs = [places[key] for key in keys], []
        for is_tie, found in ((False, ranked_pairs(judgement)), (True, tied_pairs(judgement))):
            for better, worse in found:
                if at[better] == at[worse]:
                    counts["equal"] += 1
                else:
                    pairs.append(Pair(at[better], at[worse], is_tie, judgement.strength, source))
                    counts["ties" if is_tie else "decided"] += 1
        if pairs:
            ranks = {at[place]: rank for rank, group in enumerate(judgement.ranking) for place in group}
            judged[row] = tuple(pairs), Ranking(tuple(ranks), tuple(ranks.values())) if len(ranks) > 2 else None
        words = (frozenset(keys), tuple(frozenset(keys[place] for place in rank) for rank in judgement.ranking))
        counts["repeated"] += words in seen
        seen.add(words)
    if judged:
        content = tuple(judged.values())
        table.prompts.append(prompt)
        table.first_rows.append(next(iter(members)))
        table.sequences.append(sequences)
        table.judgements.append(list(judged))
        table.judged.append(known.setdefault(content, content))


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


def split_groups(groups: Groups, eval_fraction: float, seed: int) -> tuple[Groups, Groups]:
    """Split `groups` as `split_examples` does; all of a prompt stay on one side.

    Returns those to train on, without their texts, and those held out.
    """
    training, held_out = split_places(groups.prompts, eval_fraction, seed)
    return groups.select(training, with_texts=False), groups.select(held_out, with_texts=True)


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
