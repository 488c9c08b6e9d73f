"""Models of real shapes with random weights, and batches for them, for device_check.py."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import _get_classes

from trainer.arrays import leaves
from trainer.config import Config
from trainer.config.schema import ModelConfig
from trainer.data import Prompt
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import cast_backbone, quantize_backbone
from trainer.models.kernels import use_faster_functions
from trainer.ppo import steps
from trainer.rollout.experience import Experience
from workbench.config.estimates import estimate

TRY = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
MICRO_BATCH_TOKENS = 2048  # the default of optim.micro_batch_tokens
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


class Tokenizer:
    """Stand-in for a tokenizer without stop tokens, which decodes ids to their numbers."""

    eos_token_ids: frozenset[int] = frozenset()

    def decode(self, tokens: list[int], **_: Any) -> str:
        """Return the ids as text."""
        return " ".join(map(str, tokens))


def config_json(shape: dict[str, int], vocabulary: int) -> dict[str, Any]:
    """Return the config.json of a Qwen3 of a shape."""
    return shape | {
        "model_type": "qwen3",
        "num_key_value_heads": min(8, shape["num_attention_heads"]),
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "vocab_size": vocabulary,
        "max_position_embeddings": 40_960,
        "rope_theta": 1e6,
        "tie_word_embeddings": shape["hidden_size"] < 4096,
    }


def new_backbone(settings: dict[str, Any], dtype: str, bits: int = 0, *, packed: bool = False) -> nn.Module:
    """Return the model of a config.json with random weights, as a run would hold it.

    bits: of quantisation, 0 for none. packed: keep quantised weights so on a CPU too, where a run does not. Never holds
    more than one matrix besides the finished weights.
    """
    model_class, arguments = _get_classes(settings)
    backbone: nn.Module = model_class(arguments.from_dict(settings))

    def drawn(number: int, array: mx.array) -> mx.array:
        if array.ndim == 1:
            return mx.ones(array.shape)
        return mx.random.normal(array.shape, key=mx.random.key(number)) * 1.2 / math.sqrt(array.shape[-1])

    if settings["tie_word_embeddings"] and "lm_head" in backbone:  # as mlx-lm does when it loads the weights
        backbone.tie_word_embeddings = True
        backbone.pop("lm_head")
    parameters = tree_flatten(backbone.parameters())
    backbone.update(tree_unflatten([(name, drawn(number, array)) for number, (name, array) in enumerate(parameters)]))
    del parameters
    cast_backbone(backbone, dtype)
    if bits:
        quantize_backbone(backbone, bits)
    if bits and not packed:
        cast_backbone(backbone, dtype)
    if mx.default_device() == mx.Device(mx.cpu):
        use_faster_functions(backbone)
    for array in leaves(backbone.parameters()):  # lazy until here: each matrix is drawn, packed and freed in its turn
        mx.eval(array)
        mx.clear_cache()
    return backbone


def new_actor(shape: dict[str, int], kind: str, *, vocabulary: int) -> ActorCriticLLM:
    """Return a Qwen3 with random weights and a new adapter on q and v. kind: one of DTYPES or "4-bit"."""
    dtype, bits = ("bfloat16", 4) if kind == "4-bit" else (kind, 0)
    backbone = new_backbone(config_json(shape, vocabulary), dtype, bits, packed=True)
    return ActorCriticLLM(backbone, ModelConfig(value_model="head"), key=mx.random.key(0))


def weights_bytes(shape: dict[str, int], kind: str, vocabulary: int) -> int:
    """Return how many bytes the weights take at least: with both embeddings, without vectors."""
    embeddings = (1 if config_json(shape, vocabulary)["tie_word_embeddings"] else 2) * shape["hidden_size"] * vocabulary
    # In 4 bits, 64 weights share a scale and a bias of 2 bytes each.
    return int((matrix_parameters(shape) + embeddings) * (4 / 8 + 4 / 64 if kind == "4-bit" else DTYPES[kind].size))


def matrix_parameters(shape: dict[str, int]) -> int:
    """Return the number of a Qwen3's weights that every token is multiplied with, without the head."""
    hidden, heads, head = shape["hidden_size"], shape["num_attention_heads"], 128
    attention = hidden * head * (2 * heads + 2 * min(8, heads))
    return shape["num_hidden_layers"] * (attention + 3 * hidden * shape["intermediate_size"])


def estimated_bytes(shape: dict[str, int], kind: str, vocabulary: int, *, rows: int, prompt: int, new: int) -> int:
    """Return the workbench's estimate of the memory of an update on `rows` sequences."""
    dtype = {"dtype": "bfloat16", "quantize": "4-bit"} if kind == "4-bit" else {"dtype": kind}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config_json(shape, vocabulary)), encoding="utf-8")
        config = Config.model_validate(
            {
                "model": {"path": folder, **dtype},
                "data": {"prompts": "none", "max_prompt_tokens": prompt},
                "rollout": {"batch_size": rows, "max_new_tokens": new},
                "ppo": {"minibatches": 1},
                "optim": {"micro_batch_tokens": MICRO_BATCH_TOKENS},
            }
        )
        found = estimate(config).memory_bytes
    assert found is not None
    return found


def device_memory() -> int:
    """Return how many bytes a program should use at most on the default device."""
    about = mx.device_info(mx.default_device())
    known = (about[name] for name in ("max_recommended_working_set_size", "total_memory") if name in about)
    return int(next(known, mx.get_memory_limit()))


def random_prompts(count: int, length: int, vocabulary: int) -> list[Prompt]:
    """Return `count` random prompts of 7/8 `length` to `length` tokens."""
    random = np.random.default_rng(count)
    lengths = random.integers(length - length // 8, length + 1, size=count)
    return [
        Prompt(place, "", "", random.integers(0, vocabulary, size=size).tolist(), {})
        for place, size in enumerate(lengths)
    ]


def filled_batch(actor: ActorCriticLLM, batch: Experience) -> Experience:
    """Return `batch` scored by `actor`, with random advantages and returns."""
    batch = steps.add_policy_logprobs_and_values(actor, batch, temperature=1.0, micro_batch_tokens=MICRO_BATCH_TOKENS)
    noise = np.random.default_rng(5).normal(size=batch.mask.shape).astype(np.float32)
    return batch._replace(advantages=mx.array(noise), returns=mx.array(noise[::-1].copy()))
