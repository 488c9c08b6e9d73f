"""Adapters on disk and on the backbone: attached, saved for mlx-lm, and SFT adapters fused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.utils
import numpy as np
import pytest
from batches import moved
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from tiny import FAMILIES, load_tiny, make_checkpoint

from trainer.config.schema import ModelConfig
from trainer.errors import ModelError
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import LoRA, fuse_adapter, read_adapter_config, save_adapter
from trainer.models.backbone import quantize_backbone

IDS = mx.array([[1, 2, 3, 250, 0, 256, 7, 8]])
MLP = ["gate_proj", "down_proj"]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("models") / "model", request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("models") / "model")


def trained(folder: Path, **settings: Any) -> ActorCriticLLM:
    """Return an actor whose adapter is no longer zero."""
    actor = ActorCriticLLM(load_tiny(folder).backbone, ModelConfig(**settings), key=mx.random.key(1))
    actor.update_policy(moved(actor.policy_parameters(), seed=2, scale=0.3))
    return actor


def sft_adapter(model: Path, folder: Path, *, kind: str = "lora", dropout: float = 0.0) -> Path:
    """Write an adapter as mlx-lm's trainer would leave it: random, of one kind, on q_proj."""
    backbone, _ = mlx_lm.utils.load_model(model)
    settings = {"rank": 4, "scale": 3.0, "dropout": dropout, "keys": ["self_attn.q_proj"]}
    if kind != "full":
        mx.random.seed(7)  # mlx-lm draws from the global key
        backbone.freeze()
        linear_to_lora_layers(backbone, 2, settings, use_dora=kind == "dora")
    weights = moved(dict(tree_flatten(backbone.trainable_parameters())), seed=3, scale=0.3)
    save_adapter(weights, {"fine_tune_type": kind, "num_layers": 2, "lora_parameters": settings}, folder)
    return folder


@pytest.mark.parametrize(
    "settings",
    [{}, {"lora_layers": 1}, {"lora_layers": 9}, {"lora_targets": MLP, "lora_rank": 3, "lora_scale": 0.5}],
)
def test_a_saved_adapter_gives_the_same_logits_in_mlx_lm(
    folder: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    actor = trained(folder, **settings)
    save_adapter(actor.policy_parameters(), actor.adapter_config, tmp_path / "adapter")
    model, _ = mlx_lm.utils.load(str(folder), adapter_path=str(tmp_path / "adapter"))
    np.testing.assert_allclose(model(IDS), actor.backbone(IDS), atol=1e-5)
    assert not np.allclose(model(IDS), load_tiny(folder).backbone(IDS), atol=0.1)


def test_an_adapter_has_the_targets_rank_scale_and_last_layers_of_its_configuration(llama: Path) -> None:
    short, full = (
        ActorCriticLLM(load_tiny(llama).backbone, ModelConfig(lora_targets=[name]), key=mx.random.key(1))
        for name in ("q_proj", "self_attn.q_proj")
    )
    assert list(short.policy_parameters()) == list(full.policy_parameters())
    ends = {name.split(".", 3)[3] for name in short.policy_parameters()}
    assert ends == {"self_attn.q_proj.lora_a", "self_attn.q_proj.lora_b"}
    settings = ModelConfig(lora_rank=3, lora_scale=0.5, lora_layers=1, value_model="adapter")
    actor = ActorCriticLLM(load_tiny(llama).backbone, settings, key=mx.random.key(1))
    layer = actor.backbone.layers[1].self_attn.q_proj
    assert (layer.lora_a.shape, layer.lora_b.shape, layer.scale) == ((32, 3), (3, 32), 0.5)
    policy, critic = actor.policy_parameters(), actor.value_parameters()
    assert {name.split(".")[2] for name in policy} == {"1"}
    assert set(critic) == {"head.weight", "head.bias", *(f"adapter.{name}" for name in policy)}
    drawn = [name for name in policy if name.endswith("lora_a")]
    assert not any(mx.array_equal(policy[name], critic[f"adapter.{name}"]) for name in drawn)
    assert dict(tree_flatten(actor.backbone.trainable_parameters())).keys() == policy.keys(), "nothing else trains"


def test_a_is_drawn_from_the_key_for_every_layer_and_b_is_zero(llama: Path) -> None:
    first, same, other = (
        ActorCriticLLM(load_tiny(llama).backbone, ModelConfig(), key=mx.random.key(seed)).policy_parameters()
        for seed in (1, 1, 2)
    )
    drawn = [name for name in first if name.endswith("lora_a")]
    assert len({tuple(p[name].flatten().tolist()) for name in drawn for p in (first, same, other)}) == 2 * len(drawn)
    assert all(mx.array_equal(first[name], same[name]) for name in first)
    assert all(mx.abs(first[name]).max() <= 32**-0.5 for name in drawn)
    assert not any(mx.any(first[name]) for name in first if name not in drawn)


@pytest.mark.parametrize("kind", ["lora", "dora", "full"])
def test_an_sft_adapter_is_fused_into_policy_and_reference(folder: Path, kind: str, tmp_path: Path) -> None:
    adapter = sft_adapter(folder, tmp_path / "sft", kind=kind)
    expected, _ = mlx_lm.utils.load(str(folder), adapter_path=str(adapter))
    model = load_tiny(folder, adapter=str(adapter))
    np.testing.assert_allclose(model.backbone(IDS), expected(IDS), atol=1e-4)
    assert not any(isinstance(module, LoRA) for module in model.backbone.modules())
    actor = ActorCriticLLM(model.backbone, ModelConfig(), key=mx.random.key(1))
    with actor.reference():
        np.testing.assert_allclose(actor.backbone(IDS), expected(IDS), atol=1e-4)


def test_dropout_in_the_config_of_an_sft_adapter_does_not_reach_the_scores(llama: Path, tmp_path: Path) -> None:
    with_dropout, without = (
        load_tiny(llama, adapter=str(sft_adapter(llama, tmp_path / f"sft{p}", dropout=p))).backbone for p in (0.5, 0.0)
    )
    assert mx.array_equal(with_dropout(IDS), with_dropout(IDS))
    assert mx.array_equal(with_dropout(IDS), without(IDS))


@pytest.mark.parametrize("bits", [4, 8, "as on a GPU, where nothing is dequantised on loading"])
def test_a_small_sft_adapter_is_not_rounded_away_on_a_quantised_model(
    bits: int | str, llama: Path, tmp_path: Path
) -> None:
    adapter, name = sft_adapter(llama, tmp_path / "sft"), "model.layers.0.self_attn.q_proj"
    weights = {name: array * 0.05 for name, array in mx.load(str(adapter / "adapters.safetensors")).items()}
    mx.save_safetensors(str(adapter / "adapters.safetensors"), weights)
    if isinstance(bits, int):
        backbone, settings, tokenizer = *mlx_lm.utils.load_model(llama), mlx_lm.utils.load_tokenizer(llama)
        backbone, settings = mlx_lm.utils.quantize_model(backbone, settings, group_size=32, bits=bits)
        mlx_lm.utils.save(tmp_path / "quantised", llama, backbone, tokenizer, settings)
        before = load_tiny(tmp_path / "quantised").backbone.layers[0].self_attn.q_proj.weight
        fused = load_tiny(tmp_path / "quantised", adapter=str(adapter)).backbone
    else:
        fused = load_tiny(llama).backbone
        quantize_backbone(fused, 4)
        layer = fused.layers[0].self_attn.q_proj
        before = mx.dequantize(layer.weight, layer.scales, layer.biases, layer.group_size, layer.bits)
        fuse_adapter(fused, adapter)
    change = 3.0 * (weights[f"{name}.lora_a"] @ weights[f"{name}.lora_b"]).T
    np.testing.assert_allclose(fused.layers[0].self_attn.q_proj.weight - before, change, atol=1e-6)


def test_an_unknown_target_is_named_with_those_that_exist(llama: Path) -> None:
    with pytest.raises(ModelError) as raised:
        ActorCriticLLM(load_tiny(llama).backbone, ModelConfig(lora_targets=["q_proj", "qq"]), key=mx.random.key(1))
    assert str(raised.value) == (
        "model.lora_targets names qq, but the model's blocks have the linear layers "
        "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    )


def _cut(adapter: Path) -> None:
    file = adapter / "adapters.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _config(adapter: Path, **changes: Any) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda adapter: (adapter / "adapters.safetensors").unlink(), "has no adapters.safetensors"),
        (lambda adapter: (adapter / "adapter_config.json").unlink(), "has no adapter_config.json"),
        (lambda adapter: (adapter / "adapter_config.json").write_text("{}"), "num_layers"),
        (lambda adapter: (adapter / "adapter_config.json").write_text("{"), "Expecting property name"),
        (lambda adapter: (adapter / "adapter_config.json").write_text("[1]"), "must be a mapping"),
        (lambda adapter: _config(adapter, lora_parameters={"rank": 4}), "scale"),
        (lambda adapter: _config(adapter, lora_parameters=3), "does not fit"),
        (lambda adapter: _config(adapter, num_layers=1), "layers.0.self_attn.q_proj.lora_.: not an adapter parameter"),
        (_cut, "incomplete download"),
    ],
)
def test_a_damaged_sft_adapter_is_refused_in_one_line(damage: Any, reason: str, llama: Path, tmp_path: Path) -> None:
    adapter = sft_adapter(llama, tmp_path / "sft")
    damage(adapter)
    with pytest.raises(ModelError, match=reason) as raised:
        load_tiny(llama, adapter=str(adapter))
    assert str(raised.value).startswith(f"model.adapter = '{adapter}' ")
    assert "\n" not in str(raised.value)


def test_an_adapter_carries_its_version_and_a_newer_one_is_refused_by_name(llama: Path, tmp_path: Path) -> None:
    adapter = sft_adapter(llama, tmp_path / "sft")
    assert json.loads((adapter / "adapter_config.json").read_text())["schema"] == 1
    (adapter / "adapter_config.json").write_text('{"num_layers": 2}')
    assert read_adapter_config(adapter) == {"schema": 1, "num_layers": 2}, "as mlx-lm and version 0.1.0 write it"
    _config(adapter, schema=2)
    with pytest.raises(ModelError) as raised:
        load_tiny(llama, adapter=str(adapter))
    newer = f"adapter '{adapter}' was written by a newer version (schema 2, this one knows up to 1)"
    assert str(raised.value) == f"model.adapter: {newer}: update ppo-workbench"


def test_an_sft_adapter_of_another_model_or_place_is_refused(llama: Path, tmp_path: Path) -> None:
    other = sft_adapter(make_checkpoint(tmp_path / "gemma", "gemma3_text"), tmp_path / "sft")
    weights = {name: mx.zeros((7, 4)) for name in mx.load(str(other / "adapters.safetensors"))}
    mx.save_safetensors(str(other / "adapters.safetensors"), weights)
    with pytest.raises(ModelError, match=r"does not fit the model .* shape \(7, 4\) .*: use the model that it was"):
        load_tiny(llama, adapter=str(other))
    with pytest.raises(ModelError, match=r"nowhere' has no adapter_config.json: name a folder"):
        load_tiny(llama, adapter=str(tmp_path / "nowhere"))
