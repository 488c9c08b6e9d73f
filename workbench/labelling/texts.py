"""Texts of the Label pane: an item from left to right, judgements in its own order, and the lines around it.

The sides differ only in their texts until they are judged; call `completion_facts` only after that.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len

from trainer.errors import counted
from trainer.preferences.records import (
    Item,
    Judgement,
    Origin,
    Progress,
    SessionItem,
    Text,
    length_in_characters,
)
from workbench.labelling.session_worker import SessionState
from workbench.text import Piece, duration, fit, fit_start, number, packed, percent, visible

MOST = 9  # most completions that digits can rank
_GAP = "   "
_BAR = 16  # columns
_JUDGING = ("first", "second", "tie", "both-bad", "skip", "flag", "undo")  # keys that a newcomer needs
_LEAST = 12  # labels needed for an interval: with fewer it can span more than half of the range

Keys = Mapping[str, str]  # the user's keys, by the ids of the pane's bindings without "label."


class Turn(NamedTuple):
    """Chat message, or plain text with an empty role."""

    role: str
    text: str


class ItemTexts(NamedTuple):
    """Texts of an item, with its completions from left to right."""

    prompt: tuple[Turn, ...]
    completions: tuple[tuple[Turn, ...], ...]


class Draft(NamedTuple):
    """What was typed of an item and is not saved yet. ranking: digits, best first, with = between equally good ones."""

    ranking: str = ""
    note: str = ""
    flagged: bool = False


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


def _turns(text: Text) -> tuple[Turn, ...]:
    if isinstance(text, str):
        return (Turn("", text),)
    return tuple(Turn(str(message.get("role", "")) or "?", str(message.get("content", ""))) for message in text)


def hints(
    item: SessionItem, texts: ItemTexts, draft: Draft, keys: Keys, *, markdown: bool = False, diff: bool = False
) -> str:
    """Return a line of hints on the item to judge; none of them distinguishes the completions.

    markdown, diff: how the texts are drawn.
    """
    count, found = len(texts.completions), []
    if item.label is not None:
        found.append(f"your label: {judgement_text(item.item, item.label.judgement)}, {keys['keep']} keeps it")
    if count > MOST:
        found.append(f"{count} completions are too many to rank: {keys['skip']} skips")
    elif draft.ranking:
        groups = re.sub(r"(?<=\d)(?=\d)", " > ", draft.ranking)
        found.append(f"ranking: {groups.replace('=', ' = ').rstrip()}")
    elif count > 2:
        found.append(f"type the digits, best first, {keys['tie']} between equals")
    if len(set(texts.completions)) == 1:
        found.append(f"identical texts: {keys['tie']} is a tie")
    elif len({tuple((role, *text.split()) for role, text in turns) for turns in texts.completions}) == 1:
        found.append(f"only white space differs: {keys['diff']} shows where, {keys['tie']} is a tie")
    if draft.flagged:
        found.append("⚑ flagged")
    if draft.note:
        found.append(f"note: {visible(draft.note)}")
    if diff and count == 2:
        found.append("underlined: not in the other one")
    elif markdown:
        found.append(f"Markdown: {keys['markdown']} shows the plain text")
    return _GAP.join(found)


def last_line(
    last: SessionItem | None, current: SessionItem | None, width: int, rows: int = 1, *, facts: bool = True
) -> str:
    """Describe the completions judged last, cut to fit `rows` lines (one or two) of `width` columns.

    Empty if that would reveal something about a completion of `current`. facts: also authors, scores and lengths.
    """
    if last is None or last.label is None:
        return ""
    shown, judged = (
        {tuple(word for turn in _turns(text) for word in turn.text.split()) for text in one.item.comparison.completions}
        for one in (current or last, last)
    )
    if current is not None and shown & judged:
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


def progress_text(figures: Sequence[str], end: Sequence[str], width: int, *, whole: bool = False) -> str:
    """Join as many figures as fit in one line, with those of `end` after them; or all, in as few lines as possible.

    If even the first one does not fit with `end`, the line is the first alone, cut to `width`.
    """
    if whole:
        short = [fit(text, min(cell_len(text), width)) for text in (*figures, *end)]
        return "\n".join(_GAP.join(line) for line in packed(short, width, len(_GAP)))
    room = width - cell_len(_GAP.join(["", *end]))
    line = _GAP.join([*packed(figures, room, len(_GAP))[0], *end])
    return line if cell_len(line) <= width else fit(figures[0], width)
