"""Rewards for multiple choice: the letter that a response chooses, against a reference."""

from __future__ import annotations

import re
from collections.abc import Callable

from trainer.config.reward_sources import ChoiceSource
from trainer.reward_types import RewardInput, Verdict
from trainer.rewards.math_reward import last_box

# `B`, `(b)`, `**B**`, `B) Paris`, `\text{(B)}`, but not the article in `a city`.
_LETTER = re.compile(r"(?:\\[a-z]+\{|[\W_])*([A-Za-z])(?:[\W_]*$|[).:}\]])")
_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_WORDS = re.compile(r"\b(?i:answer(?:\s+is)?)[\s:=*(\"']*([A-Z])\b")


def choice_verdict(source: ChoiceSource) -> Callable[[RewardInput], Verdict]:
    """Return the check of a response. The reference is a letter, or a number that counts choices from 0."""

    def verdict(row: RewardInput) -> Verdict:
        given = row.columns.get(source.answer)
        if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 26:
            given = chr(ord("A") + given)
        reference = _letter(given) if isinstance(given, str) else None
        if reference is None:
            return Verdict(None, f"no letter in '{source.answer}'")
        found = chosen(row.completion)
        return Verdict(float(found == reference), f"expected {reference}, found {found or 'no choice'}")

    return verdict


def chosen(text: str) -> str | None:
    """Return the letter that `text` chooses, in upper case; None if it does not choose one.

    That is what its last box says, else its last answer tags, else its last 'the answer is', else all of it. A letter
    elsewhere is not a choice.
    """
    if (box := last_box(text)) is not None:
        return _letter(box)
    if tags := _TAGS.findall(text):
        return _letter(tags[-1])
    if words := _WORDS.findall(text):
        return str(words[-1])
    return _letter(text)


def _letter(text: str) -> str | None:
    found = _LETTER.match(text)
    return found[1].upper() if found else None
