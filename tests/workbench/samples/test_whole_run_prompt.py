"""A prompt is followed through training, past unreadable files and indices that changed their meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from token_samples import sample_row

from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples, write_samples
from workbench.run.sample_table import SampleKey
from workbench.samples.whole_run import samples_of_prompt

SKY = "Tell me of the sky"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def write(folder: RunFolder, iteration: int, *prompts: tuple[int | None, str]) -> None:
    rows = [
        sample_row(row, 2) | {"prompt_index": index, "prompt": prompt, "completion": f"{iteration}/{row}"}
        for row, (index, prompt) in enumerate(prompts)
    ]
    write_samples(folder.samples_file(iteration), rows, iteration)


def never() -> bool:
    return False


def keys(folder: RunFolder, index: int, prompt: str) -> list[SampleKey]:
    problems: list[str] = []
    found = [one.key for one in samples_of_prompt(folder, index, prompt, never, problems.append)]
    assert problems == []
    return found


def test_the_samples_of_a_prompt_come_newest_first_and_by_row(folder: RunFolder) -> None:
    write(folder, 1, (7, SKY), (8, "Once"))
    write(folder, 2, (8, "Once"), (9, SKY.lower()))
    write(folder, 10, (8, "Once"), (7, SKY), (7, SKY))
    assert keys(folder, 7, SKY) == [SampleKey(10, 1), SampleKey(10, 2), SampleKey(1, 0)]
    [sample] = samples_of_prompt(folder, 9, SKY.lower(), never)
    assert (sample.completion, sample.prompt_index, sample.length) == ("2/1", 9, 2)


def test_an_index_that_now_belongs_to_another_prompt_is_skipped(folder: RunFolder) -> None:
    write(folder, 1, (7, SKY))
    write(folder, 2, (7, "Once"), (7, SKY), (8, SKY))
    assert keys(folder, 7, SKY) == [SampleKey(2, 1), SampleKey(1, 0)]
    assert keys(folder, 7, "Once") == [SampleKey(2, 0)]


def test_a_prompt_whose_index_is_not_known_is_found_by_its_text(folder: RunFolder) -> None:
    write(folder, 1, (None, SKY), (None, "Once"))
    assert keys(folder, -1, SKY) == [SampleKey(1, 0)]


def test_unreadable_files_are_reported_and_the_others_read(folder: RunFolder) -> None:
    for iteration in (1, 2, 3):
        write(folder, iteration, (7, SKY))
    folder.samples_file(2).write_bytes(b"PAR1")
    problems: list[str] = []
    found = [one.key.iteration for one in samples_of_prompt(folder, 7, SKY, never, problems.append)]
    assert found == [3, 1]
    assert len(problems) == 1
    assert "step-000002" in problems[0]
    assert [one.key.iteration for one in samples_of_prompt(folder, 7, SKY, never)] == [3, 1]


def test_texts_are_read_only_of_iterations_that_met_the_prompt(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for iteration in range(1, 6):
        write(folder, iteration, (iteration, SKY))
    read: list[str] = []

    def counted(path: Path, *columns: Any) -> pa.Table:
        read.append(path.name)
        return read_samples(path, *columns)

    monkeypatch.setattr("workbench.run.sample_reader.read_samples", counted)
    assert keys(folder, 4, SKY) == [SampleKey(4, 0)]
    assert read == ["step-000004.parquet"]


def test_a_search_that_is_stopped_reads_no_further_file(folder: RunFolder) -> None:
    for iteration in range(1, 6):
        write(folder, iteration, (7, SKY))
    found: list[int] = []
    for one in samples_of_prompt(folder, 7, SKY, lambda: len(found) == 2):
        found.append(one.key.iteration)  # noqa: PERF401  `stop` looks at it meanwhile
    assert found == [5, 4]


def test_a_run_without_samples_has_no_appearances(folder: RunFolder) -> None:
    assert list(samples_of_prompt(folder, 7, SKY, never)) == []
