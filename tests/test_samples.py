"""Samples files hold what was written, whole or not at all, and say so in one line when they are damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from trainer.errors import StorageError
from trainer.samples import TOKEN_COLUMNS, read_samples, sample_schema, write_samples


def sequence(row: int, length: int) -> dict[str, Any]:
    rng = np.random.default_rng(row)
    return {
        "row": row,
        "prompt_index": 7,
        "sample": 0,
        "prompt": "Once upon a time \0 “é” \n",
        "completion": "[@click=app.quit]the end[/x]",
        "truncated": bool(row % 2),
        "stop_reason": "length" if row % 2 else "stop",
        "score": 1 / 3,
        "parts": {"lexicon": 1 / 3, "length": -2.0},
        "columns": json.dumps({"mood": "warm"}),
        "prompt_tokens": [1, 2, 3],
        "tokens": rng.integers(0, 49152, length).tolist(),
        **{name: rng.standard_normal(length).astype(np.float32).tolist() for name in TOKEN_COLUMNS},
    }


def as_written(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as pyarrow gives them back: maps are lists of pairs."""
    return [{**row, "parts": list(row["parts"].items())} for row in rows]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples" / "step-000012.parquet"


def test_rows_read_back_as_they_were_written(path: Path) -> None:
    rows = [sequence(row, length) for row, length in enumerate((5, 0, 3))]
    write_samples(path, rows, iteration=12)
    table = read_samples(path)
    assert table.to_pylist() == as_written(rows)
    assert table.schema.equals(sample_schema())
    assert table.schema.metadata == {b"samples": b"1", b"iteration": b"12"}


def test_any_parquet_reader_finds_the_file_zstd_compressed(path: Path) -> None:
    write_samples(path, [sequence(0, 4)], iteration=12)
    assert pq.read_table(path).num_rows == 1
    column = pq.read_metadata(path).row_group(0).column(0)
    assert column.compression == "ZSTD"


def test_numpy_arrays_and_scalars_are_written_like_lists(path: Path) -> None:
    rows = [sequence(0, 5)]
    arrays = {name: np.array(rows[0][name], dtype=np.float64) for name in TOKEN_COLUMNS}
    scalars = {"row": np.int64(0), "score": np.float64(1 / 3), "tokens": np.array(rows[0]["tokens"])}
    write_samples(path, [rows[0] | arrays | scalars], iteration=1)
    assert read_samples(path).to_pylist() == as_written(rows)


def test_an_iteration_without_sequences_is_an_empty_table(path: Path) -> None:
    write_samples(path, [], iteration=1)
    assert read_samples(path).num_rows == 0
    assert read_samples(path).schema.equals(sample_schema())


def test_columns_that_a_row_lacks_are_null(path: Path) -> None:
    write_samples(path, [{"row": 0, "completion": "a"}], iteration=1)
    [row] = read_samples(path).to_pylist()
    assert {name for name, value in row.items() if value is not None} == {"row", "completion"}


def test_a_misspelt_column_is_refused_rather_than_dropped(path: Path) -> None:
    with pytest.raises(ValueError, match="advantage"):
        write_samples(path, [{"row": 0, "advantage": [1.0]}], iteration=1)


def test_lone_surrogates_become_backslash_escapes(path: Path) -> None:
    row = {"prompt": "a\ud800b", "completion": "\udcff", "columns": '{"x": "\ud800"}', "parts": {"\ud800": 1.0}}
    write_samples(path, [row], iteration=1)
    [read] = read_samples(path, list(row)).to_pylist()
    assert read["prompt"] == r"a\ud800b"
    assert read["completion"] == r"\udcff"
    assert read["parts"] == [(r"\ud800", 1.0)]
    assert json.loads(read["columns"]) == {"x": "\ud800"}


def test_only_the_columns_asked_for_are_read(path: Path) -> None:
    write_samples(path, [sequence(0, 3)], iteration=1)
    assert read_samples(path, ["score", "row"]).to_pylist() == [{"row": 0, "score": 1 / 3}]


def test_a_column_that_is_not_there_is_named_with_those_that_are(path: Path) -> None:
    write_samples(path, [sequence(0, 3)], iteration=1)
    with pytest.raises(StorageError, match=r"no column 'advantage': they have .*advantages"):
        read_samples(path, ["row", "advantage"])


def test_a_missing_file_is_a_storage_error(path: Path) -> None:
    with pytest.raises(StorageError, match=r"run\.save_samples"):
        read_samples(path)


def test_a_file_cut_anywhere_is_a_storage_error_of_one_line(path: Path) -> None:
    write_samples(path, [sequence(0, 3)], iteration=1)
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(StorageError, match="damaged") as error:
            read_samples(path)
        assert "\n" not in str(error.value)


def test_a_flipped_bit_is_noticed_wherever_it_would_change_a_number(path: Path) -> None:
    write_samples(path, [sequence(0, 200)], iteration=1)
    whole, table = path.read_bytes(), read_samples(path)
    columns = {column["path_in_schema"]: column for column in pq.read_metadata(path).row_group(0).to_dict()["columns"]}
    column = columns["logprobs.list.element"]
    end = column["dictionary_page_offset"] + column["total_compressed_size"]
    noticed = 0
    for position in range(end - 1000, end, 20):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        try:
            assert read_samples(path).equals(table), position
        except StorageError:
            noticed += 1
    assert noticed > 40  # of 50; the others hit statistics


def test_writing_leaves_no_temporary_file_and_replaces_the_old_one(path: Path) -> None:
    for iteration in (1, 2):
        write_samples(path, [sequence(0, 3)], iteration)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert read_samples(path).schema.metadata[b"iteration"] == b"2"


def test_a_write_that_fails_leaves_the_old_file_and_names_the_way_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_samples(path, [sequence(0, 3)], iteration=1)

    def fill_disk(_: object, temporary: Path, **__: object) -> None:
        temporary.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", fill_disk)
    with pytest.raises(StorageError, match=r"step-000012.*No space left on device; .*save_samples=false"):
        write_samples(path, [sequence(0, 3)], iteration=2)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert read_samples(path).schema.metadata[b"iteration"] == b"1"


def test_a_file_in_place_of_the_folder_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "samples").write_text("")
    with pytest.raises(StorageError, match="cannot write samples"):
        write_samples(tmp_path / "samples" / "step-000001.parquet", [], iteration=1)


def test_importing_the_module_does_not_import_pyarrow() -> None:
    script = "import sys, trainer.samples; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[1]).returncode == 0
