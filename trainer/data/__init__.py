"""Prompts: read from a file or a dataset, rendered and tokenised, split, and visited in a set order."""

from trainer.data.prompt_set import (
    EncodedPrompts,
    Prompt,
    PromptRow,
    encode_prompts,
    last_tokens,
    load_prompts,
    prompt_indices,
    shipped_sets,
    split_prompts,
)

__all__ = [
    "EncodedPrompts",
    "Prompt",
    "PromptRow",
    "encode_prompts",
    "last_tokens",
    "load_prompts",
    "prompt_indices",
    "shipped_sets",
    "split_prompts",
]
