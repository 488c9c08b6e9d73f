"""Messages of the label pane: hints on an item, facts about the last one, and what to do without one."""

from __future__ import annotations

from collections.abc import Mapping

from rich.cells import cell_len, set_cell_size

from trainer.preferences.items import SessionItem
from workbench.kit.drawing import Piece
from workbench.labelling.layout import Style
from workbench.labelling.shown import MOST, Ranking, Shown, facts, gives_away, said
from workbench.text import visible

_GAP = "   "

Keys = Mapping[str, str]  # the user's keys, by the ids of the pane's bindings without "label."


def hints(
    item: SessionItem, shown: Shown, style: Style, ranking: Ranking, keys: Keys, *, flagged: bool, note: str
) -> str:
    """Return a line of hints on an item to judge; none of them distinguishes the completions."""
    count = len(shown.completions)
    told = []
    if item.label is not None:
        told.append(f"your label: {said(item.item, item.label.judgement)}, {keys['keep']} keeps it")
    if count > MOST:
        told.append(f"{count} completions are more than digits can rank: {keys['skip']} skips")
    elif ranking.marks:
        told.append(f"ranking: {ranking}")
    elif count > 2:
        told.append(f"type the digits in order of preference, {keys['tie']} between equals")
    if shown.alike == "identical":
        told.append(f"the same to the character: {keys['tie']} is a tie")
    elif shown.alike == "spaces":
        told.append(f"they differ in white space alone: {keys['diff']} shows where, {keys['tie']} is a tie")
    if flagged:
        told.append("⚑ flagged")
    if note:
        told.append(f"note: {visible(note)}")
    if style.diff and count == 2:
        told.append("underlined: not in the other one")
    elif style.markdown:
        told.append(f"Markdown: {keys['markdown']} shows the text as it is")
    return _GAP.join(told)


def last_line(last: SessionItem | None, current: SessionItem | None, width: int, rows: int = 1) -> str:
    """Describe the completions judged last, cut to fit `rows` lines (one or two) of `width` columns.

    Empty if that would reveal something about a completion of `current`.
    """
    if last is None or last.label is None or gives_away(last, current):
        return ""
    told = f"last: {said(last.item, last.label.judgement)}"
    sides = [visible(f"{number}: {known}") for number, known in enumerate(facts(last.item), 1) if known]
    if rows == 1 and sides and cell_len(_GAP.join([told, *sides])) > width:
        room = (width - len(told)) // len(sides) - len(_GAP)
        sides = [_cut(side, room) for side in sides]
    lines = [[told, *sides[:1]], sides[1:]] if rows > 1 else [[told, *sides]]
    return "\n".join(_cut(_GAP.join(line), width) for line in lines)


def refused(what: str, reason: Exception | str) -> str:
    """Return one line on why a judgement is not on disk."""
    return visible(f"✖ not kept: {what}. {' '.join(str(reason).split())}")


def nothing_under_way(keys: Keys) -> list[Piece]:
    """Describe what to do without a session."""
    return [
        ("No labels are being made.\n\n", "strong"),
        (f"{keys['start']} begins a session, or goes on with one where it was left.\n", "text"),
        (f"{keys['import']} takes preferences from a file, {keys['export']} writes them to one.\n", "muted"),
        (f"{keys['train']} trains a reward model on the labels that there are.", "muted"),
    ]


def waiting(what: str, problem: str) -> list[Piece]:
    """Return the message while there is no next item. what: what it waits for; problem: why no item comes."""
    return [
        ("The next item is not there yet.\n\n", "strong"),
        (f"{what or 'It is looked for'} …\n", "text"),
        *([(f"\n{problem}", "text")] if problem else []),
    ]


def all_judged(done: int, problem: str, keys: Keys) -> list[Piece]:
    """Return the message at the end of a session. problem: why the session ended early; empty if it did not."""
    told = f"All {done:,} items are judged." if done else "There is nothing to judge."
    return [
        (f"{told}\n\n", "strong"),
        *([(f"{problem}\n\n", "text")] if problem else []),
        (f"{keys['leave']} leaves the session, {keys['train']} trains a reward model on the labels.\n", "text"),
        (f"{keys['history']} lists the labels, {keys['undo']} takes the last one back.", "muted"),
    ]


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 1, 0)) + "…"
