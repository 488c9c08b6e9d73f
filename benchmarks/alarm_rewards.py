"""Rewards of alarms.py, healthy and seeded with a failure. Each run loads this file again, so `_calls` starts at 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

EVAL_PROMPTS = 12
"""Prompts of an evaluation; `digits_in_training` recognises evaluations by this number."""

_calls = count(1)
_Scores = list[float]


def _share(completions: Sequence[str], wanted: Callable[[str], bool]) -> _Scores:
    return [sum(map(wanted, text)) / max(len(text), 1) for text in completions]


def digits(completions: Sequence[str], **_: Any) -> _Scores:
    """Return the share of digits in each completion."""
    return _share(completions, str.isdigit)


def letters(completions: Sequence[str], **_: Any) -> _Scores:
    """Return the share of letters in each completion, which falls as a policy learns to write digits."""
    return _share(completions, str.isalpha)


def early_letters(completions: Sequence[str], **_: Any) -> _Scores:
    """Return the share of the letters a to m in each completion."""
    return _share(completions, lambda character: "a" <= character <= "m")


def one_letter(completions: Sequence[str], **_: Any) -> _Scores:
    """Return the share of the letter q in each completion; repeating it scores highest."""
    return _share(completions, lambda character: character == "q")


def length(completions: Sequence[str], **_: Any) -> _Scores:
    """Return the number of characters of each completion, divided by 8."""
    return [len(text) / 8 for text in completions]


def constant(completions: Sequence[str], **_: Any) -> _Scores:
    """Return 1 for every completion."""
    return [1.0 for _ in completions]


def noise(completions: Sequence[str], **_: Any) -> _Scores:
    """Return a hash of each completion, in [0, 1): there is nothing to learn from it."""
    return [sum(map(ord, text)) * 7919 % 101 / 101 for text in completions]


def digits_then_huge(completions: Sequence[str], **_: Any) -> _Scores:
    """Return the share of digits, multiplied by 10,000 in the 25th batch."""
    factor = 10_000 if next(_calls) == 25 else 1
    return [factor * score for score in digits(completions)]


def digits_in_training(completions: Sequence[str], **_: Any) -> _Scores:
    """Return the share of digits in training and of all other characters in evaluations.

    So what is learnt does not generalise.
    """
    scores = digits(completions)
    return [1 - score for score in scores] if len(scores) == EVAL_PROMPTS else scores
