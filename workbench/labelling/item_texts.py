"""Conversion between an item and the screen: texts from left to right, judgements in the item's own order.

The sides differ only in their texts until they are judged; call `completion_facts` only after that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple

from trainer.plurals import counted
from trainer.preferences.conversations import length_in_characters
from trainer.preferences.items import Item, SessionItem
from trainer.preferences.records import Judgement, Origin, Text
from workbench.numbers import number

MOST = 9  # most completions that digits can rank

Groups = Sequence[Sequence[int]]  # places on the screen from the left, from 0; best first, ties together


class Turn(NamedTuple):
    """Chat message, or plain text with an empty role."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ItemTexts:
    """Texts of an item, with its completions from left to right."""

    prompt: tuple[Turn, ...]
    completions: tuple[tuple[Turn, ...], ...]

    @property
    def alike(self) -> Literal["", "identical", "spaces"]:
        """Return "identical", or "spaces" if the completions differ in white space only; empty if words differ."""
        if len(set(self.completions)) == 1:
            return "identical"
        words = {tuple((role, *text.split()) for role, text in turns) for turns in self.completions}
        return "spaces" if len(words) == 1 else ""


def copy_text(texts: ItemTexts) -> str:
    """Return prompt and completions for the clipboard, as they are and each after its heading."""
    parts = [("prompt", texts.prompt), *((str(place), turns) for place, turns in enumerate(texts.completions, 1))]
    return "\n\n".join(f"[{name}]\n{plain_text(turns)}" for name, turns in parts)


def plain_text(turns: Sequence[Turn]) -> str:
    """Return messages as text, each after its role if that is known."""
    return "\n\n".join(f"{turn.role}: {turn.text}" if turn.role else turn.text for turn in turns)


def texts_of(item: Item) -> ItemTexts:
    """Return the texts of `item`, with its completions in the order shown."""
    completions = tuple(_turns(item.comparison.completions[place]) for place in item.order)
    if all([turn.role for turn in turns] == ["assistant"] for turns in completions):  # the role is obvious
        completions = tuple((Turn("", turns[0].text),) for turns in completions)
    return ItemTexts(_turns(item.comparison.prompt), completions)


def ranked(item: Item, groups: Groups, strength: int = 1) -> Judgement:
    """Return the judgement that ranks completions as in `groups`."""
    ranking = tuple(tuple(sorted(item.order[place] for place in group)) for group in groups)
    return Judgement(ranking=ranking, order_shown=item.order, strength=strength)


def set_aside(item: Item, verdict: Literal["both_bad", "skip"]) -> Judgement:
    """Return a judgement without a ranking."""
    return Judgement(verdict=verdict, order_shown=item.order)


class Ranking(NamedTuple):
    """Ranking as it is typed: digits in order of preference, = between equally good completions."""

    marks: str = ""

    def typed(self, mark: str, count: int) -> Ranking:
        """Return the ranking with another mark: a digit up to `count`, or =; unchanged if the mark is not valid."""
        if mark == "=":
            fits = bool(self.marks) and self.marks[-1] != "="
        else:
            fits = mark not in self.marks and 1 <= int(mark) <= count
        return Ranking(self.marks + mark) if fits else self

    def taken_back(self) -> Ranking:
        """Return the ranking without its last mark."""
        return Ranking(self.marks[:-1])

    @property
    def groups(self) -> list[list[int]]:
        """Places from the left, best first."""
        tied = re.findall(r"\d(?:=\d)*", self.marks)
        return [[int(digit) - 1 for digit in group.split("=")] for group in tied]

    def is_whole(self, count: int) -> bool:
        """Return whether all `count` completions are ranked."""
        return len(self.marks.replace("=", "")) == count

    def __str__(self) -> str:
        text = " > ".join(" = ".join(str(place + 1) for place in group) for group in self.groups)
        return text + " =" if self.marks.endswith("=") else text


def judgement_text(item: Item, judgement: Judgement) -> str:
    """Describe a judgement, with the completions' numbers on the screen."""
    if judgement.verdict == "skip":
        return "skipped"
    if judgement.verdict == "both_bad":
        return "both bad" if len(item.order) == 2 else "all bad"
    numbers = {place: number for number, place in enumerate(item.order, 1)}
    groups = [sorted(numbers[place] for place in group) for group in judgement.ranking]
    if len(groups) == 1:
        return "tie"
    if len(item.order) > 2:
        return " > ".join(" = ".join(map(str, group)) for group in groups)
    return f"{groups[0][0]} is {'strongly ' if judgement.strength == 3 else ''}better"


def completion_facts(item: Item) -> list[str]:
    """Describe the origin and figures of each completion, from left to right; empty if nothing is known.

    Show it after the judgement only. Includes the run or source if the completions differ in it.
    """
    comparison = item.comparison
    origins = [comparison.origins[place] if comparison.origins else Origin() for place in item.order]
    places = [origin.run or ("" if origin.source == "run" else origin.source) for origin in origins]
    of_run = any(origin.source == "run" for origin in origins)
    facts = []
    for place, origin, where in zip(item.order, origins, places, strict=True):
        numbers = [
            # A run counts lengths in tokens; here, as in the session's figures, they are in characters.
            counted(length_in_characters(comparison.completions[place]), "char")
            if name == "lengths" and of_run
            else f"{name.removesuffix('s')} {_figure(values[place])}"
            for name, values in comparison.columns.items()
            if isinstance(values, list) and len(values) == len(comparison.completions) and values[place] is not None
        ]
        when = origin.checkpoint if origin.iteration is None else f"iteration {origin.iteration}"
        known = [origin.writer, when, *numbers, where if len(set(places)) > 1 else ""]
        facts.append(", ".join(filter(None, known)))
    return facts


def reveals(last: SessionItem, current: SessionItem | None) -> bool:
    """Return whether the facts about `last` would reveal something about a completion of `current`."""
    if current is None:
        return False
    texts = [_key(text) for text in current.item.comparison.completions]
    return any(_key(text) in texts for text in last.item.comparison.completions)


def _turns(text: Text) -> tuple[Turn, ...]:
    if isinstance(text, str):
        return (Turn("", text),)
    return tuple(Turn(str(message.get("role", "")) or "?", str(message.get("content", ""))) for message in text)


def _key(text: Text) -> tuple[str, ...]:
    """Return a key that is equal for texts with the same words, messages or not."""
    return tuple(chain.from_iterable(turn.text.split() for turn in _turns(text)))


def _figure(value: Any) -> str:
    return number(value, 2) if isinstance(value, float) else str(value)
