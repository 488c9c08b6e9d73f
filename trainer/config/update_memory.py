"""Fields of [optim] that bound the memory of an update, in every kind of run."""

from __future__ import annotations

from typing import Any

from trainer.config.fields import setting


def micro_batch_tokens(*, live: bool = False) -> Any:
    """Declare the size of a micro-batch. live: whether this kind of run can change it while it trains."""
    help_line = "Maximum number of tokens in one forward and backward pass, with padding."
    return setting(2048, help_line, unit="tokens", ge=1, live=live)


GRAD_CHECKPOINT: Any = setting(
    False,
    "Gradient checkpointing: compute each block again in the backward pass instead of keeping its activations.",
    source="Chen et al. 2016 (arXiv 1604.06174)",
    advice="For long sequences and large models: much less memory, slower updates.",
)
