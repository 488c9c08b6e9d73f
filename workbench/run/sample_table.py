"""Sequences of a run: one with all that is known about its tokens, or many, stored column by column."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from trainer.errors import counted
from trainer.runs.samples import SampleSettings
from workbench.run.sample_query import COMPARISONS, Condition, Order, Query

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


class SampleKey(NamedTuple):
    """The key of a sequence in a run: its iteration and its row in the batch."""

    iteration: int
    row: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence in a list; unknown numbers are NaN."""

    key: SampleKey
    prompt: str
    completion: str
    score: float
    kl: float  # nats, summed over the response
    length: int | None  # response tokens; None in a preview
    truncated: bool
    prompt_index: int = -1  # within the run's prompts; -1 where it is not known


class Alternative(NamedTuple):
    """A token that could have been written instead of another."""

    token: int
    text: str
    logprob: float  # nats, under the policy that wrote
    ref_logprob: float  # nats


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSample:
    """One sequence with T response tokens. Fields that its file lacks are empty, NaN or None.

    numbers: T floats for each of `trainer.runs.samples.TOKEN_COLUMNS` that the file has. A number may be NaN or
    infinite.
    """

    key: SampleKey
    prompt_index: int = -1
    sample: int = -1  # which of the prompt's samples in its batch
    prompt: str = ""
    completion: str = ""
    score: float = math.nan
    sequence_score: float = math.nan
    parts: Mapping[str, float]
    group: Sequence[float]  # total reward of each of the prompt's samples, NaN if left out; empty unless compared
    source_prompt: str = ""  # the prompt as in the data, JSON; empty where that is `prompt`
    columns: str = ""  # the prompt's other columns, JSON
    extra: str = ""  # what reward functions logged about the response, by column, JSON
    truncated: bool = False
    final_value: float = math.nan
    baseline: float = math.nan  # without a critic: subtracted from the response's returns
    advantage_scale: float = math.nan  # with grpo: the divisor of its advantage
    prompt_tokens: Sequence[int]
    tokens: Sequence[int]
    texts: Sequence[str]  # of each token; if a character has several tokens, only the last has a text
    numbers: Mapping[str, Sequence[float]]
    ratios: Sequence[Sequence[float]]  # [T][passes]; see `trainer.runs.samples.sample_schema`
    alternatives: Sequence[Sequence[Alternative]]  # [T][k]
    settings: SampleSettings | None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        """Number of response tokens."""
        return len(self.tokens)

    @property
    def token_kl(self) -> list[float]:
        """Log pi - log pi_ref of each token, in nats; empty where the file lacks one of them."""
        pairs = zip(self.numbers.get("logprobs", ()), self.numbers.get("ref_logprobs", ()), strict=False)
        return [mine - theirs for mine, theirs in pairs]

    @property
    def kl(self) -> float:
        """The sum of `token_kl`; NaN where it is not known."""
        return sum(self.token_kl) if self.token_kl else math.nan


OUTLYING = 3.5  # robust z


@functools.cache
def table_schema() -> pa.Schema:
    """Return the columns of a `SampleTable`: those of `Sample`. Only `length` may be null; unknown numbers are NaN."""
    import pyarrow as pa

    return pa.schema(
        [
            ("iteration", pa.int32()),
            ("row", pa.int32()),
            ("prompt_index", pa.int32()),
            ("prompt", pa.string()),
            ("completion", pa.string()),
            ("truncated", pa.bool_()),
            ("score", pa.float64()),
            ("kl", pa.float64()),
            ("length", pa.int32()),
        ]
    )


class SampleTable(Sequence[Sample]):
    """Some of the rows of a table with `table_schema`. Each becomes a `Sample` only when it is accessed.

    places: which rows, in order; None: all. Tables made from one another share the columns.
    """

    def __init__(self, columns: pa.Table, places: npt.NDArray[np.int64] | None = None) -> None:
        import numpy as np

        self._columns = columns
        self._places = np.arange(len(columns)) if places is None else places
        self._outliers: list[int] | None = None

    @classmethod
    def joined(cls, tables: Iterable[SampleTable]) -> SampleTable:
        """Join the rows of `tables` below each other. Texts of whole tables are shared, not copied."""
        import pyarrow as pa

        return cls(pa.concat_tables([table._rows() for table in tables] or [table_schema().empty_table()]))

    def compact(self) -> SampleTable:
        """Copy the samples into one piece of memory; a table joined from many small ones is in many."""
        return SampleTable(self._rows().combine_chunks())

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> SampleTable: ...
    def __getitem__(self, index: int | slice) -> Sample | SampleTable:
        if isinstance(index, slice):
            return SampleTable(self._columns, self._places[index])
        place = int(self._places[index])
        value: dict[str, Any] = {name: self._columns[name][place].as_py() for name in self._columns.column_names}
        return Sample(key=SampleKey(value.pop("iteration"), value.pop("row")), **value)

    @property
    def keys(self) -> list[SampleKey]:
        """Keys of the samples, in order; some 0.5 µs each."""
        pairs = zip(self._taken("iteration").tolist(), self._taken("row").tolist(), strict=True)
        return [SampleKey(*pair) for pair in pairs]

    def position_of(self, key: SampleKey) -> int | None:
        """Return the position of the sample `key`; None when it is not in the table."""
        import numpy as np

        found = np.flatnonzero((self._taken("iteration") == key.iteration) & (self._taken("row") == key.row))
        return int(found[0]) if len(found) else None

    def scores(self) -> list[float]:
        """Return the scores of the samples, in order; NaN if there is none."""
        scores: list[float] = self._taken("score").tolist()
        return scores

    def summary(self, of: int = 0) -> str:
        """Describe the number of samples, mean and range of their scores, and their mean KL, from finite numbers.

        of: how many they were chosen from; 0 leaves that out.
        """
        import numpy as np

        chosen = f"{len(self):,} of " if of else ""
        parts = [f"{chosen}{counted(of or len(self), 'sample')}"]
        scores, kl = (values[np.isfinite(values)] for values in (self._taken("score"), self._taken("kl")))
        if len(scores):
            parts.append(f"score {math.fsum(scores) / len(scores):.2f}, {min(scores):.2f} to {max(scores):.2f}")
        if unscored := int(np.isnan(self._taken("score")).sum()):
            parts.append(f"{unscored:,} not scored")
        if len(kl):
            parts.append(f"KL {math.fsum(kl) / len(kl):.1f} nats")
        return "   ".join(parts)

    def select(self, query: Query, order: Order, bookmarked: Collection[SampleKey] = ()) -> SampleTable:
        """Return the samples that meet all conditions of `query`, in `order`.

        bookmarked: those that is:marked finds. Equal samples stay in the order of the table; unknown numbers come last
        in either direction.
        """
        import numpy as np

        held = np.ones(len(self), dtype=bool)
        for condition in query:
            held &= self._holds(condition, bookmarked) != condition.negated
        places = self._places[held]
        if order.by != "batch":
            values = self._taken(order.by)[held]
            places = places[np.argsort(-values if order.descending else values, kind="stable")]
        elif order.descending:
            places = places[::-1]
        return SampleTable(self._columns, places)

    def outliers(self) -> list[int]:
        """Return the positions of samples whose score, KL or length is far from the others of their iteration.

        Far means a robust z over 3.5 in size; see `robust_z`. An iteration includes all samples that this table was
        selected from, so outliers do not change with the query.
        """
        import numpy as np

        if self._outliers is None:
            _, groups = np.unique(self._column("iteration"), return_inverse=True)
            far = np.zeros(len(groups), dtype=bool)
            for name in ("score", "kl", "length"):
                far |= np.abs(robust_z(self._column(name), groups)) > OUTLYING  # false for NaN
            self._outliers = np.flatnonzero(far[self._places]).tolist()
        return self._outliers

    def _rows(self) -> pa.Table:
        whole = len(self._places) == len(self._columns) and bool((self._places[1:] > self._places[:-1]).all())
        return self._columns if whole else self._columns.take(self._places)

    def _column(self, name: str) -> npt.NDArray[Any]:
        """Return a whole column of numbers, with NaN for null."""
        column: npt.NDArray[Any] = self._columns[name].to_numpy()
        return column

    def _taken(self, name: str) -> npt.NDArray[Any]:
        """Return a column of numbers at the places of this table."""
        taken: npt.NDArray[Any] = self._column(name)[self._places]
        return taken

    def _holds(self, condition: Condition, bookmarked: Collection[SampleKey]) -> npt.NDArray[np.bool_]:
        """Return for each sample of this table whether the condition holds, before negation."""
        import numpy as np
        import pyarrow.compute as pc

        if condition.comparison == "contains":
            names = ("prompt", "completion") if condition.field == "either" else (condition.field,)
            text = str(condition.value)
            found = (pc.match_substring(self._columns[name], text, ignore_case=True).to_numpy() for name in names)
            held: npt.NDArray[np.bool_] = functools.reduce(np.logical_or, found)[self._places]
            return held
        if condition.field == "marked":
            marked = {*bookmarked}
            return np.fromiter((key in marked for key in self.keys), dtype=bool, count=len(self))
        values = np.isnan(self._taken("score")) if condition.field == "unscored" else self._taken(condition.field)
        compared: npt.NDArray[np.bool_] = COMPARISONS[condition.comparison](values, condition.value)
        return compared


def robust_z(values: npt.NDArray[np.float64], groups: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return how far each value is from the median of its group, in robust standard deviations.

        z = 0.6745 (x - median) / MAD,   MAD = median |x - median|

    and, where more than half of the group are equal and MAD is 0, (x - median) / (1.253314 mean |x - median|); 0
    where all are. values: [N]; groups: [N], numbers from 0. Returns [N]; NaN stays NaN and infinity infinite, and
    neither counts for its group. Iglewicz & Hoaglin 1993, "How to detect and handle outliers"; IBM SPSS's modified
    z score for MAD = 0.
    """
    import numpy as np

    z = np.array(values, dtype=np.float64)
    finite = np.isfinite(z)
    x, of = z[finite], groups[finite]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        off = x - _medians(x, of)
        size = np.abs(off)
        mad = _medians(size, of)
        mean = np.bincount(of, weights=size)[of] / np.bincount(of)[of]
        scale = np.where(mad > 0, mad / 0.6745, 1.253314 * mean)
        z[finite] = np.where(scale > 0, off / scale, 0.0)
    return z


def _medians(x: npt.NDArray[np.float64], groups: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the median of the group of each of `x`."""
    import numpy as np

    sizes = np.bincount(groups)
    starts = np.cumsum(sizes) - sizes
    ordered = x[np.lexsort((x, groups))]
    low, high = (starts + (sizes - 1) // 2)[groups], (starts + sizes // 2)[groups]
    medians: npt.NDArray[np.float64] = (ordered[low] + ordered[high]) / 2
    return medians
