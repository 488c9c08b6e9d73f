"""Tiny random checkpoints on disk in the real format, loaded by the tests through mlx-lm's own loader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trainer.config.schema import ModelConfig
from trainer.data import Prompt
from trainer.models.backbone import LoadedModel, load_backbone

VOCABULARY = 264  # 256 bytes and eight special tokens
END, PAD = "<end>", "<pad>"

_SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "eos_token_id": 256,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**_SHAPE, "model_type": "llama", "tie_word_embeddings": True, "rope_theta": 10000.0},
    "qwen3": {**_SHAPE, "model_type": "qwen3", "tie_word_embeddings": False, "rope_theta": 1e6, "head_dim": 8},
    "gemma3_text": {
        **_SHAPE,
        "model_type": "gemma3_text",
        "head_dim": 8,
        "sliding_window": 16,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 8,
    },
}


def make_checkpoint(
    folder: Path, family: str = "llama", *, seed: int = 0, scale: float = 1.0, tied: bool | None = None
) -> Path:
    """Write a random model of `family` with a byte-level tokenizer.

    scale: factor on the weights; tied: whether the head is the embedding, else as in FAMILIES.
    """
    from mlx_lm.utils import _get_classes

    folder.mkdir(parents=True, exist_ok=True)
    config = FAMILIES[family] | ({} if tied is None else {"tie_word_embeddings": tied})
    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict(config))
    key = mx.random.key(seed)
    weights = {}
    for name, array in tree_flatten(model.parameters()):
        key, draw = mx.random.split(key)
        noise = mx.random.normal(array.shape, key=draw) * (0.3 if array.ndim > 1 else 0.05)
        weights[name] = (noise if array.ndim > 1 else array + noise) * scale
    if tied:
        weights.pop("lm_head.weight", None)  # gemma3 takes a missing head for a tied one
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    make_tokenizer().save_pretrained(folder)
    return folder


def load_tiny(folder: Path, family: str = "llama", *, seed: int = 0, **settings: Any) -> LoadedModel:
    """Write a random model of `family` unless `folder` has one, and load it; settings: of ModelConfig."""
    if not folder.exists():
        make_checkpoint(folder, family, seed=seed)
    return load_backbone(ModelConfig(path=str(folder), **settings))


def make_prompts(tokenizer: Any, texts: Sequence[str]) -> list[Prompt]:
    """Return `texts` as prompts, numbered from 0."""
    return [Prompt(i, text, text, tokenizer.encode(text), {}) for i, text in enumerate(texts)]


def make_tokenizer(*, pad_is_end: bool = False) -> PreTrainedTokenizerFast:
    """Return a tokenizer of one token a byte, then `<end>` (256) and `<pad>` (257), the same one with `pad_is_end`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END, PAD, *(f"<special{i}>" for i in range(6))])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END if pad_is_end else PAD)
