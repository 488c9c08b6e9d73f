"""Texts of the Label pane: an item from left to right, judgements in its own order, and the lines around it.

The sides differ only in their texts until they are judged; call `completion_facts` only after that.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len

from trainer.errors import counted
from trainer.preferences.records import (
    ASSISTANT,
    HUMAN,
    Item,
    Judgement,
    Origin,
    Progress,
    SessionItem,
    Text,
    as_messages,
    length_in_characters,
)
from workbench.labelling.session_worker import SessionState
from workbench.text import Piece, duration, fit, fit_start, number, packed, percent, visible

_BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+|\s+\Z")
_MOST_WORDS = 2000  # of a text that is compared without being asked to: it takes time
_ALIKE = 0.6  # share of words in common from which the others are marked
MOST = 9  # most completions that digits can rank
_GAP = "   "
_BAR = 16  # columns
_JUDGING = ("first", "second", "tie", "both-bad", "skip", "flag", "undo")  # keys that a newcomer needs
_LEAST = 12  # labels needed for a share: with fewer its interval can span more than half of the range

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
    completions = _without_obvious(_turns(item.comparison.completions[place]) for place in item.order)
    return ItemTexts(_turns(item.comparison.prompt), completions)


def _without_obvious(completions: Iterable[tuple[Turn, ...]]) -> tuple[tuple[Turn, ...], ...]:
    """Return completions without their role if each is one message of the assistant."""
    completions = tuple(completions)
    obvious = all([turn.role for turn in turns] == ["assistant"] for turns in completions)
    return tuple((Turn("", turns[0].text),) for turns in completions) if obvious else completions


def _are_same_words(completions: Iterable[Sequence[Turn]]) -> bool:
    return len({tuple((role, *text.split()) for role, text in turns) for turns in completions}) == 1


def for_reading(texts: ItemTexts) -> ItemTexts:
    """Return texts without blank lines around them, and a transcript as its turns.

    Completions that differ in white space only stay as they are.
    """
    prompt, completions = texts
    is_text = all([turn.role for turn in turns] == [""] for turns in (prompt, *completions))
    if is_text and (text := prompt[0].text).startswith(HUMAN) and text.endswith(ASSISTANT):
        messages, answers = as_messages(text, [turns[0].text for turns in completions])
        prompt, completions = _turns(messages), _without_obvious(map(_turns, answers))
    prompt, *shown = (
        tuple(Turn(role, _BLANK_LINES.sub("", text) or text) for role, text in turns)
        for turns in (prompt, *completions)
    )
    return ItemTexts(prompt, texts.completions if _are_same_words(shown) else tuple(shown))


def alike(*completions: Sequence[Turn]) -> bool:
    """Return whether two completions have most of their words in common, so that the others are worth a mark."""
    words = [Counter(plain_text(turns).split()) for turns in completions]
    if len(words) != 2 or max(map(Counter.total, words)) > _MOST_WORDS:
        return False
    return 2 * (words[0] & words[1]).total() > _ALIKE * (words[0].total() + words[1].total())


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
    elif _are_same_words(texts.completions):
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


def last_line(last: SessionItem | None, current: SessionItem | None, width: int, *, facts: bool = True) -> str:
    """Describe the completions judged last, cut to fit `width` columns.

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
    known = [visible(side).split(", ") for side in completion_facts(last.item)] if facts else [[]]
    of_all = [fact for fact in known[0] if all(fact in side for side in known)]
    choice = _GAP.join(filter(None, (choice, ", ".join(of_all))))
    apart = [", ".join(fact for fact in side if fact not in of_all) for side in known]
    sides = [f"{place}: {side}" for place, side in enumerate(apart, 1) if side]
    if sides and cell_len(_GAP.join([choice, *sides])) > width:
        room = (width - len(choice)) // len(sides) - len(_GAP)
        sides = [fit_start(side, room) for side in sides]
    return fit_start(_GAP.join([choice, *sides]), width)


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
    if progress.same.total:
        found.append(f"own agreement {progress.same.count:g}/{progress.same.total}")
    for name, share in (("left", progress.left_side), ("longer", progress.longer)):
        if share.total >= _LEAST:
            low, high = (number(100 * bound, 0) for bound in (share.low, share.high))
            found.append(f"{name} {percent(share.value)} ({low} to {high})")
    if math.isfinite(progress.eta_seconds):
        found.append(f"ETA {duration(progress.eta_seconds)}")
    if math.isfinite(progress.kappa):
        found.append(f"κ {number(progress.kappa, 2)}")
    if math.isfinite(progress.median_seconds):
        found.append(f"median {duration(progress.median_seconds)}")
    if progress.streak > 1:
        found.append(f"{progress.streak} in a row")
    return found


def progress_text(figures: Sequence[str], width: int, key: str, *, whole: bool = False) -> str:
    """Join as many figures as fit in one line; or all, in as few lines as possible.

    If some are left out, the line ends with the key that shows them. If even the first one does not fit, it is cut.
    """
    if whole:
        short = [fit(text, min(cell_len(text), width)) for text in figures]
        return "\n".join(_GAP.join(line) for line in packed(short, width, len(_GAP)))
    for shown in range(len(figures), 0, -1):
        more = [f"{key} {len(figures) - shown} more"] if shown < len(figures) else []
        if cell_len(line := _GAP.join([*figures[:shown], *more])) <= width:
            return line
    return fit(figures[0], width)
