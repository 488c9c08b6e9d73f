"""Rewards of alarms.py, healthy and seeded with a failure. A run loads this file anew, so `_calls` begins at 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

EVAL_PROMPTS = 12
"""Prompts of an evaluation, by which it is told from a batch."""

_calls = count(1)
_Scores = list[float]


def _share(completions: Sequence[str], wanted: Callable[[str], bool]) -> _Scores:
    return [sum(map(wanted, text)) / max(len(text), 1) for text in completions]


def digits(completions: Sequence[str], **_: Any) -> _Scores:
    """The share of digits."""
    return _share(completions, str.isdigit)


def letters(completions: Sequence[str], **_: Any) -> _Scores:
    """The share of letters: what digits push out."""
    return _share(completions, str.isalpha)


def early_letters(completions: Sequence[str], **_: Any) -> _Scores:
    """The share of the letters a to m."""
    return _share(completions, lambda character: "a" <= character <= "m")


def one_letter(completions: Sequence[str], **_: Any) -> _Scores:
    """The share of a single letter: repeating it is best."""
    return _share(completions, lambda character: character == "q")


def length(completions: Sequence[str], **_: Any) -> _Scores:
    """Characters."""
    return [len(text) / 8 for text in completions]


def constant(completions: Sequence[str], **_: Any) -> _Scores:
    """Always the same."""
    return [1.0 for _ in completions]


def noise(completions: Sequence[str], **_: Any) -> _Scores:
    """Nothing that can be learnt: by a sum of the characters."""
    return [sum(map(ord, text)) * 7919 % 101 / 101 for text in completions]


def digits_then_huge(completions: Sequence[str], **_: Any) -> _Scores:
    """The share of digits, ten thousand times as much in the 25th batch."""
    factor = 10_000 if next(_calls) == 25 else 1
    return [factor * score for score in digits(completions)]


def digits_in_training(completions: Sequence[str], **_: Any) -> _Scores:
    """The share of digits; of anything else in an evaluation, as if what was learnt did not carry over."""
    scores = digits(completions)
    return [1 - score for score in scores] if len(scores) == EVAL_PROMPTS else scores
