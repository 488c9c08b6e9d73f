"""`ppo-workbench reward-model`: train, eval, score, from the command line to exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from preference_samples import labelled, reward_config
from runs_helper import newest_checkpoint

from trainer.preferences.formats import write_preferences
from trainer.runs.folder import open_run
from workbench.cli.main import main

SETTINGS = ("train.batch_size=8", "optim.lr=0.01", "model.lora_scale=4", "data.eval_fraction=0.2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a working folder with a tiny model and 60 pairs in a file."""
    reward_config(tmp_path)
    write_preferences(labelled(60), tmp_path / "pairs.jsonl", format="trl")
    return tmp_path


def train(*arguments: str) -> int:
    settings = [part for setting in (*SETTINGS, "model.path=model") for part in ("--set", setting)]
    return main(["reward-model", "train", "--data", "pairs.jsonl", *settings, *arguments])


def test_a_run_prints_a_line_a_step_and_the_evaluation_and_is_listed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train() == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["step", "loss", "accuracy"]
    assert [line.split()[0] for line in lines[2:8]] == [f"{step}/6" for step in range(1, 7)]
    assert "12 held-out pairs" in lines[9]
    assert "iteration 0: held-out accuracy" in err
    assert "48 comparisons, 12 held out, 6 iterations" in err
    assert "resume" not in err.splitlines()[-2], "what is done cannot be prolonged"
    assert main(["runs", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["name"], summary["kind"], summary["state"]) == ("reward-model-0001", "reward-model", "done")
    assert main(["runs"]) == 0
    assert "6/6" in capsys.readouterr().out


def test_eval_prints_what_the_training_reported_and_other_data_may_be_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train("--name", "a")
    table = capsys.readouterr().out.split("\n\n", 1)[1]
    assert main(["reward-model", "eval", "a"]) == 0
    assert capsys.readouterr().out == table
    assert main(["reward-model", "eval", "a", "--data", "pairs.jsonl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"]["pairs"] == 60
    checkpoint = newest_checkpoint(open_run("a", Path("runs")))
    assert main(["reward-model", "eval", str(checkpoint)]) == 2
    assert "name a source with --data" in capsys.readouterr().err
    assert main(["reward-model", "eval", str(checkpoint), "--data", "pairs.jsonl"]) == 0


def test_score_prints_a_json_line_for_each_completion_the_same_from_a_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train("--name", "a")
    capsys.readouterr()
    texts = ["aaaa", "bcde", ""]
    given = [part for text in texts for part in ("--completion", text)]
    assert main(["reward-model", "score", "a", "--prompt", "say 1: ", *given]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["completion"] for row in rows] == texts
    assert len({row["score"] for row in rows}) == 3
    file = folder / "texts.jsonl"
    lines = [json.dumps({"id": i % 3, "prompt": "say 1: ", "completion": texts[i % 3]}) + "\n" for i in range(130)]
    file.write_text("".join(lines))
    assert main(["reward-model", "score", "a", "--data", str(file)]) == 0
    scored = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(scored) == 130
    for row in scored:
        assert row["score"] == pytest.approx(rows[row["id"]]["score"], abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (["train", "--data", "nowhere.jsonl"], 3, "no such file"),
        (["train", "--set", "train.epoch=2"], 2, "did you mean 'train.epochs'"),
        (["train", "--config", "nowhere.toml"], 2, "no file 'nowhere.toml'"),
        (["train", "--resume", "x", "--data", "pairs.jsonl"], 2, "cannot be used with --resume"),
        (["train", "--resume", "x", "--set", "optim.lr=1"], 2, "cannot change in a resumed run"),
        (["score", "nothing"], 2, "give completions either with"),
        (["score", "nothing", "--data", "pairs.jsonl"], 3, "pairs.jsonl:1: lacks the column completion"),
    ],
)
def test_impossible_requests_are_reported_in_a_line(
    arguments: list[str], code: int, reported: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reward-model", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert reported in err
    assert "Traceback" not in err


def test_without_a_store_or_a_source_the_way_out_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reward-model", "train", "--set", "model.path=model"]) in (2, 3)
    assert "preferences.db" in capsys.readouterr().err


def test_a_ppo_run_is_not_a_reward_model_and_vice_versa(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train("--name", "a")
    capsys.readouterr()
    assert main(["--no-ui", "--resume", "a"]) == 2
    assert "resume it with ppo-workbench reward-model train --resume a" in capsys.readouterr().err
    (folder / "runs" / "ppo").mkdir()
    (folder / "runs" / "ppo" / "config.toml").write_text("")
    assert main(["reward-model", "score", "ppo", "--completion", "x"]) == 2
    assert "holds no reward model" in capsys.readouterr().err
