"""What a labeller sees of an item and what a key says of it: texts from left to right, judgements in the item's places.

Before the judgement nothing that differs between the sides but their texts comes from here; `facts` is for after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple

from trainer.preferences.conversations import length_in_characters
from trainer.preferences.items import Item, SessionItem
from trainer.preferences.records import Judgement, Origin, Text

MOST = 9  # completions that digits can rank

Groups = Sequence[Sequence[int]]  # places on the screen from the left, from 0; best first, ties together


class Turn(NamedTuple):
    """A chat message, or plain text, whose role is empty."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Shown:
    """The texts of an item, its completions from left to right."""

    prompt: tuple[Turn, ...]
    completions: tuple[tuple[Turn, ...], ...]

    @property
    def alike(self) -> Literal["", "identical", "spaces"]:
        """Whether all completions are the same, or differ in white space alone; empty where they differ in words."""
        if len(set(self.completions)) == 1:
            return "identical"
        words = {tuple((role, *text.split()) for role, text in turns) for turns in self.completions}
        return "spaces" if len(words) == 1 else ""


def shown(item: Item) -> Shown:
    """The texts of `item` as its order has them."""
    completions = tuple(_turns(item.comparison.completions[place]) for place in item.order)
    if all([turn.role for turn in turns] == ["assistant"] for turns in completions):  # known to all without a word
        completions = tuple((Turn("", turns[0].text),) for turns in completions)
    return Shown(_turns(item.comparison.prompt), completions)


def ranked(item: Item, groups: Groups, **more: Any) -> Judgement:
    """The judgement that ranks what is shown at `groups`; more: fields of Judgement, such as its strength."""
    ranking = tuple(tuple(sorted(item.order[place] for place in group)) for group in groups)
    return Judgement(ranking=ranking, order_shown=item.order, **more)


def set_aside(item: Item, verdict: Literal["both_bad", "skip"], **more: Any) -> Judgement:
    """The judgement that ranks nothing."""
    return Judgement(verdict=verdict, order_shown=item.order, **more)


class Ranking(NamedTuple):
    """A ranking as it is typed: digits in order of preference, = between those that are as good as each other."""

    marks: str = ""

    def typed(self, mark: str, count: int) -> Ranking:
        """With another digit, of `count` completions, or =; unchanged where it means nothing."""
        if mark == "=":
            fits = bool(self.marks) and self.marks[-1] != "="
        else:
            fits = mark not in self.marks and 1 <= int(mark) <= count
        return Ranking(self.marks + mark) if fits else self

    def taken_back(self) -> Ranking:
        """Without the mark that was typed last."""
        return Ranking(self.marks[:-1])

    @property
    def groups(self) -> list[list[int]]:
        """Places from the left, best first."""
        groups: list[list[int]] = []
        joins = False
        for mark in self.marks:
            if mark == "=":
                joins = True
            elif joins:
                groups[-1].append(int(mark) - 1)
                joins = False
            else:
                groups.append([int(mark) - 1])
        return groups

    def is_whole(self, count: int) -> bool:
        """Whether each of `count` completions has its place."""
        return len(self.marks.replace("=", "")) == count

    def __str__(self) -> str:
        text = " > ".join(" = ".join(str(place + 1) for place in group) for group in self.groups)
        return text + " =" if self.marks.endswith("=") else text


def said(item: Item, judgement: Judgement) -> str:
    """What a judgement says, in the numbers that the item shows."""
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


def facts(item: Item) -> list[str]:
    """What is known of each completion, from left to right, empty where nothing is; for after the judgement.

    The run or source is told where they differ in it.
    """
    comparison = item.comparison
    origins = [comparison.origins[place] if comparison.origins else Origin() for place in item.order]
    places = [origin.run or ("" if origin.source == "run" else origin.source) for origin in origins]
    of_run = any(origin.source == "run" for origin in origins)
    told = []
    for place, origin, where in zip(item.order, origins, places, strict=True):
        numbers = [
            # A run counts tokens; here as in the figures of the session, lengths are characters.
            f"{length_in_characters(comparison.completions[place])} chars"
            if name == "lengths" and of_run
            else f"{name.removesuffix('s')} {_number(values[place])}"
            for name, values in comparison.columns.items()
            if isinstance(values, list) and len(values) == len(comparison.completions) and values[place] is not None
        ]
        when = origin.checkpoint if origin.iteration is None else f"iteration {origin.iteration}"
        known = [origin.writer, when, *numbers, where if len(set(places)) > 1 else ""]
        told.append(", ".join(filter(None, known)))
    return told


def gives_away(last: SessionItem, current: SessionItem | None) -> bool:
    """Whether what is known of `last` would tell something of a completion that is to be judged now."""
    if current is None:
        return False
    texts = [_key(text) for text in current.item.comparison.completions]
    return any(_key(text) in texts for text in last.item.comparison.completions)


def _turns(text: Text) -> tuple[Turn, ...]:
    if isinstance(text, str):
        return (Turn("", text),)
    return tuple(Turn(str(message.get("role", "")) or "?", str(message.get("content", ""))) for message in text)


def _key(text: Text) -> tuple[str, ...]:
    """Equal for texts that read the same, messages or not."""
    return tuple(chain.from_iterable(turn.text.split() for turn in _turns(text)))


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if math.isfinite(value) else "-"
    return str(value)
