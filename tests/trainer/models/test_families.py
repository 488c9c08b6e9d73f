"""Families of mlx-lm: those that must train do, and are scored as they were sampled; others are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from families import check_family, remark, tiny_backbone
from mlx.utils import tree_flatten
from mlx_lm.utils import MODEL_REMAPPING

from benchmarks.family_values import MUST_TRAIN
from trainer.config.pairs import RewardModelConfig
from trainer.config.schema import ModelConfig
from trainer.errors import ModelError
from trainer.models import backbone as backbone_module
from trainer.models.adapters import linear_places, new_adapter
from trainer.models.backbone import cast_backbone, quantize_backbone
from trainer.models.forward import hidden_states, logits_of
from trainer.reward_model.network import RewardModel

ROOT = Path(__file__).parents[3]
UNLIKE_LLAMA = ["gemma2", "mamba2", "nanochat", "phi", "lfm2", "ministral3", "nemotron_h"]


def check(family: str, dtype: str = "float32", **options: Any) -> dict[str, Any]:
    return check_family(family, dtype, 0, **options)


@pytest.mark.parametrize(
    ("family", "iterations"),
    [
        *((family, 2) for family in UNLIKE_LLAMA),
        *((family, 1) for family in sorted(set(MUST_TRAIN) - set(UNLIKE_LLAMA))),
        ("falcon_mamba", 1),  # another name of mlx-lm's mamba, which is prefilled without padding
    ],
)
def test_a_family_that_must_train_does_and_its_sampler_agrees_with_scoring(family: str, iterations: int) -> None:
    """Cover attention over five axes, no attention, a renamed trunk, one that needs a cache, hybrids and windows."""
    report = check(family, iterations=iterations)
    assert (report["outcome"], report.get("error")) == ("trains", None)
    assert report["gap_mean"] < 1e-4


def test_the_documentation_names_each_family_that_must_train_and_every_alias() -> None:
    page = " ".join((ROOT / "docs" / "families.md").read_text(encoding="utf-8").split())
    _, _, listed = page.partition("**These need nothing**")
    trains, _, refused = listed.partition("| refused, because |")
    for family in MUST_TRAIN:
        assert re.search(rf"[ ,|]{family}[ ,.]", trains), family
        assert not re.search(rf"[ ,]{family}[ ,]", refused), family
    for alias, family in MODEL_REMAPPING.items():
        assert re.search(rf"\b{alias}\b[^;|]* as {family}\b", page), alias


def test_the_table_says_where_auto_reaches_only_some_of_the_blocks() -> None:
    report = {"outcome": "trains", "targets": ["q_proj"], "blocks": [1, 3]}
    assert remark([report]) == "adapter on q_proj in 1 of 3 blocks"
    assert remark([report | {"blocks": [3, 3]}]) == "adapter on q_proj"
    found = check("nemotron_h", iterations=1)
    assert found["blocks"] == [2, 4]


def test_rows_of_a_cache_that_cannot_be_joined_are_decoded_one_by_one() -> None:
    report = check("llama4")
    assert (report["outcome"], report["joins"]) == ("trains", False)


@pytest.mark.parametrize(
    ("family", "options", "reason"),
    [
        ("phi3small", {}, "its block mask depends on the input's length"),
        ("lille-130m", {}, "the trunk returns logits"),
        ("deepseek_v41_text", {}, "no gradient for the choice"),  # mlx-lm's deepseek_v41
        ("llama", {"targets": ["experts"]}, "names experts, but the model's blocks have"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_reason(family: str, options: dict[str, Any], reason: str) -> None:
    report = check(family, **options)
    assert report["outcome"] == "refused"
    assert reason in report["error"]


@pytest.mark.parametrize(("family", "reason"), [("lille-130m", "returns logits"), ("deepseek_v41", "no gradient")])
def test_a_reward_model_refuses_the_same_families_as_a_policy(family: str, reason: str) -> None:
    with pytest.raises(ModelError, match=f"{family} cannot be trained here .*{reason}"):
        RewardModel(tiny_backbone(family, mx.float32), RewardModelConfig(), key=mx.random.key(0))


def test_layers_that_a_family_keeps_from_rounding_stay_whole() -> None:
    backbone = tiny_backbone("kimi_k3", mx.float32)  # it multiplies the weights of res_proj itself
    quantize_backbone(backbone, 4)
    layers = {name: module for name, module in backbone.named_modules() if hasattr(module, "weight")}
    assert {type(layer) for name, layer in layers.items() if name.endswith("res_proj")} == {nn.Linear}
    bits = {name.rpartition(".")[2]: layer.bits for name, layer in layers.items() if hasattr(layer, "bits")}
    assert (bits["q_b_proj"], bits["gate"]) == (4, 8)  # the gate chooses experts
    assert mx.isfinite(backbone(mx.array([[0, 1]]))).all()


@pytest.mark.parametrize(
    ("family", "names"), [("qwen3_5", {"A_log"}), ("nemotron_h", {"A_log", "e_score_correction_bias"})]
)
def test_half_precision_spares_the_parameters_that_a_family_computes_in_float32(
    family: str, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backbone_module, "precision", lambda *_: mx.bfloat16)  # as on a GPU, experts or not
    backbone = tiny_backbone(family, mx.float32)
    before = dict(tree_flatten(backbone.parameters()))
    cast_backbone(backbone, "bfloat16")
    kept = {name: x for name, x in tree_flatten(backbone.parameters()) if x.dtype != mx.bfloat16}
    assert {name.rpartition(".")[2] for name in kept} == names
    assert all(mx.array_equal(x, before[name]) for name, x in kept.items())


def test_parameters_in_float32_make_no_activation_float32_and_float32_widens_every_parameter() -> None:
    backbone = tiny_backbone("qwen3_5", mx.float32)
    cast_backbone(backbone, "bfloat16")
    assert backbone(mx.array([[0, 1]])).dtype == mx.bfloat16
    assert cast_backbone(backbone, "float32") == mx.float32
    assert {x.dtype for _, x in tree_flatten(backbone.parameters())} == {mx.float32}


def test_experts_train_in_bfloat16_or_in_float32_where_the_device_supports_nothing_else() -> None:
    assert check("qwen3_moe", "bfloat16")["outcome"] == "trains"


@pytest.mark.parametrize(
    ("family", "layers"),
    {
        "llama": "self_attn.q_proj self_attn.v_proj",
        "nanochat": "attn.c_q attn.c_v",
        "phi3": "self_attn.qkv_proj",
        "internlm2": "attention.wqkv",
        "qwen3_5": "linear_attn.in_proj_qkv self_attn.q_proj self_attn.v_proj",
        "nemotron_h": "mixer.in_proj mixer.q_proj mixer.v_proj",
        "mamba2": "mixer.in_proj",
        "deepseek_v3": "self_attn.kv_a_proj_with_mqa self_attn.q_b_proj",
        "deepseek_v32": "self_attn.kv_a_proj_with_mqa self_attn.q_b_proj",
        "lfm2": "conv.in_proj self_attn.q_proj self_attn.v_proj",
    }.items(),
)
def test_auto_adapts_the_layers_that_read_the_text_in_every_block(family: str, layers: str) -> None:
    backbone = tiny_backbone(family, mx.float32)
    adapted, about = new_adapter(backbone, ModelConfig(), mx.random.key(0))
    assert about["lora_parameters"]["keys"] == layers.split()
    linears = {id(layer.linear) for layer in adapted.values()}
    for block in backbone.layers:
        mixes = getattr(block, "block_type", "*") in "*M"  # the other blocks of nemotron_h are feed-forward layers
        assert mixes == any(id(place.linear) in linears for place in linear_places(block).values())


def test_experts_are_adapted_on_request_and_train() -> None:
    report = check("qwen3_moe", targets=["auto", "experts"])
    assert (report["outcome"], report.get("error"), report["gap_mean"] < 1e-4) == ("trains", None, True)
    assert report["targets"] == ["down_proj", "gate_proj", "q_proj", "up_proj", "v_proj"]


@pytest.mark.parametrize("family", ["llama", "nanochat", "mamba2", "gemma3", "openelm"])
def test_states_and_head_give_the_logits_of_the_model_which_stays_unchanged(family: str) -> None:
    backbone = tiny_backbone(family, mx.float32)
    tokens = mx.array([[1, 2, 3], [4, 5, 6]])
    before = backbone(tokens)
    assert mx.allclose(logits_of(backbone, hidden_states(backbone, tokens)), before, atol=1e-5)
    assert mx.array_equal(backbone(tokens), before)
