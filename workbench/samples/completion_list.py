"""The answers to requests, newest first, with policy and reference side by side where there is room."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType

from trainer.control.questions import Answer, Completion, Writer
from workbench.kit.cells import fit
from workbench.kit.drawing import Line, Piece, plain, wrapped
from workbench.kit.scrolled_lines import ScrolledLines
from workbench.kit.word_diff import word_diff
from workbench.text import duration, visible

_SIDE_BY_SIDE = 96  # columns of the list in a terminal of 100
_DIVIDER = " │ "
_GAP = "  "  # between the facts of a completion
_ROLES = ("heading", "muted", "writer", "facts", "better", "worse", "problem", "text", "gone", "new")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One model's answer to a request, or why there is none; neither while the answer is awaited."""

    writer: Writer
    answer: Answer | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """One request and its answers."""

    number: int  # within the screen, from 1
    asked: str  # title, in a few words
    columns: tuple[Column, ...]  # one for each writer
    begun: str = ""  # text that every completion begins with; not shown again
    compared: float = math.nan  # the score that the completions are compared with

    def with_column(self, column: Column) -> Writing:
        """Return a copy with `column` in place of its writer's column."""
        columns = tuple(column if one.writer == column.writer else one for one in self.columns)
        return replace(self, columns=columns)


def kl_of(completion: Completion) -> float:
    """Return log pi / pi_ref in nats, summed over the response; where the policy wrote, the k1 estimate of the KL."""
    pairs = zip(completion.logprobs, completion.ref_logprobs, strict=True)
    return sum((mine - theirs for mine, theirs in pairs), 0.0)


def signed(value: float) -> str:
    """Format `value` with its sign and two decimals; "-" where it is not finite, three digits from a million on."""
    if not math.isfinite(value):
        return "-"
    return f"{value:+.2f}" if abs(value) < 1e6 else f"{value:+.3g}"


def completion_facts(completion: Completion, writer: Writer, compared: float) -> list[Piece]:
    """Return the score, its difference to `compared`, the KL, the length, how it ended, and the parts of the score.

    Of a reference's completion log pi / pi_ref takes the place of the KL.
    """
    score, by = completion.score, completion.score - compared
    facts: list[Piece] = [(f"score {signed(score)}", "facts")]
    if math.isfinite(by):
        worth = (f"▲ {signed(by)} better", "better") if by > 0 else (f"▼ {signed(by)} worse", "worse")
        facts.append(worth if by else ("= as good", "muted"))
    kl, count = kl_of(completion), len(completion.tokens)
    if writer == "reference":
        facts.append((f"log π/ref {signed(kl)} nats", "facts"))
    else:
        facts.append((f"KL {f'{kl:.1f}' if math.isfinite(kl) else '-'} nats", "facts"))
    tokens = f"{count:,} token{'' if count == 1 else 's'}"
    facts.append((f"{tokens} ✂ cut short", "worse") if completion.truncated else (f"{tokens}, stop", "facts"))
    if len(completion.parts) > 1 or score not in completion.parts.values():  # a single part repeats the score
        facts += [(f"{visible(source)} {signed(part)}", "muted") for source, part in completion.parts.items()]
    return facts


def writing_lines(writing: Writing, width: int, *, by_score: bool = False, diff: bool = False) -> list[Line]:
    """Draw `writing` in lines of at most `width` columns.

    by_score: best completion first, those without a score last. diff: mark the words in which the first completions of
    policy and reference differ.
    """
    columns = [(column, _ordered(column, by_score=by_score)) for column in writing.columns]
    marks: dict[Writer, list[Piece]] = _marked(writing, columns) if diff else {}
    beside = len(columns) > 1 and width >= _SIDE_BY_SIDE
    room = (width - len(_DIVIDER) * (len(columns) - 1)) // len(columns) if beside else width
    blocks = [_column_lines(writing, column, shown, room, marks.get(column.writer)) for column, shown in columns]
    heading: Line = [(fit(f"{writing.number:>2}  {visible(writing.asked)}", width), "heading")]
    if not beside:
        return [heading, *(line for block in blocks for line in block)]
    rows = zip_longest(*blocks, fillvalue=[])
    return [heading, *(_beside(row, room) for row in rows)]


class CompletionList(ScrolledLines):
    """Scrollable list of requests with their completions."""

    CSS_NAME = "completion-list"
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"completion-list--{role}" for role in _ROLES}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", "Up", show=False, id="ask.up", tooltip="A line up"),
        Binding("down", "scroll_down", "Down", show=False, id="ask.down", tooltip="A line down"),
        Binding("pageup", "page_up", "Page up", show=False, id="ask.page-up", tooltip="A screenful up"),
        Binding("pagedown", "page_down", "Page down", show=False, id="ask.page-down", tooltip="A screenful down"),
        Binding("home", "scroll_home", "Start", show=False, id="ask.start", tooltip="The newest answer"),
        Binding("end", "scroll_end", "End", show=False, id="ask.end", tooltip="The oldest answer"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._writings: Sequence[Writing] = ()
        self._how = {"by_score": False, "diff": False}
        self._blocks: dict[int, tuple[Writing, list[Line]]] = {}  # as laid out, by number
        self._width = 0  # of the blocks

    def show(self, writings: Sequence[Writing], *, by_score: bool = False, diff: bool = False) -> None:
        """Show `writings` in the order given; see `writing_lines`."""
        how = {"by_score": by_score, "diff": diff}
        if how != self._how:
            self._how = how
            self._blocks.clear()
        self._writings = writings
        self.lay_out()

    def wrap(self, width: int) -> list[Line]:
        if width != self._width:
            self._width = width
            self._blocks.clear()
        before, self._blocks = self._blocks, {}
        for writing in self._writings:
            known, lines = before.get(writing.number, (None, []))
            if known is not writing:
                lines = writing_lines(writing, width, **self._how)
            self._blocks[writing.number] = (writing, lines)
        return [line for _, lines in self._blocks.values() for line in lines]


def _ordered(column: Column, *, by_score: bool) -> list[Completion]:
    completions = column.answer.completions if column.answer else []
    if not by_score:
        return completions
    return sorted(completions, key=lambda one: -math.inf if math.isnan(one.score) else one.score, reverse=True)


def _marked(writing: Writing, columns: Iterable[tuple[Column, list[Completion]]]) -> dict[Writer, list[Piece]]:
    """Return the first completion of each writer with the differences marked; empty while one of them is missing."""
    first = {column.writer: _text(writing, shown[0]) for column, shown in columns if shown}
    if len(first) < 2:
        return {}
    parts = word_diff(first["reference"], first["policy"]).parts

    def pieces(kind: str) -> list[Piece]:
        return [(text, "text" if own == "same" else own) for own, text in parts if own in ("same", kind)]

    return {"reference": pieces("gone"), "policy": pieces("new")}


def _text(writing: Writing, completion: Completion) -> str:
    """Return the text of `completion` without the given beginning."""
    begun = writing.begun
    return completion.text.removeprefix(begun) if begun else completion.text


def _column_lines(
    writing: Writing, column: Column, shown: Sequence[Completion], width: int, marked: Sequence[Piece] | None
) -> list[Line]:
    lines: list[Line] = [[(fit(_column_heading(column), width), "writer")]]
    if column.problem:
        lines += wrapped([(f"✖ {column.problem}", "problem")], width)
    elif column.answer is None:
        lines.append([("waiting …"[:width], "muted")])
    for place, completion in enumerate(shown):
        lines += _packed(completion_facts(completion, column.writer, writing.compared), width)
        text = _text(writing, completion)
        pieces = marked if marked is not None and place == 0 else [(text, "text")]
        lines += wrapped(pieces, width) if text else [[("nothing: it stopped at once"[:width], "muted")]]
        lines.append([])
    return lines if shown else [*lines, []]


def _column_heading(column: Column) -> str:
    facts: list[str] = [column.writer]
    if column.answer is not None and column.answer.completions:
        count = column.answer.iteration
        if column.writer == "policy":
            facts.append(f"after {count} iteration{'' if count == 1 else 's'}")
        scores = [one.score for one in column.answer.completions if math.isfinite(one.score)]
        if len(scores) > 1:
            facts.append(f"mean score {signed(sum(scores) / len(scores))}")
        facts.append(duration(column.answer.seconds))
    return " · ".join(facts)


def _packed(facts: Sequence[Piece], width: int) -> list[Line]:
    """Pack the facts into as few lines as possible; a fact that is longer than a line is cut."""
    lines: list[Line] = [[]]
    for text, role in facts:
        text = fit(text, min(cell_len(text), width))
        if lines[-1] and cell_len(plain(lines[-1])) + len(_GAP) + cell_len(text) > width:
            lines.append([])
        lines[-1] += [(_GAP, "muted"), (text, role)] if lines[-1] else [(text, role)]
    return lines


def _beside(row: Sequence[Line], width: int) -> Line:
    """Join the lines of the columns into one; each but the last is padded to `width`."""
    if not any(row):
        return []
    joined: Line = []
    for place, line in enumerate(row):
        if place:
            joined.append((_DIVIDER, "muted"))
        joined += line
        if place < len(row) - 1:
            joined.append((" " * (width - cell_len(plain(line))), "text"))
    return joined
