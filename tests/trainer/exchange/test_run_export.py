"""Exports: models and data that other trainers read, and every setting in TRL, by the value that means the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pyarrow.parquet
import pytest
from apart import ROOT
from preference_samples import labelled
from reward_model_runs import reward_workspace, train_tiny
from runs_helper import PROMPTS, flip, newest_checkpoint, record, tiny_config

from trainer.arrays import pad
from trainer.config.problems import setting_keys
from trainer.config.schema import BackboneConfig, Config, ModelConfig
from trainer.errors import DataError, ModelError, StorageError, UsageError
from trainer.exchange.run_export import ExportOptions, RunExport, export_run
from trainer.exchange.trl import SETTINGS, TRAINERS, RunFacts, cells_of, markdown, readme, translated, trl_files
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import read_adapter_config
from trainer.models.backbone import load_backbone
from trainer.models.peft_adapters import read_peft, write_peft
from trainer.pairs.encoders import Sequenced
from trainer.policy_checkpoint import load_checkpoint
from trainer.preferences.formats import write_preferences
from trainer.reward_model.loaded import load_reward_model
from trainer.reward_model.snapshot import CARD
from trainer.rewards.model_reward import ClassifierModel
from trainer.runs.checkpoint_files import checkpoints, write_folder
from trainer.runs.folder import RunFolder

SEQUENCES = [[72, 101, 108, 108, 111], [1, 2], [5, 6, 7, 8, 9, 10, 11], [50, 51]]
LENGTHS = mx.array([len(one) for one in SEQUENCES])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make runs: rm, a reward model, and PPO against it with a critic on the policy's states, and of its own."""
    folder = tmp_path_factory.mktemp("made")
    reward = f'reward.sources=[{{kind="model", path="{reward_workspace(folder)}"}}]'
    for name, more in (
        ("head", ("model.value_model='head'",)),
        ("own", ("model.value_model='adapter'", "optim.ema_decay=0.5")),
    ):
        record(tiny_config(folder, reward, f"run.name={name}", "optim.policy_lr=0.05", *more))
    return folder


def export(made: Path, name: str, output: Path, **options: Any) -> RunExport:
    return export_run(RunFolder(made / "runs" / name), output, ExportOptions(**options))


def checkpoint(made: Path, name: str) -> tuple[Any, Any]:
    """Return the newest state of a run, and a policy in that state."""
    path = newest_checkpoint(RunFolder(made / "runs" / name))
    assert path is not None
    value_model = "adapter" if name == "own" else "head"
    config = ModelConfig.model_validate({"path": str(made / "model"), "value_model": value_model})
    snapshot = load_checkpoint(path, read_adapter_config(path / "policy"))
    actor = ActorCriticLLM(load_backbone(config).backbone, config, key=mx.random.key(0))
    actor.update_policy(snapshot.policy)
    actor.update_value(snapshot.value)
    actor.value_scale = snapshot.value_scale
    return snapshot, actor


@pytest.mark.parametrize("name", ["head", "own"])
def test_policy_and_critic_are_the_runs_and_begin_a_run(made: Path, tmp_path: Path, name: str) -> None:
    export(made, name, tmp_path / "out")
    snapshot, actor = checkpoint(made, name)
    found = read_peft(tmp_path / "out" / "policy", "llama")
    assert found.parameters.keys() == snapshot.policy.keys()
    assert all(mx.array_equal(found.parameters[key], snapshot.policy[key]) for key in snapshot.policy), "bit for bit"
    assert (found.rank, found.scale, found.base) == (8, 20.0, str((made / "model").resolve()))
    began = load_backbone(BackboneConfig(path=found.base, adapter=str(tmp_path / "out" / "policy"))).backbone
    plain = load_backbone(BackboneConfig(path=found.base)).backbone
    tokens = mx.array([SEQUENCES[0]])
    np.testing.assert_allclose(began(tokens), actor.backbone(tokens), atol=2e-5)
    assert float(mx.abs(plain(tokens) - began(tokens)).max()) > 0.01
    model, of = ClassifierModel(tmp_path / "out" / "value-model"), [mx.array([one]) for one in SEQUENCES]
    scores = [float(model.scores(one, mx.array([one.size]))[0]) for one in of]
    values = [float(actor(one, mx.array([1]), one.size - 1, want="values").values[0, -1]) for one in of]
    assert scores == pytest.approx(values, rel=1e-3, abs=1e-7)
    assert np.std(scores) > 1e-4


def test_an_export_has_the_scores_the_prompts_and_the_settings_of_its_run_and_its_readme_says_so(
    made: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    found = export(made, "head", out)
    expected = load_reward_model(made / "runs" / "rm").score(
        [Sequenced(one, len(one), is_cut=False) for one in SEQUENCES]
    )
    np.testing.assert_allclose(
        ClassifierModel(out / "reward-model").scores(mx.array(pad(SEQUENCES)), LENGTHS), expected, atol=1e-5
    )
    assert np.std(expected) > 0.1
    card = json.loads((out / "reward-model" / "config.json").read_text())
    assert (card["num_labels"], card["std"], card["pad_token_id"]) == (1, 1.0, 256)
    arrays: dict[str, mx.array] = dict(mx.load(str(out / "reward-model" / "model.safetensors")))  # type: ignore[arg-type]
    assert arrays["score.weight"].shape == (1, 32)
    assert not any(name.startswith("lm_head") or "lora" in name for name in arrays)
    assert "model.layers.1.self_attn.q_proj.weight" in arrays

    train, held_out = (
        [json.loads(line)["prompt"] for line in (out / f"{name}.jsonl").read_text().splitlines()]
        for name in ("prompts", "prompts-held-out")
    )
    assert sorted(train + held_out) == sorted(PROMPTS)
    assert len(held_out) == 3
    table = pyarrow.parquet.read_table(out / "verl" / "prompts.parquet").to_pylist()
    assert [row["prompt"] for row in table] == [[{"role": "user", "content": text}] for text in train]
    assert {"data_source", "reward_model", "extra_info"} <= table[0].keys()

    text = (out / "README.md").read_text()
    assert all((out / name).exists() and f"| {name} |" in text for name in found.contents)
    assert "## TRL" in text
    about = json.loads((out / "trl" / "config.json").read_text())
    assert (about["reward_model"], about["value_model"]) == ("reward-model", "value-model")
    compile((out / "trl" / "train.py").read_text(), "train.py", "exec")


def test_an_export_is_replaced_only_by_force_and_whole(made: Path, tmp_path: Path) -> None:
    export(made, "head", tmp_path / "out")
    with pytest.raises(UsageError, match="exists: choose another folder with --output, or replace it with --force"):
        export(made, "head", tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "verl")
    export(made, "head", tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "verl").exists()
    with pytest.raises(UsageError, match="has no complete checkpoint 99"):
        export(made, "head", tmp_path / "out", checkpoint="99", overwrite=True)
    assert (tmp_path / "out" / "policy").is_dir()  # the one before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write the export"):
        export(made, "head", tmp_path / "file" / "out")


def test_force_replaces_nothing_but_what_an_export_wrote(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(output: Path, match: str) -> None:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UsageError, match=match):
            export(made, "head", output, overwrite=True)
        assert sorted(tmp_path.rglob("*")) == before

    run, others = made / "runs" / "head", "not the folder of an earlier export: choose another --output"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("")
    for output in (tmp_path / "mine", tmp_path / "mine" / "notes", run, run.parent, made):
        refused(output, others)
    export(made, "head", tmp_path / "out")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    refused(tmp_path / "link", others)
    monkeypatch.chdir(tmp_path / "out" / "policy")
    for output in (Path(), Path(".."), Path("../policy/..")):
        refused(output, others)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out" / "policy" / "notes").symlink_to(tmp_path / "mine")
    refused(Path("out"), r"no export wrote 'policy/notes' in it")
    (tmp_path / ".out.tmp").symlink_to(tmp_path / "mine")
    (tmp_path / "out" / "policy" / "notes").unlink()
    export(made, "head", Path("out"), overwrite=True)
    assert (tmp_path / "mine" / "notes").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.tmp", "link", "mine", "out"]


@pytest.mark.parametrize("damage", ["content", "kind"])
def test_an_export_names_its_checkpoint_and_the_damaged_one_that_is_newer(
    made: Path, tmp_path: Path, damage: str
) -> None:
    run = RunFolder(shutil.copytree(made / "runs" / "head", tmp_path / "runs" / "head"))
    before, newest = checkpoints(run).paths[-2:]
    weights = newest / "policy" / "adapters.safetensors"
    if damage == "content":
        flip(weights, 8 * weights.stat().st_size - 1)
    else:  # a checkpoint of a reward model
        shutil.rmtree(newest)
        write_folder(newest, lambda to: (to / CARD).write_text("{}") and None, {})
    found = export_run(run, tmp_path / "out", ExportOptions())
    assert found.source == f"head, {before.name}"
    assert [warning for warning in found.warnings if warning.startswith(f"checkpoint '{newest.name}' ignored: ")]
    text = (tmp_path / "out" / "README.md").read_text()
    assert text.startswith(f"# Export of head, {before.name}\n")
    assert f"checkpoint '{newest.name}' ignored" in text


def test_a_run_of_an_unknown_kind_is_not_exported(made: Path, tmp_path: Path) -> None:
    run = RunFolder(shutil.copytree(made / "runs" / "head", tmp_path / "runs" / "head"))
    run.config.write_text(f'kind = "sft"\n{run.config.read_text()}')
    with pytest.raises(UsageError, match=r"run 'head' is of kind 'sft', which cannot be exported"):
        export_run(run, tmp_path / "out", ExportOptions())


def test_an_average_is_exported_where_there_is_one(made: Path, tmp_path: Path) -> None:
    export(made, "own", tmp_path / "out", average=True)
    snapshot, _ = checkpoint(made, "own")
    found = read_peft(tmp_path / "out" / "policy", "llama").parameters
    assert all(mx.array_equal(found[key], snapshot.average[key]) for key in snapshot.average)
    assert not all(mx.array_equal(found[key], snapshot.policy[key]) for key in snapshot.policy)
    with pytest.raises(UsageError, match="keeps no average"):
        export(made, "head", tmp_path / "none", average=True)


def test_a_base_model_that_transformers_cannot_read_is_written(made: Path, tmp_path: Path) -> None:
    record(tiny_config(made, "run.name=rounded", "model.quantize='8-bit'", "ppo.iterations=1"))
    found = export(made, "rounded", tmp_path / "out")
    assert "base" in found.contents
    held = load_backbone(BackboneConfig.model_validate({"path": str(made / "model"), "quantize": "8-bit"})).backbone
    written = load_backbone(BackboneConfig(path=str(tmp_path / "out" / "base"))).backbone
    tokens = mx.array([SEQUENCES[0]])
    np.testing.assert_allclose(written(tokens), held(tokens), atol=1e-5)
    assert read_peft(tmp_path / "out" / "policy", "llama").base == str((tmp_path / "out" / "base").resolve())
    assert json.loads((tmp_path / "out" / "trl" / "config.json").read_text())["reward_model"] == ""


def test_the_base_model_can_be_named_or_copied(made: Path, tmp_path: Path) -> None:
    export(made, "head", tmp_path / "named", base="someone/model")
    assert read_peft(tmp_path / "named" / "policy", "llama").base == "someone/model"
    found = export(made, "head", tmp_path / "copied", copy_base=True)
    assert "base" in found.contents
    mine, copy = (
        dict(mx.load(str(path / "model.safetensors"))) for path in (made / "model", tmp_path / "copied" / "base")
    )  # type: ignore[arg-type]
    assert mine.keys() == copy.keys()
    assert all(mx.array_equal(mine[name], copy[name]) for name in mine)


def test_conversations_are_exported_as_messages_and_not_beside_texts(made: Path, tmp_path: Path) -> None:
    card = made / "model" / "tokenizer_config.json"
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"chat_template": template}))
    record(tiny_config(made, "data.chat='always'", "data.system='Be kind.'", "run.name=chat", "ppo.iterations=1"))
    export(made, "chat", tmp_path / "out")
    row = json.loads((tmp_path / "out" / "prompts.jsonl").read_text().splitlines()[0])
    assert [turn["role"] for turn in row["prompt"]] == ["system", "user"]
    assert row["prompt"][0]["content"] == "Be kind."
    mixed = tmp_path / "mixed.jsonl"
    rows = [{"prompt": text} for text in PROMPTS] + [{"prompt": [{"role": "user", "content": "Hello?"}]}]
    mixed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    record(tiny_config(made, f"data.prompts='{mixed}'", "run.name=mixed", "ppo.iterations=1"))
    with pytest.raises(DataError, match="has both texts and messages"):
        export(made, "mixed", tmp_path / "mixed")


def test_a_function_that_is_the_whole_reward_goes_to_trl(made: Path, tmp_path: Path) -> None:
    record(tiny_config(made, "run.name=rloo", "ppo.estimator='rloo'", "rollout.samples_per_prompt=2"))
    mixed = f"reward.sources=['{made}/rewards.py:score', 'lexicon']"
    record(tiny_config(made, mixed, "run.name=mixed-reward", "ppo.iterations=1"))
    for name, expected in (("rloo", f"{made}/rewards.py:score"), ("mixed-reward", "")):
        export(made, name, tmp_path / name)
        about = json.loads((tmp_path / name / "trl" / "config.json").read_text())
        assert (about["reward_model"], about["reward_function"]) == ("", expected)


def test_an_estimator_without_a_critic_has_no_value_model(made: Path, tmp_path: Path) -> None:
    record(tiny_config(made, "run.name=remax", "ppo.estimator='remax'", "ppo.iterations=1"))
    found = export(made, "remax", tmp_path / "out")
    assert "value-model" not in found.contents
    assert found.settings is None
    assert "has no trainer for this run's ppo.estimator" in (tmp_path / "out" / "README.md").read_text()


def test_a_fitted_critic_is_no_model_and_that_of_trl_begins_as_the_base(made: Path, tmp_path: Path) -> None:
    record(tiny_config(made, "run.name=fitted", "model.value_model=fitted", "ppo.iterations=1"))
    found = export(made, "fitted", tmp_path / "out")
    assert "value-model" not in found.contents
    assert json.loads((tmp_path / "out" / "trl" / "config.json").read_text())["value_model"] == ""
    assert "model.value_model" in "".join(found.warnings) + (tmp_path / "out" / "README.md").read_text()


def test_a_run_of_a_reward_model_is_exported_with_its_preferences(made: Path, tmp_path: Path) -> None:
    found = export(made, "rm", tmp_path / "out")
    assert "reward-model" in found.contents
    assert any("without preferences" in warning for warning in found.warnings)  # they came from memory
    pairs = tmp_path / "pairs.jsonl"
    write_preferences(labelled(24), pairs, format="trl", ties="drop")
    config = made / "runs" / "rm" / "config.toml"
    before = config.read_text()
    try:
        config.write_text(before.replace("preferences.db", str(pairs)))
        found = export(made, "rm", tmp_path / "again")
    finally:
        config.write_text(before)
    rows = [json.loads(line) for line in (tmp_path / "again" / "preferences.jsonl").read_text().splitlines()]
    assert rows == [json.loads(line) for line in pairs.read_text().splitlines()]


def test_a_reward_model_that_reads_the_mean_is_left_out_with_a_warning(made: Path, tmp_path: Path) -> None:
    train_tiny(made, "mean", "train.states=last+mean")
    found = export(made, "mean", tmp_path / "out")
    assert "reward-model" not in found.contents
    assert "without reward-model: train.states = last+mean, and a classifier reads one token" in found.warnings


def test_a_family_with_other_names_is_refused_before_anything_is_left(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.exchange.run_export.family_of", lambda backbone: "mamba2")
    with pytest.raises(ModelError, match="family mamba2"):
        export(made, "head", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_transformers_has_no_form_for_is_left_out_with_a_warning(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.exchange.checkpoints.family_of", lambda backbone: "granite")
    found = export(made, "head", tmp_path / "out")
    assert [warning.partition(":")[0] for warning in found.warnings] == ["without reward-model", "without value-model"]
    assert "policy" in found.contents
    assert found.settings is not None
    assert "reward.sources" in {row.key for row in found.settings if row.kind == "lost"}
    monkeypatch.setattr("trainer.exchange.checkpoints.family_of", lambda backbone: "gpt2")
    with pytest.raises(ModelError, match="weights of the family gpt2"):
        export(made, "head", tmp_path / "copy", copy_base=True)


def test_the_adapter_of_a_classifier_is_exported_as_a_whole_one(made: Path, tmp_path: Path) -> None:
    snapshot, _ = checkpoint(made, "head")
    given: dict[str, Any] = {"family": "llama", "rank": 8, "scale": 20.0, "base": str(made / "model")}
    write_peft(tmp_path / "clf", snapshot.policy, head=mx.random.normal((32,), key=mx.random.key(2)), **given)
    source = f'reward.sources=[{{kind="model", path="{tmp_path / "clf"}"}}]'
    record(tiny_config(made, source, "run.name=clf", "ppo.iterations=1"))
    export(made, "clf", tmp_path / "out")
    models = (ClassifierModel(tmp_path / "clf"), ClassifierModel(tmp_path / "out" / "reward-model"))
    first, second = (np.array(model.scores(mx.array(pad(SEQUENCES)), LENGTHS)) for model in models)
    np.testing.assert_allclose(first, second, atol=1e-5)
    assert np.std(first) > 0.1


MODEL = {"sources": [{"kind": "model", "path": "liked"}]}


def facts(*, reward_model: str = "reward-model", reward_function: str = "", **tables: Mapping[str, Any]) -> RunFacts:
    """Return a run's facts with the settings `tables`; its reward is one reward model."""
    config = Config.model_validate({"reward": MODEL} | {name: dict(table) for name, table in tables.items()})
    return RunFacts(config, reward_model=reward_model, reward_function=reward_function, value_model="value-model")


def there(given: RunFacts) -> dict[str, Any]:
    return {name: value for row in translated(given) for name, value in row.there.items()}


def kinds(given: RunFacts) -> dict[str, str]:
    return {row.key: row.kind for row in translated(given)}


def test_every_setting_has_a_row_and_every_row_a_setting() -> None:
    keys = list(setting_keys())
    assert {*SETTINGS} == {"elsewhere", "trl", *map(str.lower, TRAINERS.values())}
    known = {*keys, *(f"{key.partition('.')[0]}.*" for key in keys)}
    assert {key for section in SETTINGS.values() for key in section} <= known
    for trainer in TRAINERS.values():
        for cell in (cell for key in keys for cell in cells_of(key, trainer.lower())):
            assert sum(map(bool, (cell.to, cell.no, cell.elsewhere))) == 1, "a cell is one of the three"
            assert not (cell.note + cell.no + cell.elsewhere).endswith(".")
    with pytest.raises(KeyError, match=r"ppo\.unknown"):
        cells_of("ppo.unknown", "grpo")


GAE = {"iterations": 10, "epochs": 2, "minibatches": 4, "kl_coef": 0.1, "kl_estimator": "k3", "clip": 0.1}
GRPO = {"estimator": "grpo", "kl_in": "loss", "minibatches": 4, "epochs": 2, "iterations": 5, "group_std": False}
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            "rollout": {"batch_size": 64, "max_new_tokens": 32, "temperature": 0.7},
            "ppo": GAE,
            "optim": {"warmup_steps": 20, "policy_lr": 3e-5, "schedule": "constant"},
            "model": {"dtype": "float32"},
        },
        {
            "total_episodes": 640,
            "per_device_train_batch_size": 64,
            "gradient_accumulation_steps": 1,
            "num_mini_batches": 4,
            "num_ppo_epochs": 2,
            "response_length": 32,
            "temperature": 0.7,
            "stop_token": "eos",
            "kl_coef": 0.1,
            "kl_estimator": "k3",
            "cliprange": 0.1,
            "learning_rate": 3e-5,
            "warmup_steps": 3,  # iterations of 8 steps
            "lr_scheduler_type": "constant_with_warmup",
            "bf16": False,
        },
    ),
    (
        {"rollout": {"batch_size": 64, "samples_per_prompt": 8}, "ppo": GRPO | {"loss_aggregation": "constant"}},
        {
            "num_generations": 8,
            "per_device_train_batch_size": 16,
            "steps_per_generation": 4,
            "num_iterations": 2,
            "max_steps": 40,
            "scale_rewards": "none",
            "loss_type": "dr_grpo",
            "beta": 0.05,
            "delta": None,
        },
    ),
    (
        {"rollout": {"samples_per_prompt": 4}, "ppo": {"estimator": "rloo"}, "reward": {**MODEL, "clip": 3.0}},
        {"num_generations": 4, "reward_clip_range": [-3, 3], "normalize_advantages": True},
    ),
    (
        {"rollout": {"batch_size": 64, "samples_per_prompt": 8}, "ppo": GRPO | {"ratio": "sequence", "clip": 3e-4}},
        {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": None, "loss_type": "dapo"},
    ),
    (
        {
            "rollout": {"batch_size": 64, "samples_per_prompt": 8},
            "ppo": GRPO | {"policy_loss": "cispo", "clip_high": 2.0},
        },
        {"importance_sampling_level": "token", "epsilon_high": 3.0, "loss_type": "cispo"},
    ),
]


@pytest.mark.parametrize(("settings", "expected"), CASES, ids=[*TRAINERS.values(), "GSPO", "CISPO"])
def test_a_value_there_means_the_same_as_ours(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    given = facts(**settings)
    found = there(given)
    assert {name: found[name] for name in expected} == expected
    assert [row.key for row in translated(given)] == list(setting_keys())
    about = json.loads(trl_files(given, translated(given))["trl/config.json"])
    assert about["trainer"] == TRAINERS[given.config.ppo.estimator] + "Config"
    assert about["settings"] == found


def test_a_setting_is_lost_if_it_has_no_counterpart_and_its_value_does_something() -> None:
    given = facts(ppo={"kl_estimator": "k2", "entropy_coef": 0.01})
    assert "reward_clip_range" not in there(facts(ppo={"estimator": "rloo"})), "it is off"
    found = kinds(given)
    assert {found[f"ppo.{name}"] for name in ("kl_estimator", "entropy_coef", "ratio_threshold")} == {"lost"}
    assert found["ppo.dual_clip"] == found["convergence.on_target"] == "off"
    note = next(row.note for row in translated(given) if row.key == "ppo.kl_estimator")
    assert note == "kl_estimator has no such value (counterparts: k1, k3)"


LIKED = MODEL["sources"][0]


@pytest.mark.parametrize(
    ("sources", "function", "kinds_there"),
    [
        (["lexicon"], "", ["lost"] * 3),
        ([LIKED | {"weight": 2.0}], "", ["lost"] * 3),
        ([LIKED, "lexicon"], "", ["lost"] * 3),
        ([LIKED, {"kind": "lexicon", "weight": 0.0}], "", ["there"] * 3),  # measured alone
        (["rewards.py:score"], "rewards.py:score", ["lost", "there", "there"]),  # a function is for GRPO and RLOO
    ],
)
def test_a_reward_is_there_if_it_is_one_that_trl_takes(sources: Any, function: str, kinds_there: list[str]) -> None:
    for estimator, kind in zip(TRAINERS, kinds_there, strict=True):
        given = facts(
            reward={"sources": sources},
            reward_model="" if function else "reward-model",
            reward_function=function,
            ppo={"estimator": estimator},
            rollout={"samples_per_prompt": 2},
        )
        assert kinds(given)["reward.sources"] == kind


def test_the_readme_names_every_setting() -> None:
    text = "\n".join(readme("a run", {"policy": "the adapter"}, ["a warning"], translated(facts())))
    assert [key for key in setting_keys() if f"| {key} |" not in text] == []
    assert "- a warning" in text


def test_the_page_has_the_table_of_the_settings() -> None:
    page = (ROOT / "docs" / "other-engines.md").read_text(encoding="utf-8")
    table = "\n".join(markdown())
    assert table in page, "run: python -m trainer.exchange.trl, and put its output into docs/other-engines.md"
    assert "| ppo.lam | `lam` |  |" in table
    assert "| ppo.target_approx_kl | - | - |" in table
    assert "run.shared" not in table
