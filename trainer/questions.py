"""Questions to the model of a run, and its answers: plain values, which can pass between processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

Writer = Literal["policy", "reference"]
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A float that may be NaN, which is null in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request to continue a prompt, or the beginning of a response, `count` times.

    prompt: as in the data; rendered as the run renders it. If `prompt_tokens` say what the model reads, only the
    rewards see it. Numbers that are None are those of the run's rollouts.
    """

    prompt: str | list[dict[str, str]] | None = None
    prompt_tokens: list[int] | None = None
    prefix: list[int] = field(default_factory=list)  # ids that the response begins with
    columns: dict[str, Any] = field(default_factory=dict)  # of the prompt's row, for the rewards
    writer: Writer = "policy"
    count: int = 1
    temperature: float | None = None
    max_new_tokens: int | None = None  # after the prefix
    seed: int = 0

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenResponse:
    """One response: its prefix and what was written after it. Per-token lists are as long as `tokens`."""

    text: str  # without the stop
    tokens: list[int]
    token_texts: list[str]  # joined they are the decoded response
    logprobs: list[Number]  # nats, under the policy, whoever wrote
    ref_logprobs: list[Number]  # nats
    score: Number  # by the run's reward; NaN if not available
    parts: dict[str, Number]  # raw scores by reward source
    truncated: bool  # cut at max_new_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Responses to a question and the iteration of the policy that wrote them, or why there are none."""

    writer: Writer
    iteration: int  # completed iterations of the policy's training
    prompt: str  # as rendered
    completions: list[WrittenResponse]
    seconds: float
    problem: str = ""  # one line: why nothing was written, why it has no score, or which checkpoints are damaged


Reply = Callable[[Answer], None]
"""Function that receives an answer, on any thread; does not raise."""
Dropped = Callable[[], bool]
"""Function that returns, on any thread and within microseconds, whether nobody waits for the answer any more."""

DROPPED = "request cancelled"


class QuestionDroppedError(Exception):
    """End of an answer that nobody waits for any more, raised between two token steps; whoever answers catches it."""

    def __init__(self) -> None:
        super().__init__(DROPPED)


def unanswered(question: Question, problem: str) -> Answer:
    """Return the answer to a question that will not be answered, with `problem` as the reason."""
    return Answer(writer=question.writer, iteration=0, prompt="", completions=[], seconds=0.0, problem=problem)


def to_json(record: Question | Answer) -> str:
    """Return `record` as a JSON object.

    A number that is not finite becomes null, a column's value that JSON lacks becomes text.
    """
    return TypeAdapter(type(record)).dump_json(record, fallback=str, warnings=False).decode()


_Record = TypeVar("_Record", bound=Question | Answer)


def from_json(kind: type[_Record], text: str | bytes) -> _Record:
    """Parse the record that `to_json` wrote, with NaN for null. Raises ValueError, with the problem in one line."""
    try:
        return TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join([kind.__name__.lower(), *map(str, first["loc"])])
        raise ValueError(f"{place}: {first['msg']}") from None
