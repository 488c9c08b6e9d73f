"""Texts of the label pane around an item: progress, hints, facts about the last item, and messages without an item."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from rich.cells import cell_len

from trainer.plurals import counted
from trainer.preferences.items import Progress, SessionItem, Share
from workbench.columns import fit, fit_start, packed
from workbench.kit.lines import Piece
from workbench.labelling.item_texts import MOST, completion_facts, judgement_text, reveals
from workbench.labelling.item_view import Style
from workbench.labelling.session_controller import SessionController
from workbench.numbers import duration, number, percent
from workbench.text import visible

_GAP = "   "
_BAR = 16  # columns
_JUDGING = ("first", "second", "tie", "both-bad", "skip", "flag", "undo")  # keys that a newcomer needs
_LEAST = 12  # labels needed for an interval: with fewer it can span more than half of the range

Keys = Mapping[str, str]  # the user's keys, by the ids of the pane's bindings without "label."


def hints(session: SessionController, style: Style, keys: Keys) -> str:
    """Return a line of hints on the item to judge, empty without one; none of them distinguishes the completions."""
    item, texts, ranking, count = session.item, session.texts, session.ranking, session.count
    if item is None or texts is None:
        return ""
    found = []
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
    if session.flagged:
        found.append("⚑ flagged")
    if session.note:
        found.append(f"note: {visible(session.note)}")
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


def no_session(keys: Keys, meanings: Mapping[str, str]) -> list[Piece]:
    """Describe what to do without a session, and what keys do in one. meanings: of the keys, by the same names."""
    return [
        ("No labelling session open.\n\n", "strong"),
        (f"{keys['start']} begins or resumes a session.\n", "text"),
        (f"{keys['import']} imports preferences from a file, {keys['export']} exports them.\n", "muted"),
        (f"{keys['train']} trains a reward model on the labels.\n\n", "muted"),
        ("In a session, one key judges an item and shows the next:\n", "text"),
        *((f"{keys[name]:>9}  {meanings[name]}\n", "muted") for name in _JUDGING),
    ]


def no_item_yet(what: str, problem: str) -> list[Piece]:
    """Return the message while there is no next item. what: what it waits for; problem: why no item comes."""
    return [
        ("Loading the next item...\n\n", "strong"),
        *([(f"{what}...\n", "text")] if what else []),
        *([(f"\n{problem}", "text")] if problem else []),
    ]


def all_judged(done: int, problem: str, keys: Keys) -> list[Piece]:
    """Return the message at the end of a session. problem: why the session ended early; empty if it did not."""
    title = f"{counted(done, 'item')} judged, none left." if done else "Nothing to judge."
    return [
        (f"{title}\n\n", "strong"),
        *([(f"{problem}\n\n", "text")] if problem else []),
        (f"{keys['leave']} leaves the session, {keys['train']} trains a reward model on the labels.\n", "text"),
        (f"{keys['history']} lists the labels, {keys['undo']} undoes the last one.", "muted"),
    ]


def figures(labeller: str, progress: Progress) -> list[str]:
    """Return the known figures of a session's progress, the most important first."""
    found = [visible(labeller), _of_target(progress.done, progress.left)]
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
    biases = (("left chosen", progress.left_side), ("longer (chars) chosen", progress.longer))
    found += [f"{name} {_with_interval(share)}" for name, share in biases if share.total]
    return found


def _of_target(done: int, left: int | None) -> str:
    """Return a bar with the number of labels against the target: all items, or a round number while more may come."""
    target = _round_above(done) if left is None else done + left
    filled = _BAR * done // target if target else _BAR
    goal = f"{done:,} of {target:,}" if left is not None else f"{done:,} done, next goal {target:,}"
    return f"{'━' * filled}{'─' * (_BAR - filled)} {goal}"


def _round_above(done: int) -> int:
    """Return the next goal after `done` labels: 50, 100, 200, 500, 1,000 and so on."""
    goals = (int(digit + "0" * zeros) for zeros in itertools.count(1) for digit in "125")
    return next(goal for goal in goals if goal > max(done, 49))


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


def _with_interval(share: Share) -> str:
    """Return the share with its interval, or with its total if the interval would be too wide to be useful."""
    known = f"n = {share.total}"
    if share.total >= _LEAST:
        known = f"{number(100 * share.low, 0)} to {number(100 * share.high, 0)}"
    return f"{percent(share.value)} ({known})"
