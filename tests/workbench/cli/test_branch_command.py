"""`ppo-workbench branch`: branches trained one after the other, each once."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from runs_helper import outcome, record, run_python, tiny_config

from trainer.events import RunStarted
from trainer.rewards.code import code_of
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from workbench.cli import main as cli
from workbench.system.code_trust import trusted_code

CHANGE = ("--at", "1", "--set", "ppo.kl_coef=0.3", "--display", "plain")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the workspace of a run `a` of two iterations."""
    folder = tmp_path_factory.mktemp("run")
    record(tiny_config(folder, "run.name=a", "ppo.iterations=2"))
    return folder


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Path:
    """Return a folder of runs with a copy of the run, whose reward is trusted."""
    trusted_code().remember(code_of(f"{finished}/rewards.py:score"))
    shutil.copytree(finished / "runs/a", tmp_path / "runs/a")
    return tmp_path / "runs"


def branch(runs: Path, *arguments: str) -> int:
    """Run the command on the run `a`."""
    return cli.main(["branch", "a", "--dir", str(runs), *arguments])


def starts(run: Path) -> int:
    """Return how often the trainer started the run, beyond the line that says where it is from."""
    return sum(isinstance(event, RunStarted) for event in read_journal(RunFolder(run).events).events) - 1


def test_branches_and_controls_train_once_however_often_they_are_asked_for(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert branch(runs, *CHANGE, "--control") == 0
    captured = capsys.readouterr()
    assert "branched from a after iteration 1, ppo.kl_coef = 0.3" in captured.err
    assert "compare a a-branch-1 a-control-1" in captured.err
    before = outcome(runs / "a-branch-1")
    shutil.rmtree(runs / "a-control-1")
    assert branch(runs, *CHANGE, "--control") == 0
    said = capsys.readouterr().err
    assert "a-branch-1, 1 of 2 branches, which exists already" in said
    assert "a-branch-1 is done, after 2 iterations" in said
    assert "a-control-1, 2 of 2 branches\n" in said
    assert sorted(path.name for path in runs.iterdir()) == ["a", "a-branch-1", "a-control-1"]
    assert (starts(runs / "a-branch-1"), starts(runs / "a-control-1")) == (1, 1)
    assert outcome(runs / "a-branch-1") == before
    assert outcome(runs / "a-control-1")["checkpoint"] == outcome(runs / "a")["checkpoint"] != before["checkpoint"]


def test_a_killed_branch_is_finished_by_the_same_command(runs: Path, finished: Path) -> None:
    helper = str(Path(__file__).parents[2] / "support/runs_helper.py")
    arguments = ("branch", "a", "--dir", str(runs), *CHANGE, "--trust-code", "--name")
    killed = run_python(helper, "kill", "update", "2", *arguments, "killed")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert branch(runs, *CHANGE, "--name", "other") == 0
    assert sorted(path.name for path in runs.iterdir()) == ["a", "killed"], "it is the same branch"
    assert starts(runs / "killed") == 2
    shutil.move(runs / "killed", runs.parent / "resumed")
    assert branch(runs, *CHANGE, "--name", "whole") == 0
    assert outcome(runs / "whole") == outcome(runs.parent / "resumed")


def test_the_list_of_runs_says_where_a_branch_is_from(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs", "--dir", str(runs)]) == 0
    assert "branched from" not in capsys.readouterr().out
    assert branch(runs, *CHANGE) == 0
    capsys.readouterr()
    assert cli.main(["runs", "--dir", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("branched from")
    assert [line.endswith("  a, 1") for line in lines[2:]] == [False, True]
    assert cli.main(["runs", "--dir", str(runs), "--json"]) == 0
    origins = [json.loads(line)["branched_from"] for line in capsys.readouterr().out.splitlines()]
    assert origins[0] is None
    assert (origins[1]["run"], origins[1]["iteration"], origins[1]["changes"]) == ("a", 1, {"ppo.kl_coef": 0.3})


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("branch a --at 7", "no checkpoint of iteration 7: choose from 1, 2 "),
        ("branch a --at -1", "--at -1: must be at least 0"),
        ("branch a --at 1 --seeds 0", "--seeds 0: must be 1 to 1024"),
        ("branch a --at 1 --iterations 0", "--iterations 0: must be at least 1"),
        ("branch a --at 1 --set ppo.kl_coeff=1", "ppo.kl_coef"),
        ("branch a --at 1 --name ../b", "must be letters, digits"),
        ("branch aa --at 1", "no run 'aa'"),
        ("--config quickstart branch a --at 1", "--config quickstart cannot be used with branch"),
        ("--resume a branch a --at 1", "--resume a cannot be used with branch"),
    ],
)
def test_mistakes_are_one_line_and_make_no_run(
    runs: Path, capsys: pytest.CaptureFixture[str], argv: str, message: str
) -> None:
    assert cli.main([*argv.split(), "--dir", str(runs)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert [path.name for path in runs.iterdir()] == ["a"]
