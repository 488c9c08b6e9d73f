"""The samples of a whole run are read newest first, in parts, until told to stop."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from token_samples import SETTINGS, sample_row

from trainer.runs.folder import RunFolder
from trainer.runs.samples import kept_iterations, read_samples, update_index, write_samples
from workbench.run.sample_reader import scan
from workbench.run.sample_table import Sample, SampleKey, SampleTable


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


def scanned(folder: RunFolder) -> tuple[list[Sample], list[str]]:
    samples, problems = list[Sample](), list[str]()
    for part in scan(folder, kept_iterations(folder)):
        samples.extend(part.table)
        problems.extend(part.problems)
    return samples, problems


def index(folder: RunFolder) -> None:
    for iteration in kept_iterations(folder):
        update_index(folder.samples, iteration)


def files_read(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the iterations whose files a scan opens."""
    read: list[int] = []

    def counted(path: Path, *columns: Any) -> pa.Table:
        read.append(int(path.stem.removeprefix("step-")))
        return read_samples(path, *columns)

    with monkeypatch.context() as patched:
        patched.setattr("workbench.run.sample_reader.read_samples", counted)
        scanned(folder)
    return read


def test_samples_come_from_the_index_as_from_their_files(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write_samples(
        folder.samples_file(9),
        [
            sample_row(),
            {"row": 1, "length": 2, "kl_sum": -1.5},
            {"row": 2, "completion": "\ud800", "length": 0, "kl_sum": math.nan},
        ],
        9,
    )
    before = scanned(folder)
    assert files_read(folder, monkeypatch) == [*range(120, 0, -1)]
    index(folder)
    assert repr(scanned(folder)) == repr(before)  # NaN equals nothing
    assert files_read(folder, monkeypatch) == [*range(120, 64, -1)], "those behind the last whole part of the index"


@pytest.mark.parametrize("what", ["written anew", "deleted", "damaged", "added"])
def test_an_index_of_other_files_is_ignored(folder: RunFolder, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "added":
        folder.samples_file(33).unlink()
    index(folder)
    file = folder.samples_file(33)
    if what in ("written anew", "added"):
        write_samples(file, [sample_row(5, 30)], 33, SETTINGS)
    elif what == "deleted":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-9])
    assert {*range(1, 65)} - {33} <= {*files_read(folder, monkeypatch)}
    samples, problems = scanned(folder)
    rows = {"written anew": [5], "added": [5], "deleted": [], "damaged": []}[what]
    assert [one.key.row for one in samples if one.key.iteration == 33] == rows
    assert len(samples) == 2 * 119 + len(rows)
    assert [("step-000033" in problem) for problem in problems] == [True] * (what == "damaged")


@pytest.mark.parametrize("damage", [lambda whole: whole[:-9], lambda whole: b"", lambda whole: b"PAR1" * 9, None])
def test_an_index_that_is_damaged_or_cannot_be_written_costs_only_time(
    folder: RunFolder, damage: Callable[[bytes], bytes] | None
) -> None:
    before = scanned(folder)
    if damage is None:
        (folder.samples / "index").write_text("no folder", encoding="utf-8")
    index(folder)
    if damage is not None:
        path = folder.samples / "index" / "step-000064.parquet"
        path.write_bytes(damage(path.read_bytes()))
    assert scanned(folder) == before


def test_rewriting_an_iteration_removes_its_index_until_it_is_complete_and_as_private_as_its_samples(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(folder)
    path = folder.samples / "index" / "step-000064.parquet"
    update_index(folder.samples, 63)
    assert not path.exists()
    folder.samples_file(64).chmod(0o600)
    update_index(folder.samples, 64)
    assert path.stat().st_mode & 0o777 == 0o600
    assert files_read(folder, monkeypatch) == [*range(120, 64, -1)]


def test_parts_grow_so_that_going_through_all_with_each_is_cheap(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(scan(folder, [])) == []
    assert [len(part.table) for part in scan(folder, [1, 2])] == [4], "few iterations are one part"
    monkeypatch.setattr("workbench.run.sample_reader.read_batch", lambda *_: SampleTable.joined([]))
    done_by_part = [part.done for part in scan(RunFolder(folder.root / "none"), range(1, 100_001))]
    assert len(done_by_part) > 20
    assert sum(done_by_part) <= 6 * 100_000
