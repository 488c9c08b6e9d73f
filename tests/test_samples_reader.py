"""The samples of an iteration are those that the trainer wrote, with KL and length summed over the response."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_run import samples

from trainer.errors import StorageError
from trainer.runs import RunFolder
from trainer.samples import write_samples
from workbench.samples_reader import Sample, kept_iterations, preview_samples, read_iteration


def row(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "row": 0,
        "prompt": "Once",
        "completion": " upon",
        "truncated": False,
        "score": 0.5,
        "tokens": [1, 2],
        "logprobs": [-1.0, -2.0],
        "ref_logprobs": [-1.5, -1.75],
    }
    return values | changes


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_kl_is_summed_over_each_response_and_its_tokens_are_counted(folder: RunFolder) -> None:
    rows = [
        row(),
        row(completion="", tokens=[], logprobs=[], ref_logprobs=[], score=-1.0),
        row(tokens=[1], logprobs=[-0.25], ref_logprobs=[-4.0], truncated=True, completion="[/x]\x1b"),
        row(completion="", tokens=[], logprobs=[], ref_logprobs=[]),
    ]
    write_samples(folder.samples_file(3), rows, 3)
    assert read_iteration(folder, 3) == [
        Sample("Once", " upon", 0.5, 0.25, 2, False),
        Sample("Once", "", -1.0, 0.0, 0, False),
        Sample("Once", "[/x]\x1b", 0.5, 3.75, 1, True),
        Sample("Once", "", 0.5, 0.0, 0, False),
    ]


def test_what_is_not_finite_or_missing_spoils_only_its_own_row(folder: RunFolder) -> None:
    rows = [
        row(score=None, prompt=None, completion=None, truncated=None),
        row(logprobs=[math.nan, -1.0]),
        row(logprobs=None, ref_logprobs=None),
        row(),
    ]
    write_samples(folder.samples_file(3), rows, 3)
    missing, spoilt, empty, whole = read_iteration(folder, 3)
    assert (missing.prompt, missing.completion, missing.truncated, missing.kl) == ("", "", False, 0.25)
    assert math.isnan(missing.score)
    assert math.isnan(spoilt.kl)
    assert (empty.kl, empty.length) == (0.0, 0)
    assert whole.kl == 0.25


def test_an_empty_batch_has_no_samples(folder: RunFolder) -> None:
    write_samples(folder.samples_file(3), [], 3)
    assert read_iteration(folder, 3) == []


def test_a_missing_file_and_a_damaged_one_are_errors_of_one_line(folder: RunFolder) -> None:
    with pytest.raises(StorageError, match=r"step-000003\.parquet") as missing:
        read_iteration(folder, 3)
    folder.samples.mkdir()
    folder.samples_file(3).write_bytes(b"PAR1 is how it begins, and then there is nothing of use PAR1")
    with pytest.raises(StorageError, match="damaged") as damaged:
        read_iteration(folder, 3)
    assert "\n" not in f"{missing.value}{damaged.value}"


def test_previews_are_samples_whose_length_is_not_known() -> None:
    event = samples(5, ("Once upon", " a time"), ("The", " end"))
    assert preview_samples(event) == [
        Sample("Once upon", " a time", 0.81, 7.9, None, False),
        Sample("The", " end", 0.81, 7.9, None, False),
    ]


def test_kept_iterations_are_those_with_a_file(folder: RunFolder) -> None:
    assert kept_iterations(folder) == []
    folder.samples.mkdir()
    for name in ("step-000012.parquet", "step-000003.parquet", "step-1000000.parquet"):
        (folder.samples / name).touch()
    for name in (".step-000004.parquet.tmp", "step-5.parquet", "step-000006.parquet.bak", "notes.txt"):
        (folder.samples / name).touch()
    assert kept_iterations(folder) == [3, 12, 1_000_000]


def test_importing_the_panes_imports_neither_pyarrow_nor_numpy() -> None:
    code = (
        "import sys, workbench.panes.samples, workbench.panes.runs as _; print({'pyarrow', 'numpy'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
