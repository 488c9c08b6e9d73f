"""The samples of a whole run are read newest first, in parts, until told to stop."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from token_samples import SETTINGS, sample_row

from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples, write_samples
from workbench.run.sample_reader import scan
from workbench.run.sample_table import SampleKey, SampleTable


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = RunFolder(tmp_path_factory.mktemp("written"))
    for iteration in range(1, 121):
        rows = [sample_row(iteration, 1), sample_row(0, 1)]
        write_samples(folder.samples_file(iteration), rows, iteration, SETTINGS)
    return folder.root


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> RunFolder:
    """Make 120 iterations of two samples each: the rows `iteration` and 0."""
    return RunFolder(Path(shutil.copytree(written, tmp_path / "run")))


def test_a_whole_run_comes_newest_first_in_parts_and_damage_is_reported(folder: RunFolder) -> None:
    folder.samples_file(70).write_bytes(b"PAR1")
    folder.samples_file(5).unlink()
    parts = [(part.table.keys, part.done, part.total, part.problems) for part in scan(folder, range(1, 121))]
    keys = [key for found, *_ in parts for key in found]
    whole = [iteration for iteration in range(120, 0, -1) if iteration not in (70, 5)]
    assert keys == [SampleKey(iteration, row) for iteration in whole for row in (iteration, 0)]
    assert len(parts) > 1
    done = [done for _, done, _, _ in parts]
    assert done == sorted(set(done))
    assert {total for _, _, total, _ in parts} == {120} == {done[-1]}
    problems = [problem for *_, reported in parts for problem in reported]
    assert ["step-000070" in problems[0], "step-000005" in problems[1], len(problems)] == [True, True, 2]


def test_a_scan_that_is_stopped_reads_no_further_file(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counted(path: Path, *columns: Any) -> pa.Table:
        read.append(path)
        return read_samples(path, *columns)

    monkeypatch.setattr("workbench.run.sample_reader.read_samples", counted)
    parts = [len(part.table) for part in scan(folder, range(1, 121), lambda: len(read) >= 60)]
    assert len(read) == 60
    assert sum(parts) < 2 * 60


def test_parts_grow_so_that_going_through_all_with_each_is_cheap(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(scan(folder, [])) == []
    assert [len(part.table) for part in scan(folder, [1, 2])] == [4], "few iterations are one part"
    monkeypatch.setattr("workbench.run.sample_reader.read_batch", lambda *_: SampleTable.joined([]))
    done_by_part = [part.done for part in scan(RunFolder(folder.root / "none"), range(1, 100_001))]
    assert len(done_by_part) > 20
    assert sum(done_by_part) <= 6 * 100_000
