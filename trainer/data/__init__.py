"""Prompts: read from a file or a dataset, rendered and tokenised, split, and visited in a set order."""

from trainer.data.encoding import EncodedPrompts, Prompt, encode_prompts
from trainer.data.order import prompt_indices, split_prompts
from trainer.data.sources import PromptRow, load_prompts, shipped_sets

__all__ = [
    "EncodedPrompts",
    "Prompt",
    "PromptRow",
    "encode_prompts",
    "load_prompts",
    "prompt_indices",
    "shipped_sets",
    "split_prompts",
]
