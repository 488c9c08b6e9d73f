"""Conversion of a Llama with a byte-level BPE tokenizer from llama.cpp's GGUF to a folder for mlx-lm and transformers.

It supports what the starter model needs: tensors in F32, Q4_1 and Q8_0, tied embeddings, and the `smollm`
pre-tokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import mlx.core as mx

# llama.cpp's tensor names -> those of LlamaForCausalLM.
_TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(source: Path, folder: Path) -> None:
    """Write the model of the GGUF file `source` into `folder`, which exists and is empty.

    The files are config.json, generation_config.json, model.safetensors (float32), tokenizer.json and
    tokenizer_config.json. Raises OSError if one cannot be written. `source` must be complete: MLX maps it into memory,
    where a truncated file causes a bus error instead of an exception.
    """
    import mlx.core as mx

    # mx.load's annotation is the union of every format's result.
    tensors, metadata = cast(
        "tuple[dict[str, mx.array], dict[str, Any]]",
        mx.load(str(source), format="gguf", return_metadata=True),
    )
    facts = {key: value.tolist() if isinstance(value, mx.array) else value for key, value in metadata.items()}
    config = _config(facts)
    weights = _weights(tensors, config["num_attention_heads"], config["num_key_value_heads"])
    try:
        mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    except RuntimeError as problem:  # raised by MLX if the disk is full
        raise OSError(str(problem)) from problem
    del tensors, weights
    mx.clear_cache()  # otherwise MLX keeps half a gigabyte for arrays of these sizes
    _write_json(folder / "config.json", config)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", generation)
    _write_json(folder / "tokenizer.json", _tokenizer(facts))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(facts))


def _weights(tensors: dict[str, mx.array], heads: int, kv_heads: int) -> dict[str, mx.array]:
    """Return float32 weights under the names of LlamaForCausalLM; `lm_head` is tied to the embedding."""
    weights = {}
    for key in [key for key in tensors if key.endswith(".weight")]:
        stem = key.removesuffix(".weight")
        weight = _dequantised(tensors, stem)
        if stem in _TOP_LEVEL:
            name = _TOP_LEVEL[stem]
        else:
            _, block, part = stem.split(".")
            name = f"model.layers.{block}.{_IN_BLOCK[part]}"
            if part in ("attn_q", "attn_k"):
                weight = _undo_rope_permutation(weight, heads if part == "attn_q" else kv_heads)
        weights[f"{name}.weight"] = weight
    return weights


def _dequantised(tensors: dict[str, mx.array], stem: str) -> mx.array:
    """Dequantise Q4_1 and Q8_0 blocks, which are MLX's affine groups of 32: w = scale q + bias, exact in float32."""
    import mlx.core as mx

    weight = tensors[f"{stem}.weight"]
    if f"{stem}.scales" not in tensors:
        return weight.astype(mx.float32)
    scales = tensors[f"{stem}.scales"].astype(mx.float32)
    biases = tensors[f"{stem}.biases"].astype(mx.float32)
    bits = weight.shape[-1] // scales.shape[-1]  # a group of 32 values of b bits takes b 32-bit words
    return mx.dequantize(weight, scales, biases, group_size=32, bits=bits)


def _undo_rope_permutation(weight: mx.array, heads: int) -> mx.array:
    """Reorder rows of a q or k projection from llama.cpp's order (x0 y0 x1 y1 ...) to Llama's (x0 x1 ... y0 y1 ...).

    weight: [heads * head_dim, hidden]. Inverse of `LlamaModel.permute` in llama.cpp's convert_hf_to_gguf.py.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _config(facts: dict[str, Any]) -> dict[str, Any]:
    """Build config.json of LlamaForCausalLM."""
    hidden, heads = facts["llama.embedding_length"], facts["llama.attention.head_count"]
    epsilon = facts["llama.attention.layer_norm_rms_epsilon"]
    end_of_text = facts["tokenizer.ggml.tokens"].index("<|endoftext|>")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": facts["llama.vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": float(f"{epsilon:.6g}"),  # 9.99999974e-06 in the file's float32
        "rope_theta": facts["llama.rope.freq_base"],
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.041666666666666664,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        # A chat turn ends with <|im_end|>, a plain text with <|endoftext|>.
        "eos_token_id": [facts["tokenizer.ggml.eos_token_id"], end_of_text],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float32",
        "use_cache": True,
    }


_CONTROL = 3  # llama.cpp's LLAMA_TOKEN_TYPE_CONTROL


def _tokenizer(facts: dict[str, Any]) -> dict[str, Any]:
    """Build tokenizer.json: byte-level BPE, digits split one by one (the GGUF says `pre = smollm`)."""
    tokens = facts["tokenizer.ggml.tokens"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": tokens[index], **flags}
            for index, kind in enumerate(facts["tokenizer.ggml.token_type"])
            if kind == _CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in facts["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(facts: dict[str, Any]) -> dict[str, Any]:
    tokens = facts["tokenizer.ggml.tokens"]
    return {
        # Not GPT2Tokenizer: transformers 5 would give that class its own pre-tokenizer, without the digits.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[facts["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[facts["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[facts["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[facts["tokenizer.ggml.unknown_token_id"]],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": facts["llama.context_length"],
        "chat_template": facts["tokenizer.chat_template"],
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
