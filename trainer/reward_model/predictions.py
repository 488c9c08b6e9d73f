"""Record of an evaluation: the report, and the prediction of each held-out pair, as Parquet in the run's folder.

Reading it loads no model and does not import MLX.
"""

from __future__ import annotations

import functools
import json
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import TypeAdapter

from trainer.confidence import Interval
from trainer.errors import DataError, StorageError, writing
from trainer.events import plain
from trainer.files import PRIVATE, open_regular, whole_file
from trainer.preferences.records import Text
from trainer.preferences.rows import as_json, text
from trainer.questions import Number
from trainer.runs.samples import column

if TYPE_CHECKING:  # importing pyarrow takes 0.3 s
    import pyarrow as pa

HELD_OUT = "held_out.parquet"
"""Name of the file in the folder of a run."""

_VERSION = 1
_GROUP_ROWS = 500  # rows of a row group; lets the texts of the worst pairs be read without all others
_NUMBERS = ("chosen_reward", "rejected_reward", "is_tie")
_TEXTS = ("prompt", "chosen", "rejected")


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Share of `pairs` whose better completion scores higher, with Wilson's 95% interval.

    The interval treats pairs as independent.
    """

    name: str
    pairs: int
    value: Number
    low: Number
    high: Number


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Pairs in which the model gives its preferred completion a probability from `low` to `high`."""

    low: float
    high: float
    pairs: int
    confidence: float  # mean of these probabilities
    accuracy: float  # how often that completion is the better one


@dataclass(frozen=True, slots=True)
class Baseline:
    """Accuracy and log-loss of a simpler model on the same pairs."""

    accuracy: Number
    log_loss: Number  # nats


@dataclass(frozen=True, slots=True)
class TieMass:
    """Mean probability of a tie, over pairs labelled as ties and over decided pairs."""

    ties: int
    on_ties: float
    on_decided: Number


@dataclass(frozen=True, slots=True)
class RewardModelReport:
    """An evaluation. Log-losses and calibration cover the decided pairs, given that they are decided."""

    accuracy: Accuracy
    log_loss: Number  # nats a pair; guessing gives 0.693
    calibration_error: Number  # mean |confidence - accuracy| over the bins, weighted by pairs
    calibration: list[CalibrationBin]
    by_length: list[Accuracy]
    by_source: list[Accuracy]
    ties: TieMass | None
    length: Baseline  # by length alone
    untrained: Baseline | None
    over_length: Interval | None = None  # accuracy above that of length alone

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; numbers that are not finite become None, since JSON lacks them."""
        values: dict[str, Any] = plain(self)
        return values


report_from_dict: Callable[[Any], RewardModelReport] = TypeAdapter(RewardModelReport).validate_python
"""Rebuild a report from `as_dict`, with missing numbers as NaN. Raises ValueError for anything else."""


class PairPrediction(NamedTuple):
    """A held-out pair with its label and the model's rewards; in a tie, `chosen` is just the first completion."""

    key: str  # key of its comparison
    source: str  # where it comes from; empty if unknown
    strength: int
    is_tie: bool
    prompt: Text
    chosen: Text
    rejected: Text
    chosen_reward: float
    rejected_reward: float
    lead: float  # of the chosen completion, logits
    chosen_tokens: int
    rejected_tokens: int


class Predictions(NamedTuple):
    """An evaluation, pair by pair."""

    iteration: int  # steps that the model had taken
    report: RewardModelReport
    chosen: array[float]  # rewards of the better completions of the decided pairs
    rejected: array[float]  # rewards of the worse ones
    pairs: list[PairPrediction]  # sorted: the one that the model gets most wrong first, ties last
    total: int  # number of all pairs; `pairs` may be only the first of them


def sorted_predictions(pairs: Sequence[PairPrediction], report: RewardModelReport, iteration: int) -> Predictions:
    """Build predictions from `pairs`, in any order, and the report on them."""
    # A NaN lead comes first among the decided pairs, or among the ties: `max` returns its first argument beside it.
    leads = [max(-math.inf, -abs(pair.lead) if pair.is_tie else pair.lead) for pair in pairs]
    order = sorted(range(len(pairs)), key=lambda place: (pairs[place].is_tie, leads[place]))
    decided = [pair for pair in pairs if not pair.is_tie]
    return Predictions(
        iteration=iteration,
        report=report,
        chosen=array("d", (pair.chosen_reward for pair in decided)),
        rejected=array("d", (pair.rejected_reward for pair in decided)),
        pairs=[pairs[place] for place in order],
        total=len(pairs),
    )


def write_predictions(path: Path, found: Predictions, *, mode: int = PRIVATE) -> None:
    """Write `found` to `path`, in full or not at all, with the permissions `mode`. Raises StorageError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema()
    rows = [pair._asdict() | {name: as_json(getattr(pair, name)) for name in _TEXTS} for pair in found.pairs]
    metadata = {
        "held_out": str(_VERSION),
        "iteration": str(found.iteration),
        "report": json.dumps(found.report.as_dict(), allow_nan=False),
    }
    table = pa.Table.from_arrays(
        [column([row[field.name] for row in rows], field.type) for field in schema],
        schema=schema.with_metadata(metadata),
    )
    with writing(f"'{path}'", ", then continue with --resume"), whole_file(path, mode=mode) as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True, row_group_size=_GROUP_ROWS)


def read_predictions(path: Path, pairs: int | None = None) -> Predictions:
    """Read what `write_predictions` wrote.

    pairs: how many to read, from the first one; None reads all. Raises StorageError if the file is missing, damaged or
    of a newer version.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        with open_regular(path) as content, pq.ParquetFile(content, page_checksum_verification=True) as file:
            metadata = file.schema_arrow.metadata or {}
            if int(metadata[b"held_out"]) > _VERSION:
                raise StorageError(f"'{path}' was written by a newer version: update ppo-workbench")
            if lacking := set(_schema().names) - set(file.schema_arrow.names):
                raise ValueError(f"without {sorted(lacking)}")
            numbers = file.read(columns=list(_NUMBERS))
            total = len(numbers)
            groups = range(file.num_row_groups if pairs is None else min(-(-pairs // _GROUP_ROWS), file.num_row_groups))
            rows = file.read_row_groups(groups, columns=_schema().names).slice(0, pairs)
            rows = rows.select(_schema().names).cast(_schema())
            rows.validate(full=True)  # checks that texts are UTF-8, which the Parquet reader does not
            decided = numbers.filter(pc.invert(numbers["is_tie"]))
            return Predictions(
                iteration=int(metadata[b"iteration"]),
                report=report_from_dict(json.loads(metadata[b"report"])),
                chosen=array("d", decided["chosen_reward"].to_pylist()),
                rejected=array("d", decided["rejected_reward"].to_pylist()),
                pairs=[
                    PairPrediction(
                        **row | {name: text(json.loads(row[name]), "held-out pairs", name) for name in _TEXTS}
                    )
                    for row in rows.to_pylist()
                ],
                total=total,
            )
    except FileNotFoundError:
        raise StorageError(f"no '{path}': the first evaluation on held-out pairs writes it") from None
    except (DataError, OSError, ValueError, KeyError, TypeError, RecursionError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StorageError(f"'{path}' is damaged ({reason}): delete it; the next evaluation writes it again") from None


@functools.cache
def _schema() -> pa.Schema:
    """Return the schema; prompt, chosen and rejected are JSON, a text or messages."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("key", pa.string(), nullable=False),
            pa.field("source", pa.string(), nullable=False),
            pa.field("strength", pa.int8(), nullable=False),
            pa.field("is_tie", pa.bool_(), nullable=False),
            *(pa.field(name, pa.string(), nullable=False) for name in _TEXTS),
            *(pa.field(name, pa.float64(), nullable=False) for name in ("chosen_reward", "rejected_reward", "lead")),
            *(pa.field(name, pa.int32(), nullable=False) for name in ("chosen_tokens", "rejected_tokens")),
        ]
    )
