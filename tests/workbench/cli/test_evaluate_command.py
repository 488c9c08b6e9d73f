"""`ppo-workbench evaluate`: any checkpoint of a run against its reference, with intervals."""

from __future__ import annotations

import json
import math
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from runs_helper import REWARDS, Recorder, flip, record, tiny_config
from tiny import make_checkpoint

from trainer.config import parse_overrides
from trainer.config.pairs import DPOConfig
from trainer.config.problems import validate_as
from trainer.engine.training import train
from trainer.events import Evaluation
from trainer.rewards.code import code_of
from trainer.runs.checkpoint_files import read_best, write_state
from trainer.runs.folder import RunFolder
from workbench.cli import main as cli
from workbench.system.code_trust import trusted_code


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recorder]:
    """Return a run of three iterations with an evaluation after each, and its events."""
    folder = tmp_path_factory.mktemp("run")
    settings = (
        "run.name=a",
        "checkpoint.keep=0",
        "eval.every=1",
        "eval.best_of=3",
        "optim.policy_lr=0.01",
        "optim.ema_decay=0.5",
        "reward.normalize=running",
        "data.eval_fraction=0.4",
        "ppo.kl_controller=adaptive",
    )
    return folder / "runs/a", record(tiny_config(folder, *settings))


@pytest.fixture(autouse=True)
def _own_rewards(finished: tuple[Path, Recorder]) -> None:
    """Trust the rewards of the run in the home of each test."""
    trusted_code().remember(code_of(f"{finished[0].parents[1]}/rewards.py:score"))


@pytest.fixture
def run(finished: tuple[Path, Recorder], tmp_path: Path) -> RunFolder:
    """Copy the run, to be damaged."""
    return RunFolder(shutil.copytree(finished[0], tmp_path / "a"))


def found(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """Return what the command prints as JSON."""
    assert cli.main(["evaluate", *map(str, arguments), "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def reported(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 2) -> str:
    """Return the error that the command ends with."""
    assert cli.main(["evaluate", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()[-1]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_checkpoint_is_evaluated_to_the_bit_as_the_run_evaluated_it(
    number: int, finished: tuple[Path, Recorder], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, events = finished
    (event,) = [event for event in events.of(Evaluation) if event.iteration == number]
    report = found(capsys, folder, "--checkpoint", number, "--average")
    assert (report["iteration"], report["checkpoint"]) == (number, f"step-00000{number}")
    assert report["averaged"] == event.averaged is True
    assert report["prompts"] == event.prompts == 4
    policy = {name: interval["value"] for name, interval in report["policy"].items()}
    assert policy["score"] == event.score_mean
    assert policy["reward"] == event.reward_mean
    assert policy["kl"] == event.kl
    assert (policy["length"], policy["truncated"]) == (event.response_length, event.truncated)
    score = report["policy"]["score"]
    assert (score["low"], score["high"]) == (event.score_low, event.score_high)
    assert report["reference"]["score"]["value"] == event.reference_score
    assert report["best_of"][-1]["n"] == event.best_of == 3
    assert report["best_of"][-1]["score"]["value"] == event.best_of_score
    assert list(report["win_rate"].values()) == [event.win_rate, event.win_rate_low, event.win_rate_high]
    assert report["critic"]["explained_variance"]["value"] == event.explained_variance
    assert report["critic"]["error"]["value"] == event.value_error


def test_checkpoints_have_names_and_an_average_of_their_own(
    finished: tuple[Path, Recorder], capsys: pytest.CaptureFixture[str]
) -> None:
    best = read_best(RunFolder(finished[0]))
    assert best is not None
    assert found(capsys, finished[0], "--checkpoint", "best")["iteration"] == best.iteration
    average, policy = (found(capsys, finished[0], *option) for option in (["--average"], []))
    assert (policy["iteration"], policy["averaged"]) == (3, False)
    assert policy["policy"]["kl"]["value"] != average["policy"]["kl"]["value"]
    assert policy["reference"] == average["reference"]


def test_other_prompts_and_another_reward_may_be_named(
    finished: tuple[Path, Recorder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("alpha", "beta")))
    reward = f"{finished[0].parents[1]}/rewards.py:constant"
    report = found(capsys, finished[0], "--prompts", prompts, "--reward", reward)
    assert report["prompts"] == 2
    assert report["policy"]["score"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert (report["gain"]["value"], report["win_rate"]["value"]) == (0, 0.5)
    several = '[{kind = "length", target = 8}, {kind = "regex", pattern = "a", weight = 0.0}]'
    report = found(capsys, finished[0], "--reward", several)
    assert {name for name in report["policy"] if name.startswith("parts.")} == {"parts.length", "parts.regex"}


def test_responses_without_a_score_are_left_out_and_counted(
    finished: tuple[Path, Recorder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some.py").write_text(
        "def score(completion_ids, **_): return [None if sum(ids) % 2 else len(set(ids)) for ids in completion_ids]\n"
        "def none(completion_ids, **_): return [None] * len(completion_ids)\n"
    )
    report = found(capsys, finished[0], "--reward", f"{tmp_path}/some.py:score", "--samples", "4", "--best-of", "4")
    policy = report["policy"]
    assert 0 < policy["unscored"]["value"] < 1
    assert policy["score"]["value"] == policy["parts.some.py:score"]["value"] >= 1
    assert 0 < report["pairs"] < report["prompts"] * 16
    assert math.isfinite(report["win_rate"]["value"])
    assert cli.main(["evaluate", str(finished[0]), "--reward", f"{tmp_path}/some.py:none"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not scored")]
    assert line.split()[2] == "100.0%"


def test_the_tables_have_policy_and_reference_side_by_side(
    finished: tuple[Path, Recorder], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["evaluate", str(finished[0]), "--best-of", "2"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].startswith("a, step-000003: 4 prompts, 1 response to each, seed 0")
    assert "step-000003" in captured.err
    labels = [line.split("  ")[0] for line in lines]
    for label in ("score", "KL, nats a sequence", "cut short", "gain in score", "win rate, 4 pairs", "n = 2"):
        assert label in labels
    (score,) = [line for line in lines if line.startswith("score")]
    assert score.count(" to ") == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--checkpoint", "9"], "no complete checkpoint 9: choose best, last (step-000003), or one of 1, 2, 3"),
        (["--checkpoint", "newest"], "--checkpoint newest: choose best, last (step-000003), or one of 1, 2, 3"),
        (["--checkpoint", "9" * 5000], "9...: choose best, last (step-000003), or one of 1, 2, 3"),
        (["--samples", "0"], "--samples 0: must be 1 to 1024"),
        (["--prompts", "0"], "--prompts 0: must be at least 1"),
        (["--seed", "-1"], "--seed -1: must be 0 to 4294967295"),
    ],
)
def test_an_impossible_evaluation_is_reported_in_a_line_with_the_way_out(
    options: Sequence[str], error: str, finished: tuple[Path, Recorder], capsys: pytest.CaptureFixture[str]
) -> None:
    equals = ["=".join(options)]  # as a number that begins with a minus must be given
    assert error in reported(capsys, finished[0], *equals)


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_evaluated(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = found(capsys, run.root, "--checkpoint", 2)
    adapters = run.checkpoint(3) / "policy/adapters.safetensors"
    flip(adapters, adapters.stat().st_size * 8 - 9)
    assert cli.main(["evaluate", str(run.root), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == before
    assert "warning: checkpoint 'step-000003' ignored: policy/adapters.safetensors is not what was written\n" in err
    assert "is damaged (policy/adapters.safetensors is not" in reported(capsys, run.root, "--checkpoint", "3", code=3)
    for number in (1, 2):
        shutil.rmtree(run.checkpoint(number))
    assert "no checkpoint of run 'a' can be used (checkpoint 'step-000003' ignored" in reported(
        capsys, run.root, code=3
    )
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000003"], "whoever trains the run renames it"


def test_a_run_without_what_is_requested_says_so(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    run.best.write_text('{"iteration": 3')
    assert f"'{run.best}' is damaged: choose last (step-000003)" in reported(capsys, run.root, "--checkpoint", "best")
    run.best.unlink()
    assert "keeps no best checkpoint" in reported(capsys, run.root, "--checkpoint", "best")
    shutil.rmtree(run.checkpoint(3) / "average")
    state = json.loads((run.checkpoint(3) / "state.json").read_text())
    write_state(run.checkpoint(3), state)
    assert "keeps no average of its policy" in reported(capsys, run.root, "--average")
    config = run.config.read_text()
    run.config.write_text(f'kind = "reward-model"\n{config}')
    for checkpoint in run.checkpoints.iterdir():
        (checkpoint / "reward_model.json").write_text("{}")
    assert "is of kind 'reward-model' and has no policy to evaluate" in reported(capsys, run.root)
    run.config.write_text(config)
    shutil.rmtree(run.checkpoints)
    assert "has no complete checkpoint yet" in reported(capsys, run.root)


def test_a_dpo_run_is_evaluated_by_its_samples_as_it_evaluated_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "pairs.jsonl"
    pairs = [json.dumps({"prompt": f"p{n}", "chosen": f"a{n}a", "rejected": f"b{n}"}) for n in range(24)]
    data.write_text("\n".join(pairs))
    make_checkpoint(tmp_path / "model")
    (tmp_path / "rewards.py").write_text(REWARDS)
    settings = [f"model.path={tmp_path}/model", f"run.dir={tmp_path}/runs", f"data.preferences={data}", "run.name=d"]
    settings += ["rollout.max_new_tokens=8", "optim.lr=0.01", f"reward.sources=['{tmp_path}/rewards.py:score']"]
    recorder = Recorder()
    overrides = parse_overrides([*settings, "data.eval_fraction=0.2"], DPOConfig)
    train(validate_as(DPOConfig, overrides), sinks=[recorder])
    event = recorder.of(Evaluation)[-1]
    report = found(capsys, tmp_path / "runs/d", "--trust-code")
    assert (report["kind"], report["critic"], report["prompts"]) == ("dpo", {}, event.prompts)
    assert report["policy"]["score"]["value"] == event.score_mean == event.reward_mean
    assert report["win_rate"]["value"] == event.win_rate
    assert math.isnan(event.explained_variance)
    data.write_text("\n".join(pairs[:20]))
    assert cli.main(["evaluate", str(tmp_path / "runs/d")]) == 0
    assert "the preferences are not those of the training" in capsys.readouterr().err
    (tmp_path / "runs/d/pairs.sha256").unlink()
    assert cli.main(["evaluate", str(tmp_path / "runs/d")]) == 0
    assert "the preferences are not those of the training" in capsys.readouterr().err
    config = tmp_path / "runs/d/config.toml"
    values = tomllib.loads(config.read_text())
    config.write_text(tomli_w.dumps(values | {"reward": values["reward"] | {"sources": []}}))
    assert "name one with --reward" in reported(capsys, tmp_path / "runs/d")


def test_what_is_held_out_limits_the_prompts_and_others_than_those_of_the_training_are_a_warning(
    finished: tuple[Path, Recorder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["evaluate", str(finished[0]), "--prompts", "100"]) == 0
    assert "only 4 held-out prompts; using all of them" in capsys.readouterr().err
    config = tiny_config(tmp_path, "run.name=b", "ppo.iterations=1", "data.eval_fraction=0", "ppo.estimator=reinforce")
    record(config)
    trusted_code().remember(code_of(f"{tmp_path}/rewards.py:score"))
    assert "name a file with --prompts" in reported(capsys, tmp_path / "runs/b")
    file = Path(config.data.prompts)
    report = found(capsys, tmp_path / "runs/b", "--prompts", file)
    assert (report["prompts"], report["critic"]) == (9, {}), "its estimator has no critic"
    record(tiny_config(tmp_path, "run.name=c", "ppo.iterations=1", "data.eval_fraction=0.4"))
    file.write_text("\n".join(file.read_text().splitlines()[::-1]))
    assert cli.main(["evaluate", str(tmp_path / "runs/c")]) == 0
    assert "not those of the training (the same in another order; " in capsys.readouterr().err
    assert cli.main(["evaluate", str(tmp_path / "runs/c"), "--prompts", str(file)]) == 0
    assert "not those of the training" not in capsys.readouterr().err
