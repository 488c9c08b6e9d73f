"""What the user asks the models to write: a prompt, or another way on from a place in a response."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from workbench.run.sample_records import TokenSample
from workbench.text import visible

_OWN_CHOICE = "its own choice"
_LOGPROBS = ("logprobs", "ref_logprobs")


class Choice(NamedTuple):
    """A way to go on from a place: with a token, or with none, so that the writer draws its own."""

    text: str
    tokens: tuple[int, ...] = ()
    logprob: float = math.nan  # nats
    ref_logprob: float = math.nan  # nats
    written: bool = False  # the token that stands there in the sample

    @property
    def shown(self) -> str:
        """In quotes, so that its spaces are seen; a part of a character by its id."""
        if not self.tokens:
            return self.text
        return f"“{visible(self.text)}”" if self.text else f"token {self.tokens[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be continued, and what the answers are compared with. By itself: a prompt that is yet to be typed."""

    prompt: str = ""  # as rendered
    prompt_tokens: Sequence[int] = ()
    source: str | list[dict[str, str]] | None = None  # the prompt as in the data, for the rewards; None: as rendered
    columns: Mapping[str, Any] = field(default_factory=dict)  # of the prompt's row, for the rewards
    score: float = math.nan  # of the sample's response
    prefix: Sequence[int] = ()  # the response's tokens up to the place
    begun: str = ""  # their text
    rest: str = ""  # of the response, from the place on
    choices: Sequence[Choice] = ()  # none where the prompt itself may be edited

    @classmethod
    def about_prompt(cls, sample: TokenSample) -> Asked:
        """What does it say now? The sample's prompt, to be sent as it was or edited."""
        return cls(
            prompt=sample.prompt,
            prompt_tokens=sample.prompt_tokens,
            source=_source(sample.source_prompt),
            columns=_columns(sample.columns),
            score=sample.score,
        )

    @classmethod
    def from_token(cls, sample: TokenSample, index: int) -> Asked:
        """Try from here: the response up to its token `index`, in that token's place any of its alternatives."""
        logprob, ref_logprob = (
            float(sample.numbers[name][index]) if name in sample.numbers else math.nan for name in _LOGPROBS
        )
        written = Choice(sample.texts[index], (int(sample.tokens[index]),), logprob, ref_logprob, written=True)
        found = sample.alternatives[index] if index < len(sample.alternatives) else ()
        others = [Choice(one.text, (int(one.token),), one.logprob, one.ref_logprob) for one in found]
        ranked = [written if one.tokens == written.tokens else one for one in others]
        return cls(
            prompt=sample.prompt,
            prompt_tokens=sample.prompt_tokens,
            source=_source(sample.source_prompt),
            columns=_columns(sample.columns),
            score=sample.score,
            prefix=sample.tokens[:index],
            begun="".join(sample.texts[:index]),
            rest="".join(sample.texts[index:]),
            choices=[Choice(_OWN_CHOICE), *ranked, *([] if written in ranked else [written])],
        )


def _columns(text: str) -> dict[str, Any]:
    """A sample's other columns; none where there are none or they cannot be read."""
    try:
        columns = json.loads(text)
    except ValueError:
        return {}
    return columns if isinstance(columns, dict) else {}


def _source(text: str) -> str | list[dict[str, str]] | None:
    """A sample's prompt as in the data; None where it is as rendered, or cannot be read."""
    try:
        source = json.loads(text)
    except ValueError:
        return None
    return source if isinstance(source, str | list) else None
