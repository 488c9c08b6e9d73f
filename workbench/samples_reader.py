"""The sequences of an iteration as a screen shows them, from its samples file or from an event's previews."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.events import SamplesWritten
from trainer.runs import RunFolder
from trainer.samples import read_samples

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("prompt", "completion", "truncated", "score", "logprobs", "ref_logprobs")


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence; numbers that are not known are NaN."""

    prompt: str
    completion: str
    score: float
    kl: float  # nats, summed over the response
    length: int | None  # response tokens; None in a preview
    truncated: bool


def read_iteration(folder: RunFolder, iteration: int) -> list[Sample]:
    """The sequences of `iteration` in the order of the batch.

    Imports pyarrow, which takes some 0.3 s the first time. StorageError when the file is missing or damaged.
    """
    table = read_samples(folder.samples_file(iteration), _COLUMNS)
    logprobs, lengths = _sums(table["logprobs"])
    ref_logprobs, _ = _sums(table["ref_logprobs"])
    texts = zip(table["prompt"].to_pylist(), table["completion"].to_pylist(), strict=True)
    numbers = zip(table["score"].to_pylist(), table["truncated"].to_pylist(), strict=True)
    return [
        Sample(
            prompt=prompt or "",
            completion=completion or "",
            score=math.nan if score is None else score,
            kl=logprob - ref_logprob,
            length=length,
            truncated=bool(truncated),
        )
        for (prompt, completion), (score, truncated), logprob, ref_logprob, length in zip(
            texts, numbers, logprobs, ref_logprobs, lengths, strict=True
        )
    ]


def preview_samples(event: SamplesWritten) -> list[Sample]:
    """The first sequences of an iteration, as its event has them."""
    return [
        Sample(preview.prompt, preview.completion, preview.score, preview.kl, None, preview.truncated)
        for preview in event.previews
    ]


def kept_iterations(folder: RunFolder) -> list[int]:
    """The iterations of which there is a samples file, ascending; none where the folder cannot be read."""
    try:
        names = [path.name for path in folder.samples.iterdir()]
    except OSError:
        return []
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step-([0-9]{6,})\.parquet", name)))


def _sums(column: pa.ChunkedArray) -> tuple[list[float], list[int]]:
    """The sum and the length of each list in `column`."""
    import numpy as np
    import pyarrow.compute as pc

    lists: Any = column.combine_chunks()
    rows, values = pc.list_parent_indices(lists), pc.list_flatten(lists)
    weights = values.to_numpy(zero_copy_only=False).astype(np.float64)
    sums = np.bincount(rows.to_numpy(zero_copy_only=False), weights=weights, minlength=len(lists))
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return sums.tolist(), lengths.to_pylist()
