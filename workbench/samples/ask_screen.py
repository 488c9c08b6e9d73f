"""The ask screen: what the models of the run write to a prompt now, or from a token of a response on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, Select, Static, TextArea

from trainer.errors import TrainerError
from trainer.plurals import counted
from trainer.questions import Answer, Question, Writer
from workbench.kit.dialog import Dialog
from workbench.numbers import duration
from workbench.samples.answer_list import AnswerColumn, AnswerList, AskedRequest, request_text
from workbench.samples.ask_form import AskForm, AskRequest, StartingPoint
from workbench.text import visible

Ask = Callable[[Question, str], Future[Answer]]

KEPT = 20  # requests in the list


class AskScreen(Dialog[None]):
    """Screen that sends requests to the models and lists the answers; closing it cancels those still waiting.

    ask: called with a question and the name of a checkpoint, or "" for the policy that is being trained; it and its
    future may raise TrainerError. start: the prompt or response to continue. temperature, max_new_tokens: initial
    values of the form. checkpoints: those of a run that is not running, newest first.
    """

    TITLE = "Ask"
    HELP = "Asks the policy, and the reference beside it, to go on with a text. {ask.write} sends it from any field."
    DOCS = "samples"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "write", "generate", id="ask.write", tooltip="Generate responses; requests are queued"),
        Binding("o", "order", "best first", id="ask.order", tooltip="Sort by score, or by time"),
        Binding("d", "diff", "diff", id="ask.diff", tooltip="Mark words that differ between policy and reference"),
        Binding(
            "y", "copy", "copy", id="ask.copy", tooltip="Copy the request at the top of the list and its responses"
        ),
        Binding("escape", "dismiss", "close", id="ask.close", tooltip="Close and cancel pending requests"),
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-normal"), (132, "-wide")]

    def __init__(
        self,
        ask: Ask,
        start: StartingPoint,
        *,
        temperature: float,
        max_new_tokens: int,
        checkpoints: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._ask = ask
        self._start = start
        self._saved = bool(checkpoints)
        self._form = AskForm(
            start, temperature=temperature, max_new_tokens=max_new_tokens, checkpoints=checkpoints, id="ask-form"
        )
        self._requests: list[AskRequest] = []  # all of them: a repeated request gets another seed
        self._asked: list[AskedRequest] = []  # newest first
        self._waiting: dict[Future[Answer], tuple[int, float]] = {}  # number of the request, and when it was sent
        self._by_score = self._diff = False
        self._problem = ""

    def compose(self) -> ComposeResult:
        place = len(self._start.prefix) + 1
        yield Static(f"Try from token {place}" if self._start.choices else "Ask the models", id="ask-title")
        yield self._form
        yield Static(id="ask-status", markup=False)
        yield AnswerList(id="ask-answers")

    def on_mount(self) -> None:
        self.set_interval(0.5, self._count_seconds)
        self._show_status()

    def on_unmount(self) -> None:
        for future in self._waiting:
            future.cancel()

    def action_order(self) -> None:
        self._by_score = not self._by_score
        self._show()

    def action_diff(self) -> None:
        self._diff = not self._diff
        self._show()

    def action_copy(self) -> None:
        if (request := self.query_one(AnswerList).topmost) is not None:
            self.copy(request_text(request), f"request {request.number} and its responses")

    @on(AskForm.Submitted)
    def action_write(self) -> None:
        """Send the request on the form. The same request sent again uses another seed."""
        try:
            request = self._form.request()
        except ValueError as problem:
            self._problem = str(problem)
            self._show_status()
            return
        self._problem = ""
        seed = self._requests.count(request)
        self._requests.append(request)
        number = len(self._requests)
        asked = AskedRequest(
            number=number,
            title=f"{request.title}   seed {seed}",
            columns=tuple(AnswerColumn(writer=writer) for writer in request.writers),
            begun=self._start.begun,
            compared=request.compared,
        )
        self._asked.insert(0, asked)
        del self._asked[KEPT:]
        for future, (waiting, _) in self._waiting.items():
            if waiting < self._asked[-1].number:  # no longer listed
                future.cancel()
        for writer in request.writers:
            self._send(number, replace(request.question, writer=writer, seed=seed), request.checkpoint)
        self._show()
        self.query_one(AnswerList).scroll_to(y=0, animate=False, force=True)

    def _send(self, number: int, question: Question, checkpoint: str) -> None:
        try:
            future = self._ask(question, checkpoint)
        except TrainerError as error:
            self._fill(number, AnswerColumn(writer=question.writer, problem=_line(error)))
            return
        self._waiting[future] = (number, time.monotonic())
        self._await(number, question.writer, future)

    @work
    async def _await(self, number: int, writer: Writer, future: Future[Answer]) -> None:
        try:
            answer = await asyncio.wrap_future(future)
            column = AnswerColumn(writer=writer, answer=answer, problem=_line(answer.problem))
        except Exception as error:  # noqa: BLE001  loading a model may raise anything, and the screen stays
            column = AnswerColumn(writer=writer, problem=_line(error))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # this screen is being closed
                raise
            column = AnswerColumn(writer=writer, problem="no answer: the run has ended; ask again")
        del self._waiting[future]
        self._fill(number, column)
        self._show()

    def _fill(self, number: int, column: AnswerColumn) -> None:
        """Add an answer to its request, if that is still listed."""
        self._asked = [one.with_column(column) if one.number == number else one for one in self._asked]

    @on(Input.Changed)
    @on(TextArea.Changed)
    @on(Select.Changed)
    def _clear_problem(self) -> None:
        self._problem = ""
        self._show_status()

    def _show(self) -> None:
        self.query_one(AnswerList).show(tuple(self._asked), by_score=self._by_score, diff=self._diff)
        self._show_status()

    def _count_seconds(self) -> None:
        if self._waiting:
            self._show_status()

    def _show_status(self) -> None:
        color = "$text-muted"
        if self._problem:
            text, color = f"✖ {visible(self._problem)}", "$text-error"
        elif self._waiting:
            seconds = time.monotonic() - min(since for _, since in self._waiting.values())
            how = "loading the model" if self._saved else "the trainer answers between two micro-batches"
            color = "$text-accent"
            text = f"waiting for {counted(len(self._waiting), 'answer')}, {duration(seconds)}: {how}"
        elif not self._asked:
            text = "Generating again uses another seed."
        else:
            order = "sorted by score" if self._by_score else ""
            diff = "underlined: only the policy; struck: only the reference" if self._diff else ""
            text = "   ".join(filter(None, [order, diff]))
        self.query_one("#ask-status", Static).update(Content.styled(text, color))


def _line(problem: Exception | str) -> str:
    if isinstance(problem, Exception) and not isinstance(problem, TrainerError):
        problem = f"{type(problem).__name__}: {problem}"
    return " ".join(str(problem).splitlines())
