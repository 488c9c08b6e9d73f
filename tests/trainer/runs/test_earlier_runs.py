"""What version 0.1.0 wrote before files had a version: it opens, is evaluated, continues, scores and is exported."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from runs_helper import record

from trainer.config import load_config
from trainer.config.fields import CONFIG_FORMAT
from trainer.events import Evaluation, Iteration, RunStarted
from trainer.preferences.formats import read_preferences, write_preferences
from trainer.preferences.store import PreferenceStore
from trainer.reward_model.loaded import load_reward_model
from trainer.rewards import trust_all
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.listing import list_runs
from trainer.runs.samples import read_samples
from trainer.session.checkpoint_evaluation import Wanted, evaluate_checkpoint

EARLIER = Path(__file__).parents[2] / "earlier"
WORKSPACE = "/workspace"  # where it was written


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A copy of the workspace, its paths those of the copy."""
    shutil.copytree(EARLIER, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.rglob("*"):
        if path.suffix in (".toml", ".json", ".jsonl") and WORKSPACE in (text := path.read_text()):
            path.write_text(text.replace(WORKSPACE, str(tmp_path)))
    for state in tmp_path.glob("runs/*/checkpoints/*/state.json"):  # it has the size of each file
        content = json.loads(state.read_text())
        sizes = {name: (state.parent / name).stat().st_size for name in content["files"]}
        state.write_text(json.dumps(content | {"files": sizes}))
    return tmp_path


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
    now = evaluate_checkpoint(folder, Wanted(), trust=trust_all).report
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


def test_its_labels_are_read_and_exported(earlier: Path) -> None:
    with PreferenceStore(earlier / "preferences.db") as store:
        labels = list(store.preferences())
    assert len(labels) == 20
    write_preferences(labels, earlier / "labels.jsonl", format="k-way")
    assert [read.judgement for read in read_preferences(str(earlier / "labels.jsonl")).preferences] == [
        label.judgement for label in labels
    ]
