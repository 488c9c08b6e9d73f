"""The samples of a whole run are read newest first, in parts, until somebody says stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from token_samples import SETTINGS, sample_row

from trainer.runs import RunFolder
from trainer.samples import read_samples, write_samples
from workbench.samples.records import SampleKey
from workbench.samples.whole_run import scan


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Of 120 iterations, each with two samples: the rows `iteration` and 0."""
    folder = RunFolder(tmp_path)
    for iteration in range(1, 121):
        rows = [sample_row(iteration, 1), sample_row(0, 1)]
        write_samples(folder.samples_file(iteration), rows, iteration, SETTINGS)
    return folder


def test_a_whole_run_comes_newest_first_in_parts_and_damage_is_told(folder: RunFolder) -> None:
    folder.samples_file(70).write_bytes(b"PAR1")
    folder.samples_file(5).unlink()
    parts: list[tuple[list[SampleKey], int, int, list[str]]] = []
    scan(folder, range(1, 121), lambda table, *rest: parts.append((table.keys, *rest)), lambda: False)
    keys = [key for found, *_ in parts for key in found]
    whole = [iteration for iteration in range(120, 0, -1) if iteration not in (70, 5)]
    assert keys == [SampleKey(iteration, row) for iteration in whole for row in (iteration, 0)]
    assert len(parts) > 1
    done = [done for _, done, _, _ in parts]
    assert done == sorted(set(done))
    assert {total for _, _, total, _ in parts} == {120} == {done[-1]}
    problems = [problem for *_, told in parts for problem in told]
    assert ["step-000070" in problems[0], "step-000005" in problems[1], len(problems)] == [True, True, 2]


def test_a_scan_that_is_stopped_reads_no_further_file(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counted(path: Path, *columns: Any) -> pa.Table:
        read.append(path)
        return read_samples(path, *columns)

    monkeypatch.setattr("workbench.samples.reader.read_samples", counted)
    parts: list[int] = []
    scan(folder, range(1, 121), lambda table, *rest: parts.append(len(table)), lambda: len(read) >= 60)
    assert len(read) == 60
    assert sum(parts) < 2 * 60


def test_a_run_without_samples_is_scanned_without_a_word(folder: RunFolder) -> None:
    scan(folder, [], lambda *found: pytest.fail("nothing was there"), lambda: False)
