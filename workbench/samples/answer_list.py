"""The answers to requests, newest first, with policy and reference side by side where there is room."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import BindingType

from trainer.plurals import counted
from trainer.questions import Answer, Writer, WrittenResponse
from workbench.kit.drawing import ScrolledLines, scroll_bindings, wrapped
from workbench.kit.word_diff import word_diff
from workbench.numbers import duration, number, score_text
from workbench.text import Line, Piece, fit_start, packed, plain, visible

_SIDE_BY_SIDE = 96  # columns of the list in a terminal of 100
_DIVIDER = " │ "
_GAP = "  "  # between the facts of a response


@dataclass(slots=True, kw_only=True, eq=False)
class AskedRequest:
    """One request and its answers."""

    number: int  # within the screen, from 1
    title: str
    answers: dict[Writer, Answer | None]  # None while it is awaited
    begun: str = ""  # text that every response begins with; not shown again
    compared: float = math.nan  # the score that the responses are compared with
    sent: float = field(default_factory=time.monotonic)


class AnswerList(ScrolledLines):
    """Scrollable list of requests with their responses, newest first."""

    CSS_NAME = "answer-list"
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"answer-list--{role}"
        for role in ["heading", "muted", "writer", "facts", "better", "worse", "problem", "text", "gone", "new"]
    }
    BINDINGS: ClassVar[list[BindingType]] = scroll_bindings("ask")

    by_score = diff = False  # see `request_lines`

    def __init__(self) -> None:
        super().__init__()
        self._requests: Sequence[AskedRequest] = ()
        self._blocks: dict[int, tuple[object, list[Line]]] = {}  # by number: what was drawn, and its lines

    def show(self, requests: Sequence[AskedRequest]) -> None:
        """Show `requests` in the order given."""
        self._requests = requests
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
            drawn = (width, self.by_score, self.diff, [*request.answers.values()])
            known, lines = before.get(request.number, (None, []))
            if known != drawn:  # laying out takes a while
                beside = width >= _SIDE_BY_SIDE
                lines = request_lines(request, width, beside=beside, by_score=self.by_score, diff=self.diff)
            self._blocks[request.number] = (drawn, lines)
        return [line for _, lines in self._blocks.values() for line in lines]


def request_lines(
    request: AskedRequest, width: int, *, beside: bool, by_score: bool = False, diff: bool = False
) -> list[Line]:
    """Draw `request` in lines of at most `width` columns, its writers beside each other or one after the other.

    by_score: best response first, those without a score last. diff: mark the words in which the first responses of
    policy and reference differ.
    """
    beside = beside and len(request.answers) > 1
    room = (width - len(_DIVIDER)) // 2 if beside else width
    found = {writer: [*answer.completions] if answer else [] for writer, answer in request.answers.items()}
    if by_score:
        for responses in found.values():
            responses.sort(key=lambda one: math.inf if math.isnan(one.score) else -one.score)
    texts = {writer: [one.text.removeprefix(request.begun) for one in found[writer]] for writer in found}
    marked: dict[Writer, list[Piece]] = {}
    if diff and len(texts) > 1 and all(texts.values()):
        parts = word_diff(texts["reference"][0], texts["policy"][0]).parts
        for writer in texts:
            left_out = "new" if writer == "reference" else "gone"
            marked[writer] = [(text, "text" if kind == "same" else kind) for kind, text in parts if kind != left_out]
    blocks = []
    for writer, answer in request.answers.items():
        lines = _writer_lines(writer, answer, room)
        for place, (response, text) in enumerate(zip(found[writer], texts[writer], strict=True)):
            facts = [(fit_start(fact, room), role) for fact, role in response_facts(response, writer, request.compared)]
            for line in packed(facts, room, len(_GAP), lambda piece: cell_len(piece[0])):
                lines.append([piece for fact in line for piece in ((_GAP, "muted"), fact)][1:])
            pieces = marked[writer] if place == 0 and writer in marked else [(text, "text")]
            lines += wrapped(pieces, room) if text else [[(fit_start("empty response", room), "muted")]]
            lines.append([])
        blocks.append(lines if found[writer] else [*lines, []])
    heading: Line = [(fit_start(f"{request.number:>2}  {visible(request.title)}", width), "heading")]
    if not beside:
        return [heading, *(line for block in blocks for line in block)]
    joined: list[Line] = [heading]
    for left, right in zip_longest(*blocks, fillvalue=[]):
        gap = [(" " * (room - cell_len(plain(left))), "text"), (_DIVIDER, "muted")]
        joined.append([*left, *gap, *right] if left or right else [])
    return joined


def _writer_lines(writer: Writer, answer: Answer | None, width: int) -> list[Line]:
    """Return the heading of a model's responses: who wrote, and the mean score; then a problem or that it waits."""
    if answer is None:
        return [[(fit_start(writer, width), "writer")], [(fit_start("waiting…", width), "muted")]]
    facts: list[str] = [writer]
    if answer.completions:
        if writer == "policy":
            facts.append(f"after {counted(answer.iteration, 'iteration')}")
        scores = [one.score for one in answer.completions if math.isfinite(one.score)]
        if len(scores) > 1:
            facts.append(f"mean score {_signed(sum(scores) / len(scores))}")
        facts.append(duration(answer.seconds))
    heading: Line = [(fit_start(" · ".join(facts), width), "writer")]
    return [heading, *(wrapped([(f"✖ {answer.problem}", "problem")], width) if answer.problem else [])]


def response_facts(response: WrittenResponse, writer: Writer, compared: float) -> list[Piece]:
    """Return the score, its difference to `compared`, the KL, the length, how it ended, and the parts of the score.

    The KL is log pi / pi_ref in nats, summed over the response: where the policy wrote, its k1 estimate.
    """
    score, by = response.score, response.score - compared
    facts: list[Piece] = [(score_text(score), "facts")]
    if math.isfinite(by):
        worth = (f"▲ {_signed(by)} better", "better") if by > 0 else (f"▼ {_signed(by)} worse", "worse")
        facts.append(worth if by else ("= same score", "muted"))
    pairs = zip(response.logprobs, response.ref_logprobs, strict=True)
    kl = sum((mine - theirs for mine, theirs in pairs), 0.0)
    facts.append((f"log π/ref {_signed(kl)} nats" if writer == "reference" else f"KL {number(kl, 1)} nats", "facts"))
    tokens = counted(len(response.tokens), "token")
    facts.append((f"{tokens} ✂ cut short", "worse") if response.truncated else (f"{tokens}, stop", "facts"))
    if len(response.parts) > 1 or score not in response.parts.values():  # a single part repeats the score
        facts += [(f"{visible(source)} {_signed(part)}", "muted") for source, part in response.parts.items()]
    return facts


def _signed(value: float) -> str:
    return number(value, 2, signed=True, width=10)
