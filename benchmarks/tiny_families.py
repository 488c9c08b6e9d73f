"""Tiny random models of every family in mlx-lm: their configurations, and a function that builds them."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models
from mlx.utils import tree_flatten, tree_unflatten

from trainer.models.backbone import quantize_backbone

VOCABULARY = 264  # 256 bytes and eight special tokens, as in `make_tokenizer` of tests/support/tiny.py
END = 256

MUST_TRAIN = (
    "llama",
    "ministral3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_5",
    "gemma2",
    "gemma3_text",
    "gemma4",
    "phi3",
    "gpt_oss",
    "olmo3",
    "smollm3",
    "granite",
    "lfm2",
    "glm4",
    "nanochat",
    "mamba2",
    "nemotron_h",
)

_LAYERS = 2
_SLIDING = ["sliding_attention", "full_attention"]

# Values for the fields of a family's arguments, by name of the field.
_VALUES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "num_vocab": VOCABULARY,
    "embedding_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "max_position_embeddings": 256,
    "model_max_length": 256,
    "n_positions": 256,
    "n_ctx": 256,
    "block_size": 256,
    "hidden_size": 64,
    "hidden_dim": 64,
    "model_dim": 64,
    "d_model": 64,
    "n_embd": 64,
    "intermediate_size": 128,
    "dense_intermediate_size": 128,
    "ffn_hidden_size": 128,
    "ff_intermediate_size": 128,
    "mlp_hidden_size": 256,
    "n_inner": 128,
    "moe_intermediate_size": 64,
    "shared_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64,
    "expert_ffn_hidden_size": 64,
    "share_expert_dim": 64,
    "num_hidden_layers": _LAYERS,
    "num_layers": _LAYERS,
    "n_layers": _LAYERS,
    "n_layer": _LAYERS,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_heads": 4,
    "n_head": 4,
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
    "n_kv_heads": 2,
    "num_attention_groups": 2,
    "head_dim": 16,
    "kv_channels": 16,
    "rotary_dim": 8,
    "rms_norm_eps": 1e-5,
    "norm_eps": 1e-5,
    "norm_epsilon": 1e-5,
    "post_norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "layernorm_epsilon": 1e-5,
    "rope_theta": 10000.0,
    "rope_local_base_freq": 10000.0,
    "swa_rope_theta": 10000.0,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.5,
    "partial_rotary_factor": 0.5,
    "rope_scaling": None,
    "sliding_window": 16,
    "sliding_window_size": 16,
    "attention_window_size": 16,
    "window_size": 16,
    "loop_window_size": 16,
    "attention_chunk_size": 16,
    "sliding_window_pattern": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_top_k": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "num_shared_experts": 1,
    "num_shared_expert": 1,
    "n_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "num_dense_layers": 1,
    "first_k_dense_replace": 1,
    "moe_layer_start_index": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_expert_group": 1,
    "moe_layer_freq": 1,
    "decoder_sparse_step": 1,
    "interleave_moe_layer_step": 2,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "index_n_heads": 2,
    "index_head_dim": 32,
    "index_topk": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "linear_allow_neg_eigval": True,
    "full_attention_interval": 2,
    "layer_group_size": 2,
    "group_norm_size": 4,
    "conv_kernel": 4,
    "conv1d_width": 4,
    "conv_L_cache": 3,
    "conv_bias": False,
    "state_size": 16,
    "n_groups": 1,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "mamba_d_head": 16,
    "mamba_head_dim": 16,
    "mamba_d_state": 16,
    "ssm_state_size": 16,
    "mamba_d_conv": 4,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "time_step_limit": [0.0, 100.0],
    "time_step_rank": 8,
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
    "output_multiplier": 1.0,
    "attention_multiplier": 0.25,
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.5,
    "scale_depth": 1.4,
    "scale_emb": 4,
    "dim_model_base": 32,
    "query_pre_attn_scalar": 16.0,
    "final_logit_softcapping": 30.0,
    "attention_bias": False,
    "mlp_bias": False,
    "use_bias": False,
    "use_qkv_bias": False,
    "use_conv_bias": True,
    "use_qk_norm": True,
    "qk_norm": True,
    "post_norm": False,
    "use_expert_bias": True,
    "tie_word_embeddings": False,
}

_LFM = {
    "layer_types": ["conv", "full_attention"],
    "block_dim": 64,
    "block_multiple_of": 32,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
}
_KDA = {"kda_layers": [1], "num_heads": 4, "head_dim": 32, "short_conv_kernel_size": 4}
_ROPES = {name: {"rope_theta": 10000.0, "rope_type": "default"} for name in _SLIDING}
_YARN = {
    "type": "yarn",
    "rope_type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 128,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_LLAMA_4_ROPE = {"rope_theta": 10000.0, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16}

# Values of single families; they take precedence over _VALUES.
_OWN: dict[str, dict[str, Any]] = {
    "afm7": {"num_layers": 3, "num_kv_reuse_layers": 1, "hidden_dim_scale_factor": 2.0},
    "afmoe": {"layer_types": _SLIDING},
    "baichuan_m1": {"sliding_window_layers": [0], "conv_window": 2},
    "bailing_hybrid": {"num_hidden_layers": 4},
    "bailing_moe_linear": {"num_hidden_layers": 4},
    "bailing_moe_v3": {"num_hidden_layers": 4, "head_dim": 32},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "deepseek_v2": {"rope_scaling": _YARN, "topk_method": "greedy"},
    "deepseek_v41": {
        "num_hidden_layers": 4,
        "head_dim": 32,
        "o_groups": 2,
        "o_lora_rank": 32,
        "compress_ratios": [0, 4, 4, 0],
        "kv_source_layer_ids": [1],
        "index_source_layer_ids": [1],
        "scoring_func": "sqrtsoftplus",
        "hc_sinkhorn_iters": 4,
        "candidate_topk_blocks": 2,
        "candidate_block_size": 2,
    },
    "ernie4_5_moe": {"moe_capacity": [64, 64, 64]},
    "exaone4": {"sliding_window_pattern": "LG"},
    "exaone_moe": {"layer_types": _SLIDING, "is_moe_layer": [False, True]},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gear": {"layer_types": _SLIDING},
    "gemma3n": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": 2 * _SLIDING,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
        "hidden_size_per_layer_input": 32,
        "altup_num_inputs": 2,
        "altup_coef_clip": 120.0,
        "altup_correct_scale": True,
        "altup_active_idx": 0,
        "laurel_rank": 32,
    },
    "gemma4_text": {
        "num_hidden_layers": 4,
        "global_head_dim": 32,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 32,
        "enable_moe_block": False,
        "partial_rotary_factor": 1.0,
        "attention_k_eq_v": False,
        "tie_word_embeddings": True,
    },
    "glm4": {"attention_bias": True},
    "glm_moe_dsa": {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    "gpt_oss": {"layer_types": _SLIDING},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "hunyuan": {
        "use_mixed_mlp_moe": True,
        "use_cla": True,
        "cla_share_factor": 2,
        "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
    },
    "jamba": {
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
    },
    "kimi_k3": {
        "hidden_act": "situ",
        "linear_attn_config": _KDA,
        "attn_res_block_size": 1,
        "activation_situ_beta": 1.0,
        "routed_expert_hidden_size": 64,
    },
    "kimi_linear": {"linear_attn_config": _KDA},
    "laguna": {"layer_types": _SLIDING, "rope_parameters": _ROPES},
    "lfm2": _LFM,
    "lfm2_moe": _LFM,
    "llama": {"tie_word_embeddings": True},
    "llama4": {"num_experts_per_tok": 1, "num_hidden_layers": 4, "intermediate_size_mlp": 128},
    "llama4_text": {"intermediate_size_mlp": 128, "no_rope_layers": [1, 0]},
    "longcat_flash": {
        "attention_method": "MLA",
        "zero_expert_type": "identity",
        "zero_expert_num": 2,
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    },
    "longcat_flash_ngram": {
        "zero_expert_num": 2,
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
        "ngram_vocab_size_ratio": 2,
        "emb_neighbor_num": 3,
        "emb_split_num": 2,
    },
    "mamba2": {"num_heads": 8},
    "mellum": {"layer_types": _SLIDING, "rope_parameters": _ROPES},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0],
        "moe_layer_freq": [0, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 16,
        "swa_v_head_dim": 16,
        "v_head_dim": 16,
    },
    "minicpm3": {
        "rope_scaling": {
            "type": "longrope",
            "original_max_position_embeddings": 128,
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
        },
    },
    "minimax_m3_vl": {
        "mlp_layer_types": ["dense", "sparse"],
        "moe_layer_freq": None,
        "layer_types": ["full_attention", "sparse_attention"],
        "sparse_attention_config": None,
        "sparse_attention_freq": None,
        "rope_parameters": None,
        "index_block_size": 8,
        "index_topk_blocks": 2,
    },
    "ministral3": {"layer_types": _SLIDING, "rope_parameters": _LLAMA_4_ROPE},
    "mistral4": {"rope_parameters": _LLAMA_4_ROPE | {"rope_type": "default"}},
    "muse_glimmer": {"layer_types": _SLIDING},
    "muse_spark": {
        "rope_parameters": {"rope_theta": 10000.0},
        "layer_rope_theta": [10000.0, 0.0],
        "layer_types": _SLIDING,
        "moe_hidden_size": 32,
        "num_shared_experts": 0,
        "qk_scale_factor": 2.0,
    },
    "nanochat": {"num_key_value_heads": 4},
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {
        "block_configs": 2 * [{"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.0}}],
    },
    "nemotron_h": {"hybrid_override_pattern": ["M", "*", "E", "-"]},
    "olmo": {"rope_traditional": False},
    "olmo3": {"layer_types": _SLIDING},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "openelm": {
        "num_transformer_layers": 2,
        "ffn_dim_divisor": 64,
        "num_query_heads": [4, 4],
        "num_kv_heads": [2, 2],
        "ffn_multipliers": [2.0, 2.0],
    },
    "phi3": {"partial_rotary_factor": 1.0},
    "phi3small": {
        "vocab_size": 100_352,  # its code masks ids up to here, even if the model has fewer
        "dense_attention_every_n_layers": 2,
        "gegelu_limit": 20.0,
        "blocksparse_block_size": 32,
        "blocksparse_num_local_blocks": 1,
        "blocksparse_vert_stride": 2,
        "mup_width_multiplier": 1.0,
        "mup_embedding_multiplier": 2.0,
    },
    "plamo": {"num_attention_heads": 8, "n_shared_head": 4},
    "plamo2": {"hidden_size_per_head": 16, "mamba_num_heads": 4, "mamba_d_state": 32},
    "prism_hadamard_qwen35": {
        "schema_version": 2,
        "tensor_namespace": "mlx-vlm-qwen3_5",
        "gdn_activation_layout": "grouped",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [
            {"path": f"model.layers.1.mlp.{name}_proj", "embedding": False, "dtype": "float16", "block": 0}
            for name in ("gate", "up", "down")
        ],
    },
    "qwen2": {"tie_word_embeddings": True},
    "qwen3_5": {"num_experts": 0, "tie_word_embeddings": True},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "logits_soft_cap": 30.0},
    "rwkv7": {
        "a_low_rank_dim": 32,
        "v_low_rank_dim": 32,
        "gate_low_rank_dim": 32,
        "decay_low_rank_dim": 32,
    },
    "smollm3": {"no_rope_layers": [1, 0]},
    "spark2_5": {"layer_types": _SLIDING, "rope_parameters": _ROPES},
    "step3p5": {"layer_types": _SLIDING, "sliding_window": 16},
}

# Families that wrap a text model: module and class of the arguments in their `text_config`.
_TEXT: dict[str, tuple[str, str]] = {
    "gemma3": ("gemma3_text", "ModelArgs"),
    "gemma3n": ("gemma3n", "TextConfig"),
    "gemma4": ("gemma4_text", "ModelArgs"),
    "kimi_k25": ("deepseek_v3", "ModelArgs"),
    "kimi_k3": ("kimi_k3", "TextArgs"),
    "kimi_vl": ("kimi_vl", "TextArgs"),
    "lfm2-vl": ("lfm2", "ModelArgs"),
    "llama4": ("llama4", "TextArgs"),
    "minimax_m3_vl": ("minimax_m3_vl", "TextArgs"),
    "mistral3": ("ministral3", "ModelArgs"),
    "muse_spark": ("muse_spark", "TextArgs"),
    "pixtral": ("llama", "ModelArgs"),
    "prism_hadamard_qwen35": ("qwen3_5", "TextModelArgs"),
    "qwen2_vl": ("qwen2", "ModelArgs"),
    "qwen3_5": ("qwen3_5", "TextModelArgs"),
    "qwen3_5_moe": ("qwen3_5", "TextModelArgs"),
    "qwen3_vl": ("qwen3", "ModelArgs"),
    "qwen3_vl_moe": ("qwen3_moe", "ModelArgs"),
}

_LARGEST = 8_000_000  # parameters; a field without a value here keeps its default, which may be a real model's


def families() -> list[str]:
    """Return the families: the modules of mlx-lm that have a model and its arguments, without importing any."""
    folder = Path(mlx_lm.models.__path__[0])
    return sorted((path.stem for path in folder.glob("*.py") if {"Model", "ModelArgs"} <= _names(path)), key=str.lower)


def tiny_config(family: str) -> dict[str, Any]:
    """Return the config.json of a tiny model of `family`. Raises KeyError for a field without a value."""
    config: dict[str, Any] = {"model_type": family, "eos_token_id": END}
    if family not in _TEXT:
        return config | _fields(family, "ModelArgs", _OWN.get(family, {}))
    module, name = _TEXT[family]
    text = {"model_type": module} | _fields(module, name, _text_values(family, module))
    outer = _OWN[family] if family == "prism_hadamard_qwen35" else {}
    return config | outer | {"text_config": text, "vocab_size": VOCABULARY}


def tiny_backbone(family: str, dtype: mx.Dtype, *, bits: int = 0, seed: int = 0) -> nn.Module:
    """Build a tiny random model of `family`, its weights of type `dtype`, then quantised to `bits` bits unless 0.

    Raises ValueError if it has more than 8 million parameters.
    """
    from mlx_lm.utils import _get_classes

    config = tiny_config(family)
    model_class, arguments = _get_classes(config)
    backbone: nn.Module = model_class(arguments.from_dict(config))
    parameters = tree_flatten(backbone.parameters())
    if (size := sum(array.size for _, array in parameters)) > _LARGEST:
        raise ValueError(f"{family} has {size} parameters: give its fields smaller values")
    key = mx.random.key(seed)
    weights = []
    for name, array in parameters:
        key, draw = mx.random.split(key)
        weights.append((name, _random(name, array, draw, dtype)))
    backbone.update(tree_unflatten(weights))
    if bits:
        quantize_backbone(backbone, bits)
    mx.eval(backbone.parameters())
    return backbone


def _text_values(family: str, module: str) -> dict[str, Any]:
    """Return the values of a wrapping family's text model that take precedence over _VALUES."""
    if family == "prism_hadamard_qwen35":
        return {"num_experts": 0, "hidden_size": 128}
    if family == "qwen3_5_moe":
        return {"num_experts": 4}
    return _OWN.get(family, _OWN.get(module, {}))


def _names(path: Path) -> set[str]:
    """Return the names that the module at `path` defines or imports."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    defined = {node.name for node in body if isinstance(node, ast.ClassDef)}
    return defined | {alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}


def _module(name: str) -> Any:
    return importlib.import_module(f"mlx_lm.models.{name}")


def _fields(module: str, name: str, own: dict[str, Any]) -> dict[str, Any]:
    """Return values for the fields of class `name` of `module`: those in `own`, then those in _VALUES."""
    values = dict(own)
    for field in dataclasses.fields(getattr(_module(module), name)):
        if field.name in values or field.name == "model_type":
            continue
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field.name in _VALUES:
            values[field.name] = _VALUES[field.name]
        elif not optional:
            raise KeyError(f"{module}.{name} needs a value for {field.name}")
    return values


def _random(name: str, array: mx.array, key: mx.array, dtype: mx.Dtype) -> mx.array:
    """Return random weights in the shape of `array`: matrices scaled by their inputs, others with some noise added."""
    if not mx.issubdtype(array.dtype, mx.floating):  # packed weights
        return mx.random.randint(0, 256, array.shape, key=key).astype(array.dtype) if array.ndim > 1 else array
    noise = mx.random.normal(array.shape, key=key)
    if name.endswith(("quant_key_scale", "quant_value_scale")):
        return mx.full(array.shape, 0.03, dtype)
    if array.ndim < 2 or re.search(r"(A_log|\.D|dt_bias)$", name):
        return (array + 0.05 * noise).astype(dtype)
    inputs = array[0].size if "conv" in name else array.shape[-1]
    return (noise * (1.5 * inputs**-0.5)).astype(dtype)
