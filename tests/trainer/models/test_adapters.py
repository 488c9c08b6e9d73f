"""Adapters on disk and on the backbone: attached, saved for mlx-lm and PEFT, read from both, and fused."""

from __future__ import annotations

import json
from collections.abc import Callable
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

from trainer.config.schema import BackboneConfig, ModelConfig
from trainer.errors import ModelError
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import LoRA, Parameters, fuse_adapter, read_adapter_config, save_adapter
from trainer.models.backbone import load_backbone, quantize_backbone
from trainer.models.peft_adapters import FAMILIES as NAMES
from trainer.models.peft_adapters import SETTINGS, WEIGHTS, check_peft, is_peft, read_peft, write_peft

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


def change(adapter: Path, **changes: Any) -> None:
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
        (lambda adapter: change(adapter, lora_parameters={"rank": 4}), "scale"),
        (lambda adapter: change(adapter, lora_parameters=3), "does not fit"),
        (lambda adapter: change(adapter, num_layers=1), "layers.0.self_attn.q_proj.lora_.: not an adapter parameter"),
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
    change(adapter, schema=2)
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


RANK, SCALE = 3, 2.5
TOKENS = mx.array([[72, 101, 108, 108, 111], [1, 2, 3, 4, 5]])


def random_policy(model: Path, **settings: Any) -> ActorCriticLLM:
    """Return a policy on the model in `model` whose adapter changes something."""
    config = ModelConfig.model_validate({"path": str(model), "lora_rank": RANK, "lora_scale": SCALE} | settings)
    actor = ActorCriticLLM(load_backbone(config).backbone, config, key=mx.random.key(1))
    actor.update_policy(moved(actor.policy_parameters(), seed=2, scale=0.2))
    return actor


def written(folder: Path, parameters: Parameters, **more: Any) -> Path:
    given = {"family": "llama", "rank": RANK, "scale": SCALE, "base": "someone/model"} | more
    write_peft(folder, parameters, **given)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


@pytest.fixture
def adapter(tmp_path: Path, model: Path) -> Path:
    return written(tmp_path / "adapter", random_policy(model).policy_parameters())


def arrays_of(adapter: Path) -> dict[str, mx.array]:
    return dict(mx.load(str(adapter / WEIGHTS)))  # type: ignore[arg-type]


def test_an_adapter_comes_back_bit_for_bit_from_files_that_are_those_of_peft(
    tmp_path: Path, model: Path, adapter: Path
) -> None:
    parameters = random_policy(model, lora_targets=["q_proj", "up_proj"]).policy_parameters()
    head = mx.random.normal((32,), key=mx.random.key(7))
    folder = written(tmp_path / "classifier", parameters, head=head)
    found = read_peft(folder, "llama")
    assert (found.rank, found.scale, found.base) == (RANK, SCALE, "someone/model")
    assert found.parameters.keys() == parameters.keys()
    assert all(mx.array_equal(found.parameters[name], parameters[name]) for name in parameters)
    assert found.head is not None
    assert mx.array_equal(found.head, head)
    assert arrays_of(folder)["base_model.model.score.weight"].shape == (1, 32)
    settings = json.loads((folder / SETTINGS).read_text())
    assert (settings["task_type"], settings["modules_to_save"]) == ("SEQ_CLS", ["score"])

    assert sorted(path.name for path in adapter.iterdir()) == [SETTINGS, WEIGHTS]
    layer = "base_model.model.model.layers.1.self_attn.v_proj"
    shapes = {name: array.shape for name, array in arrays_of(adapter).items() if "layers.1.self_attn.v" in name}
    assert shapes == {f"{layer}.lora_A.weight": (RANK, 32), f"{layer}.lora_B.weight": (16, RANK)}
    settings = json.loads((adapter / SETTINGS).read_text())
    assert (settings["peft_type"], settings["task_type"], settings["r"]) == ("LORA", "CAUSAL_LM", RANK)
    assert settings["lora_alpha"] == RANK * SCALE
    assert "model.layers.1.self_attn.v_proj" in settings["target_modules"]
    assert len(settings["target_modules"]) == 4


@pytest.mark.parametrize("rank", [1, 3, 7, 8, 48])
def test_the_scale_comes_back_to_the_float32_that_is_used(tmp_path: Path, model: Path, rank: int) -> None:
    parameters = random_policy(model, lora_rank=rank).policy_parameters()
    for number, scale in enumerate((20.0, 0.1, 1 / 3, 7.7, 2.0000001)):
        folder = written(tmp_path / f"{rank}-{number}", parameters, rank=rank, scale=scale)
        assert np.float32(read_peft(folder, "llama").scale) == np.float32(scale)


def test_a_rank_stabilised_scale_is_alpha_over_its_root(adapter: Path) -> None:
    change(adapter, use_rslora=True, lora_alpha=6)
    assert read_peft(adapter, "llama").scale == pytest.approx(6 / 3**0.5, rel=1e-15)


def test_a_run_begins_with_the_policy_of_an_adapter(tmp_path: Path, model: Path) -> None:
    actor = random_policy(model, lora_targets=["q_proj", "v_proj", "down_proj"])
    folder = written(tmp_path / "adapter", actor.policy_parameters())
    began = load_backbone(BackboneConfig(path=str(model), adapter=str(folder)))
    plain = load_tiny(model).backbone
    np.testing.assert_allclose(began.backbone(TOKENS), actor.backbone(TOKENS), atol=2e-5)
    assert float(mx.abs(plain(TOKENS) - actor.backbone(TOKENS)).max()) > 0.1
    assert began.head is None


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"rank_pattern": {"q_proj": 4}}, "ranks that differ"),
        ({"alpha_pattern": {"q_proj": 4}}, "scales that differ"),
        ({"modules_to_save": ["lm_head", "embed_tokens"]}, "modules_to_save: embed_tokens, lm_head"),
        ({"bias": "lora_only"}, "bias = lora_only"),
        ({"lora_bias": True}, "a bias in B"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "token embeddings"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4"),
        ({"peft_type": "IA3"}, "peft_type IA3"),
        ({"r": 0}, "r = 0"),
        ({"lora_alpha": None}, "lora_alpha = None"),
    ],
)
def test_what_is_more_than_two_matrices_is_refused(adapter: Path, settings: dict[str, Any], problem: str) -> None:
    change(adapter, **settings)
    with pytest.raises(ModelError, match=problem) as error:
        check_peft(adapter)
    assert "merge_and_unload" in str(error.value)


def more_arrays(adapter: Path) -> None:
    more = {"base_model.model.model.embed_tokens.lora_embedding_A": mx.zeros((RANK, 264))}
    mx.save_safetensors(str(adapter / WEIGHTS), arrays_of(adapter) | more)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (more_arrays, "lora_embedding_A"),
        (lambda adapter: change(adapter, r=RANK + 1), f"rank {RANK + 1}"),
        (lambda adapter: (adapter / WEIGHTS).rename(adapter / "adapter_model.bin"), "safe_serialization"),
        (lambda adapter: (adapter / SETTINGS).write_text("[1]"), "cannot be read"),
    ],
    ids=["arrays that are none of LoRA", "another rank", "pickled weights", "settings that are no object"],
)
def test_a_damaged_adapter_is_refused(adapter: Path, damage: Callable[[Path], object], problem: str) -> None:
    damage(adapter)
    assert is_peft(adapter)
    with pytest.raises(ModelError, match=problem):
        read_peft(adapter, "llama")


@pytest.mark.parametrize("layer", ["model.layers.5.self_attn.q_proj", "model.layers.0.mlp.up_proj"])
def test_an_adapter_of_another_model_is_refused(tmp_path: Path, model: Path, layer: str) -> None:
    arrays = {f"{layer}.lora_a": mx.ones((32, RANK)), f"{layer}.lora_b": mx.ones((RANK, 33))}
    folder = written(tmp_path / "adapter", arrays)
    with pytest.raises(ModelError, match=f"does not fit the model at {layer}: .*someone/model"):
        load_backbone(BackboneConfig(path=str(model), adapter=str(folder)))


def test_the_adapter_of_a_classifier_writes_no_text(tmp_path: Path, model: Path) -> None:
    folder = written(tmp_path / "adapter", random_policy(model).policy_parameters(), head=mx.ones((32,)))
    config = BackboneConfig(path=str(model), adapter=str(folder))
    with pytest.raises(ModelError, match="writes no text"):
        load_backbone(config)
    head = load_backbone(config, classifier=True).head
    assert head is not None
    assert head.weight.tolist() == [1.0] * 32


def test_a_family_with_other_names_and_experts_are_refused(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ModelError, match=r"family mamba2.*llama"):
        written(tmp_path / "adapter", random_policy(model).policy_parameters(), family="mamba2")
    experts = {"model.layers.0.mlp.switch_mlp.up_proj.lora_a": mx.zeros((4, RANK, 8))}
    with pytest.raises(ModelError, match="on experts"):
        written(tmp_path / "adapter", experts)


@pytest.mark.parametrize("family", NAMES)
def test_a_name_and_back_is_the_name(family: str) -> None:
    names = NAMES[family]
    names_here = ("model.h.3.attn.c_attn", "model.embed_in", "lm_head" if names.weights else "model.h.0.mlp.c_fc")
    for name in names_here:
        assert names.to_mlx(names.to_transformers(name)) == name
    assert not names.weights or not names.renamed  # a whole model keeps its names


def test_renamed_layers() -> None:
    assert NAMES["gpt_neox"].to_transformers("model.h.0.attention.dense") == "gpt_neox.layers.0.attention.dense"
    assert NAMES["gpt2"].to_transformers("model.h.0.attn.c_attn") == "transformer.h.0.attn.c_attn"
