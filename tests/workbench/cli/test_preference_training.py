"""`ppo-workbench reward-model` and `dpo`: train, eval and score, from the command line to exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from preference_samples import labelled, reward_config
from runs_helper import newest_checkpoint

from trainer.events import DPOEvaluation, DPOStep, RunStarted
from trainer.preferences.formats import write_preferences
from trainer.runs.folder import open_run
from trainer.runs.journal import read_journal
from workbench.cli.main import main

SETTINGS = ("train.batch_size=8", "optim.lr=0.01", "model.lora_scale=4", "data.eval_fraction=0.2")
DPO = """\
kind = "dpo"
model.path = "model"
train.batch_size = 32
optim.lr = 0.01
rollout.max_new_tokens = 4
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a working folder with a tiny model, 60 pairs in a file, and `dpo.toml`."""
    reward_config(tmp_path)
    write_preferences(labelled(60), tmp_path / "pairs.jsonl", format="trl")
    (tmp_path / "dpo.toml").write_text(DPO)
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


def test_dpo_makes_a_policy_in_a_run_of_its_own_that_resumes_by_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dpo", "--config", "dpo.toml", "--data", "pairs.jsonl"]) == 0
    heading, _, *rows = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["step", "loss", "accuracy"]
    assert [row.split()[0] for row in rows] == ["1/2", "2/2"]
    run = folder / "runs/dpo-0001"
    assert (run / "checkpoints/step-000002/policy/adapters.safetensors").is_file()
    kinds = [type(event) for event in read_journal(run / "events.jsonl").events]
    assert [kind for kind in kinds if issubclass(kind, DPOStep | DPOEvaluation)] == [
        DPOEvaluation,
        DPOStep,
        DPOStep,
        DPOEvaluation,
    ]
    assert main(["dpo", "--resume", "dpo-0001", "--display", "json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (started,) = [event for event in events if event["event"] == RunStarted.kind]
    assert (started["run_kind"], started["resumed_at"]) == ("dpo", 2)


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        ("reward-model train --data nowhere.jsonl", 3, "no such file"),
        ("reward-model train --set train.epoch=2", 2, "did you mean 'train.epochs'"),
        ("reward-model train --config nowhere.toml", 2, "no file 'nowhere.toml'"),
        ("reward-model train --config dpo.toml", 2, "configures a run of kind 'dpo'"),
        ("reward-model train --resume x --data pairs.jsonl", 2, "cannot be used with --resume"),
        ("reward-model train --set model.path=model", 2, "preferences.db"),
        ("reward-model score nothing", 2, "give completions either with"),
        ("reward-model score nothing --data pairs.jsonl", 3, "pairs.jsonl:1: lacks the column completion"),
        ("dpo --set train.loss=hinge", 2, "train.loss = 'hinge'"),
        ("dpo --resume x --set train.beta=1", 2, "cannot change in a resumed run"),
    ],
)
def test_impossible_requests_are_reported_in_one_line(
    arguments: str, code: int, reported: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == code
    out, err = capsys.readouterr()
    assert out == ""
    [error] = [line for line in err.splitlines() if "error" in line]
    assert reported in error


def test_a_ppo_run_is_not_a_reward_model_and_vice_versa(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train("--name", "a")
    capsys.readouterr()
    assert main(["--no-ui", "--resume", "a"]) == 2
    assert "resume it with ppo-workbench reward-model train --resume a" in capsys.readouterr().err
    (folder / "runs" / "ppo").mkdir()
    (folder / "runs" / "ppo" / "config.toml").write_text("")
    assert main(["reward-model", "score", "ppo", "--completion", "x"]) == 2
    assert "holds no reward model" in capsys.readouterr().err
