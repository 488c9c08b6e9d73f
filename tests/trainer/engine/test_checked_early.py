"""Checks for anything missing come before the model is loaded, which may take minutes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import mlx_lm.utils
import pytest
from runs_helper import record, tiny_config

from trainer.config.loading import load_config_as, parse_overrides
from trainer.config.pairs import DPOConfig, RewardModelConfig
from trainer.engine import checkpoint_evaluation, ppo
from trainer.engine.checkpoint_evaluation import EvaluationOptions, evaluate_checkpoint
from trainer.engine.training import train
from trainer.errors import TrainerError
from trainer.pairs import comparisons
from trainer.rewards import trust_all
from trainer.runs.checkpoint_files import LAST, find_checkpoint
from trainer.runs.folder import RunFolder


@pytest.fixture
def loads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was loaded first")

    for module in (ppo, comparisons, checkpoint_evaluation):
        monkeypatch.setattr(module, "load_backbone", load)
    monkeypatch.setattr(mlx_lm.utils, "load_model", load)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("early")
    tiny_config(folder)
    with (folder / "rewards.py").open("a") as file:
        file.write("\ndef wants(completions, answer): pass\n")
    record(tiny_config(folder, "run.name=a", "ppo.iterations=1", "eval.every=0"))
    return folder


MISSING = {
    "prompts": ("data.prompts=gone.jsonl", "data.prompts = 'gone.jsonl': no such file"),
    "a file of rewards": ("reward.sources=['gone.py:score']", "no file 'gone.py'"),
    "a function": ("reward.sources=['{folder}/rewards.py:scores']", "no function 'scores'.*did you mean 'score'"),
    "a column": ("reward.sources=['{folder}/rewards.py:wants']", "needs 'answer', which is not a column of the data"),
    "a module": ("reward.sources=['no_such_module:score']", "no module 'no_such_module'"),
    "a reward model": ("reward.sources=[{{kind='model', path='gone'}}]", "reward source 'gone': no such folder"),
    "a critic": ("model.value_init=gone", "model.value_init = 'gone'"),
    "a policy": ("model.policy_init=gone", "model.policy_init = 'gone'"),
}


@pytest.mark.parametrize(("assignment", "message"), MISSING.values(), ids=MISSING)
@pytest.mark.usefixtures("loads_no_model")
def test_a_run_of_ppo_says_what_is_missing_before_it_loads_the_model(
    folder: Path, assignment: str, message: str
) -> None:
    adapter = ["model.value_model=adapter"] if "value_init" in assignment else []
    config = tiny_config(folder, "run.name=b", assignment.format(folder=folder), *adapter)
    with pytest.raises(TrainerError, match=message):
        train(config)
    assert not (folder / "runs/b").exists()


@pytest.mark.parametrize(
    ("schema", "assignment", "message"),
    [
        (DPOConfig, "data.preferences=gone.db", "there is no preference store 'gone.db'"),
        (DPOConfig, "reward.sources=['gone.py:score']", "no file 'gone.py'"),
        (RewardModelConfig, "data.preferences=gone.jsonl", "'gone.jsonl': no such file"),
        (RewardModelConfig, "data.preferences=gone.db", "there is no preference store 'gone.db'"),
    ],
)
@pytest.mark.usefixtures("loads_no_model")
def test_a_run_on_preferences_says_what_is_missing_before_it_loads_the_model(
    folder: Path, schema: Any, assignment: str, message: str
) -> None:
    (folder / "empty.toml").write_text(f"[run]\ndir = '{folder}/runs'\n[model]\npath = '{folder}/model'\n")
    preferences = folder / "preferences.jsonl"
    preferences.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    more = [assignment] if "data." in assignment else [assignment, f"data.preferences={preferences}"]
    config = load_config_as(schema, folder / "empty.toml", parse_overrides(more, schema))
    with pytest.raises(TrainerError, match=message):
        train(config)


@pytest.mark.parametrize("schema", [DPOConfig, RewardModelConfig])
@pytest.mark.usefixtures("loads_no_model")
def test_a_broken_row_late_in_the_preferences_is_reported_before_the_model_is_loaded(
    folder: Path, tmp_path: Path, schema: Any
) -> None:
    (tmp_path / "empty.toml").write_text(f"[run]\ndir = '{tmp_path}/runs'\n[model]\npath = '{folder}/model'\n")
    preferences = tmp_path / "preferences.jsonl"
    rows = [f'{{"prompt": "a{n}", "chosen": "b", "rejected": "c"}}\n' for n in range(600)]
    preferences.write_text("".join([*rows, '{"prompt": "a"}\n']))
    config = load_config_as(
        schema, tmp_path / "empty.toml", parse_overrides([f"data.preferences={preferences}"], schema)
    )
    with pytest.raises(TrainerError, match=r"preferences\.jsonl:601: no column 'chosen'"):
        train(config)


@pytest.mark.usefixtures("loads_no_model")
def test_a_missing_adapter_is_reported_before_the_model_is_loaded(folder: Path) -> None:
    from trainer.models.backbone import load_backbone, load_tokenizer

    config = tiny_config(folder, "model.adapter=gone")
    for load in (load_backbone, load_tokenizer):
        with pytest.raises(TrainerError, match=r"model\.adapter = 'gone' has no adapter_config\.json"):
            load(config.model)


def evaluate_last(run: RunFolder, options: EvaluationOptions) -> None:
    evaluate_checkpoint(run, find_checkpoint(run, LAST)[0], options, trust=trust_all)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"file": "gone.jsonl"}, "data.prompts = 'gone.jsonl': no such file"),
        ({"reward": "gone.py:score"}, "no file 'gone.py'"),
        ({"reward": "{folder}/rewards.py:scores"}, "no function 'scores'"),
    ],
)
@pytest.mark.usefixtures("loads_no_model")
def test_an_evaluation_says_what_is_missing_before_it_loads_the_model(
    folder: Path, wanted: dict[str, str], message: str
) -> None:
    values = {name: value.format(folder=folder) for name, value in wanted.items()}
    with pytest.raises(TrainerError, match=message):
        evaluate_last(RunFolder(folder / "runs/a"), EvaluationOptions(**values))  # type: ignore[arg-type]


@pytest.mark.usefixtures("loads_no_model")
def test_an_evaluation_says_that_the_runs_own_prompts_are_gone_before_it_loads_the_model(
    folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "a"
    shutil.copytree(folder / "runs/a", run)
    text = (run / "config.toml").read_text().replace("prompts.jsonl", "gone.jsonl")
    (run / "config.toml").write_text(text)
    with pytest.raises(TrainerError, match=r"gone\.jsonl': no such file"):
        evaluate_last(RunFolder(run), EvaluationOptions())


def test_a_file_of_rewards_is_run_once(folder: Path) -> None:
    runs = folder / "ran"
    code = f"with open({str(runs)!r}, 'a') as file:\n    file.write('x')\n"
    (folder / "counted.py").write_text(f"{code}def score(completions, **_):\n    return [1.0 for _ in completions]\n")
    record(tiny_config(folder, "run.name=c", "ppo.iterations=1", f"reward.sources=['{folder}/counted.py:score']"))
    assert runs.read_text() == "x"
