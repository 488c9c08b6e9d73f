"""Policy and critic that begin as something trained before: an adapter, of any trainer, and a reward model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from reward_model_runs import reward_workspace, train_tiny
from runs_helper import comparable, newest_checkpoint, record, tiny_config
from tiny import make_checkpoint

from trainer.arrays import pad
from trainer.config import load_config
from trainer.config.schema import ModelConfig
from trainer.engine.initial import check_init, init_policy, init_value_model
from trainer.errors import ModelError
from trainer.events import Iteration, RunStarted
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import read_adapter_config
from trainer.models.backbone import LoadedModel, load_backbone
from trainer.models.peft_adapters import write_peft
from trainer.policy_checkpoint import load_checkpoint
from trainer.reward_model.loaded import load_reward_model
from trainer.rewards.model_reward import ClassifierModel
from trainer.runs.checkpoint_files import checkpoints, prune_checkpoints, write_state
from trainer.runs.folder import RunFolder

TOKENS = mx.array([[72, 101, 108, 108, 111], [1, 2, 3, 4, 5]])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a reward model, rm, and a run, a, whose policy has moved, and in peft its policy as a PEFT adapter."""
    folder = tmp_path_factory.mktemp("made")
    reward_workspace(folder)
    record(tiny_config(folder, "run.name=a", "optim.policy_lr=0.05"))
    arrays = {name: array * (4.0 if name.endswith("lora_b") else 1.0) for name, array in trained(folder).items()}
    given: dict[str, Any] = {"family": "llama", "rank": 8, "scale": 5.0, "base": str(folder / "model")}
    write_peft(folder / "peft", arrays, **given)
    return folder


def policy_folder(made: Path) -> Path:
    path = newest_checkpoint(RunFolder(made / "runs" / "a"))
    assert path is not None
    return path / "policy"


def trained(made: Path) -> dict[str, mx.array]:
    """Return the policy's arrays after the run a."""
    folder = policy_folder(made).parent
    return load_checkpoint(folder, read_adapter_config(folder / "policy")).policy


def policy_begun(made: Path, adapter: Path, **settings: Any) -> ActorCriticLLM:
    config = ModelConfig.model_validate({"path": str(made / "model"), "policy_init": str(adapter)} | settings)
    check_init(config)
    actor = ActorCriticLLM(load_backbone(config).backbone, config, key=mx.random.key(3))
    init_policy(actor, config)
    return actor


@pytest.mark.parametrize("scale", [5.0, 20.0])
@pytest.mark.parametrize("kind", ["mlx-lm", "peft"])
def test_the_policy_is_the_adapters_and_the_reference_is_the_models(made: Path, kind: str, scale: float) -> None:
    expected = policy_begun(made, Path(), policy_init="")
    expected.update_policy(trained(made))
    actor = policy_begun(made, policy_folder(made) if kind == "mlx-lm" else made / "peft", lora_scale=scale)
    np.testing.assert_allclose(actor.backbone(TOKENS), expected.backbone(TOKENS), atol=2e-5)
    plain = load_backbone(ModelConfig(path=str(made / "model"))).backbone(TOKENS)
    with actor.reference():
        assert mx.array_equal(actor.backbone(TOKENS), plain)
    assert float(mx.abs(actor.backbone(TOKENS) - plain).max()) > 0.05


def test_a_run_goes_on_where_an_adapter_ended(made: Path) -> None:
    began = record(tiny_config(made, "run.name=b", f"model.policy_init='{made / 'peft'}'", "optim.policy_lr=0.0"))
    fresh = record(tiny_config(made, "run.name=c", "optim.policy_lr=0.0"))
    kl, none = ([event.kl for event in one.events if isinstance(event, Iteration)] for one in (began, fresh))
    assert min(map(abs, kl)) > 1e-3
    assert max(map(abs, none)) < 1e-5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_rank": 4}, r'set model\.lora_rank = 8, model\.lora_targets = \["q_proj", "v_proj"\]'),
        ({"lora_targets": ["q_proj"]}, "another adapter than this run"),
        ({"lora_layers": 1}, "model.lora_layers = 2"),
    ],
)
def test_another_adapter_is_refused(made: Path, settings: dict[str, Any], message: str) -> None:
    for adapter in (made / "peft", policy_folder(made)):
        with pytest.raises(ModelError, match=message):
            policy_begun(made, adapter, **settings)


def test_what_is_no_adapter_of_a_policy_is_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.policy_init = '.*' has no adapter_config\.json: name a folder"):
        policy_begun(made, make_checkpoint(tmp_path / "model"))
    given: dict[str, Any] = {"family": "llama", "rank": 8, "scale": 5.0, "base": "a/b", "head": mx.ones((32,))}
    write_peft(tmp_path / "classifier", trained(made), **given)
    with pytest.raises(ModelError, match="is of a sequence classifier"):
        policy_begun(made, tmp_path / "classifier")


SEQUENCES = [[72, 101, 108, 108, 111], [1, 2], [256, 5, 6, 7, 8, 9, 10, 11], [50, 256, 256]]


def begun(made: Path, rm: Path, **settings: Any) -> tuple[ActorCriticLLM, LoadedModel]:
    """Return a policy with its critic after the start."""
    values = {"path": str(made / "model"), "value_model": "adapter", "value_init": str(rm)} | settings
    config = ModelConfig.model_validate(values)
    loaded = load_backbone(config)
    actor = ActorCriticLLM(loaded.backbone, config, key=mx.random.key(1))
    init_value_model(actor, loaded, config)
    return actor, loaded


def values(actor: ActorCriticLLM, prompt: int) -> list[np.ndarray]:
    """Return V of every state from the prompt's first `prompt` tokens on, for each of SEQUENCES."""
    lengths = [len(one) for one in SEQUENCES]
    width = max(lengths) - prompt
    found = actor(mx.array(pad(SEQUENCES)), mx.array([prompt] * len(SEQUENCES)), width, want="values").values
    assert found is not None
    return [row[: length - prompt + 1] for row, length in zip(np.array(found), lengths, strict=True)]


def scores(rm: Path, sequences: list[list[int]]) -> np.ndarray:
    """Return scores with mean 0 and deviation 1 on the reward model's reference samples."""
    model = load_reward_model(rm).model
    assert abs(model.scale.mean) > 1e-3 or abs(model.scale.std - 1) > 1e-3
    raw = np.array(model.scores(mx.array(pad(sequences)), mx.array([len(one) for one in sequences])))
    return (raw - model.scale.mean) / model.scale.std


@pytest.mark.parametrize("scale", [4.0, 20.0])
def test_the_value_of_every_state_is_the_score_of_the_tokens_so_far(made: Path, scale: float) -> None:
    """The reward model's own lora_scale is 4."""
    actor, _ = begun(made, made / "runs" / "rm", lora_scale=scale)
    assert np.ptp(scores(made / "runs" / "rm", SEQUENCES)) > 0.01
    for sequence, row in zip(SEQUENCES, values(actor, 1), strict=True):
        prefixes = [sequence[: 1 + t] for t in range(len(sequence))]
        np.testing.assert_allclose(row, scores(made / "runs" / "rm", prefixes), atol=1e-5)


def test_a_reward_model_trained_with_ties_works(made: Path, tmp_path: Path) -> None:
    checkpoint = newest_checkpoint(RunFolder(made / "runs" / "rm"))
    assert checkpoint is not None
    ties = shutil.copytree(checkpoint, tmp_path / "ties")
    head = mx.load(str(ties / "head.safetensors"))
    assert isinstance(head, dict)
    mx.save_safetensors(str(ties / "head.safetensors"), {**head, "tie.log_nu": mx.array(0.3)})
    write_state(ties, json.loads((ties / "state.json").read_text()))
    actor, _ = begun(made, ties)
    assert actor.value_parameters().keys() == begun(made, Path(), value_init="")[0].value_parameters().keys()
    np.testing.assert_allclose([row[-1] for row in values(actor, 1)], scores(ties, SEQUENCES), atol=1e-5)


def test_an_adapter_of_another_shape_is_refused_with_the_settings_to_change(made: Path) -> None:
    other = train_tiny(made, "other", "model.lora_rank=2", 'model.lora_targets=["q_proj", "up_proj"]')
    with pytest.raises(ModelError, match=r'model.lora_rank = 2, model.lora_targets = \["q_proj", "up_proj"\]'):
        begun(made, other)
    actor, _ = begun(made, other, lora_rank=2, lora_targets=["q_proj", "up_proj"])
    np.testing.assert_allclose([row[-1] for row in values(actor, 1)], scores(other, SEQUENCES), atol=1e-5)


def test_a_reward_model_that_reads_the_mean_is_refused(made: Path) -> None:
    folder = train_tiny(made, "mean", "train.states=last+mean")
    with pytest.raises(ModelError, match="and a critic reads one state") as early:
        check_init(ModelConfig(path=str(made / "model"), value_model="adapter", value_init=str(folder)))
    with pytest.raises(ModelError) as late:
        begun(made, folder)
    assert str(late.value) == str(early.value)


def test_another_backbone_and_a_critic_without_an_adapter_are_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"set model\.value_model = 'adapter'"):
        begun(made, made / "runs" / "rm", value_model="head")
    other = make_checkpoint(tmp_path / "other", seed=3)
    with pytest.raises(ModelError, match=f"uses another backbone: set model.path = '{made / 'model'}'"):
        begun(made, made / "runs" / "rm", path=str(other))
    with pytest.raises(ModelError, match="another backbone"):
        begun(made, made / "runs" / "rm", quantize="8-bit")


def test_an_incomplete_reward_model_is_refused_in_one_line(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.value_init = '.*nowhere': .*holds no reward model"):
        begun(made, tmp_path / "nowhere")
    checkpoint = newest_checkpoint(RunFolder(made / "runs" / "rm"))
    assert checkpoint is not None
    broken = shutil.copytree(checkpoint, tmp_path / "broken")
    card = json.loads((broken / "reward_model.json").read_text())
    for change, reported in (
        ({"model": None}, r"settings that this version of ppo-workbench cannot use \(model = None: must be a table\)"),
        ({"scale": {"mean": 0.0}}, r"is damaged \(scale\.std: "),
    ):
        (broken / "reward_model.json").write_text(json.dumps(card | change))
        with pytest.raises(ModelError, match=r"is damaged \(reward_model\.json is not what was written\)"):
            begun(made, broken)
        write_state(broken, json.loads((broken / "state.json").read_text()))
        with pytest.raises(ModelError, match=reported):
            begun(made, broken)
    (broken / "reward_model.json").write_text(json.dumps(card))
    (broken / "head.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ModelError, match="is damaged") as error:
        begun(made, broken)
    assert "\n" not in str(error.value)


def test_a_run_begins_with_it_and_resumes_from_its_checkpoint_without(made: Path) -> None:
    """The critic of a resumed run comes from the checkpoint, whatever happened to the reward model since."""
    adapter = 'model.value_model="adapter"'
    plain = record(tiny_config(made, adapter, "run.name=plain", "ppo.iterations=1")).of(Iteration)
    init = (adapter, f'model.value_init="{made / "runs" / "rm"}"', "run.name=begun")
    begun = record(tiny_config(made, *init, "ppo.iterations=1")).of(Iteration)
    assert plain[0].value_mean == 0
    assert abs(begun[0].value_mean) > 1e-3
    assert begun[0].score_mean == plain[0].score_mean
    whole = record(tiny_config(made, *init, "run.name=whole", "ppo.iterations=2")).of(Iteration)
    later = record(tiny_config(made, *init, "ppo.iterations=2"), resume=made / "runs" / "begun").of(Iteration)
    assert comparable(later[0]) == comparable(whole[1])


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_with_it_again(made: Path) -> None:
    init = ('model.value_model="adapter"', f'model.value_init="{made / "runs" / "rm"}"', "run.name=early")
    first = record(tiny_config(made, *init, "ppo.iterations=1")).of(Iteration)
    shutil.rmtree(made / "runs/early/checkpoints")
    again = record(tiny_config(made, *init, "ppo.iterations=1"), resume=made / "runs" / "early").of(Iteration)
    assert comparable(again[0]) == comparable(first[0])
    assert abs(again[0].value_mean) > 1e-3


def test_the_checkpoint_that_a_critic_begins_from_is_kept_and_a_run_with_a_checkpoint_no_longer_needs_it(
    made: Path, tmp_path: Path
) -> None:
    rm = RunFolder(shutil.copytree(made / "runs/rm", tmp_path / "rm"))
    used = newest_checkpoint(rm)
    assert used is not None
    init = ('model.value_model="adapter"', f'model.value_init="{rm.root}"', "run.name=keeper")
    record(tiny_config(made, *init, "ppo.iterations=1"))
    keeper = RunFolder(made / "runs/keeper")
    saved = load_config(keeper.config, {"ppo": {"iterations": 2}})
    assert saved.model.value_init == str(used), "not the run, whose newest checkpoint becomes another"
    newer = shutil.copytree(used, rm.checkpoint(900))
    prune_checkpoints(rm, 1)
    assert checkpoints(rm).paths == [used, newer]
    shutil.rmtree(used)
    resumed = record(saved, resume=keeper.root)
    assert [event.iteration for event in resumed.of(Iteration)] == [2]
    shutil.rmtree(keeper.checkpoints)
    with pytest.raises(ModelError, match=r"model\.value_init = '.*step-.*' holds no reward model"):
        record(saved, resume=keeper.root)


def test_the_checkpoint_is_kept_before_the_backbone_loads_and_one_that_cannot_be_kept_is_reported(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rm = RunFolder(shutil.copytree(made / "runs/rm", tmp_path / "rm"))
    used = newest_checkpoint(rm)
    assert used is not None
    mark = used.with_name(f".{used.name}.used")
    init = ('model.value_model="adapter"', f'model.value_init="{used}"', "ppo.iterations=1")
    with monkeypatch.context() as patch:
        patch.setattr("trainer.engine.ppo.load_backbone", lambda _: pytest.fail(f"kept: {mark.exists()}"))
        with pytest.raises(pytest.fail.Exception, match="kept: True"):
            record(tiny_config(made, *init))
    mark.unlink()
    mark.symlink_to(tmp_path / "elsewhere")
    (started,) = record(tiny_config(made, *init)).of(RunStarted)
    assert [line for line in started.warnings if "cannot mark" in line] == [
        f"cannot mark '{used}' as used (it is a symbolic link): its own run may delete it when it is resumed; "
        "use a copy of that folder instead"
    ]


def peft_reward(made: Path, folder: Path, **more: Any) -> Path:
    """Write the PEFT adapter of a sequence classifier on the policy's model."""
    model = ModelConfig(path=str(made / "model"))
    actor = ActorCriticLLM(load_backbone(model).backbone, model, key=mx.random.key(8))
    arrays = actor.policy_parameters()
    for number, name in enumerate(sorted(arrays)):
        if name.endswith("lora_b"):
            arrays[name] = 0.2 * mx.random.normal(arrays[name].shape, key=mx.random.key(number))
    head = mx.random.normal((32,), key=mx.random.key(9))
    given: dict[str, Any] = {"family": "llama", "rank": 8, "scale": 2.0, "base": model.path, "head": head}
    write_peft(folder, arrays, **given | more)
    return folder


def test_a_critic_begins_as_the_adapter_of_a_classifier(made: Path, tmp_path: Path) -> None:
    folder = peft_reward(made, tmp_path / "classifier")
    actor, _ = begun(made, folder)
    lengths = mx.array([len(one) for one in SEQUENCES])
    expected = np.array(ClassifierModel(folder).scores(mx.array(pad(SEQUENCES)), lengths))
    last = [row[-1] for row in values(actor, 1)]
    np.testing.assert_allclose(last, expected, atol=1e-4)
    assert np.std(expected) > 0.1
    check_init(ModelConfig(path=str(made / "model"), value_model="adapter", value_init=str(folder)))


def test_the_adapter_of_another_model_rank_or_task_begins_no_critic(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"uses another backbone: set model\.path = 'someone/model'"):
        begun(made, peft_reward(made, tmp_path / "base", base="someone/model"))
    with pytest.raises(ModelError, match=r"lora_rank = 8.*q_proj.*v_proj.*lora_layers = 2"):
        begun(made, peft_reward(made, tmp_path / "rank"), lora_rank=4)
    with pytest.raises(ModelError, match=r"has no score\.weight"):
        begun(made, peft_reward(made, tmp_path / "task", head=None))
