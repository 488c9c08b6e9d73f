"""What a reward source is given, what it gives back, and what training gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol


class RewardInput(NamedTuple):
    """One sequence to be scored."""

    prompt: str | list[dict[str, str]]  # as in the data: plain text or chat messages
    completion: str  # the response's text
    completion_ids: list[int]  # the response's tokens
    columns: dict[str, Any]  # the other columns of the prompt's row
    truncated: bool  # cut short, so without an end of its own


class RewardResult(NamedTuple):
    """Scores of B sequences, and where they come from."""

    scores: list[float]  # [B]; weighted sum, normalised, clipped, less the penalty for a missing stop
    token_rewards: list[list[float]] | None  # [B][tokens of the response]; weighted sum, clipped; None: no such source
    parts: dict[str, list[float]]  # source -> [B]; raw scores, 0 where it does not apply, tokens summed; for reading,
    # as are a source's details, under `source.detail`


class SourceScores(NamedTuple):
    """Raw scores of one source; None where the source does not apply to a sequence."""

    scores: list[float | None]  # [B]
    token_rewards: list[list[float]] | None = None  # [B][tokens]; then `scores` are their sums and not added again
    details: Mapping[str, list[float]] = MappingProxyType({})  # name -> [B]; more to read, in no sum


class RewardSource(Protocol):
    """Anything that scores sequences. Raises RewardError."""

    name: str  # how errors and `RewardResult.parts` call it

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """One score a sequence of `batch`, in its order."""


def sequence_name(index: int, prompt: str | list[dict[str, str]]) -> str:
    """How an error names a sequence: its position in the batch from 0, and the beginning of its prompt."""
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    text = " ".join(text.split())
    return f"sample {index} ('{text[:39] + '…' if len(text) > 40 else text}')"
