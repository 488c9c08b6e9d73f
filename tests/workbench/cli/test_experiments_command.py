"""`ppo-workbench sweep` and `branch`: every run trains once, whatever happens to some of them, and is compared."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from ranks_helper import PATIENCE, wait_for
from runs_helper import Killed, Recorder, killed_at, outcome, record, run_python, tiny_config, workspace
from scripted_run import refused

from trainer.config import load_config
from trainer.engine.sweeping import held, saved_sweep
from trainer.engine.training import train
from trainer.errors import TrainerError
from trainer.events import Event, RunStarted
from trainer.rewards.code import code_of
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.listing import list_runs
from workbench.cli import main as cli
from workbench.system.children import LOG
from workbench.system.code_trust import trusted_code

VARY = ("--vary", "ppo.kl_coef=0.02,0.5", "--name", "kl", "--set", "ppo.iterations=2", "--set", "eval.every=0")
RUNS = [f"kl_kl_coef-{value}_seed-{seed}" for seed in (0, 1) for value in ("0.02", "0.5")]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tiny model, prompts, rewards and `tiny.toml`."""
    folder = tmp_path_factory.mktemp("material")
    workspace(folder)
    with (folder / "rewards.py").open("a") as file:
        file.write("\ndef broken(completions, **_):\n    raise ValueError('out of ideas')\n")
    return folder


class Ended:
    """A process that has ended."""

    def __init__(self, code: int) -> None:
        self._code = code

    def poll(self) -> int:
        return self._code

    def send_signal(self, sig: int) -> None:
        """Do nothing: it has ended."""


class Trainer:
    """Trains runs in this process, in place of children, which take seconds to start."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.accidents: dict[str, Callable[[Event], None]] = {}  # by the name of the run

    def __call__(self, folder: Path, **_: object) -> Ended:
        self.started.append(folder.name)
        watch = self.accidents.pop(folder.name, lambda event: None)
        try:
            return Ended(train(load_config(folder / "config.toml"), resume=folder, sinks=[Recorder(watch)]).exit_code)
        except Killed:
            return Ended(-signal.SIGKILL)
        except TrainerError as error:
            (folder / LOG).write_text(f"loading\nppo-workbench: error: {error}\n")
            return Ended(error.exit_code)


@pytest.fixture
def trainer(material: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    monkeypatch.setenv("COLUMNS", "80")
    trusted_code().remember(code_of(f"{material}/rewards.py:score"))
    trainer = Trainer()
    monkeypatch.setattr("workbench.cli.experiments.continue_headless", trainer)
    return trainer


def sweep(material: Path, *arguments: str) -> int:
    """Run the command on the tiny model, with the runs in the working folder."""
    return cli.main(["sweep", "--config", str(material / "tiny.toml"), "--set", "run.dir=runs", *arguments])


def test_a_sweep_trains_each_run_once_and_compares_the_combinations(
    material: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(material, *VARY, "--seeds", "2") == 0
    said = capsys.readouterr()
    assert trainer.started == RUNS
    assert [run.name for run in list_runs(Path("runs"))] == sorted(RUNS), "the plan is not listed as a run"
    assert " A kl_coef-0.02  2 runs, seeds 0 1  done" in said.out
    assert "ppo.kl_coef" in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    assert "sweep kl: 2 combinations on 2 seeds, 4 runs, one after the other" in said.err
    assert re.search(rf"1/4 {RUNS[0]}: score 0\.\d\d\d, KL -?\d\.\d\d, \d", said.err)
    assert (said.err.count(": started"), "another" in said.err) == (4, False)
    again = "--group 'kl_coef-0.02=kl_kl_coef-0.02_seed-*' --group 'kl_coef-0.5=kl_kl_coef-0.5_seed-*'"
    assert f"compare them again: ppo-workbench compare {again}" in said.err
    assert sweep(material, *VARY, "--seeds", "2") == 0
    repeated = capsys.readouterr()
    assert (trainer.started, repeated.out) == (RUNS, said.out)
    assert "4 runs are done already" in repeated.err
    assert sweep(material, *VARY, "--seeds", "3") == 2
    assert (
        "--seeds is 2 seeds from 0, not 3 seeds from 0; add seeds with --resume kl --seeds 3" in capsys.readouterr().err
    )


def test_seeds_are_added_to_a_sweep_and_equal_those_of_a_larger_one(
    material: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(material, *VARY, "--seeds", "1") == 0
    before = Path("runs/kl.sweep.json").read_bytes()
    assert cli.main(["sweep", "--resume", "kl", "--seeds", "2", "--dry-run"]) == 0
    assert Path("runs/kl.sweep.json").read_bytes() == before
    assert cli.main(["sweep", "--resume", "kl", "--seeds", "1"]) == 2
    assert "--seeds 1: sweep 'kl' has 1 seed already; name more" in capsys.readouterr().err
    assert cli.main(["sweep", "--resume", "kl", "--seeds", "2"]) == 0
    assert trainer.started == RUNS
    grown = saved_sweep("kl", Path("runs"))
    assert sweep(material, *VARY, "--seeds", "2") == 0, "it is now the sweep of that command"
    assert trainer.started == RUNS
    Path("runs").rename("grown")
    assert sweep(material, *VARY, "--seeds", "2") == 0
    assert saved_sweep("kl", Path("runs")) == grown
    assert [outcome(Path("runs") / name) for name in RUNS] == [outcome(Path("grown") / name) for name in RUNS]


def test_more_combinations_than_letters_are_ranked_by_their_scores(
    material: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("workbench.compare.compared_run.LETTERS", "A")
    assert sweep(material, *VARY, "--seeds", "2") == 0
    said = capsys.readouterr()
    assert "2 combinations are too many to compare one by one: the best are first" in said.err
    head, *rows = said.out.splitlines()
    assert head.split("  ")[0] == "combination"
    cells = [row.split() for row in rows]
    assert {row[0] for row in cells} == {"kl_coef-0.02", "kl_coef-0.5"}
    assert {row[1] for row in cells} == {"2"}
    scores = {run.name: run.score for run in list_runs(Path("runs"))}
    for name, _, score, *_ in cells:
        mine = [known for run, known in scores.items() if f"_{name}_" in run and known is not None]
        assert float(score) == pytest.approx(sum(mine) / 2, abs=6e-4)
    assert [float(row[2]) for row in cells] == sorted((float(row[2]) for row in cells), reverse=True)


def test_what_was_killed_or_failed_keeps_no_other_run_from_training_and_is_finished_bit_for_bit(
    material: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = f"--vary=reward.sources=[['{material}/rewards.py:score'], ['{material}/rewards.py:broken']]"
    arguments = ("--name", "r", "--set", "ppo.iterations=3", "--set", "eval.every=0", broken, "--seeds", "2")
    runs = [f"r_sources-rewards.py-{name}_seed-{seed}" for seed in (0, 1) for name in ("score", "broken")]
    trainer.accidents[runs[0]] = killed_at("update", 3)
    assert sweep(material, *arguments) == 137
    said = capsys.readouterr()
    assert trainer.started == runs
    assert f"error: 1/4 {runs[0]}: was killed by signal 9, after iteration 2" in said.err
    assert f"error: 2/4 {runs[1]}: " in said.err
    assert "out of ideas" in said.err
    assert f"/{runs[1]}/{LOG})" in said.err
    assert "3 runs are not done; to go on: ppo-workbench sweep --resume r\n" in said.err
    assert cli.main(["sweep", "--resume", "r"]) == 3, "the broken reward is tried again"
    said = capsys.readouterr()
    assert trainer.started[4:] == [name for name in runs if name != runs[2]]
    assert f"1/4 {runs[0]}: resumed from step-000002" in said.err
    Path("runs").rename("killed")
    trainer.started.clear()
    assert sweep(material, *arguments) == 3
    assert outcome(Path("killed") / runs[0]) == outcome(Path("runs") / runs[0])
    assert outcome(Path("killed") / runs[2]) == outcome(Path("runs") / runs[2])


def test_a_dry_run_lists_runs_and_states_and_writes_nothing(
    material: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (*VARY, "--vary", "data.shuffle=true,false", "--jobs", "2", "--dry-run")
    assert sweep(material, *arguments) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("sweep kl: 4 combinations on 1 seed, 4 runs, 2 at a time, in ")
    assert out[1].startswith("memory of a run about ")
    assert out[3].split() == ["run", "state", "kl_coef", "shuffle", "seed"]
    assert out[4].split() == ["kl_kl_coef-0.02_shuffle-true_seed-0", "new", "0.02", "true", "0"]
    assert (len(out), trainer.started, Path("runs").exists()) == (8, [], False)


def test_too_little_memory_for_all_runs_at_once_is_a_warning_before_they_train(
    material: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("workbench.system.machine.this_machine", lambda: SimpleNamespace(most=1))
    for jobs, expected in (("1", False), ("2", True)):
        more = ("--set", "ppo.iterations=1", "--set", "run.dir=elsewhere", "--jobs", jobs)
        assert sweep(material, *VARY, *more) == 0
        said = capsys.readouterr().err
        assert bool(re.search("2 runs at a time take about .* of .*: lower --jobs", said)) == expected
        assert said.endswith(f"--dir {Path('elsewhere').resolve()}\n"), "the command finds the runs"


def test_a_run_that_another_process_trains_is_left_to_it_and_so_is_a_sweep(
    material: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.accidents[RUNS[0]] = killed_at("update", 1)
    assert sweep(material, *VARY) == 137
    trainer.started.clear()
    with RunFolder(Path("runs") / RUNS[0]).lock():
        assert sweep(material, *VARY) == 3
    said = capsys.readouterr().err
    assert f"error: 1/2 {RUNS[0]}: another process trains it" in said
    assert "1 run is not done; to go on: ppo-workbench sweep --resume kl" in said
    assert trainer.started == []
    with held(saved_sweep("kl", Path("runs")) or pytest.fail("no plan")):
        assert sweep(material, *VARY) == 2
    assert "sweep 'kl' is being trained by another process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary", "ppo.kl_coef=-1,0.1"], "combination ppo.kl_coef = -1: ppo.kl_coef = -1: must be at least 0"),
        ([*VARY, "--seeds", "0"], "--seeds 0: must be at least 1"),
        (["--resume", "kl", "--jobs", "2"], "--config"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    material: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    config = ("--config", str(material / "tiny.toml"), "--set", "run.dir=runs")
    code, error = refused(capsys, "sweep", *config, *arguments)
    assert (code, message in error) == (2, True)
    assert (trainer.started, Path("runs").exists()) == ([], False)
    Path("runs").mkdir()
    Path("runs/lr.sweep.json").touch()
    assert cli.main(["sweep", "--resume", "kl"]) == 2
    assert "no sweep 'kl' in 'runs': there is 'lr'" in capsys.readouterr().err


def test_untrusted_code_trains_nothing(
    material: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(Path("other-user").resolve()))
    assert sweep(material, *VARY) == 3
    assert "you have not trusted this version" in capsys.readouterr().err
    assert not Path("runs").exists()
    assert sweep(material, *VARY, "--trust-code", "--set", "ppo.iterations=1") == 0


def test_ctrl_c_has_the_runs_save_and_end_and_a_killed_run_leaves_the_others_alone(material: Path) -> None:
    trusted_code().remember(code_of(f"{material}/rewards.py:score"))
    command = [sys.executable, "-m", "workbench", "sweep", "--config", str(material / "tiny.toml"), "--jobs", "2"]
    command += ["--set", "run.dir=runs", "--set", "ppo.iterations=100000", "--vary", "ppo.kl_coef=0.02,0.5,1"]
    before = set(psutil.Process().children(recursive=True))  # of tests before this one
    process = subprocess.Popen([*command, "--name", "kl"], stderr=subprocess.PIPE, text=True)
    first, second, third = (RunFolder(Path("runs") / f"kl_kl_coef-{value}_seed-0") for value in ("0.02", "0.5", "1"))
    wait_for(lambda: all(_trains(run) for run in (first, second)))
    children = psutil.Process(process.pid).children()
    next(child for child in children if str(first.root.resolve()) in child.cmdline()).kill()
    wait_for(lambda: _trains(third))
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert "error: 1/3 kl_kl_coef-0.02_seed-0: was killed by signal 9" in err
    assert "interrupted (SIGINT): 2 runs save a checkpoint; Ctrl+C ends at once without one" in err
    assert err.count(": stopped after iteration") == 2
    assert "3 runs are not done; to go on: ppo-workbench sweep --resume kl" in err
    states = {run.name: run.state for run in list_runs(Path("runs"))}
    assert [states[run.name] for run in (first, second, third)] == ["interrupted", "stopped", "stopped"]
    assert "score" in (third.root / LOG).read_text()
    assert set(psutil.Process().children(recursive=True)) <= before


def _trains(run: RunFolder) -> bool:
    """Return whether the run has finished an iteration."""
    return run.events.exists() and '"score_mean"' in run.events.read_text()


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
    killed = run_python(helper, "update", "2", *arguments, "killed")
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
        ("branch a --at 1 --name ../b", "must be letters, digits"),
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
