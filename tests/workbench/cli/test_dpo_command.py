"""`ppo-workbench dpo`: what it prints, what it leaves behind, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from preference_samples import labelled
from tiny import make_checkpoint

from trainer.events import DPOEvaluation, DPOStep, RunStarted
from trainer.preferences.formats import write_preferences
from trainer.runs.journal import read_journal
from workbench.cli import main as cli

Run = Callable[..., tuple[int, str, str]]
CONFIG = """\
kind = "dpo"
model.path = "model"
train.batch_size = 8
optim.lr = 0.01
rollout.max_new_tokens = 4
"""


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return the command in a folder with a tiny model, pairs and `tiny.toml`; it gives exit code and output."""
    make_checkpoint(tmp_path / "model", scale=0.3)
    (tmp_path / "tiny.toml").write_text(CONFIG)
    write_preferences(labelled(20), tmp_path / "pairs.jsonl", format="trl")

    def command(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        output = capsys.readouterr()
        return code, output.out, output.err

    return command


def test_a_file_of_pairs_becomes_a_policy_in_a_run_of_its_own(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("dpo", "--config", "tiny.toml", "--data", "pairs.jsonl")
    assert code == 0
    heading, _, *rows = out.splitlines()
    assert heading.split()[:3] == ["step", "loss", "accuracy"]
    assert [row.split()[0] for row in rows] == ["1/3", "2/3", "3/3"]
    folder = tmp_path / "runs/tiny-0001"
    assert (folder / "checkpoints/step-000003/policy/adapters.safetensors").is_file()
    events = read_journal(folder / "events.jsonl").events
    assert [type(event) for event in events if isinstance(event, DPOStep | DPOEvaluation)] == [
        DPOEvaluation,
        *[DPOStep] * 3,
        DPOEvaluation,
    ]
    assert 'kind = "dpo"' in (folder / "config.toml").read_text()


def test_a_stopped_run_resumes_by_its_name_with_json_output(run: Run, tmp_path: Path) -> None:
    where = ("--set", "model.path=model", "--data", "pairs.jsonl", "--name", "a")
    assert run("dpo", *where, "--set", "train.batch_size=8")[0] == 0
    code, out, _ = run("dpo", "--resume", "a", "--display", "json")
    assert code == 0
    events = [json.loads(line) for line in out.splitlines()]
    (started,) = [event for event in events if event["event"] == RunStarted.kind]
    assert (started["run_kind"], started["resumed_at"]) == ("dpo", 3)


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (["--data", "nowhere.jsonl"], 3, "nowhere.jsonl"),
        (["--set", "train.bata=1"], 2, "did you mean 'train.beta'?"),
        (["--set", "train.loss=hinge"], 2, "train.loss = 'hinge'"),
        (["--config", "other.toml"], 2, "configures a run of kind 'reward-model'"),
        (["--resume", "a", "--data", "pairs.jsonl"], 2, "cannot be used with --resume"),
        (["--resume", "a", "--set", "train.beta=1"], 2, "cannot change in a resumed run"),
    ],
)
def test_impossible_requests_are_reported_in_one_line(run: Run, arguments: list[str], code: int, reported: str) -> None:
    Path("other.toml").write_text('kind = "reward-model"\n')
    found, out, err = run("dpo", *arguments)
    assert (found, out) == (code, "")
    error = [line for line in err.splitlines() if "error" in line]
    assert len(error) == 1
    assert reported in error[0]
    assert "Traceback" not in err
