"""Types of rewards: what a source sees and returns, and what an algorithm calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from trainer.errors import RewardError, shortened


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

    def replaced(self, rows: Sequence[int], others: RewardResult) -> RewardResult:
        """Return the results with those of some `rows` replaced by `others`, in their order, of the same sources."""

        def joined(mine: list[Any], theirs: list[Any]) -> list[Any]:
            found = dict(enumerate(mine)) | dict(zip(rows, theirs, strict=True))
            return [found[row] for row in range(len(mine))]

        tokens, none = self.token_rewards, [None] * len(self.scores)
        columns = {**self.extra, **others.extra}  # a function may log some for a part of the sequences alone
        return RewardResult(
            joined(self.scores, others.scores),
            tokens and joined(tokens, others.token_rewards or []),
            {name: joined(scores, others.parts[name]) for name, scores in self.parts.items()},
            {name: joined(self.extra.get(name, none), others.extra.get(name, none[: len(rows)])) for name in columns},
        )


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Progress of the training, by the names of TRL's `trainer_state`. A step is an iteration."""

    global_step: int = 0  # done so far
    max_steps: int = 0


class Reward(Protocol):
    """Reward of a run, as an algorithm calls it. Raises RewardError."""

    def __call__(self, batch: Sequence[RewardInput], *, update_statistics: bool = True) -> RewardResult:
        """Score `batch`. update_statistics: False normalises by the running statistics without changing them."""

    def so_far(self, batch: Sequence[RewardInput]) -> list[float]:
        """Score responses that are not complete, on the scale of the newest scores; statistics stay as they are."""

    def penalties(self, truncated: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return what is subtracted from the scores of complete responses."""

    def use_micro_batches(self, tokens: int) -> None:
        """Have reward models read at most `tokens` tokens in one pass, padding included, from the next batch on."""

    def use_state(self, state: TrainerState) -> None:
        """Pass `state` to the functions that ask for it, from the next batch on."""

    @property
    def asks_for_state(self) -> bool:
        """Return whether a function asks for it, so that its scores may change."""

    def state(self) -> dict[str, Any]:
        """Return the running statistics as plain values, which JSON keeps exactly."""

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""


class SourceScores(NamedTuple):
    """Raw scores of one source; None where the source does not apply to a sequence."""

    scores: list[float | None]  # [B]
    token_rewards: list[list[float]] | None = None  # [B][tokens]; if set, `scores` are their sums, not added again
    details: Mapping[str, list[float]] = MappingProxyType({})  # name -> [B]; for reports only
    extra: Mapping[str, list[Any]] = MappingProxyType({})  # column -> [B]; anything, to be shown with the sequences


class Verdict(NamedTuple):
    """Score of one response by a check, and why."""

    score: float | None  # None where the check does not apply
    reason: str  # as in 'expected 3/4, found 0.7'; parts of it are the model's and the data's own text


class RewardSource(Protocol):
    """Anything that scores sequences. Raises RewardError."""

    name: str  # its name in errors and `RewardResult.parts`

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Return one score per sequence of `batch`, in its order."""


@runtime_checkable
class ModelScorer(RewardSource, Protocol):
    """A source that scores by models, in passes of at most `micro_batch_tokens` tokens, padding included."""

    micro_batch_tokens: int


Wait = Callable[[str, Callable[[], bool]], None]
"""Function that waits while a source cannot score: gets why, and what returns whether that is over.

It may return earlier, to have the source try at once, and it may raise instead.
"""


def refuse_to_wait(why: str, is_over: Callable[[], bool]) -> None:
    """Raise RewardError, where no run could be paused."""
    raise RewardError(why)


def sequence_name(index: int, prompt: str | list[dict[str, str]]) -> str:
    """Return the name of a sequence in errors: its position in the batch, from 0, and the start of its prompt."""
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    return f"sample {index} ('{shortened(' '.join(text.split()), 40)}')"
