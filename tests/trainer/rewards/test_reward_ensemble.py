"""Several reward models as one: how they are combined, how far they disagree, and what they share in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reward_model_runs import foreign_model, inputs, reward_workspace, train_tiny
from runs_helper import record, tiny_config

from trainer.config.schema import ModelConfig, RewardConfig
from trainer.errors import DataError, RewardError
from trainer.models import backbone
from trainer.models.backbone import load_backbone
from trainer.reward_model import loaded
from trainer.reward_model.loaded import load_reward_model
from trainer.rewards import Rewards, WeightedSource, build_rewards
from trainer.rewards.model_reward import ModelReward
from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples

BATCH = inputs("aaaa", "bcd", "a fox")


class Fixed:
    """Model with fixed scores, whatever it reads."""

    def __init__(self, *scores: float) -> None:
        self._scores = list(scores)

    def encode(self, prompt: Any, completion: Any, columns: Any) -> list[int]:
        if completion == "unreadable":
            raise DataError("it has no tokens")
        return list(completion.encode())

    def score(self, sequences: Sequence[Sequence[int]], **_: Any) -> list[float]:
        return self._scores[: len(sequences)]


def test_the_mean_or_the_least_of_the_members_is_the_score_and_their_deviation_a_detail() -> None:
    members = [Fixed(1.0, 0.0, -2.0), Fixed(3.0, 0.0, 1.0), Fixed(5.0, 0.0, 4.0)]
    mean = ModelReward("m", members, combine="mean")(BATCH)
    assert mean.scores == [3.0, 0.0, 1.0]
    assert mean.details["disagreement"] == pytest.approx([(8 / 3) ** 0.5, 0.0, 6**0.5])
    least = ModelReward("m", members, combine="min")(BATCH)
    assert least.scores == [1.0, 0.0, -2.0]
    assert least.details == mean.details


def test_disagreement_is_reported_as_a_part_and_not_summed() -> None:
    ensemble = ModelReward("m", [Fixed(1.0, 0.0, 0.0), Fixed(3.0, 0.0, 1.0)])
    result = Rewards([WeightedSource(ensemble, 0.5), WeightedSource(ModelReward("m", [Fixed(1.0, 1.0, 1.0)]))])(BATCH)
    assert result.scores == [2.0, 1.0, 1.25]
    assert result.parts == {"m": [2.0, 0.0, 0.5], "m.disagreement": [1.0, 0.0, 0.5], "m#2": [1.0, 1.0, 1.0]}


def test_a_non_finite_score_and_an_unreadable_text_are_reported_with_the_sample() -> None:
    with pytest.raises(RewardError, match=r"'m': sample 1 \('one'\) has score nan: must be finite"):
        ModelReward("m", [Fixed(1.0, 1.0, 1.0), Fixed(1.0, float("nan"), 1.0)])(BATCH)
    with pytest.raises(RewardError, match=r"'m' cannot read sample 1 \('one'\): it has no tokens"):
        ModelReward("m", [Fixed(1.0, 1.0)])(inputs("a", "unreadable"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make two reward models on the workspace's model, and two on another one."""
    folder = tmp_path_factory.mktemp("made")
    reward_workspace(folder)
    train_tiny(folder, "second", "run.seed=5", "model.lora_rank=2")
    foreign_model(folder / "foreign" / "model")
    train_tiny(folder / "foreign", "third")
    train_tiny(folder / "foreign", "fourth", "run.seed=5")
    return folder


def ensemble_of(folder: Path, *names: str, **more: Any) -> dict[str, Any]:
    first, *others = (str(folder / name) for name in names)
    return {"kind": "model", "path": first, "ensemble": others, **more}


def test_members_keep_their_adapters_apart_on_one_backbone_and_each_model_is_loaded_once(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["runs/rm", "foreign/runs/third", "runs/second", "foreign/runs/fourth"]
    texts = [[row.prompt, row.completion] for row in BATCH]
    alone = []
    for name in names:
        model = load_reward_model(made / name)
        alone.append(model.score([model.encode(*text) for text in texts]))
    policy = load_backbone(ModelConfig(path=str(made / "model")))
    fetched: list[str] = []

    def counted(config: Any, **options: Any) -> Any:
        fetched.append(config.path)
        return backbone.load_backbone(config, **options)

    monkeypatch.setattr(loaded, "load_backbone", counted)
    sources: list[Any] = [ensemble_of(made, *names)]
    parts = build_rewards(RewardConfig(sources=sources), backbone=policy)(BATCH).parts
    assert fetched == [str(made / "foreign/model")]
    name = "model:rm+third+second+fourth"
    np.testing.assert_allclose(parts[name], np.mean(alone, axis=0), atol=1e-5)
    np.testing.assert_allclose(parts[f"{name}.disagreement"], np.std(alone, axis=0), atol=1e-5)
    assert min(parts[f"{name}.disagreement"]) > 0.01


def test_a_run_mixes_models_with_rules_and_python_by_weight_and_its_samples_hold_the_disagreement(made: Path) -> None:
    config = tiny_config(made, "run.name=a", "ppo.iterations=1", "eval.every=0")
    (made / "rewards.py").write_text("def score(completions, **_): return [len(text) % 3 for text in completions]")
    sources: list[Any] = [
        ensemble_of(made, "runs/rm", "runs/second", combine="min", weight=2.0),
        {"kind": "length", "target": 4, "weight": 0.5},
        {"kind": "python", "path": f"{made}/rewards.py:score"},
    ]
    record(config.model_copy(update={"reward": RewardConfig(sources=sources)}))
    models = [load_reward_model(made / name) for name in ("runs/rm", "runs/second")]
    for row in read_samples(RunFolder(made / "runs/a").samples_file(1)).to_pylist():
        parts = {part["source"]: part["score"] for part in row["parts"]}
        scores = [model.score([model.encode(row["prompt"], row["completion"])])[0] for model in models]
        spread = abs(scores[0] - scores[1]) / 2
        length, own = parts.pop("length"), parts.pop("rewards.py:score")
        assert parts == pytest.approx(
            {"model:rm+second": min(scores), "model:rm+second.disagreement": spread}, abs=1e-4
        )
        assert own == len(row["completion"]) % 3
        assert row["score"] == pytest.approx(2 * min(scores) + 0.5 * length + own, abs=1e-4)
