"""`ppo-workbench launch`: real ranks on the loopback, their end, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from ranks_helper import PATIENCE, wait_for
from runs_helper import workspace
from scripted_run import refused

from trainer.runs.folder import RunFolder
from workbench.cli.main import parse


def launched(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Launch a run called `several`, in a group of processes as that of a terminal's Ctrl+C."""
    command = [sys.executable, "-m", "workbench", "launch", *arguments, "--trust-code", "--config"]
    command += [str(workspace(folder)), "--name", "several", "--set", "rollout.batch_size=8", "--display", "json"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def test_local_ranks_train_one_run(tmp_path: Path) -> None:
    out, err = launched(tmp_path, "--local", "2").communicate(timeout=PATIENCE)
    events = [json.loads(line) for line in out.splitlines()]
    iterations = [event for event in events if event["event"] == "iteration"]
    assert [len(event["ranks"]) for event in iterations] == [2, 2, 2], err
    assert events[-1]["state"] == "done"


def test_ctrl_c_stops_the_run_once(tmp_path: Path) -> None:
    process = launched(tmp_path, "--local", "2", "--set", "ppo.iterations=1000")
    run = RunFolder(tmp_path / "runs" / "several")
    wait_for(lambda: run.events.exists() and '"score_mean"' in run.events.read_text())
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    end = json.loads(out.splitlines()[-1])
    assert (end["event"], end["state"]) == ("end", "stopped")
    assert err.count("saving a checkpoint") == 1
    assert "rank 1" not in err


def test_a_killed_rank_is_named_and_the_run_keeps_its_exit_code(tmp_path: Path) -> None:
    process = launched(tmp_path, "--local", "2", "--set", "ppo.iterations=1000")
    run = RunFolder(tmp_path / "runs" / "several")
    wait_for(lambda: run.events.exists() and '"score_mean"' in run.events.read_text())
    ranks = psutil.Process(process.pid).children(recursive=True)
    next(rank for rank in ranks if rank.environ().get("MLX_RANK") == "1").kill()
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3
    assert "was lost" in err
    assert "Node with rank 1 exited with code -9" in err


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ([], "--local"),
        (["--local", "1"], "--local gives 1"),
        (["--local", "2", "--port", "65535"], "--port gives 65535; use a number from 1 to 65,534, for the 2 ranks"),
        (["--local", "2", "--port", "0"], "--port gives 0"),
        (["--local", "2", "--bogus"], "--bogus"),
        (["--local", "2", "samples", "x"], "'samples' does not train"),
        (["--local", "2", "reward-model", "eval", "x"], "'reward-model' does not train"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(argv: list[str], names: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = refused(capsys, "launch", *argv)
    assert (code, names in error) == (2, True)


def test_the_run_gets_its_arguments_unchanged() -> None:
    run = ["--config", "quickstart", "--set", "a.b=1", "reward-model", "train", "--data", "x"]
    args = parse(["launch", "--local", "3", *run, "--port", "4000"])
    assert (args.local, args.port, args.rest) == (3, 4000, run)
