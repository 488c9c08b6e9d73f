"""The screen reads the samples of a run as the trainer wrote them, whatever a file lacks."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scripted_run import samples
from token_samples import SETTINGS, sample_row, token_sample

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder
from trainer.runs.samples import SAMPLES_VERSION, TOKEN_COLUMNS, read_samples, write_samples
from workbench.run.sample_reader import (
    preview_samples,
    read_batch,
    read_channel_columns,
    read_token_sample,
)
from workbench.run.sample_table import Alternative, Sample, SampleKey, TokenSample


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def write(folder: RunFolder, *rows: dict[str, Any], iteration: int = 3) -> Path:
    path = folder.samples_file(iteration)
    write_samples(path, rows, iteration, SETTINGS)
    return path


def rewrite(path: Path, table: pa.Table, **options: Any) -> None:
    pq.write_table(table, path, **options)


def sequence(row: int, length: int) -> dict[str, Any]:
    """Return a `sample_row` that may also have no tokens."""
    values = sample_row(row, max(length, 1))
    lists = {name: [] for name, value in values.items() if isinstance(value, list) and name != "prompt_tokens"}
    return values if length else values | lists | {"completion": "", "length": 0, "kl_sum": 0.0}


def in_float32(values: Iterable[float]) -> list[float]:
    return np.fromiter(values, np.float32).tolist()


def rounded(sample: TokenSample) -> TokenSample:
    """Return the sample with its per-token numbers rounded to float32."""
    return replace(
        sample,
        numbers={name: in_float32(values) for name, values in sample.numbers.items()},
        ratios=[in_float32(passes) for passes in sample.ratios],
        alternatives=[
            [Alternative(one.token, one.text, *in_float32([one.logprob, one.ref_logprob])) for one in place]
            for place in sample.alternatives
        ],
    )


def everything(folder: RunFolder, count: int) -> tuple[list[Sample], list[TokenSample]]:
    """Return the batch and each of its `count` sequences."""
    tokens = [read_token_sample(folder, SampleKey(3, row)) for row in range(count)]
    return list(read_batch(folder, 3)), tokens


def test_a_batch_has_every_sequence_with_its_numbers(folder: RunFolder) -> None:
    rows = [sequence(row, length) for row, length in ((0, 4), (1, 0), (2, 9))]
    write(folder, *rows)
    assert list(read_batch(folder, 3)) == [
        Sample(
            key=SampleKey(3, row["row"]),
            prompt=row["prompt"],
            completion=row["completion"],
            score=row["score"],
            kl=row["kl_sum"],
            length=row["length"],
            truncated=row["truncated"],
            prompt_index=row["prompt_index"],
        )
        for row in rows
    ]


def test_files_of_several_row_groups_read_like_one(folder: RunFolder) -> None:
    path = write(folder, *(sequence(row, row) for row in range(7)))
    whole = everything(folder, 7)
    rewrite(path, read_samples(path), row_group_size=2)
    assert pq.ParquetFile(path).num_row_groups == 4
    assert everything(folder, 7) == whole


def test_a_null_affects_only_its_own_row(folder: RunFolder) -> None:
    write(folder)
    assert list(read_batch(folder, 3)) == []
    assert read_channel_columns(folder, 3, ["kl", "ratios"]) == {"kl": [], "ratios": []}
    write(folder, {"completion": "alone"}, sample_row(1), {"row": 0})
    alone, whole, _ = read_batch(folder, 3)
    assert alone.key == SampleKey(3, -1)
    assert (alone.prompt, alone.completion, alone.truncated, alone.prompt_index) == ("", "alone", False, -1)
    assert math.isnan(alone.score)
    assert math.isnan(alone.kl)
    assert alone.length is None
    assert whole.score == sample_row(1)["score"]
    sample = read_token_sample(folder, SampleKey(3, 0))
    assert len(sample) == 0
    assert (sample.prompt, sample.completion, sample.columns) == ("", "", "")
    assert (sample.prompt_index, sample.sample, sample.truncated) == (-1, -1, False)
    assert (sample.texts, sample.numbers, sample.parts, sample.prompt_tokens) == ([], {}, {}, [])
    assert math.isnan(sample.score)


def test_a_token_sample_has_all_that_was_written(folder: RunFolder) -> None:
    write(folder, *(sequence(row, 5 * row) for row in range(4)))
    for row in range(1, 4):
        sample = read_token_sample(folder, SampleKey(3, row))
        assert sample == rounded(token_sample(3, row, 5 * row))
    empty = read_token_sample(folder, SampleKey(3, 0))
    assert (len(empty), empty.texts, empty.ratios, empty.alternatives) == (0, [], [], [])
    assert empty.numbers == dict.fromkeys(TOKEN_COLUMNS, empty.tokens)


def test_a_sequence_is_found_by_the_number_of_its_row_not_by_its_place(folder: RunFolder) -> None:
    write(folder, *(sample_row(row, 3) for row in (4, 2)))
    assert read_token_sample(folder, SampleKey(3, 2)).prompt == sample_row(2)["prompt"]
    with pytest.raises(StorageError, match="no row 0"):
        read_token_sample(folder, SampleKey(3, 0))


def test_what_a_sequence_may_lack_is_left_out(folder: RunFolder) -> None:
    lacking = ("token_texts", "ratios", "top_tokens", "top_texts", "top_logprobs", "top_ref_logprobs", "values")
    write(folder, sample_row(0, 2) | dict.fromkeys(lacking) | {"parts": {"lexicon": None, "length": 1.0}})
    sample = read_token_sample(folder, SampleKey(3, 0))
    assert (sample.texts, sample.ratios, sample.alternatives) == (["⟨100⟩", "⟨101⟩"], [], [])
    assert "values" not in sample.numbers
    np.testing.assert_equal(dict(sample.parts), {"lexicon": math.nan, "length": 1.0})


@pytest.mark.parametrize(
    "column",
    [
        {"kl": [0.5]},
        {"kl": [None, 0.5]},
        {"tokens": [7, None]},
        {"token_texts": ["a", "b", "c"]},
        {"ratios": [None, [1.0]]},
        {"top_texts": [["a", None], ["b", "c"]]},
    ],
)
def test_values_that_are_not_one_for_each_token_are_damage(folder: RunFolder, column: dict[str, Any]) -> None:
    write(folder, sample_row(0, 2) | column)
    with pytest.raises(StorageError, match=r"damaged.*of row 0"):
        read_token_sample(folder, SampleKey(3, 0))


def test_columns_of_other_types_that_hold_the_same_read_alike(folder: RunFolder) -> None:
    path = write(folder, *(sample_row(row, 4) for row in range(3)))
    before = everything(folder, 3)
    table = read_samples(path)
    wide = {"prompt": pa.large_string(), "row": pa.int64(), "kl": pa.large_list(pa.float64())}
    fields = [field.with_type(wide.get(field.name, field.type)) for field in table.schema]
    rewrite(path, table.cast(pa.schema(fields, table.schema.metadata)))
    assert everything(folder, 3) == before


def test_channel_columns_are_those_of_all_sequences_one_after_the_other(folder: RunFolder) -> None:
    rows = [sequence(row, length) for row, length in ((0, 3), (1, 0), (2, 2))]
    write(folder, *rows, sample_row(3, 2) | {"kl": [None, 1.0], "ratios": [[], [2.0, None]]}, {})
    read = read_channel_columns(folder, 3, ("ratios", "kl"))
    assert list(read) == ["ratios", "kl"]
    np.testing.assert_equal(read["kl"], [*in_float32([x for row in rows for x in row["kl"]]), math.nan, 1.0])
    last = in_float32([passes[-1] for row in rows for passes in row["ratios"]])
    np.testing.assert_equal(read["ratios"], [*last, math.nan, 2.0])


def readers(folder: RunFolder) -> list[Any]:
    return [
        lambda: read_batch(folder, 3),
        lambda: read_token_sample(folder, SampleKey(3, 0)),
        lambda: read_channel_columns(folder, 3, ["kl"]),
    ]


def errors(folder: RunFolder) -> list[str]:
    """Return what each reader says of a file that none of them can read."""
    reported = []
    for read in readers(folder):
        with pytest.raises(StorageError, match=r"step-000003\.parquet") as error:
            read()
        reported.append(str(error.value))
    assert not any("\n" in line for line in reported)
    return reported


def test_a_missing_or_half_written_file_is_an_error_of_one_line(folder: RunFolder) -> None:
    assert all("run.save_samples" in line for line in errors(folder))
    path = write(folder, *(sample_row(row) for row in range(8)))
    whole = path.read_bytes()
    for size in range(0, len(whole), len(whole) // 7):
        path.write_bytes(whole[:size])
        assert all("damaged" in line for line in errors(folder))


def test_a_newer_version_is_an_error_that_says_so(folder: RunFolder) -> None:
    path = write(folder, sample_row(0))
    newer = {"samples": str(SAMPLES_VERSION + 1), "iteration": "3"}
    rewrite(path, read_samples(path).replace_schema_metadata(newer))
    assert all("newer" in line for line in errors(folder))


def test_text_that_is_not_utf_8_and_columns_of_an_impossible_type_are_damage(folder: RunFolder) -> None:
    path = write(folder, sample_row(0, 2))
    table = read_samples(path)
    raw = pa.StringArray.from_buffers(1, pa.py_buffer(np.int32([0, 2])), pa.py_buffer(b"\xff\xfe"))
    rewrite(path, table.set_column(table.column_names.index("prompt"), "prompt", raw))
    for read in readers(folder)[:2]:
        with pytest.raises(StorageError, match=r"damaged.*UTF8"):
            read()
    for name in ("score", "kl"):
        table = table.set_column(table.column_names.index(name), name, pa.array(["high"]))
    rewrite(path, table)
    assert all("damaged" in line for line in errors(folder))


def test_settings_that_a_file_lacks_are_none(folder: RunFolder) -> None:
    path = write(folder, sample_row(0, 2))
    table = read_samples(path)
    assert read_token_sample(folder, SampleKey(3, 0)).settings == SETTINGS
    for settings in ("{", json.dumps({**asdict(SETTINGS), "clip": "wide"})):
        metadata = {"samples": str(SAMPLES_VERSION), "iteration": "3", "settings": settings}
        rewrite(path, table.replace_schema_metadata(metadata))
        assert read_token_sample(folder, SampleKey(3, 0)).settings is None


def test_previews_are_samples_whose_length_is_not_known() -> None:
    event = samples(5, ("Once upon", " a time"), ("The", " end"))
    assert preview_samples(event) == [
        Sample(SampleKey(5, 0), "Once upon", " a time", 0.81, 7.9, None, False),
        Sample(SampleKey(5, 1), "The", " end", 0.81, 7.9, None, False),
    ]


@pytest.mark.parametrize(
    "modules",
    [
        ["workbench.samples.pane", "workbench.runs.pane"],
        [
            *(f"workbench.run.{name}" for name in ("sample_reader", "sample_table", "sample_query")),
            "workbench.samples.sample_list",
        ],
    ],
    ids=["panes", "readers"],
)
def test_importing_the_reader_imports_neither_pyarrow_nor_numpy(modules: list[str]) -> None:
    code = f"import sys, {', '.join(modules)}; print({{'pyarrow', 'numpy'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "set()"
