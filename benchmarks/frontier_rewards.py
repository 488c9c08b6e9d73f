"""Rewards of frontier.py that both sides call. Imports only the standard library, for TRL's environment."""

from __future__ import annotations

import re
from typing import Any

_SUM = re.compile(r"What is (\d) \+ (\d)\?")
_NUMBER = re.compile(r"\d+")
_Messages = list[dict[str, str]]


def right_sum(prompt: str, response: str) -> float:
    """Return 1 if the last number in the response is the sum that the prompt asks for, else 0.

    No prefix tells: a number that is written may not be the last one.
    """
    found, numbers = _SUM.search(prompt), _NUMBER.findall(response)
    return float(found is not None and bool(numbers) and int(numbers[-1]) == int(found[1]) + int(found[2]))


def right_sums(prompts: list[_Messages], completions: list[_Messages], **_: Any) -> list[float]:
    """Return `right_sum` of each completion."""
    pairs = zip(prompts, completions, strict=True)
    return [right_sum(prompt[-1]["content"], completion[-1]["content"]) for prompt, completion in pairs]
