"""Records of a sequence: as lists show it, and with everything that is known about each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainer.runs.samples import SampleSettings


class SampleKey(NamedTuple):
    """The key of a sequence in a run: its iteration and its row in the batch."""

    iteration: int
    row: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence in a list; unknown numbers are NaN."""

    key: SampleKey
    prompt: str
    completion: str
    score: float
    kl: float  # nats, summed over the response
    length: int | None  # response tokens; None in a preview
    truncated: bool
    prompt_index: int = -1  # within the run's prompts; -1 where it is not known


class Alternative(NamedTuple):
    """A token that could have been written instead of another."""

    token: int
    text: str
    logprob: float  # nats, under the policy that wrote
    ref_logprob: float  # nats


@dataclass(frozen=True, slots=True)
class TokenSample:
    """One sequence with T response tokens. Fields that its file lacks are empty, NaN or None.

    numbers: T floats for each of `trainer.runs.samples.TOKEN_COLUMNS` that the file has. A number may be NaN or
    infinite.
    """

    key: SampleKey
    prompt_index: int
    sample: int  # which of the prompt's samples in its batch
    prompt: str
    completion: str
    score: float
    sequence_score: float
    parts: Mapping[str, float]
    source_prompt: str  # the prompt as in the data, JSON; empty where that is `prompt`
    columns: str  # the prompt's other columns, JSON
    truncated: bool
    final_value: float
    baseline: float  # without a critic: subtracted from the response's returns
    advantage_scale: float  # with grpo: the divisor of its advantage
    prompt_tokens: Sequence[int]
    tokens: Sequence[int]
    texts: Sequence[str]  # of each token; if a character has several tokens, only the last has a text
    numbers: Mapping[str, Sequence[float]]
    ratios: Sequence[Sequence[float]]  # [T][passes]; see `trainer.runs.samples.sample_schema`
    alternatives: Sequence[Sequence[Alternative]]  # [T][k]
    settings: SampleSettings | None

    def __len__(self) -> int:
        return len(self.tokens)
