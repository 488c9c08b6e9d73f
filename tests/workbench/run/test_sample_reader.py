"""The screen reads the samples of a run, and their marks, whatever a file lacks."""

from __future__ import annotations

import json
import math
import shutil
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
from workbench.run.bookmarks import Bookmarks
from workbench.run.sample_reader import (
    preview_samples,
    read_batch,
    read_channel_columns,
    read_token_sample,
    scan,
)
from workbench.run.sample_table import Alternative, Sample, SampleKey, SampleTable, TokenSample


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
    names = ("prompt", "completion", "score", "kl_sum", "length", "truncated", "prompt_index")
    assert list(read_batch(folder, 3)) == [
        Sample(SampleKey(3, row["row"]), *(row[name] for name in names)) for row in rows
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


def test_importing_the_reader_imports_neither_pyarrow_nor_numpy() -> None:
    code = "import sys, workbench.samples.pane, workbench.runs.pane; print({'pyarrow', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "set()"


@pytest.fixture(scope="module")
def long_run_written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    long_run = RunFolder(tmp_path_factory.mktemp("long_run_written"))
    for iteration in range(1, 121):
        rows = [sample_row(iteration, 1), sample_row(0, 1)]
        write_samples(long_run.samples_file(iteration), rows, iteration, SETTINGS)
    return long_run.root


@pytest.fixture
def long_run(long_run_written: Path, tmp_path: Path) -> RunFolder:
    """Make 120 iterations of two samples each: the rows `iteration` and 0."""
    return RunFolder(Path(shutil.copytree(long_run_written, tmp_path / "run")))


def test_a_whole_run_comes_newest_first_in_parts_and_damage_is_reported(long_run: RunFolder) -> None:
    long_run.samples_file(70).write_bytes(b"PAR1")
    long_run.samples_file(5).unlink()
    parts = [(part.table.keys, part.done, part.total, part.problems) for part in scan(long_run, range(1, 121))]
    keys = [key for found, *_ in parts for key in found]
    whole = [iteration for iteration in range(120, 0, -1) if iteration not in (70, 5)]
    assert keys == [SampleKey(iteration, row) for iteration in whole for row in (iteration, 0)]
    assert len(parts) > 1
    done = [done for _, done, _, _ in parts]
    assert done == sorted(set(done))
    assert {total for _, _, total, _ in parts} == {120} == {done[-1]}
    problems = [problem for *_, reported in parts for problem in reported]
    assert ["step-000070" in problems[0], "step-000005" in problems[1], len(problems)] == [True, True, 2]


def test_a_scan_that_is_stopped_reads_no_further_file(long_run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counted(path: Path, *columns: Any) -> pa.Table:
        read.append(path)
        return read_samples(path, *columns)

    monkeypatch.setattr("workbench.run.sample_reader.read_samples", counted)
    parts = [len(part.table) for part in scan(long_run, range(1, 121), lambda: len(read) >= 60)]
    assert len(read) == 60
    assert sum(parts) < 2 * 60


def test_parts_grow_so_that_going_through_all_with_each_is_cheap(
    long_run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(scan(long_run, [])) == []
    assert [len(part.table) for part in scan(long_run, [1, 2])] == [4], "few iterations are one part"
    monkeypatch.setattr("workbench.run.sample_reader.read_batch", lambda *_: SampleTable.joined([]))
    done_by_part = [part.done for part in scan(RunFolder(long_run.root / "none"), range(1, 100_001))]
    assert len(done_by_part) > 20
    assert sum(done_by_part) <= 6 * 100_000


A, B, C = SampleKey(3, 1), SampleKey(12, 0), SampleKey(12, 63)


def file(folder: RunFolder) -> Path:
    return folder.root / "bookmarks.json"


def test_a_mark_is_set_removed_and_read_back(folder: RunFolder) -> None:
    bookmarks = Bookmarks(folder)
    assert (list(bookmarks), bookmarks.problem, A in bookmarks) == ([], "", False)
    assert list(folder.root.iterdir()) == []
    assert [bookmarks.toggle(key) for key in (C, A, B, A)] == [True, True, True, False]
    for each in (bookmarks, Bookmarks(folder)):
        assert list(each) == [B, C]
        assert len(each) == 2
        assert B in each
        assert A not in each
        assert each.problem == ""
    assert json.loads(file(folder).read_text()) == {"version": 1, "samples": [[12, 0], [12, 63]]}
    assert list(folder.root.iterdir()) == [file(folder)]


BROKEN = {
    "cut": b'{"version": 1, "samples": [[3,',
    "not UTF-8": b"\xff\xfe",
    "no samples": b'{"version": 1}',
    "not pairs": b'{"version": 1, "samples": [[3, 1, 2]]}',
    "lists": b'{"version": 1, "samples": [[[], 1]]}',
    "fractions": b'{"version": 1, "samples": [[3.5, 1]]}',
    "too large": b'{"version": 1, "samples": [[3, 99999999999999999999]]}',
    "deep": b"[" * 100_000,
    "newer": b'{"version": 2, "samples": {"3": [1]}}',
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_reported_and_never_overwritten(folder: RunFolder, content: bytes) -> None:
    file(folder).write_bytes(content)
    bookmarks = Bookmarks(folder)
    assert ("newer version" if b'"version": 2' in content else "damaged") in bookmarks.problem
    assert "\n" not in bookmarks.problem
    assert list(bookmarks) == []
    with pytest.raises(StorageError, match=r"bookmarks\.json"):
        bookmarks.toggle(A)
    assert file(folder).read_bytes() == content
    assert list(bookmarks) == []


def test_a_file_that_broke_meanwhile_is_not_overwritten_either_and_a_folder_in_its_place_is_reported(
    folder: RunFolder,
) -> None:
    bookmarks, other = Bookmarks(folder), Bookmarks(folder)
    bookmarks.toggle(A)
    assert not other.toggle(A), "marks that another program has set are known"
    bookmarks.toggle(A)
    file(folder).write_text("broken")
    with pytest.raises(StorageError, match="damaged"):
        bookmarks.toggle(B)
    assert list(bookmarks) == [A]
    file(folder).unlink()
    file(folder).mkdir()
    assert "cannot be read" in Bookmarks(folder).problem


def test_a_folder_that_cannot_be_written_is_an_error_and_nothing_changes(folder: RunFolder) -> None:
    bookmarks = Bookmarks(folder)
    bookmarks.toggle(A)
    before = file(folder).read_bytes()
    (folder.root / ".bookmarks.json.tmp").mkdir()  # root may write anywhere but over a folder
    for key in (A, B):
        with pytest.raises(StorageError, match=r"cannot write bookmarks '.*bookmarks\.json'.*writable") as error:
            bookmarks.toggle(key)
        assert "\n" not in str(error.value)
        assert list(bookmarks) == [A]
    assert file(folder).read_bytes() == before
