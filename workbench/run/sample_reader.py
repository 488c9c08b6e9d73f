"""Readers of a run's samples files: batches for a list, or one sequence with all its tokens."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trainer.errors import StorageError
from trainer.events import SamplesWritten
from trainer.runs.folder import RunFolder
from trainer.runs.samples import TOKEN_COLUMNS, read_samples, sample_schema, sample_settings
from workbench.run.sample_table import Alternative, Sample, SampleKey, SampleTable, TokenSample, table_schema

PER_RESPONSE = ("rloo", "grpo")
"""Estimators that take a response as one action, and compare it with the prompt's others."""

_LISTED = ("row", "prompt_index", "prompt", "completion", "truncated", "score", "kl_sum", "length")
"""Columns of a `SampleTable`, besides the iteration, by their names in the file."""
_AS_STORED = [field.name for field in dataclasses.fields(TokenSample) if field.default is not dataclasses.MISSING]
"""Columns that are fields of a `TokenSample` as they are, or its defaults if the file lacks them."""
_UNKNOWN = {
    "row": -1,
    "prompt_index": -1,
    "prompt": "",
    "completion": "",
    "truncated": False,
    "score": math.nan,
    "kl_sum": math.nan,
}
"""Value in place of null in lists."""
_TOP = ("top_tokens", "top_texts", "top_logprobs", "top_ref_logprobs")
_ITERATIONS = 50  # of a part at least, except the last: less than 0.2 s


def read_batch(folder: RunFolder, iteration: int) -> SampleTable:
    """Read the sequences of `iteration` in the order of the batch, without their tokens.

    Imports pyarrow, which takes some 0.3 s the first time. Raises StorageError when the file is missing, damaged or
    of a newer version.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    path = folder.samples_file(iteration)
    read, schema = read_samples(path, _LISTED), table_schema()
    with _reporting_damage(path):
        columns = [pa.array([iteration] * len(read), pa.int32())]
        for name, field in zip(_LISTED, list(schema)[1:], strict=True):
            column = read[name].cast(field.type)
            columns.append(pc.fill_null(column, _UNKNOWN[name]) if name in _UNKNOWN else column)
        return SampleTable(pa.table(columns, schema=schema))


class RunPart(NamedTuple):
    """Samples of some iterations of a run."""

    folder: RunFolder
    table: SampleTable
    done: int  # iterations read so far
    total: int
    problems: list[str]  # of files that could not be read


def scan(folder: RunFolder, iterations: Sequence[int], stop: Callable[[], bool] = lambda: False) -> Iterator[RunPart]:
    """Read the samples of `iterations`, newest first, in parts of several files, so that the first can be shown.

    Each part but the last has at least a quarter of the iterations before it. So a caller that goes through all samples
    so far after every part processes the whole run about six times at most.
    stop: called before each file; when it returns True, samples read since the last part are dropped.
    """
    tables, problems, passed = list[SampleTable](), list[str](), 0
    for done, iteration in enumerate(sorted(iterations, reverse=True), 1):
        if stop():
            return
        try:
            tables.append(read_batch(folder, iteration))
        except StorageError as error:
            problems.append(str(error))
        if done == len(iterations) or done - passed >= max(_ITERATIONS, passed // 4):
            yield RunPart(folder, SampleTable.joined(tables).compact(), done, len(iterations), problems)
            tables, problems, passed = [], [], done


def read_token_sample(folder: RunFolder, key: SampleKey) -> TokenSample:
    """Read everything that the file of `key`'s iteration has about the sequence in row `key.row`.

    What is missing is left out; without texts, each token is shown as ⟨id⟩. Raises StorageError when there is no such
    sequence, or the file is missing, damaged or of a newer version.
    """
    path = folder.samples_file(key.iteration)
    rows = read_samples(path, ("row",))["row"].to_pylist()
    if key.row not in rows:
        raise StorageError(f"samples '{path}' have no row {key.row}: they were rewritten; go back to the list")
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    at, group = rows.index(key.row), 0
    place = at
    with _reporting_damage(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        while place >= (count := file.metadata.row_group(group).num_rows):  # the other groups are left unread
            place, group = place - count, group + 1
        fields = [field for field in sample_schema() if field.name in file.schema_arrow.names]
        read = file.read_row_group(group, columns=[field.name for field in fields]).slice(place, 1)
        metadata = file.schema_arrow.metadata
        table = pa.table([read[field.name].cast(field.type) for field in fields], schema=pa.schema(fields, metadata))
        table.validate(full=True)
        row = {name: value for name, value in table.to_pylist()[0].items() if value is not None}
        tokens = row.get("tokens", [])
        for name, items in zip(table.column_names, table.columns, strict=True):
            while pa.types.is_list(items.type):
                items = pc.list_flatten(items)
                if items.null_count:
                    raise pa.ArrowInvalid(f"{name} of row {key.row} has nulls")
        for name in ("token_texts", "ratios", *TOKEN_COLUMNS, *_TOP):
            if len(row.get(name, tokens)) != len(tokens):
                raise pa.ArrowInvalid(f"{name} of row {key.row} is not as long as its tokens")
        settings, totals = sample_settings(metadata), list[float | None]()
        if settings is not None and settings.estimator in PER_RESPONSE and 0 <= row.get("sample", -1) <= at:
            rewards = read_samples(path, ("rewards",))["rewards"].slice(at - row["sample"], settings.samples_per_prompt)
            totals = [pc.sum(x.values).as_py() if x.is_valid else None for x in rewards]
    return TokenSample(
        key=key,
        **{name: row[name] for name in _AS_STORED if name in row},
        parts={part["source"]: math.nan if part["score"] is None else part["score"] for part in row.get("parts", [])},
        group=[math.nan if total is None else total for total in totals],
        prompt_tokens=row.get("prompt_tokens", []),
        tokens=tokens,
        texts=row.get("token_texts", [f"⟨{token}⟩" for token in tokens]),
        numbers={name: row[name] for name in TOKEN_COLUMNS if name in row},
        ratios=row.get("ratios", []),
        alternatives=[
            [*map(Alternative, *place)] for place in zip(*(row.get(name, ()) for name in _TOP), strict=False)
        ],
        settings=settings,
    )


def read_channel_columns(folder: RunFolder, iteration: int, names: Sequence[str]) -> dict[str, list[float]]:
    """Read per-token columns: for each name, the values of all sequences of `iteration` one after the other.

    `ratios` gives the last pass of each token that was measured. Null is NaN, and a column that the file lacks is
    empty. Raises StorageError when the file is missing, damaged or of a newer version.
    """
    import numpy as np
    import pyarrow.compute as pc

    path = folder.samples_file(iteration)
    read = read_samples(path, tuple(names))
    with _reporting_damage(path):
        values = {}
        for name in names:
            flat = pc.list_flatten(read[name].cast(sample_schema().field(name).type)).combine_chunks()
            passes = pc.list_flatten(flat) if name == "ratios" else flat
            numbers = passes.to_numpy(zero_copy_only=False).astype(np.float64)
            if name == "ratios":
                known, last = ~np.isnan(numbers), np.full(len(flat), math.nan)
                last[pc.list_parent_indices(flat).to_numpy()[known]] = numbers[known]  # of several, the last one stays
                numbers = last
            values[name] = numbers.tolist()
        return values


def preview_samples(event: SamplesWritten) -> list[Sample]:
    """Return the first sequences of an iteration, as its event has them."""
    return [
        Sample(
            key=SampleKey(event.iteration, row),
            prompt=preview.prompt,
            completion=preview.completion,
            score=preview.score,
            kl=preview.kl,
            length=None,
            truncated=preview.truncated,
        )
        for row, preview in enumerate(event.previews)
    ]


@contextlib.contextmanager
def _reporting_damage(path: Path) -> Iterator[None]:
    """Convert pyarrow's errors about columns that it could read to a StorageError of one line."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise StorageError(f"samples '{path}' are damaged ({reason}): delete the file") from None
