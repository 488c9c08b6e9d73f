"""Adapters in PEFT's format: what is written, what is read, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from batches import moved
from tiny import load_tiny, make_checkpoint

from trainer.config.schema import BackboneConfig, ModelConfig
from trainer.errors import ModelError
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import Parameters
from trainer.models.backbone import load_backbone
from trainer.models.peft_adapters import FAMILIES, SETTINGS, WEIGHTS, check_peft, is_peft, read_peft, write_peft

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


def change(adapter: Path, **settings: Any) -> None:
    path = adapter / SETTINGS
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_name_and_back_is_the_name(family: str) -> None:
    names = FAMILIES[family]
    names_here = ("model.h.3.attn.c_attn", "model.embed_in", "lm_head" if names.weights else "model.h.0.mlp.c_fc")
    for name in names_here:
        assert names.to_mlx(names.to_transformers(name)) == name
    assert not names.weights or not names.renamed  # a whole model keeps its names


def test_renamed_layers() -> None:
    assert FAMILIES["gpt_neox"].to_transformers("model.h.0.attention.dense") == "gpt_neox.layers.0.attention.dense"
    assert FAMILIES["gpt2"].to_transformers("model.h.0.attn.c_attn") == "transformer.h.0.attn.c_attn"
