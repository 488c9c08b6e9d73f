"""What the user asks the models to continue: a prompt, or a response from one of its tokens on."""

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
    """A token to continue with; without tokens, the writer samples its own."""

    text: str
    tokens: tuple[int, ...] = ()
    logprob: float = math.nan  # nats
    ref_logprob: float = math.nan  # nats
    written: bool = False  # the sample's own token

    @property
    def shown(self) -> str:
        """The text in quotes, so that spaces are visible; the token id where the token is part of a character."""
        if not self.tokens:
            return self.text
        return f"“{visible(self.text)}”" if self.text else f"token {self.tokens[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A prompt or response to continue, and the score to compare with. Empty: the user has yet to type a prompt."""

    prompt: str = ""  # as rendered
    prompt_tokens: Sequence[int] = ()
    source: str | list[dict[str, str]] | None = None  # the prompt in the data, for the rewards; None: as rendered
    columns: Mapping[str, Any] = field(default_factory=dict)  # of the prompt's row, for the rewards
    score: float = math.nan  # of the sample's response
    prefix: Sequence[int] = ()  # the response's tokens before the chosen one
    begun: str = ""  # their text
    rest: str = ""  # text of the response from the chosen token on
    choices: Sequence[Choice] = ()  # empty where the prompt itself may be edited

    @classmethod
    def about_prompt(cls, sample: TokenSample) -> Asked:
        """Return the sample's prompt, to be sent as it was or edited."""
        return cls(
            prompt=sample.prompt,
            prompt_tokens=sample.prompt_tokens,
            source=_source(sample.source_prompt),
            columns=_columns(sample.columns),
            score=sample.score,
        )

    @classmethod
    def from_token(cls, sample: TokenSample, index: int) -> Asked:
        """Return the response before token `index`, with that token and its alternatives as choices to go on with."""
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
    """Parse a sample's other columns; empty where there are none or they cannot be read."""
    try:
        columns = json.loads(text)
    except ValueError:
        return {}
    return columns if isinstance(columns, dict) else {}


def _source(text: str) -> str | list[dict[str, str]] | None:
    """Parse a sample's prompt in the data; None where it is the rendered one, or cannot be read."""
    try:
        source = json.loads(text)
    except ValueError:
        return None
    return source if isinstance(source, str | list) else None
