"""The program with the real trainer: its outputs, its errors, its ranks, and its use as a library."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest
from ranks_helper import PATIENCE, wait_for
from runs_helper import outcome, run_python, workspace
from scripted_run import refused

from trainer import load_config, parse_overrides, train
from trainer.engine import ppo
from trainer.errors import UsageError
from trainer.runs.folder import RunFolder
from trainer.runs.listing import list_runs
from workbench.cli import main as cli
from workbench.cli.main import parse

ERROR = "ppo-workbench: error: "


def headless(folder: Path, *settings: str, name: str = "a") -> int:
    """Run `ppo-workbench --no-ui` on the workspace in `folder`, each of `settings` by --set; its code is trusted."""
    toml = folder / "tiny.toml"
    start = ["--no-ui", "--display", "json", "--config", str(toml if toml.exists() else workspace(folder))]
    return cli.main([*start, "--trust-code", "--name", name, *(part for text in settings for part in ("--set", text))])


def reported(capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the events on stdout and the lines on stderr."""
    out, err = capsys.readouterr()
    return [json.loads(line) for line in out.splitlines()], err.splitlines()


def test_a_headless_run_trains_and_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert headless(tmp_path) == 0
    events, _ = reported(capsys)
    kinds = [event["event"] for event in events if event["event"] != "state"]
    a_round = ["samples", "iteration", "checkpoint"]
    with_evaluation = ["samples", "iteration", "evaluation", "checkpoint"]
    assert kinds == ["run", "evaluation", *a_round, *with_evaluation, *with_evaluation, "end"]
    (summary,) = list_runs(tmp_path / "runs")
    assert (summary.name, summary.state, summary.iteration, summary.problem) == ("a", "done", 3, "")


@pytest.mark.parametrize(
    ("setting", "code", "message"),
    [
        ('model.path="{folder}/nothing"', 3, "/nothing"),
        ('run.trackers=["trackio"]', 2, "run.trackers: 'trackio'"),
        (
            'run.dir="{folder}/tiny.toml/runs"',
            3,
            "/tiny.toml/runs': Not a directory; check the path, or choose ",
        ),
    ],
)
def test_a_broken_start_prints_one_line_and_leaves_no_folder(
    setting: str,
    code: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)  # as if it were not installed
    assert headless(tmp_path, setting.replace("{folder}", str(tmp_path))) == code
    events, errors = reported(capsys)
    assert [line for line in errors if line.startswith(ERROR)] == errors[-1:]
    assert message in errors[-1]
    assert {event["event"] for event in events} <= {"state"}
    assert list((tmp_path / "runs").glob("*")) == []


def test_a_name_in_use_and_a_missing_run_are_reported_before_the_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "config.toml").write_text("")
    monkeypatch.setattr(ppo, "load_backbone", lambda _: pytest.fail("the model was loaded"))
    assert headless(tmp_path) == 2
    assert "run.name = 'a' is in use" in reported(capsys)[1][-1]
    with pytest.raises(UsageError, match="no run"):
        train(load_config(tmp_path / "tiny.toml"), resume=tmp_path / "runs" / "nothing")


def test_a_reward_that_fails_in_training_prints_one_line_and_exits_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace(tmp_path)
    (tmp_path / "rewards.py").write_text("def score(completions, **_):\n    return [float('nan')] * len(completions)\n")
    assert headless(tmp_path) == 3
    events, errors = reported(capsys)
    assert "sample 0 ('" in errors[-1]
    assert errors[-1].endswith("has score nan: must be finite, or None if the reward does not apply")
    assert (events[-1]["state"], events[-1]["exit_code"]) == ("failed", 3)
    assert errors[-1] == f"{ERROR}{events[-1]['reason']}"


def test_training_that_diverges_prints_one_line_and_exits_with_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.maths.clipped_policy_loss", lambda logprobs, *_, **__: logprobs * float("nan"))
    assert headless(tmp_path) == 4
    _, errors = reported(capsys)
    assert "loss or gradient was NaN or inf 3 times in a row at iteration 2: lower optim.policy_lr" in errors[-1]


def test_a_run_may_be_moved_and_resumed_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Relative paths of the configuration are saved as absolute ones."""
    workspace(tmp_path)
    files = ["model.path=model", "data.prompts=prompts.jsonl", 'reward.sources=["rewards.py:score"]', "run.dir=runs"]
    assert headless(tmp_path, *files, "ppo.iterations=1", "eval.every=1") == 0
    (tmp_path / "runs" / "a").rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    arguments = ["--no-ui", "--display", "json", "--resume", "../moved", "--set", "ppo.iterations=3"]
    assert cli.main(arguments) == 0
    assert reported(capsys)[0][-1]["iteration"] == 3
    assert headless(tmp_path, "eval.every=1", name="whole") == 0
    assert outcome(tmp_path / "moved") == outcome(tmp_path / "runs" / "whole")


def test_the_library_trains_on_the_main_thread_twice_in_a_row(tmp_path: Path) -> None:
    toml = workspace(tmp_path)
    for number in ("0001", "0002"):
        ended = train(load_config(toml, parse_overrides(["ppo.epochs=1"])))
        assert (ended.state, ended.exit_code, ended.iteration) == ("done", 0, 3)
        assert (tmp_path / "runs" / f"run-{number}" / ended.checkpoint / "state.json").is_file()
    assert outcome(tmp_path / "runs/run-0001") == outcome(tmp_path / "runs/run-0002")


def test_a_thread_that_trained_and_released_mlx_lets_the_process_end_well(tmp_path: Path) -> None:
    program = f"""
        import threading
        import trainer
        import mlx.core as mx

        def work():
            print(trainer.train(trainer.load_config({str(workspace(tmp_path))!r})).state)
            trainer.release_thread()
            try:
                mx.eval(mx.zeros(1) + 1)
            except RuntimeError:
                print("released")

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """
    done = run_python("-c", textwrap.dedent(program))
    assert (done.returncode, done.stdout) == (0, "done\nreleased\n"), done.stderr


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
    assert "was lost" not in err


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
