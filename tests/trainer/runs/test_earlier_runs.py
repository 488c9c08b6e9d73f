"""Files of version 0.1.0, before files had versions: they open, evaluate, continue, score and export."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from preference_samples import labelled
from runs_helper import Recorder, record

from trainer.config import load_config
from trainer.config.dpo import DPOConfig
from trainer.config.fields import CONFIG_FORMAT
from trainer.config.loading import load_config_as
from trainer.config.reward_model import RewardModelConfig
from trainer.dpo.dpo_run import train_dpo
from trainer.events import Evaluation, Iteration, RewardModelStep, RunStarted
from trainer.ppo_run.checkpoint_evaluation import EvaluationOptions, evaluate_checkpoint
from trainer.preferences.formats import read_preferences, write_preferences
from trainer.preferences.store import PreferenceStore
from trainer.reward_model.loaded import load_reward_model
from trainer.reward_model.reward_model_run import train_reward_model
from trainer.rewards import trust_all
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.listing import list_runs
from trainer.runs.samples import read_samples

EARLIER = Path(__file__).parents[2] / "earlier"
WORKSPACE = "/workspace"  # where it was written
CLIP = (
    "ppo.value_clip = 0.2 (in units of the reward) is from an earlier version: it is read as "
    "ppo.relative_value_clip = 1.0 (in units of the critic's error)"
)


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """Copy the workspace, with its paths changed to the copy's."""
    shutil.copytree(EARLIER, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.rglob("*"):
        if path.suffix in (".toml", ".json", ".jsonl") and WORKSPACE in (text := path.read_text()):
            path.write_text(text.replace(WORKSPACE, str(tmp_path)))
    measure(tmp_path)
    return tmp_path


def measure(workspace: Path) -> None:
    """Write the size of each file into its checkpoint's state.json."""
    for state in workspace.glob("runs/*/checkpoints/*/state.json"):
        content = json.loads(state.read_text())
        sizes = {name: (state.parent / name).stat().st_size for name in content["files"]}
        state.write_text(json.dumps(content | {"files": sizes}))


def in_float16(workspace: Path) -> None:
    """Have the runs and the reward model's card say float16, which version 0.1.0 accepted."""
    for path in [*workspace.glob("runs/*/config.toml"), *workspace.glob("runs/*/checkpoints/*/reward_model.json")]:
        text = path.read_text()
        path.write_text(
            text.replace('dtype = "auto"', 'dtype = "float16"').replace('"dtype": "auto"', '"dtype": "float16"')
        )
        assert "float16" in path.read_text()
    measure(workspace)


def old_dpo(workspace: Path) -> Path:
    """Write a configuration of DPO in float16."""
    path = workspace / "dpo.toml"
    path.write_text(f'kind = "dpo"\n[model]\npath = "{workspace / "model"}"\ndtype = "float16"\n')
    return path


def test_its_runs_are_listed_and_read(earlier: Path) -> None:
    found = {run.name: (run.kind, run.iterations) for run in list_runs(earlier / "runs")}
    assert found == {"liked": ("reward-model", 3), "ppo": ("ppo", 2)}
    folder = RunFolder(earlier / "runs/ppo")
    rows = [event for event in read_journal(folder.events).events if isinstance(event, Iteration)]
    assert [row.iteration for row in rows] == [1, 2]
    assert all(math.isnan(row.surprise) for row in rows), "not known then"
    table = read_samples(folder.samples_file(2))
    assert len(table) == 4
    assert table["logprobs"].null_count == 0


def test_its_checkpoint_is_evaluated_as_it_was(earlier: Path) -> None:
    folder = RunFolder(earlier / "runs/ppo")
    (then,) = [event for event in read_journal(folder.events).events if isinstance(event, Evaluation)][-1:]
    now = evaluate_checkpoint(folder, EvaluationOptions(), trust=trust_all).report
    assert now.prompts == then.prompts
    assert now.policy["score"].value == pytest.approx(then.score_mean), "the same draws give the same tokens"
    assert now.policy["kl"].value == pytest.approx(then.kl, abs=1e-4)


def test_its_run_continues(earlier: Path) -> None:
    folder = RunFolder(earlier / "runs/ppo")
    config = load_config(folder.config, {"ppo": {"iterations": 4}})
    assert config.model.lora_targets == ["q_proj", "v_proj"]
    events = record(config, resume=folder.root)
    assert [event.resumed_at for event in events.of(RunStarted)] == [2]
    assert [event.iteration for event in events.of(Iteration)] == [3, 4]
    first = read_journal(folder.events).events
    kl_coefs = [event.kl_coef for event in first if isinstance(event, Iteration)]
    assert kl_coefs[2] == pytest.approx(kl_coefs[1], rel=0.2), "the controller continues"
    written = folder.config.read_text()
    assert written.count(f"schema = {CONFIG_FORMAT.version}\n") == written.count("relative_value_clip = 1.0\n") == 1


def test_its_reward_model_scores(earlier: Path) -> None:
    model = load_reward_model(earlier / "runs/liked")
    scores = model.score([model.encode("say 1: ", "aaaa"), model.encode("say 1: ", "hhhh")])
    assert scores == pytest.approx([-1.75645, 0.08292], abs=1e-4), "as version 0.1.0 scored them"


def test_its_reward_model_continues(earlier: Path) -> None:
    folder, events = RunFolder(earlier / "runs/liked"), Recorder()
    card = folder.checkpoint(3) / "reward_model.json"
    card.write_text(card.read_text().replace('"finished": true', '"finished": false'))  # as if it had been stopped
    measure(earlier)
    config = load_config_as(RewardModelConfig, folder.config, {"train": {"epochs": 2}})
    train_reward_model(config, preferences=labelled(24), resume=folder.root, sinks=[events])
    assert [event.resumed_at for event in events.of(RunStarted)] == [3]
    assert [event.iteration for event in events.of(RewardModelStep)] == [4, 5, 6]
    assert folder.config.read_text().count(f"schema = {CONFIG_FORMAT.version}\n") == 1


def test_its_runs_in_float16_are_evaluated_and_continue_in_bfloat16_and_say_so(earlier: Path) -> None:
    in_float16(earlier)
    line = "model.dtype = 'float16' is from an earlier version: it is read as 'bfloat16'"
    folder = RunFolder(earlier / "runs/ppo")
    assert evaluate_checkpoint(folder, EvaluationOptions(), trust=trust_all).warnings == [line, CLIP]
    events = record(load_config(folder.config, {"ppo": {"iterations": 3}}), resume=folder.root)
    (started,) = events.of(RunStarted)
    assert (started.dtype, started.resumed_at, started.warnings[:2]) == ("bfloat16", 2, [line, CLIP])
    assert len(set(started.warnings)) == len(started.warnings)
    liked, resumed = earlier / "runs/liked", Recorder()
    assert load_reward_model(liked).base.dtype == mx.bfloat16
    write_preferences(labelled(24), earlier / "pairs.jsonl", format="k-way")
    preferences = {"data": {"preferences": str(earlier / "pairs.jsonl")}}
    train_reward_model(
        load_config_as(RewardModelConfig, liked / "config.toml", preferences), resume=liked, sinks=[resumed]
    )
    assert resumed.of(RunStarted)[0].warnings == [line]


def test_its_run_of_remax_with_whitened_rewards_is_evaluated_and_continues(earlier: Path) -> None:
    folder = RunFolder(earlier / "runs/ppo")
    text = folder.config.read_text().replace('estimator = "gae"', 'estimator = "remax"')
    folder.config.write_text(text.replace("whiten_rewards = false", "whiten_rewards = true"))
    line = "ppo.whiten_rewards = true is from an earlier version: it is read as false"
    evaluated = evaluate_checkpoint(folder, EvaluationOptions(), trust=trust_all)
    assert set(evaluated.warnings) == {line, CLIP}
    events = record(load_config(folder.config, {"ppo": {"iterations": 3}}), resume=folder.root)
    assert line in events.of(RunStarted)[0].warnings
    assert [event.iteration for event in events.of(Iteration)] == [3]


def test_a_new_run_from_its_configuration_warns_of_the_settings_that_are_read_otherwise(earlier: Path) -> None:
    in_float16(earlier)
    line = "model.dtype = 'float16' is from an earlier version: it is read as 'bfloat16'"
    changes = {"run": {"name": "again"}, "ppo": {"iterations": 1}}
    events = record(load_config(earlier / "runs/ppo/config.toml", changes))
    assert events.of(RunStarted)[0].warnings[:2] == [line, CLIP]
    again = load_config_as(RewardModelConfig, earlier / "runs/liked/config.toml", {"run": {"name": "more"}})
    train_reward_model(again, preferences=labelled(24), sinks=[events])
    dpo = load_config_as(DPOConfig, old_dpo(earlier), {"run": {"dir": str(earlier / "runs")}})
    train_dpo(dpo, preferences=labelled(24), sinks=[events])
    assert [started.warnings for started in events.of(RunStarted)[1:]] == [[line], [line]]


def test_its_labels_are_read_and_exported(earlier: Path) -> None:
    with PreferenceStore(earlier / "preferences.db") as store:
        labels = list(store.preferences())
    assert len(labels) == 20
    write_preferences(labels, earlier / "labels.jsonl", format="k-way")
    assert [read.judgement for read in read_preferences(str(earlier / "labels.jsonl")).preferences] == [
        label.judgement for label in labels
    ]
