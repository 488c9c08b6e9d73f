"""Models of real shapes with random weights, and batches for them, for device_check.py."""

from __future__ import annotations

import math
from typing import Any

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import _get_classes

from trainer.config.schema import ModelConfig
from trainer.data import Prompt
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import quantize_backbone
from trainer.ppo import steps
from trainer.rollout.experience import Experience

TRY = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
MICRO_BATCH_TOKENS = 8192
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


class Tokenizer:
    """Stand-in for a tokenizer without stop tokens, which decodes ids to their numbers."""

    eos_token_ids: frozenset[int] = frozenset()

    def decode(self, tokens: list[int], **_: Any) -> str:
        """Return the ids as text."""
        return " ".join(map(str, tokens))


def new_actor(shape: dict[str, int], kind: str, *, vocabulary: int) -> ActorCriticLLM:
    """Return a Qwen3 with random weights and a new adapter on q and v.

    kind: type of the weights, one of DTYPES or "4-bit".
    """
    dtype = DTYPES.get(kind, mx.bfloat16)
    config = shape | {
        "model_type": "qwen3",
        "num_key_value_heads": min(8, shape["num_attention_heads"]),
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "vocab_size": vocabulary,
        "max_position_embeddings": 40_960,
        "rope_theta": 1e6,
        "tie_word_embeddings": shape["hidden_size"] < 4096,
    }
    model_class, arguments = _get_classes(config)
    backbone: nn.Module = model_class(arguments.from_dict(config))
    weights = []
    for number, (name, array) in enumerate(tree_flatten(backbone.parameters())):
        noise = mx.random.normal(array.shape, key=mx.random.key(number)) * 1.2 / math.sqrt(array.shape[-1])
        weights.append((name, (noise if array.ndim > 1 else mx.ones(array.shape)).astype(dtype)))
        mx.eval(weights[-1][1])
    backbone.update(tree_unflatten(weights))
    if kind == "4-bit":
        quantize_backbone(backbone, 4)
    mx.eval(backbone)
    mx.clear_cache()
    return ActorCriticLLM(backbone, ModelConfig(), key=mx.random.key(0))


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
