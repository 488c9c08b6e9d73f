"""Fields of [optim] that bound the memory of an update, in every kind of run."""

from __future__ import annotations

from typing import Any

from trainer.config.fields import setting

MICRO_BATCH_TOKENS: Any = setting(
    2048, "Maximum number of tokens in one forward and backward pass, with padding.", unit="tokens", ge=1
)
GRAD_CHECKPOINT: Any = setting(
    False,
    "Gradient checkpointing: compute each block again in the backward pass instead of keeping its activations.",
    source="Chen et al. 2016 (arXiv 1604.06174)",
    advice="For long sequences and large models: much less memory, slower updates.",
)
