"""Judged comparisons in arrays: their tokens, what was judged, and their texts."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.preference_data.encoders import Sequenced
from trainer.preferences.records import Comparison, Judgement, Preference, Text


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
