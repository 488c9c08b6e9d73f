"""The answers to requests, newest first, with policy and reference side by side where there is room."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import BindingType

from trainer.plurals import counted
from trainer.questions import Answer, Writer, WrittenResponse
from workbench.columns import fit, fit_start, packed
from workbench.kit.drawing import ScrolledLines, scroll_bindings, wrapped
from workbench.kit.lines import Line, Piece, plain
from workbench.kit.word_diff import word_diff
from workbench.numbers import duration, number, score_text
from workbench.text import visible

_SIDE_BY_SIDE = 96  # columns of the list in a terminal of 100
_DIVIDER = " │ "
_GAP = "  "  # between the facts of a response
_ROLES = ("heading", "muted", "writer", "facts", "better", "worse", "problem", "text", "gone", "new")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerColumn:
    """One model's answer to a request, or why there is none; neither while the answer is awaited."""

    writer: Writer
    answer: Answer | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRequest:
    """One request and its answers."""

    number: int  # within the screen, from 1
    title: str
    columns: tuple[AnswerColumn, ...]  # one for each writer
    begun: str = ""  # text that every response begins with; not shown again
    compared: float = math.nan  # the score that the responses are compared with

    def with_column(self, column: AnswerColumn) -> AskedRequest:
        """Return a copy with `column` in place of its writer's column."""
        columns = tuple(column if one.writer == column.writer else one for one in self.columns)
        return replace(self, columns=columns)


def kl_of(response: WrittenResponse) -> float:
    """Return log pi / pi_ref in nats, summed over the response; where the policy wrote, the k1 estimate of the KL."""
    pairs = zip(response.logprobs, response.ref_logprobs, strict=True)
    return sum((mine - theirs for mine, theirs in pairs), 0.0)


def signed(value: float) -> str:
    """Format a score or a KL with its sign and two decimals."""
    return number(value, 2, signed=True, width=10)


def response_facts(response: WrittenResponse, writer: Writer, compared: float) -> list[Piece]:
    """Return the score, its difference to `compared`, the KL, the length, how it ended, and the parts of the score.

    For a response of the reference, log pi / pi_ref takes the place of the KL.
    """
    score, by = response.score, response.score - compared
    facts: list[Piece] = [(score_text(score), "facts")]
    if math.isfinite(by):
        worth = (f"▲ {signed(by)} better", "better") if by > 0 else (f"▼ {signed(by)} worse", "worse")
        facts.append(worth if by else ("= same score", "muted"))
    kl, tokens = kl_of(response), counted(len(response.tokens), "token")
    if writer == "reference":
        facts.append((f"log π/ref {signed(kl)} nats", "facts"))
    else:
        facts.append((f"KL {number(kl, 1)} nats", "facts"))
    facts.append((f"{tokens} ✂ cut short", "worse") if response.truncated else (f"{tokens}, stop", "facts"))
    if len(response.parts) > 1 or score not in response.parts.values():  # a single part repeats the score
        facts += [(f"{visible(source)} {signed(part)}", "muted") for source, part in response.parts.items()]
    return facts


def request_lines(request: AskedRequest, width: int, *, by_score: bool = False, diff: bool = False) -> list[Line]:
    """Draw `request` in lines of at most `width` columns.

    by_score: best response first, those without a score last. diff: mark the words in which the first responses of
    policy and reference differ.
    """
    columns = [(column, _ordered(column, by_score=by_score)) for column in request.columns]
    marks: dict[Writer, list[Piece]] = _marked(request, columns) if diff else {}
    beside = len(columns) > 1 and width >= _SIDE_BY_SIDE
    room = (width - len(_DIVIDER) * (len(columns) - 1)) // len(columns) if beside else width
    blocks = [_column_lines(request, column, shown, room, marks.get(column.writer)) for column, shown in columns]
    heading: Line = [(fit(f"{request.number:>2}  {visible(request.title)}", width), "heading")]
    if not beside:
        return [heading, *(line for block in blocks for line in block)]
    rows = zip_longest(*blocks, fillvalue=[])
    return [heading, *(_beside(row, room) for row in rows)]


def request_text(request: AskedRequest) -> str:
    """Return `request` and its answers as text, one model after the other, for the clipboard."""
    texts = [f"{request.number}  {request.title}\n"]
    for column in request.columns:
        texts.append("\n".join(filter(None, [_column_heading(column), column.problem])) + "\n")
        for response in column.answer.completions if column.answer else []:
            facts = _GAP.join(text for text, _ in response_facts(response, column.writer, request.compared))
            texts.append(f"{facts}\n{_text(request, response)}\n")
    return "\n".join(texts)


class AnswerList(ScrolledLines):
    """Scrollable list of requests with their responses."""

    CSS_NAME = "answer-list"
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"answer-list--{role}" for role in _ROLES}
    BINDINGS: ClassVar[list[BindingType]] = scroll_bindings("ask")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._requests: Sequence[AskedRequest] = ()
        self._by_score = self._diff = False
        self._blocks: dict[int, tuple[tuple[object, ...], list[Line]]] = {}  # by number: what was laid out, and how

    def show(self, requests: Sequence[AskedRequest], *, by_score: bool = False, diff: bool = False) -> None:
        """Show `requests` in the order given; see `request_lines`."""
        self._requests, self._by_score, self._diff = requests, by_score, diff
        self.lay_out()

    @property
    def topmost(self) -> AskedRequest | None:
        """The request whose lines are the first in view; None without requests."""
        y = self.scroll_offset.y
        for request in self._requests:
            if (y := y - len(self._blocks[request.number][1])) < 0:
                return request
        return self._requests[-1] if self._requests else None

    def wrap(self, width: int) -> list[Line]:
        before, self._blocks = self._blocks, {}
        for request in self._requests:
            laid_out = (request, width, self._by_score, self._diff)
            known, lines = before.get(request.number, (None, []))
            if known != laid_out:
                lines = request_lines(request, width, by_score=self._by_score, diff=self._diff)
            self._blocks[request.number] = (laid_out, lines)
        return [line for _, lines in self._blocks.values() for line in lines]


def _ordered(column: AnswerColumn, *, by_score: bool) -> list[WrittenResponse]:
    responses = column.answer.completions if column.answer else []
    if not by_score:
        return responses
    return sorted(responses, key=lambda one: -math.inf if math.isnan(one.score) else one.score, reverse=True)


def _marked(
    request: AskedRequest, columns: Iterable[tuple[AnswerColumn, list[WrittenResponse]]]
) -> dict[Writer, list[Piece]]:
    """Return the first response of each writer with the differences marked; empty while one of them is missing."""
    first = {column.writer: _text(request, shown[0]) for column, shown in columns if shown}
    if len(first) < 2:
        return {}
    parts = word_diff(first["reference"], first["policy"]).parts

    def pieces(kind: str) -> list[Piece]:
        return [(text, "text" if own == "same" else own) for own, text in parts if own in ("same", kind)]

    return {"reference": pieces("gone"), "policy": pieces("new")}


def _text(request: AskedRequest, response: WrittenResponse) -> str:
    """Return the text of `response` without the given beginning."""
    return response.text.removeprefix(request.begun)


def _column_lines(
    request: AskedRequest,
    column: AnswerColumn,
    shown: Sequence[WrittenResponse],
    width: int,
    marked: Sequence[Piece] | None,
) -> list[Line]:
    lines: list[Line] = [[(fit(_column_heading(column), width), "writer")]]
    if column.problem:
        lines += wrapped([(f"✖ {column.problem}", "problem")], width)
    elif column.answer is None:
        lines.append([(fit_start("waiting…", width), "muted")])
    for place, response in enumerate(shown):
        lines += _packed(response_facts(response, column.writer, request.compared), width)
        text = _text(request, response)
        pieces = marked if marked is not None and place == 0 else [(text, "text")]
        lines += wrapped(pieces, width) if text else [[(fit_start("empty response", width), "muted")]]
        lines.append([])
    return lines if shown else [*lines, []]


def _column_heading(column: AnswerColumn) -> str:
    facts: list[str] = [column.writer]
    if column.answer is not None and column.answer.completions:
        if column.writer == "policy":
            facts.append(f"after {counted(column.answer.iteration, 'iteration')}")
        scores = [one.score for one in column.answer.completions if math.isfinite(one.score)]
        if len(scores) > 1:
            facts.append(f"mean score {signed(sum(scores) / len(scores))}")
        facts.append(duration(column.answer.seconds))
    return " · ".join(facts)


def _packed(facts: Sequence[Piece], width: int) -> list[Line]:
    """Pack the facts into as few lines as possible; a fact that is longer than a line is cut."""
    short = [(fit(text, min(cell_len(text), width)), role) for text, role in facts]
    lines = packed(short, width, len(_GAP), lambda piece: cell_len(piece[0]))
    return [[piece for fact in line for piece in ((_GAP, "muted"), fact)][1:] for line in lines]


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
