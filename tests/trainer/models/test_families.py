"""Families of mlx-lm that differ from a llama where it matters here: each trains, and is scored as it was sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from trainer.config.schema import ModelConfig
from trainer.models.adapters import linear_places, new_adapter
from trainer.models.trunk import hidden_states, logits_of

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def check(family: str, dtype: str = "float32", **options: Any) -> dict[str, Any]:
    from families import check_family

    return check_family(family, dtype, 0, **options)


@pytest.mark.parametrize("family", ["gemma2", "mamba2", "nanochat", "phi", "lfm2", "ministral3", "nemotron_h"])
def test_two_iterations_train_and_the_sampler_agrees_with_scoring(family: str) -> None:
    """Attention over five axes, no attention, a trunk of another name, one that needs a cache, hybrids, windows."""
    report = check(family)
    assert (report["outcome"], report.get("error")) == ("trains", None)
    assert report["gap_mean"] < 1e-4


def test_rows_of_a_cache_that_cannot_be_joined_are_decoded_one_by_one() -> None:
    report = check("llama4")
    assert (report["outcome"], report["joins"]) == ("trains", False)


def test_a_family_that_mlx_lm_computes_differently_with_a_cache_is_refused() -> None:
    report = check("phi3small")
    assert report["outcome"] == "refused"
    assert "block mask" in report["error"]


def test_a_family_whose_trunk_includes_the_head_is_refused() -> None:
    report = check("lille-130m")
    assert report["outcome"] == "refused"
    assert "gives logits" in report["error"]


def test_experts_train_in_bfloat16_or_in_float32_where_the_device_multiplies_them_in_no_other_type() -> None:
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
def test_auto_adapts_what_reads_the_text_in_every_block(family: str, layers: str) -> None:
    from tiny_families import tiny_backbone

    backbone = tiny_backbone(family, mx.float32)
    adapter = new_adapter(backbone, ModelConfig(), mx.random.key(0))
    assert adapter.config["lora_parameters"]["keys"] == layers.split()
    places = linear_places(backbone)
    adapted = {id(places[name].module) for name in adapter.layers}
    for block in backbone.layers:
        mixes = getattr(block, "block_type", "*") in "*M"  # the other blocks of nemotron_h are feed-forward layers
        assert mixes == any(id(place.module) in adapted for place in linear_places(block).values())


def test_experts_are_adapted_on_request_and_train() -> None:
    report = check("qwen3_moe", targets=["auto", "experts"])
    assert (report["outcome"], report.get("error")) == ("trains", None)
    assert report["targets"] == ["down_proj", "gate_proj", "q_proj", "up_proj", "v_proj"]
    assert report["gap_mean"] < 1e-4


def test_experts_that_a_model_does_not_have_are_refused() -> None:
    report = check("llama", targets=["experts"])
    assert report["outcome"] == "refused"
    assert "names experts, but the model's blocks have" in report["error"]


@pytest.mark.parametrize("family", ["llama", "nanochat", "mamba2", "gemma3", "openelm"])
def test_states_and_head_apart_give_the_logits_of_the_model_which_stays_as_it_was(family: str) -> None:
    from tiny_families import tiny_backbone

    backbone = tiny_backbone(family, mx.float32)
    tokens = mx.array([[1, 2, 3], [4, 5, 6]])
    before = backbone(tokens)
    assert mx.allclose(logits_of(backbone, hidden_states(backbone, tokens)), before, atol=1e-5)
    assert mx.array_equal(backbone(tokens), before)
