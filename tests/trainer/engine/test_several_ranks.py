"""Several ranks learn what one learns, by PPO and from preferences, and end on all of them when one is lost."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from dpo_helper import dpo_config
from judge_server import JudgeServer, by_length, write_rubric
from preference_samples import labelled, reward_config
from ranks_helper import ROUNDING, Ended, ended, hurt, largest_difference, run_ranks, started, wait_for
from runs_helper import comparable, newest_checkpoint, outcome, record, tiny_config, workspace

from trainer.config import AnyConfig
from trainer.config.loading import config_text
from trainer.distributed.ranks import HUNG, Ranks
from trainer.engine.inbox import send
from trainer.engine.trainable import check_shares
from trainer.engine.training import train
from trainer.errors import UsageError
from trainer.events import (
    Alert,
    DPOEvaluation,
    Evaluation,
    Event,
    Iteration,
    RewardModelEvaluation,
    RewardModelStep,
    RunEnded,
    SettingChanged,
)
from trainer.reward_model.predictions import HELD_OUT, read_predictions
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.samples import read_samples

MEASURED = (Iteration, RewardModelStep, RewardModelEvaluation, DPOEvaluation, Evaluation)
SETTINGS = ("rollout.batch_size=8", "rollout.samples_per_prompt=2")
FITTED = ("ppo.lam=0.7", "optim.micro_batch_tokens=40")
PREFIXES = ("model.value_model=head", "ppo.prefix_scores=2", "ppo.kl_in=loss", "ppo.kl_estimator=full")
GRPO = ("eval.prompts=1", "ppo.estimator=grpo", "ppo.kl_in=loss", "ppo.kl_estimator=k3", "optim.micro_batch_tokens=40")
GRPO += ("rollout.dynamic=2", "data.curriculum=true")


def arguments(folder: Path, name: str, *settings: str) -> list[str]:
    toml = folder / "tiny.toml"
    values = [f"run.name={name}", *SETTINGS, *settings]
    return ["--config", str(toml if toml.exists() else workspace(folder)), *(x for v in values for x in ("--set", v))]


def events_of(folder: Path, name: str) -> list[Event]:
    return read_journal(RunFolder(folder / "runs" / name).events).events


def numbers_in(array: mx.array) -> Any:
    """Return an array's numbers; a fitted critic's are float64 in pairs of 32 bits."""
    found = np.array(array)
    return (found.view(np.float64) if found.dtype == np.uint32 else found).tolist()


def measured(folder: Path, name: str) -> dict[str, Any]:
    """Return what a run has measured and learned, as plain values."""
    run = RunFolder(folder / "runs" / name)
    events = [comparable(event) for event in events_of(folder, name) if isinstance(event, MEASURED)]
    newest = newest_checkpoint(run)
    assert newest is not None
    weights = [mx.load(str(path)) for path in sorted(newest.rglob("*.safetensors"))]
    pairs = read_predictions(run.root / HELD_OUT).pairs if (run.root / HELD_OUT).exists() else []
    return {
        "events": [{key: value for key, value in event.items() if key != "ranks"} for event in events],
        "samples": [read_samples(path).to_pylist() for path in sorted(run.samples.glob("*.parquet"))],
        "weights": [{key: numbers_in(array) for key, array in tree.items()} for tree in weights],
        "held out": [[pair.chosen_reward, pair.rejected_reward] for pair in pairs],
    }


@pytest.mark.parametrize(("count", "settings"), [(2, PREFIXES), (2, FITTED), (3, GRPO)])
def test_several_ranks_learn_what_one_learns(count: int, settings: tuple[str, ...], tmp_path: Path) -> None:
    results = run_ranks(tmp_path, count, *arguments(tmp_path, "several", *settings))
    assert [result.code for result in results] == [0] * count, results
    assert all(not result.out and not result.err for result in results[1:]), "only the first rank reports"
    record(tiny_config(tmp_path, "run.name=one", *SETTINGS, *settings))
    assert largest_difference(measured(tmp_path, "several"), measured(tmp_path, "one")) < ROUNDING
    *_, last = iterations = [event for event in events_of(tmp_path, "several") if isinstance(event, Iteration)]
    assert any(len(one.difficulty) > 4 for one in iterations) == (settings is GRPO), "further prompts"
    assert len(last.ranks) == count
    assert all(0 < rank["waiting"] < rank["seconds"] and rank["sent"] > 0 for rank in last.ranks)


def killed_within(folder: Path, name: str, rank: int, iteration: int) -> list[Ended]:
    """Kill a rank of two once `iteration` is over; return how both ended."""
    command = ["-m", "workbench", "--no-ui", "--trust-code", "--display", "json", *arguments(folder, name)]
    journal = folder / "runs" / name / "events.jsonl"
    with started(folder, [command] * 2) as processes:
        wait_for(lambda: journal.exists() and f'"iteration":{iteration},"score_mean"' in journal.read_text())
        processes[rank].send_signal(signal.SIGKILL)
        return ended(folder, processes, patience=30)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of two ranks, runs/whole."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(folder, 2, *arguments(folder, "whole"))
    return folder


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_run_on_the_other_which_resumes_bit_for_bit(rank: int, workplace: Path) -> None:
    name = f"killed-{rank}"
    results = killed_within(workplace, name, rank, 1)
    assert results[rank].code == -signal.SIGKILL
    assert results[1 - rank].code == 3
    assert f"rank {rank}" in results[1 - rank].err
    if rank == 1:
        end = next(event for event in events_of(workplace, name) if isinstance(event, RunEnded))
        assert (end.state, end.exit_code) == ("failed", 3)
        assert "rank 1" in end.reason
        assert "was lost" in end.reason
    resumed = run_ranks(workplace, 2, "--resume", str(workplace / "runs" / name))
    assert [result.code for result in resumed] == [0, 0], resumed
    killed, whole = (outcome(workplace / "runs" / one, (Iteration, Evaluation)) for one in (name, "whole"))
    for found in (killed, whole):
        for event in found["events"]:
            event.pop("ranks", None)  # with the seconds of each
    assert killed == whole


def test_a_rank_that_hangs_ends_the_run_on_the_other(tmp_path: Path) -> None:
    more = arguments(tmp_path, "hung", "run.rank_timeout=2", "ppo.iterations=1000")
    command = ["-m", "workbench", "--no-ui", "--trust-code", "--display", "json", *more]
    journal = tmp_path / "runs" / "hung" / "events.jsonl"
    with started(tmp_path, [command] * 2) as processes:
        wait_for(lambda: journal.exists() and '"score_mean"' in journal.read_text())
        processes[1].send_signal(signal.SIGSTOP)
        code = processes[0].wait(60)
    assert code == HUNG
    end = next(event for event in events_of(tmp_path, "hung") if isinstance(event, RunEnded))
    assert end.state == "failed"
    assert "rank 1" in end.reason
    assert "did not answer for 2 s" in end.reason


def run_hurt_rank(folder: Path, name: str, patch: str, *settings: str) -> list[Ended]:
    """Run two ranks, with `patch` applied to the second one's program."""
    more = ["--no-ui", "--trust-code", "--display", "json", *arguments(folder, name, *settings)]
    with started(folder, [["-m", "workbench", *more], [hurt(folder, patch), *more]]) as processes:
        return ended(folder, processes)


def test_a_rank_with_another_version_is_refused(tmp_path: Path) -> None:
    patch = """
from importlib import metadata
version = metadata.version
patch('importlib.metadata.version', lambda name: 'another' if name == 'ppo-workbench' else version(name)).start()
"""
    results = run_hurt_rank(tmp_path, "refused", patch)
    assert [result.code for result in results] == [3, 3]
    for result in results:
        assert "the version of ppo-workbench is" in result.err
        assert "every rank needs the same" in result.err
    assert not (tmp_path / "runs" / "refused").exists()


def test_a_failed_allocation_on_one_rank_makes_the_parts_smaller_on_all(tmp_path: Path) -> None:
    patch = """
import trainer
from trainer.ppo import learner
accumulate, calls = learner.accumulate, []
def failing(*args, **kwargs):
    calls.append(1)
    if len(calls) == 3:
        raise RuntimeError("[malloc] Unable to allocate 5 bytes.")
    return accumulate(*args, **kwargs)
patch('trainer.ppo.learner.accumulate', failing).start()
"""
    results = run_hurt_rank(tmp_path, "healed", patch)
    assert [result.code for result in results] == [0, 0], results
    events = events_of(tmp_path, "healed")
    assert "out_of_memory" in {event.code for event in events if isinstance(event, Alert)}
    assert [event.key for event in events if isinstance(event, SettingChanged)] == ["optim.micro_batch_tokens"]
    record(tiny_config(tmp_path, "run.name=one", *SETTINGS))
    assert largest_difference(measured(tmp_path, "healed"), measured(tmp_path, "one")) < ROUNDING


def test_requests_reach_all_ranks_at_the_same_iteration(tmp_path: Path) -> None:
    command = ["-m", "workbench", "--no-ui", "--trust-code", "--display", "json"]
    command += arguments(tmp_path, "steered", "ppo.iterations=1000")
    run = RunFolder(tmp_path / "runs" / "steered")

    def seen(text: str) -> bool:
        return run.events.exists() and text in run.events.read_text()

    with started(tmp_path, [command] * 2) as processes:
        wait_for(lambda: seen('"score_mean"'))
        send(run.root, "pause")
        wait_for(lambda: seen('"state":"paused"'))
        send(run.root, "set", key="ppo.kl_coef", value=0.25)
        send(run.root, "resume")
        wait_for(lambda: seen('"kl_coef":0.25'))
        send(run.root, "rollback")
        wait_for(lambda: seen('"event":"rollback"'))
        send(run.root, "stop")
        results = ended(tmp_path, processes)
    assert [result.code for result in results] == [130, 0], results
    end = next(event for event in events_of(tmp_path, "steered") if isinstance(event, RunEnded))
    assert end.state == "stopped"


@pytest.mark.parametrize("stops", [False, True])
def test_all_ranks_wait_while_the_judge_of_the_first_is_down(stops: bool, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "runs" / "judged")
    with JudgeServer() as server:
        source = json.dumps(server.source(write_rubric(tmp_path), retries=0)).replace('": ', '" = ')
        command = ["-m", "workbench", "--no-ui", "--display", "json"]
        command += arguments(tmp_path, "judged", f"reward.sources=[{source}]", "ppo.iterations=2")
        server.answer = lambda response: "503"
        with started(tmp_path, [command] * 2) as processes:
            wait_for(lambda: run.events.exists() and '"state":"paused"' in run.events.read_text())
            if stops:
                send(run.root, "stop")
            else:
                server.answer = by_length
            results = ended(tmp_path, processes)
        assert [result.code for result in results] == ([130, 0] if stops else [0, 0]), results
        probes = [body for body in server.requests if len(body["messages"]) == 1]
        assert len(probes) == 1, "the first rank alone asks"
        if not stops:
            asked = len(server.requests)
            record(tiny_config(tmp_path, "run.name=one", *SETTINGS, f"reward.sources=[{source}]", "ppo.iterations=2"))
            assert len(server.requests) > asked
            assert largest_difference(measured(tmp_path, "judged"), measured(tmp_path, "one")) < ROUNDING


COMMANDS = {"reward-model": ["reward-model", "train"], "dpo": ["dpo", "--trust-code"]}
# Steps of 8, 8 and 1 comparisons: the last one has fewer than there are ranks.
STEPS = ("train.batch_size=8", "train.epochs=3", "data.eval_fraction=0.3", "eval.every=1")


def configured(kind: str, folder: Path, name: str, *settings: str) -> AnyConfig:
    """Return the configuration of a small run on 24 pairs in a file, in a workspace made in `folder` if missing."""
    pairs = folder / "pairs.jsonl"
    if not pairs.exists():
        rows = []
        for one in labelled(24):
            texts = one.comparison.completions
            chosen, rejected = texts if one.judgement.choice == "a" else texts[::-1]
            rows.append({"prompt": one.comparison.prompt, "chosen": chosen, "rejected": rejected})
        pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = (f"run.name={name}", f"data.preferences={pairs}", *STEPS, *settings)
    if kind == "dpo":
        return dpo_config(folder, f"reward.sources=['{folder / 'rewards.py'}:likes']", *settings)
    # It learns too fast, so that it stops early.
    return reward_config(folder, "optim.lr=0.05", "train.patience=2", *settings)


@pytest.mark.parametrize("kind", COMMANDS)
def test_two_ranks_learn_from_preferences_what_one_learns(kind: str, tmp_path: Path) -> None:
    toml = tmp_path / "several.toml"
    toml.write_text(config_text(configured(kind, tmp_path, "several")))
    command = ["-m", "workbench", *COMMANDS[kind], "--display", "json", "--config", str(toml)]
    with started(tmp_path, [command] * 2) as processes:
        results = ended(tmp_path, processes)
    assert [result.code for result in results] == [0, 0], results
    assert (results[1].out, results[1].err) == ("", ""), "only the first rank reports"
    train(configured(kind, tmp_path, "one"))
    assert largest_difference(measured(tmp_path, "several"), measured(tmp_path, "one")) < 1e-5
    events = events_of(tmp_path, "several")
    if kind == "dpo":
        assert any(isinstance(event, Evaluation) for event in events), "samples are scored too"
        return
    steps = [event for event in events if isinstance(event, RewardModelStep)]
    assert [step.comparisons for step in steps[:4]] == [8, 8, 1, 8]
    assert all(len(step.ranks) == 2 and step.ranks[1]["sent"] > 0 for step in steps)
    end = next(event for event in events if isinstance(event, RunEnded))
    assert end.reason == "held-out log-loss did not improve in 2 evaluations"


def test_a_step_of_fewer_comparisons_than_ranks_is_refused(tmp_path: Path) -> None:
    config = configured("reward-model", tmp_path, "small", "train.batch_size=2")
    ranks = Ranks()
    check_shares(config, ranks)
    ranks.size = 3
    with pytest.raises(UsageError, match=r"2 comparisons \(train.batch_size\) is too small for 3 ranks"):
        check_shares(config, ranks)
