"""Training a reward model: its gradients, what it learns, what a run leaves on disk, and how it resumes."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import runs_helper
from preference_samples import labelled, preference, reward_config
from runs_helper import Killed, Recorder, comparable, flip, flips, killed_at, newest_checkpoint
from tiny import load_tiny

from trainer.config.loading import load_config_as
from trainer.config.pairs import RewardModelConfig
from trainer.engine.control import Control
from trainer.engine.reward_model import RewardModelTraining
from trainer.engine.training import train
from trainer.errors import DataError, StorageError, TrainerError, UsageError
from trainer.events import (
    CheckpointSaved,
    Event,
    RewardModelEvaluation,
    RewardModelStep,
    RunEnded,
    RunStarted,
)
from trainer.pairs.comparisons import reward_comparisons
from trainer.pairs.groups import sequences_of
from trainer.preferences.records import Preference
from trainer.reward_model.loaded import LoadedRewardModel, load_reward_model
from trainer.reward_model.network import score_sequences
from trainer.reward_model.pair_evaluation import report_on
from trainer.reward_model.predictions import HELD_OUT, read_predictions
from trainer.reward_model.snapshot import load_parameters, load_snapshot
from trainer.runs.checkpoint_files import checkpoints, write_state
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.listing import list_runs

PAIRS = labelled(40)


def trained(
    folder: Path,
    *overrides: str,
    preferences: Sequence[Preference] = PAIRS,
    resume: Path | None = None,
    watch: Callable[[Event], None] = lambda event: None,
    control: Control | None = None,
) -> Recorder:
    """Train a run in `folder`, for five steps by default."""
    recorder = Recorder(watch)
    config = reward_config(folder, *overrides)
    if resume:
        config = load_config_as(RewardModelConfig, resume / "config.toml")
    train(config, preferences=preferences, resume=resume, sinks=[recorder], control=control)
    return recorder


def score(model: LoadedRewardModel) -> list[float]:
    return model.score([model.encode("say 1: ", "aab")])


def fitting(folder: Path, *overrides: str, preferences: Sequence[Preference] = PAIRS) -> RewardModelTraining:
    """Return a training prepared for its first step."""
    config = reward_config(folder, *overrides)
    loaded = load_tiny(folder / "model")
    made = RewardModelTraining(config).build_on(
        config, loaded.backbone, reward_comparisons(preferences, loaded, config)
    )
    made.prepare()
    return made


def outcome(run: Path) -> dict[str, Any]:
    return runs_helper.outcome(run, (RewardModelStep, RewardModelEvaluation))


def test_a_hidden_rule_is_learnt_and_held_out_pairs_show_it(tmp_path: Path) -> None:
    recorder = trained(tmp_path, "data.eval_fraction=0.2", "train.epochs=2", preferences=labelled(500))
    before, *_, after = recorder.of(RewardModelEvaluation)
    assert (before.iteration, before.pairs, after.pairs) == (0, 100, 100)
    assert after.accuracy >= 0.9
    assert after.accuracy > after.length_accuracy + 0.2
    assert after.untrained_accuracy == before.accuracy < 0.8
    assert after.log_loss < 0.3 < before.log_loss
    model = load_reward_model(next((tmp_path / "runs").iterdir()))
    liked, other = model.score([model.encode("say 1: ", text) for text in ("abaacada", "bcdefghb")])
    assert liked > other


def test_the_output_has_mean_0_and_deviation_1_on_the_training_completions_before_and_after(tmp_path: Path) -> None:
    made = fitting(tmp_path, "data.eval_fraction=0")

    sequences, starts = sequences_of(made.data.train)

    def rewards() -> np.ndarray:
        scores = score_sequences(made.scorer.scores, sequences, 4096, starts=starts)
        return (scores - made.scorer.scale.mean) / made.scorer.scale.std

    assert (rewards().mean(), rewards().std()) == (pytest.approx(0, abs=1e-5), pytest.approx(1, abs=1e-5))
    while made.finish not in made.due():
        made.step()
    assert abs(rewards().std() - 1) > 0.01
    made.finish()
    assert (rewards().mean(), rewards().std()) == (pytest.approx(0, abs=1e-5), pytest.approx(1, abs=1e-5))
    assert made.scorer.scale.logit_std != made.scorer.scale.std, "the log-odds stay those that were trained"


def test_any_cut_into_micro_batches_gives_the_same_gradient(tmp_path: Path) -> None:
    rankings = [preference(f"r{i}", ["aab", "ab", "b", "cc"], ((0,), (1, 2), (3,)), strength=2) for i in range(3)]
    made = fitting(tmp_path, "data.eval_fraction=0", preferences=[*PAIRS[:5], *rankings])
    whole, sums = made.learner.gradients(made.data.train)
    made.learner.config = reward_config(tmp_path, "optim.micro_batch_tokens=1")
    parts, part_sums = made.learner.gradients(made.data.train)
    assert whole.keys() == made.scorer.parameters().keys()
    for name in whole:
        np.testing.assert_allclose(np.array(parts[name]), np.array(whole[name]), atol=2e-5, err_msg=name)
    np.testing.assert_allclose([float(x) for x in part_sums], [float(x) for x in sums], rtol=1e-4)


def test_the_loss_of_a_step_is_that_of_the_slow_version(tmp_path: Path) -> None:
    strong = preference("s", ["ab", "cd"], strength=3)
    tie = preference("t", ["ab", "cdc"], "tie")
    made = fitting(tmp_path, "data.eval_fraction=0", "train.margin=0.5", preferences=[*PAIRS[:4], strong, tie])
    log_nu = float(made.scorer.log_nu or 0)
    assert log_nu == pytest.approx(math.log(2 * (1 / 6) / (5 / 6)))
    losses = []
    for group in made.data.train:
        scores = (
            score_sequences(made.scorer.scores, group.sequences, 4096, starts=group.starts)
            / made.scorer.scale.logit_std
        )
        (pair,) = group.pairs
        lead = scores[pair.better] - scores[pair.worse] - 0.5 * (pair.strength - 1) * (not pair.is_tie)
        weights = np.exp([lead / 2, log_nu, -lead / 2])
        losses.append(-math.log(weights[1 if pair.is_tie else 0] / weights.sum()))
    _, sums = made.learner.gradients(made.data.train)
    assert float(sums.loss) == pytest.approx(sum(losses), rel=1e-4)
    assert float(sums.decided) == 5


@pytest.mark.parametrize("rankings", ["pairs", "plackett-luce"])
def test_rankings_teach_by_either_loss(tmp_path: Path, rankings: str) -> None:
    given = [
        preference(f"say {i}: ", ["abcbdb", "aaaaab", "bcdbbc", "aabbaa"], ((1,), (3,), (0,), (2,))) for i in range(30)
    ]
    recorder = trained(tmp_path, "data.eval_fraction=0.2", f"train.rankings={rankings}", preferences=given)
    assert recorder.of(RewardModelEvaluation)[-1].accuracy == 1
    assert recorder.of(RewardModelEvaluation)[-1].pairs == 36


def test_ties_are_learnt_as_ties(tmp_path: Path) -> None:
    ties = [preference(f"tie {i}: ", ["abcd", "dcab"], "tie") for i in range(60)]
    recorder = trained(tmp_path, "data.eval_fraction=0.2", "train.epochs=4", preferences=[*labelled(120), *ties])
    assert recorder.of(RewardModelEvaluation)[-1].ties > 0
    model = load_reward_model(next((tmp_path / "runs").iterdir()))
    report = model.card["evaluation"]["ties"]
    assert report["on_ties"] > 2 * report["on_decided"]
    assert model.model.log_nu is not None


def test_a_run_reports_what_it_does_and_saves_it(tmp_path: Path) -> None:
    recorder = trained(tmp_path, "run.name=a", "data.eval_fraction=0.1", "eval.every=2")
    (started,) = recorder.of(RunStarted)
    assert (started.run_kind, started.iterations, started.prompts, started.eval_prompts) == ("reward-model", 5, 36, 4)
    assert [step.iteration for step in recorder.of(RewardModelStep)] == [1, 2, 3, 4, 5]
    assert [step.comparisons for step in recorder.of(RewardModelStep)] == [8, 8, 8, 8, 4]
    assert [found.iteration for found in recorder.of(RewardModelEvaluation)] == [0, 2, 4, 5]
    evaluated = [found.memory_bytes for found in recorder.of(RewardModelEvaluation)]
    stepped = [step.memory_bytes for step in recorder.of(RewardModelStep)][:-1]  # the last one has half as many
    assert 0 < min(evaluated) < max(evaluated) < min(stepped), (evaluated, stepped)
    assert [saved.iteration for saved in recorder.of(CheckpointSaved)] == [0, 1, 2, 3, 4, 5]
    assert recorder.of(RunEnded)[0].state == "done"
    run = tmp_path / "runs" / "a"
    kept = [event for event in recorder.events if not event.transient]
    assert [comparable(event) for event in read_journal(run / "events.jsonl").events] == [
        comparable(event) for event in kept if event not in kept[: kept.index(started)]
    ]
    assert [path.name for path in checkpoints(RunFolder(run)).paths] == [f"step-00000{n}" for n in (3, 4, 5)]
    newest = run / "checkpoints" / "step-000005"
    assert {str(path.relative_to(newest)) for path in newest.rglob("*") if path.is_file()} == {
        "adapter/adapters.safetensors",
        "adapter/adapter_config.json",
        "best.safetensors",
        "head.safetensors",
        "optimizer.safetensors",
        "reward_model.json",
        "state.json",
    }
    (summary,) = list_runs(tmp_path / "runs")
    assert (summary.kind, summary.state, summary.iteration, summary.iterations) == ("reward-model", "done", 5, 5)
    assert (summary.score, summary.kl, summary.problem) == (None, None, "")


def test_mlx_lm_takes_the_adapter(tmp_path: Path) -> None:
    from mlx_lm.tuner.utils import load_adapters

    trained(tmp_path, "run.name=a")
    newest = newest_checkpoint(RunFolder(tmp_path / "runs/a"))
    assert newest is not None
    backbone = load_tiny(tmp_path / "model").backbone
    load_adapters(backbone, str(newest / "adapter"))
    model = load_reward_model(newest).model
    sequences, lengths = mx.array([[7, 8, 9, 10]]), mx.array([4])
    head = model.parameters()
    hidden = backbone.model(sequences)[0, -1]
    assert float(hidden @ head["head.weight"] + head["head.bias"]) == pytest.approx(
        float(model.scores(sequences, lengths)[0]), abs=1e-4
    )


VARIANTS = {
    "plain": [],
    "evaluation and patience": ["eval.every=1", "train.patience=2"],
    "decay and micro-batches": ["optim.weight_decay=0.1", "optim.micro_batch_tokens=40", "optim.schedule=linear"],
    "no held-out ones": ["data.eval_fraction=0"],
    "fitted head": ["train.head=fitted", "train.states=last+mean"],
}
PLACES = [("score", 0), ("evaluate", 0), ("update", 1), ("update", 3), ("score", 5)]


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_run_killed_anywhere_and_resumed_equals_an_uninterrupted_one_to_the_bit(
    settings: list[str], tmp_path: Path
) -> None:
    trained(tmp_path, "run.name=whole", *settings)
    for phase, number in PLACES:
        if phase == "evaluate" and "data.eval_fraction=0" in settings:
            continue
        run = tmp_path / "runs" / f"{phase}-{number}"
        last = read_journal(tmp_path / "runs/whole/events.jsonl").events[-1]
        assert isinstance(last, RunEnded)
        at = min(number, last.iteration)  # patience may have ended it
        with pytest.raises(Killed):
            trained(tmp_path, f"run.name={run.name}", *settings, watch=killed_at(phase, at))
        resumed = trained(tmp_path, resume=run)
        assert [started.resumed_at for started in resumed.of(RunStarted)] == [at - 1]
        assert outcome(run) == outcome(tmp_path / "runs" / "whole"), (phase, number)
        if "data.eval_fraction=0" not in settings:
            assert read_predictions(run / HELD_OUT) == read_predictions(tmp_path / "runs/whole" / HELD_OUT)
        assert not list(run.rglob(".*"))


def test_a_run_does_not_resume_with_other_preferences(tmp_path: Path) -> None:
    trained(tmp_path, "run.name=a")
    with pytest.raises(UsageError, match="have changed since this run began; start a new run"):
        trained(tmp_path, resume=tmp_path / "runs/a", preferences=labelled(40, seed=1))


def test_patience_ends_a_run_at_its_best_evaluation(tmp_path: Path) -> None:
    contrary = [
        preference(one.comparison.prompt, one.comparison.completions, "b" if one.judgement.choice == "a" else "a")
        for one in labelled(40, seed=9)
    ]
    recorder = trained(
        tmp_path,
        *("data.eval_fraction=0.3", "eval.every=1", "train.epochs=40", "train.patience=2"),
        preferences=[*PAIRS, *contrary],
    )
    evaluations = recorder.of(RewardModelEvaluation)[1:]
    best = min(evaluations, key=lambda found: found.log_loss)
    end = recorder.of(RunEnded)[0]
    assert end.iteration == best.iteration + 2 < 280
    assert "did not improve in 2 evaluations" in end.reason
    model = load_reward_model(next((tmp_path / "runs").iterdir()))
    assert model.card["evaluation"]["log_loss"] == best.log_loss
    kept = read_predictions(next((tmp_path / "runs").iterdir()) / HELD_OUT)
    assert (kept.iteration, kept.report.log_loss) == (best.iteration, best.log_loss)
    leads = [one.lead for one in kept.pairs]
    assert sum(math.log(1 + math.exp(-lead)) for lead in leads) / len(leads) == pytest.approx(best.log_loss)
    at_best = load_parameters(model.folder.with_name(f"step-{best.iteration:06d}"))
    after = load_parameters(model.folder.with_name(f"step-{best.iteration + 1:06d}"))
    assert all(mx.array_equal(array, at_best[name]) for name, array in model.trained.items())
    assert not mx.array_equal(after["head.weight"], at_best["head.weight"])


def test_no_evaluation_is_better_than_one_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fitting(tmp_path, "data.eval_fraction=0.3", "eval.every=1", "train.patience=2")
    for loss, without_better in ((0.0, 0), (0.1, 1), (0.2, 2)):
        monkeypatch.setattr(
            "trainer.engine.reward_model.report_on",
            lambda *found, loss=loss, **how: replace(report_on(*found, **how), log_loss=loss),
        )
        made.evaluate()
        assert made.best_report is not None
        assert (made.best_report["log_loss"], made.without_better) == (0.0, without_better)
    plain, arrays = made.snapshot().parts()
    other = fitting(tmp_path, "data.eval_fraction=0.3", "eval.every=1", "train.patience=2")
    other.restore(other.snapshot()._replace(**plain))  # as from the first rank, whose arrays have the same shapes
    assert (other.best_report, other.without_better, other.scorer.scale) == (made.best_report, 2, made.scorer.scale)
    assert arrays["best"].keys() == other.snapshot().parts()[1]["best"].keys()


@pytest.mark.parametrize(
    ("settings", "preferences", "error", "reported"),
    [
        (["run.name=a"], [], DataError, "has no preferences"),
        (["data.max_tokens=1000"], [preference("p" * 300, ["a", "b"])], DataError, "the model's context is 256"),
        (["model.path=nowhere"], PAIRS, TrainerError, "no such folder"),
        (["train.head=fitted"], labelled(16, prompts=1), UsageError, "at least 5 prompts to train on, and there is 1"),
    ],
)
def test_a_start_that_fails_leaves_no_run_behind(
    settings: list[str], preferences: list[Preference], error: type[Exception], reported: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=reported):
        trained(tmp_path, *settings, preferences=preferences)
    assert not (tmp_path / "runs").exists()


def test_one_prompt_alone_holds_nothing_out_and_says_so(tmp_path: Path) -> None:
    recorder = trained(tmp_path, preferences=labelled(16, prompts=1))
    assert any("too few prompts to hold any out" in warning for warning in recorder.of(RunStarted)[0].warnings)
    assert recorder.of(RewardModelEvaluation) == []
    assert load_reward_model(next((tmp_path / "runs").iterdir())).is_finished


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the newest checkpoint of a run that has an evaluation."""
    folder = tmp_path_factory.mktemp("whole")
    trained(folder, "run.name=a", "eval.every=1", preferences=labelled(24))
    found = newest_checkpoint(RunFolder(folder / "runs/a"))
    assert found is not None
    return found


@pytest.fixture
def checkpoint(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of the checkpoint, to be damaged."""
    return shutil.copytree(whole, tmp_path / whole.name)


@pytest.mark.parametrize(
    ("change", "damage"),
    [
        ({"seed": -1}, r"is damaged \(seed: "),
        ({"length_slope": None}, r"is damaged \(length_slope: "),
        ({"scale": {"mean": "0", "std": 1.0, "logit_std": 1.0}}, r"is damaged \(scale\.mean: "),
        ({"finished": "yes"}, r"is damaged \(finished: "),
        ({"format": 99}, "newer version"),
    ],
)
def test_a_reward_model_whose_card_breaks_a_rule_is_refused(
    change: dict[str, Any], damage: str, checkpoint: Path
) -> None:
    card = json.loads((checkpoint / "reward_model.json").read_text())
    (checkpoint / "reward_model.json").write_text(json.dumps(card | change))
    write_state(checkpoint, json.loads((checkpoint / "state.json").read_text()))
    for load in (load_reward_model, load_snapshot):
        with pytest.raises(StorageError, match=damage):
            load(checkpoint)


def test_one_flipped_bit_anywhere_in_a_reward_model_is_noticed_and_the_file_named(
    whole: Path, checkpoint: Path
) -> None:
    seen = set()
    for name, bit in flips(whole, a_file=6):
        flip(checkpoint / name, bit)
        with pytest.raises(StorageError) as failure:
            load_snapshot(checkpoint)
        assert "newer version" in str(failure.value) or "is damaged" in str(failure.value)
        assert name in str(failure.value) or name in ("state.json", "reward_model.json")
        seen.add(name)
        shutil.copy(whole / name, checkpoint / name)
    assert load_snapshot(checkpoint).iteration == load_snapshot(whole).iteration
    assert seen == {str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file()}


def test_the_files_needed_for_scoring_can_be_copied_without_the_rest(checkpoint: Path) -> None:
    (checkpoint / "optimizer.safetensors").unlink()
    assert score(load_reward_model(checkpoint))
    with pytest.raises(UsageError, match="holds no reward model"):
        load_reward_model(checkpoint.parent)
