"""The docs page on sample data: it names every column of the file, and its examples run."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from apart import ROOT
from token_samples import SETTINGS, sample_row

from trainer.runs.samples import SAMPLES_VERSION, SampleSettings, sample_schema, write_samples

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
