"""What the model of a run may be asked to write, and its answer: plain values, so that they go between processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

Writer = Literal["policy", "reference"]
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""May be NaN, which JSON has as null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Continue a prompt, or a response that was begun, `count` times.

    prompt: as in the data, and rendered as the run renders it; where `prompt_tokens` say what the model reads, only the
    rewards are given it. None of the numbers: as the run's rollouts have it.
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
class Completion:
    """One response: its prefix and what was written after it. Per-token lists are as long as `tokens`."""

    text: str  # without the stop
    tokens: list[int]
    token_texts: list[str]  # joined they are the decoded response
    logprobs: list[Number]  # nats, under the policy, whoever wrote
    ref_logprobs: list[Number]  # nats
    score: Number  # by the run's reward; NaN where it could not be had
    parts: dict[str, Number]  # raw scores by reward source
    truncated: bool  # cut at max_new_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was written, by the policy of which iteration; or why nothing was."""

    writer: Writer
    iteration: int  # whole iterations that the policy had been trained for
    prompt: str  # as rendered
    completions: list[Completion]
    seconds: float
    problem: str = ""  # in one line: why nothing was written, or why what was has no score


Reply = Callable[[Answer], None]
"""Takes an answer, on whatever thread it is had; does not raise."""
Dropped = Callable[[], bool]
"""Tells, on any thread and within microseconds, whether nobody waits for the answer any more."""

DROPPED = "nobody waits for the answer any more"


class QuestionDroppedError(Exception):
    """Raised between two token steps of an answer that nobody waits for any more; never leaves who answers."""

    def __init__(self) -> None:
        super().__init__(DROPPED)


def never() -> bool:
    """Somebody always waits."""
    return False


def unanswered(question: Question, problem: str) -> Answer:
    """The answer to a question that nobody answers any more."""
    return Answer(writer=question.writer, iteration=0, prompt="", completions=[], seconds=0.0, problem=problem)


def to_json(record: Question | Answer) -> str:
    """`record` as a JSON object; a number that is not finite as null, a column's value that JSON lacks as text."""
    return TypeAdapter(type(record)).dump_json(record, fallback=str, warnings=False).decode()


def question_from(text: str | bytes) -> Question:
    """The question that `to_json` wrote. ValueError says in one line what is not one."""
    return _record(Question, text)


def answer_from(text: str | bytes) -> Answer:
    """The answer that `to_json` wrote, with NaN for null. ValueError in one line."""
    return _record(Answer, text)


_Record = TypeVar("_Record", Question, Answer)


def _record(kind: type[_Record], text: str | bytes) -> _Record:
    try:
        return TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise ValueError(_first_problem(kind.__name__.lower(), error)) from None


def _first_problem(what: str, error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join([what, *map(str, first['loc'])])}: {first['msg']}"
