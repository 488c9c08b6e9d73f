"""Groups of completions to one prompt that were compared: what training reads, in arrays, and how it is split."""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast, overload

import numpy as np
import numpy.typing as npt

from trainer.config.reward_model import PreferenceDataConfig
from trainer.data import split_places
from trainer.errors import UsageError
from trainer.fitting.micro_batches import micro_batch_rows
from trainer.preference_data.encoders import Sequenced, start_of
from trainer.preferences.records import Comparison, Judgement, Preference, Text

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


class Said(NamedTuple):
    """Judgements of a row, as far as a model learns from them."""

    judgement: Judgement  # only ranking and strength
    source: str  # where the comparison comes from; "" if unknown


class JudgedRows:
    """Judged comparisons, one a row, whose completions are encoded; sequences are numbered row by row.

    Most judgements say one of a few things, each of which is stored once. Texts are JSON, because objects take more
    memory and slow down the garbage collector.
    """

    def __init__(self) -> None:
        self.numbers = array("i")  # of the preferences in their source, counted from 0
        self.tokens = RaggedArray()  # prompt and completion, by sequence
        self.completions = array("i")  # length of each completion, tokens, by sequence
        self.first_sequences = array("q", [0])  # of each row, and of the next one to come
        self._says = array("i")  # index in `_said`
        self._said: list[Said] = []
        self._known: dict[tuple[object, ...], int] = {}
        self._texts: dict[int, bytes] = {}  # JSON of each row's prompt, completions and columns

    def __len__(self) -> int:
        return len(self.numbers)

    def append(self, number: int, preference: Preference, sequences: Sequence[Sequenced]) -> None:
        """Add a preference, the source's `number`, whose completions were encoded as `sequences`."""
        comparison = preference.comparison
        for sequence in sequences:
            self.tokens.append(sequence.tokens)
            self.completions.append(sequence.completion)
        self.numbers.append(number)
        self.first_sequences.append(len(self.tokens))
        self._says.append(self._said_by(comparison, preference.judgement))
        texts = [comparison.prompt, comparison.completions, comparison.columns]
        self._texts[len(self) - 1] = json.dumps(texts, ensure_ascii=False).encode()

    def sequences(self, row: int) -> range:
        """Return the numbers of the sequences of `row`."""
        return range(self.first_sequences[row], self.first_sequences[row + 1])

    def said(self, row: int) -> Said:
        """Return what the judgement of `row` says."""
        return self._said[self._says[row]]

    def comparison(self, row: int) -> Comparison:
        """Return the comparison of `row`, without its origins."""
        prompt, completions, columns = json.loads(self._texts[row])
        return Comparison(prompt=prompt, completions=tuple(completions), columns=columns)

    def text(self, sequence: int) -> Text:
        """Return the completion that was encoded as `sequence`."""
        row = bisect_right(self.first_sequences, sequence) - 1
        return self.comparison(row).completions[sequence - self.first_sequences[row]]

    def keep_texts(self, rows: Collection[int]) -> None:
        """Free the texts of all rows but `rows`."""
        self._texts = {row: self._texts[row] for row in rows}

    def _said_by(self, comparison: Comparison, judgement: Judgement) -> int:
        source = comparison.origins[0].source if comparison.origins else ""
        place = self._known.setdefault((judgement.ranking, judgement.strength, source), len(self._said))
        if place == len(self._said):
            self._said.append(Said(Judgement(ranking=judgement.ranking, strength=judgement.strength), source))
        return place


class GroupTable:
    """Columns of groups. Most groups are judged alike, so what their judgements say is stored once."""

    def __init__(self, rows: JudgedRows) -> None:
        self.rows = rows
        self.prompts = array("i")
        self.first_rows = array("i")  # of `rows`
        self.sequences = RaggedArray()  # of `rows`
        self.judgements = RaggedArray()  # rows that have pairs
        self.says = array("i")  # index in `judged`
        self.judged: list[Judged] = []
        self._known: dict[Judged, int] = {}

    def append(self, prompt: int, first_row: int, sequences: Sequence[int], judged: dict[int, Any]) -> None:
        """Add a group. judged: pairs, a tuple, and ranking by the row of the judgement."""
        content = tuple(judged.values())
        place = self._known.setdefault(content, len(self.judged))
        if place == len(self.judged):
            self.judged.append(content)
        self.prompts.append(prompt)
        self.first_rows.append(first_row)
        self.sequences.append(sequences)
        self.judgements.append(list(judged))
        self.says.append(place)


class Groups(Sequence[Group]):
    """Groups in arrays, each of them built when it is asked for.

    As objects, a million groups would take a gigabyte more. places: of the groups in `table`; judged: instead of
    `table.judged`; with_texts: whether groups have their texts and columns.
    """

    def __init__(self, table: GroupTable, places: Places, judged: Sequence[Judged], *, with_texts: bool) -> None:
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
        return self._group(int(self._places[index]))

    def __iter__(self) -> Iterator[Group]:
        return map(self._group, self._places.tolist())

    def select(self, places: Places, *, with_texts: bool) -> Groups:
        """Return the groups at `places`, without their texts if nobody reads them."""
        return Groups(self._table, self._places[places], self._judged, with_texts=with_texts)

    def without_texts(self) -> Groups:
        """Return the same groups without their texts."""
        return Groups(self._table, self._places, self._judged, with_texts=False)

    def without_ties(self) -> Groups:
        """Return the groups with their decided pairs alone; those that have none are left out."""
        decided = [_decided(judged) for judged in self._judged]
        says = np.asarray(self._table.says)[self._places]
        kept = np.array([bool(judged) for judged in decided])[says]
        return Groups(self._table, self._places[kept], decided, with_texts=False)

    def drop_other_texts(self) -> None:
        """Free the texts of all groups but these, also for whoever shares the table."""
        judgements = self._table.judgements
        kept = {row for place in self._places.tolist() for row in judgements[place]}
        kept.update(self._table.first_rows[place] for place in self._places.tolist())
        self._table.rows.keep_texts(kept)

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
        lengths = self._table.rows.tokens.lengths[np.asarray(self._table.sequences.values)]
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

    def _group(self, place: int) -> Group:
        table, rows = self._table, self._table.rows
        sequences, first_row = table.sequences[place], table.first_rows[place]
        group = Group(
            table.prompts[place],
            [rows.tokens[sequence] for sequence in sequences],
            [rows.completions[sequence] for sequence in sequences],
            self._judged[table.says[place]],
            rows.numbers[first_row],
        )
        if self._with_texts:
            first = rows.comparison(first_row)
            group.prompt_text, group.columns = first.prompt, first.columns
            group.texts = [rows.text(sequence) for sequence in sequences]
            group.keys = [rows.comparison(row).key for row in table.judgements[place]]
        return group


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


def _decided(judged: Judged) -> Judged:
    found = [(tuple(pair for pair in pairs if not pair.is_tie), ranking) for pairs, ranking in judged]
    return tuple(one for one in found if one[0])
