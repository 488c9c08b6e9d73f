"""`ppo-workbench export`: what it prints, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runs_helper import record, tiny_config

from trainer.models.peft_adapters import read_peft
from workbench.cli import main as cli


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    record(tiny_config(folder, "run.name=a", "ppo.iterations=2", "checkpoint.keep=0"))
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    code = cli.main(list(map(str, words)))
    return code, *capsys.readouterr()


def test_the_folder_goes_to_stdout_and_what_is_lost_to_stderr(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "export", "a", "--dir", made / "runs")
    assert (code, out) == (0, "exports/a\n")
    assert "lost: model.value_model, reward.sources, ppo.ratio_threshold" in err
    assert "exports/a/README.md" in err
    assert sorted(path.name for path in (tmp_path / "exports" / "a").iterdir() if path.is_dir()) == [
        "policy",
        "trl",
        "value-model",
        "verl",
    ]


def test_a_checkpoint_and_a_base_can_be_named(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--checkpoint", 1, "--base", "someone/model")
    code, _, _ = run(capsys, "export", made / "runs" / "a", "--output", tmp_path / "out", *options)
    assert code == 0
    first = read_peft(tmp_path / "out" / "policy", "llama")
    assert first.base == "someone/model"
    run(capsys, "export", made / "runs" / "a", "--output", tmp_path / "out", "--force")
    assert read_peft(tmp_path / "out" / "policy", "llama").parameters.keys() == first.parameters.keys()
    assert (tmp_path / "out" / "trl" / "train.py").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["b"], "no run 'b'"),
        (["a", "--checkpoint", "9"], "has no complete checkpoint 9"),
    ],
)
def test_mistakes_are_reported(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, out, err = run(capsys, "export", *words, "--dir", made / "runs", "--output", tmp_path / "out")
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "out").exists()
