"""Files of many rows: read line by line, never whole; and small files that would fill the memory."""

from __future__ import annotations

import gzip
import json
import re
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.data import readers
from trainer.data.readers import read_rows
from trainer.errors import DataError

CONTENT = {
    ".jsonl": "".join(json.dumps({"prompt": f"row {number}", "n": "é\u2028"}) + "\r\n" for number in range(50_000)),
    ".csv": "prompt,n\n" + "".join(f'"row\n{number}",é\r\n' for number in range(50_000)),
    ".txt": "\ufeff" + "".join(f"row {number}\r\n" for number in range(50_000)),
}


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".csv", ".txt"])
def test_the_first_rows_of_a_file_do_not_wait_for_its_end_and_errors_still_name_the_line(
    tmp_path: Path, suffix: str
) -> None:
    path, content = tmp_path / f"rows{suffix}", CONTENT[suffix.removesuffix(".gz")].encode()
    packed = gzip.compress if suffix.endswith(".gz") else bytes
    path.write_bytes(packed(content))
    expected = [row.columns["prompt"] for row in read_rows(path, "prompt")]
    assert len(expected) == 50_000
    assert expected[1] == "row\n1" if suffix == ".csv" else "row 1"

    path.write_bytes(packed(content + b"\xff"))
    assert [row.columns["prompt"] for row in islice(read_rows(path, "prompt"), 3)] == expected[:3]
    line = content.count(b"\n") + 1
    with pytest.raises(DataError, match=rf"rows{suffix}:{line}: byte 0xff is not UTF-8"):
        list(read_rows(path, "prompt"))


def packed(path: Path, parts: list[bytes]) -> Path:
    with gzip.open(path, "wb") as file:
        for part in parts:
            file.write(part)
    return path


def repeated(path: Path, text: str, rows: int, *, categories: bool = False) -> Path:
    """Write a Parquet file that has `text` once, as the value of all `rows`, which are of categories or plain text."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [text])
    table = pa.table({"prompt": texts})
    with pq.ParquetWriter(
        path, table.schema, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=categories
    ) as file:
        file.write_table(table)
    return path


def test_a_row_that_is_too_large_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    million = b"a" * (1 << 20)
    line = packed(tmp_path / "line.jsonl.gz", [b'{"prompt": "one"}\n{"prompt": "', *[million] * 20, b'"}\n'])
    text = "a" * (17 << 20)
    for path, message in (
        (line, "line.jsonl.gz:2: is longer than 16 MiB: shorten it"),
        (repeated(tmp_path / "one.parquet", text, 1), "one.parquet: column 'prompt' has rows of more than 16 MiB"),
        (repeated(tmp_path / "all.parquet", text, 10_000), "all.parquet[0]: has rows of more than 16 MiB"),
        (repeated(tmp_path / "kinds.parquet", text, 10_000, categories=True), "kinds.parquet[0]: has rows of more"),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            list(read_rows(path, "prompt"))


def test_a_small_file_with_many_rows_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "UNPACKED_BYTES", 8 << 20)
    for path, most in (
        (packed(tmp_path / "lines.jsonl.gz", [b'{"prompt": "a"}\n' * 100_000]), 30_000),
        (repeated(tmp_path / "large.parquet", "a" * 100_000, 2_000), 90),
        (repeated(tmp_path / "kinds.parquet", "a" * 100_000, 2_000, categories=True), 90),
        (repeated(tmp_path / "small.parquet", "a", 100_000), 30_000),
    ):
        rows = read_rows(path)
        with pytest.raises(DataError, match=f"{path.name}: unpacks to more than"):
            next(islice(rows, most, None))
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(b'{"prompt": "a"}\n' * 100_000)
    assert sum(1 for _ in read_rows(plain)) == 100_000
