"""Samples files hold what was written, whole or not at all, as the docs say, and report damage in one line."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow.parquet as pq
import pytest
from apart import ROOT
from token_samples import SETTINGS, sample_row

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder
from trainer.runs.samples import (
    SAMPLES_VERSION,
    TOKEN_COLUMNS,
    SampleSettings,
    kept_iterations,
    read_samples,
    sample_schema,
    sample_settings,
    write_samples,
)

FEW_COLUMNS = ["row", "prompt_index", "sample", "prompt", "completion", "truncated", "stop_reason", "score", "parts",
             "columns", "prompt_tokens", "tokens", "sampler_logprobs", "logprobs", "ref_logprobs", "kl", "entropy",
             "rewards", "values", "td_errors", "advantages", "returns"]  # fmt: skip


def sequence(row: int, length: int) -> dict[str, Any]:
    """Return a row of a samples file; the numbers of its tokens are of float32, as the file has them."""
    given = sample_row(row, length, prompt="Once upon a time \0 “é” \n", completion="[@click=app.quit]the end[/x]")
    given |= {"source_prompt": '[{"role": "user", "content": "Once"}]', "extra": json.dumps({"judge": "good"})}
    given |= {"parts": {"lexicon": 1 / 3, "length": -2.0}, "score": 1 / 3, "kl_sum": 1e-9}
    given |= {"baseline": 1 / 11, "advantage_scale": 1 / 13, "token_texts": [f"“{place}”" for place in range(length)]}
    given |= {"top_texts": [[f" {place}", "\ufffd", "", "\n", "é"] for place in range(length)]}
    numbers = (*TOKEN_COLUMNS, "ratios", "top_logprobs", "top_ref_logprobs")
    return given | {name: np.array(given[name], np.float32).tolist() for name in numbers}


def as_written(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows as pyarrow gives them back: maps are lists of pairs."""
    return [
        {**row, "parts": [{"source": name, "score": score} for name, score in row["parts"].items()]} for row in rows
    ]


def rewritten(path: Path, columns: list[str], **metadata: str) -> None:
    """Rewrite the file in `path` with only some of its columns and other metadata."""
    table = pq.read_table(path).select(columns)
    pq.write_table(table.replace_schema_metadata(metadata), path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples" / "step-000012.parquet"


def test_rows_read_back_as_they_were_written_whole_or_by_column(path: Path) -> None:
    rows = [sequence(row, length) for row, length in enumerate((5, 0, 3))]
    write_samples(path, [], iteration=11)
    assert read_samples(path).num_rows == 0
    assert read_samples(path).schema.equals(sample_schema())
    write_samples(path, rows, iteration=12)
    assert [file.name for file in path.parent.iterdir()] == [path.name], "it replaces the old one"
    table = read_samples(path)
    assert table.to_pylist() == as_written(rows)
    assert table.schema.equals(sample_schema())
    assert table.schema.metadata == {b"samples": str(SAMPLES_VERSION).encode(), b"iteration": b"12"}
    assert read_samples(path, ["score", "row"]).to_pylist() == [{"score": 1 / 3, "row": row} for row in range(3)]
    with pytest.raises(StorageError, match=r"no column 'advantage': they have .*advantages"):
        read_samples(path, ["row", "advantage"])
    assert pq.read_table(path).num_rows == 3, "by any reader"
    assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"


def test_numpy_arrays_and_scalars_are_written_like_lists(path: Path) -> None:
    rows = [sequence(0, 5)]
    nested = ("ratios", "top_tokens", "top_logprobs", "top_ref_logprobs")
    arrays = {name: np.array(rows[0][name]) for name in (*TOKEN_COLUMNS, *nested, "tokens")}
    scalars = {"row": np.int64(0), "score": np.float64(1 / 3)}
    write_samples(path, [rows[0] | arrays | scalars], iteration=1)
    assert read_samples(path).to_pylist() == as_written(rows)


def test_arrays_of_every_length_and_cut_and_missing_ones_are_written_row_by_row(path: Path) -> None:
    wide = np.arange(40, dtype=np.float32).reshape(4, 10)
    written: list[Any] = [wide[:2, :3], None, wide[:0, :5], [[1.0], [], [2.0, 3.0]], [], wide.T[1:3]]
    numbers: list[Any] = [wide[0, ::3], None, [], [1.0, 2.0], np.arange(3), wide[:, 5]]
    rows = [{"ratios": two, "values": one} for two, one in zip(written, numbers, strict=True)]
    write_samples(path, rows, iteration=1)
    plain = [None if two is None else [[float(x) for x in one] for one in two] for two in written]
    assert read_samples(path, ["ratios"])["ratios"].to_pylist() == plain
    assert read_samples(path, ["values"])["values"].to_pylist() == [
        None if one is None else [float(x) for x in one] for one in numbers
    ]
    write_samples(path, [{"values": np.array([math.nan, math.inf, -math.inf])}], iteration=1)
    [values] = read_samples(path, ["values"])["values"].to_pylist()
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]


@pytest.mark.parametrize(
    ("row", "message"),
    [({"tokens": np.array([2**40])}, "too large"), ({"row": 0, "advantage": [1.0]}, "advantage")],
    ids=["an id that would be wrapped", "a misspelt column"],
)
def test_a_row_that_does_not_fit_is_refused(path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_samples(path, [row], iteration=1)


def test_lone_surrogates_become_backslash_escapes(path: Path) -> None:
    row: dict[str, Any] = {"prompt": "a\ud800b", "completion": "\udcff", "columns": '{"x": "\ud800"}'}
    row |= {"parts": {"\ud800": 1.0}}
    row |= {"token_texts": ["a", "\ud800"], "top_texts": [["\udfff"], ["é", "\ud800"]]}
    write_samples(path, [row], iteration=1)
    [read] = read_samples(path, list(row)).to_pylist()
    assert read["token_texts"] == ["a", r"\ud800"]
    assert read["top_texts"] == [[r"\udfff"], ["é", r"\ud800"]]
    assert read["prompt"] == r"a\ud800b"
    assert read["completion"] == r"\udcff"
    assert read["parts"] == [{"source": r"\ud800", "score": 1.0}]
    assert json.loads(read["columns"]) == {"x": "\ud800"}


# Settings and versions


def test_the_settings_read_back_to_the_bit(path: Path) -> None:
    write_samples(path, [sequence(0, 3)], 12, SETTINGS)
    metadata = read_samples(path, ["row"]).schema.metadata
    assert sample_settings(metadata) == SETTINGS
    assert json.loads(metadata[b"settings"])["kl_coef"] == SETTINGS.kl_coef
    write_samples(path, [], 12, dataclasses.replace(SETTINGS, reward_mean=math.nan, reward_std=math.inf))
    settings = sample_settings(read_samples(path).schema.metadata)
    assert settings is not None
    assert math.isnan(settings.reward_mean)
    assert settings.reward_std == math.inf


WHOLE = json.dumps(dataclasses.asdict(SETTINGS)).encode()


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {b"samples": b"1"},
        *({b"settings": text} for text in (b"", b"{}", b"[1]", b"\xff", WHOLE[:-9], WHOLE.replace(b"0.95", b'"warm"'))),
    ],
)
def test_settings_that_are_missing_or_broken_are_none(metadata: Any) -> None:
    assert sample_settings(metadata) is None


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (str(SAMPLES_VERSION + 1), r"step-000012.parquet' were written by a newer version: update ppo-workbench$"),
        ("two", r"damaged \(their version is b'two'\)"),
        ("9" * 5000, "damaged"),
    ],
)
def test_a_file_of_another_version_is_reported_in_one_line(path: Path, version: str, message: str) -> None:
    write_samples(path, [sequence(0, 3)], iteration=7)
    rewritten(path, FEW_COLUMNS, samples=str(SAMPLES_VERSION))
    with pytest.raises(StorageError, match="no column 'ratios'"):
        read_samples(path, ["ratios"])
    rewritten(path, FEW_COLUMNS, samples=version)
    for columns in (None, ["row"]):
        with pytest.raises(StorageError, match=message) as error:
            read_samples(path, columns)
        assert "\n" not in str(error.value)


def test_a_missing_file_and_one_cut_anywhere_are_storage_errors_of_one_line(path: Path) -> None:
    with pytest.raises(StorageError, match=r"run\.save_samples"):
        read_samples(path)
    write_samples(path, [sequence(0, 3)], iteration=1)
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(StorageError, match="damaged") as error:
            read_samples(path)
        assert "\n" not in str(error.value)


def test_a_write_that_fails_leaves_the_old_file_and_names_the_way_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_samples(path, [sequence(0, 3)], iteration=1)

    def fill_disk(_: object, temporary: BinaryIO, **__: object) -> None:
        temporary.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", fill_disk)
    with pytest.raises(StorageError, match=r"step-000012.*No space left on device; .*save_samples=false"):
        write_samples(path, [sequence(0, 3)], iteration=2)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert read_samples(path).schema.metadata[b"iteration"] == b"1"
    with pytest.raises(StorageError, match="cannot write samples"):
        write_samples(path / "step-000001.parquet", [], iteration=1)


def test_importing_the_module_does_not_import_pyarrow() -> None:
    script = "import sys, trainer.runs.samples; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_kept_iterations_are_those_with_a_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert kept_iterations(folder) == []
    folder.samples.mkdir()
    for name in ("step-000012.parquet", "step-000003.parquet", "step-1000000.parquet"):
        (folder.samples / name).touch()
    for name in (".step-000004.parquet.tmp", "step-5.parquet", "step-000006.parquet.bak", f"step-{'9' * 30}.parquet"):
        (folder.samples / name).touch()
    assert kept_iterations(folder) == [3, 12, 1_000_000]


PAGE = (ROOT / "docs" / "samples.md").read_text(encoding="utf-8")
ROWS = 8


def table(heading: str) -> list[list[str]]:
    """Return the cells of the body of the table whose first heading this is."""
    body = PAGE.split(f"\n| {heading} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in row.strip("|").split(" | ")] for row in body]


def examples(section: str) -> str:
    """Return the Python code of a section, in order."""
    text = PAGE.split(f"\n### {section}\n")[1].split("\n### ")[0]
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the run that the examples open."""
    monkeypatch.chdir(tmp_path)
    Path("runs/quickstart-0001").mkdir(parents=True)
    for iteration in (1, 12):
        path = Path(f"runs/quickstart-0001/samples/step-{iteration:06d}.parquet")
        write_samples(path, [sample_row(row) for row in range(ROWS)], iteration, SETTINGS)


def test_the_columns_and_their_types_are_those_of_the_file() -> None:
    documented = [(name, kind) for name, kind, _ in table("column")]
    types = {field.name: re.sub(r"element: |item: | \('\w+'\)", "", str(field.type)) for field in sample_schema()}
    assert documented == list(types.items())
    assert f"the version of these columns ({SAMPLES_VERSION})," in PAGE


def test_the_settings_are_those_of_the_file() -> None:
    assert [name for name, _ in table("setting")] == [field.name for field in fields(SampleSettings)]


def test_the_examples_give_the_numbers_of_the_run(run: None, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(examples("Reading them"), names)
    rows = [sample_row(row) for row in range(ROWS)]
    means = names["samples"].groupby("iteration")["kl_sum"].mean()
    assert list(means.index) == [1, 12]
    assert means[12] == pytest.approx(sum(row["kl_sum"] for row in rows) / ROWS)
    assert len(names["tokens"]) == 2 * sum(row["length"] for row in rows)
    assert names["settings"]["kl_coef"] == SETTINGS.kl_coef
    assert f"{SETTINGS.kl_coef} {SETTINGS.gamma} {SETTINGS.lam}" in capsys.readouterr().out
