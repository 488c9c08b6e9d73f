"""Input and output of reward sources, and the result that training uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from trainer.errors import shortened


class RewardInput(NamedTuple):
    """One sequence to score."""

    prompt: str | list[dict[str, str]]  # as in the data: plain text or chat messages
    completion: str  # the response's text
    completion_ids: list[int]  # the response's tokens
    columns: dict[str, Any]  # the other columns of the prompt's row
    truncated: bool  # cut short before the response ended


class RewardResult(NamedTuple):
    """Scores of B sequences, and their parts by source."""

    scores: list[float]  # [B]; weighted sum, normalised, clipped, minus the penalties; NaN if no source applies
    token_rewards: list[list[float]] | None  # [B][response tokens]; weighted sum, clipped; None without such a source
    parts: dict[str, list[float]]  # source -> [B]; raw scores, NaN where it does not apply, tokens summed; and its
    # details under `source.detail`; for reports only
    extra: Mapping[str, list[Any]] = MappingProxyType({})  # what functions logged for each sequence, by column


class SourceScores(NamedTuple):
    """Raw scores of one source; None where the source does not apply to a sequence."""

    scores: list[float | None]  # [B]
    token_rewards: list[list[float]] | None = None  # [B][tokens]; if set, `scores` are their sums, not added again
    details: Mapping[str, list[float]] = MappingProxyType({})  # name -> [B]; for reports only
    extra: Mapping[str, list[Any]] = MappingProxyType({})  # column -> [B]; anything, to be shown with the sequences


class RewardSource(Protocol):
    """Anything that scores sequences. Raises RewardError."""

    name: str  # its name in errors and `RewardResult.parts`

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Return one score per sequence of `batch`, in its order."""


@runtime_checkable
class ModelScorer(RewardSource, Protocol):
    """A source that scores by models, in passes of at most `micro_batch_tokens` tokens, padding included."""

    micro_batch_tokens: int


def sequence_name(index: int, prompt: str | list[dict[str, str]]) -> str:
    """Return the name of a sequence in errors: its position in the batch, from 0, and the start of its prompt."""
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    return f"sample {index} ('{shortened(' '.join(text.split()), 40)}')"
