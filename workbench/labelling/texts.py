"""Texts of the Label pane: an item from left to right, judgements in its own order, and the lines around it.

The sides differ only in their texts until they are judged; call `completion_facts` only after that.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

from rich.cells import cell_len

from trainer.plurals import counted
from trainer.preferences.records import (
    Item,
    Judgement,
    Origin,
    Progress,
    SessionItem,
    Text,
    Verdict,
    length_in_characters,
)
from workbench.labelling.session_worker import SessionState
from workbench.numbers import duration, number, percent
from workbench.text import Piece, fit, fit_start, packed, visible

MOST = 9  # most completions that digits can rank
_GAP = "   "
_BAR = 16  # columns
_JUDGING = ("first", "second", "tie", "both-bad", "skip", "flag", "undo")  # keys that a newcomer needs
_LEAST = 12  # labels needed for an interval: with fewer it can span more than half of the range

Keys = Mapping[str, str]  # the user's keys, by the ids of the pane's bindings without "label."

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


def judged(item: Item, groups: Groups = (), strength: int = 1, verdict: Verdict = "ranked") -> Judgement:
    """Return the judgement that ranks completions as in `groups`, or one without a ranking."""
    ranking = tuple(tuple(sorted(item.order[place] for place in group)) for group in groups)
    return Judgement(verdict=verdict, ranking=ranking, order_shown=item.order, strength=strength)


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


class Draft(NamedTuple):
    """State of an item that is not saved yet."""

    ranking: Ranking = Ranking()
    note: str = ""
    flagged: bool = False


class Style(NamedTuple):
    """Style of the texts. diff: mark the words that two completions do not share, instead of Markdown."""

    markdown: bool = False
    diff: bool = False


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
            else f"{name.removesuffix('s')} {number(value, 2) if isinstance(value := values[place], float) else value}"
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


def hints(item: SessionItem, texts: ItemTexts, draft: Draft, style: Style, keys: Keys) -> str:
    """Return a line of hints on the item to judge; none of them distinguishes the completions."""
    ranking, count, found = draft.ranking, len(texts.completions), []
    if item.label is not None:
        found.append(f"your label: {judgement_text(item.item, item.label.judgement)}, {keys['keep']} keeps it")
    if count > MOST:
        found.append(f"{count} completions are too many to rank: {keys['skip']} skips")
    elif ranking.marks:
        found.append(f"ranking: {ranking}")
    elif count > 2:
        found.append(f"type the digits, best first, {keys['tie']} between equals")
    if texts.alike == "identical":
        found.append(f"identical texts: {keys['tie']} is a tie")
    elif texts.alike == "spaces":
        found.append(f"only white space differs: {keys['diff']} shows where, {keys['tie']} is a tie")
    if draft.flagged:
        found.append("⚑ flagged")
    if draft.note:
        found.append(f"note: {visible(draft.note)}")
    if style.diff and count == 2:
        found.append("underlined: not in the other one")
    elif style.markdown:
        found.append(f"Markdown: {keys['markdown']} shows the plain text")
    return _GAP.join(found)


def last_line(
    last: SessionItem | None, current: SessionItem | None, width: int, rows: int = 1, *, facts: bool = True
) -> str:
    """Describe the completions judged last, cut to fit `rows` lines (one or two) of `width` columns.

    Empty if that would reveal something about a completion of `current`. facts: also authors, scores and lengths.
    """
    if last is None or last.label is None or reveals(last, current):
        return ""
    choice = f"last: {judgement_text(last.item, last.label.judgement)}"
    known = completion_facts(last.item) if facts else []
    sides = [visible(f"{place}: {side}") for place, side in enumerate(known, 1) if side]
    if rows == 1 and sides and cell_len(_GAP.join([choice, *sides])) > width:
        room = (width - len(choice)) // len(sides) - len(_GAP)
        sides = [fit_start(side, room) for side in sides]
    lines = [[choice, *sides[:1]], sides[1:]] if rows > 1 else [[choice, *sides]]
    return "\n".join(fit_start(_GAP.join(line), width) for line in lines)


def instead_of_item(state: SessionState | None, keys: Keys, meanings: Mapping[str, str]) -> list[Piece]:
    """Describe why there is no item, and what to do. meanings: of the keys, by the same names."""
    if state is None:
        return [
            ("No labelling session open.\n\n", "strong"),
            (f"{keys['start']} begins or resumes a session.\n", "text"),
            (f"{keys['import']} imports preferences from a file, {keys['export']} exports them.\n", "muted"),
            (f"{keys['train']} trains a reward model on the labels.\n\n", "muted"),
            ("In a session, one key judges an item and shows the next:\n", "text"),
            *((f"{keys[name]:>9}  {meanings[name]}\n", "muted") for name in _JUDGING),
        ]
    supply, done = state.supply, state.progress.done
    if not supply.ended:
        waiting = [(f"{supply.waiting}...\n", "text")] if supply.waiting else []
        problem = [(f"\n{supply.problem}", "text")] if supply.problem else []
        return [("Loading the next item...\n\n", "strong"), *waiting, *problem]
    title = f"{counted(done, 'item')} judged, none left." if done else "Nothing to judge."
    return [
        (f"{title}\n\n", "strong"),
        *([(f"{supply.problem}\n\n", "text")] if supply.problem else []),
        (f"{keys['leave']} leaves the session, {keys['train']} trains a reward model on the labels.\n", "text"),
        (f"{keys['history']} lists the labels, {keys['undo']} undoes the last one.", "muted"),
    ]


def figures(labeller: str, progress: Progress) -> list[str]:
    """Return the known figures of a session's progress, the most important first."""
    done, left = progress.done, progress.left
    goals = (int(digit + "0" * zeros) for zeros in itertools.count(1) for digit in "125")
    # While nobody knows how many items come, the goal is a round number: 50, 100, 200, 500, 1,000 and so on.
    target = next(goal for goal in goals if goal > max(done, 49)) if left is None else done + left
    filled = _BAR * done // target if target else _BAR
    goal = f"{done:,} of {target:,}" if left is not None else f"{done:,} done, next goal {target:,}"
    found = [visible(labeller), f"{'━' * filled}{'─' * (_BAR - filled)} {goal}"]
    if math.isfinite(progress.per_hour):
        found.append(f"{progress.per_hour:.0f}/h")
    if math.isfinite(progress.median_seconds):
        found.append(f"median {duration(progress.median_seconds)}")
    if math.isfinite(progress.eta_seconds):
        found.append(f"ETA {duration(progress.eta_seconds)}")
    if progress.streak > 1:
        found.append(f"{progress.streak} in a row")
    if progress.same.total:
        kappa = f", κ {number(progress.kappa, 2)}" if math.isfinite(progress.kappa) else ""
        found.append(f"agreement with yourself {progress.same.count:g}/{progress.same.total}{kappa}")
    for name, share in (("left chosen", progress.left_side), ("longer (chars) chosen", progress.longer)):
        if share.total >= _LEAST:
            low, high = (number(100 * bound, 0) for bound in (share.low, share.high))
            found.append(f"{name} {percent(share.value)} ({low} to {high})")
        elif share.total:  # its interval would be too wide to be useful
            found.append(f"{name} {percent(share.value)} (n = {share.total})")
    return found


def fitting(figures: Sequence[str], end: Sequence[str], width: int) -> str:
    """Join as many figures as fit in one line, with those of `end` after them.

    If even the first one does not fit with `end`, return the first alone, cut to `width`.
    """
    room = width - cell_len(_GAP.join(["", *end]))
    line = _GAP.join([*packed(figures, room, len(_GAP))[0], *end])
    return line if cell_len(line) <= width else fit(figures[0], width)


def in_lines(figures: Sequence[str], width: int) -> list[str]:
    """Join all figures in as few lines as possible."""
    short = [fit(text, min(cell_len(text), width)) for text in figures]
    return [_GAP.join(line) for line in packed(short, width, len(_GAP))]
