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

from trainer.control.questions import Answer, Question, Writer
from trainer.errors import TrainerError
from workbench.kit.dialog import Dialog
from workbench.kit.key_footer import KeyFooter
from workbench.samples.ask_form import AskForm, Request
from workbench.samples.asked import Asked
from workbench.samples.completion_list import Column, CompletionList, Writing
from workbench.text import duration, visible

Ask = Callable[[Question, str], Future[Answer]]

KEPT = 20  # requests in the list


class AskScreen(Dialog[None]):
    """Screen that sends requests to the models and lists the answers; closing it cancels those still waiting.

    ask: called with a question and the name of a checkpoint, or "" for the policy that is being trained; it and its
    future may raise TrainerError. temperature, max_new_tokens: initial values of the form. checkpoints: those of a run
    that is not running, newest first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "write", "write", id="ask.write", tooltip="Ask for it; what is under way is written first"),
        Binding("o", "order", "best first", id="ask.order", tooltip="The best score first, or as they were written"),
        Binding("d", "diff", "diff", id="ask.diff", tooltip="Mark the words that policy and reference do not share"),
        Binding("escape", "close", "close", id="ask.close", tooltip="Close this; what is not written yet is dropped"),
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-normal"), (132, "-wide")]

    def __init__(
        self,
        ask: Ask,
        asked: Asked,
        *,
        temperature: float,
        max_new_tokens: int,
        checkpoints: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._ask = ask
        self._asked = asked
        self._saved = bool(checkpoints)
        self._form = AskForm(
            asked, temperature=temperature, max_new_tokens=max_new_tokens, checkpoints=checkpoints, id="ask-form"
        )
        self._requests: list[Request] = []  # all of them: a repeated request gets another seed
        self._writings: list[Writing] = []  # newest first
        self._waiting: dict[Future[Answer], tuple[int, float]] = {}  # number of the request, and when it was sent
        self._by_score = self._diff = False
        self._problem = ""

    def compose(self) -> ComposeResult:
        place = len(self._asked.prefix) + 1
        yield Static(f"Try from token {place}" if self._asked.choices else "What does it say now?", id="ask-title")
        yield self._form
        yield Static(id="ask-status", markup=False)
        yield CompletionList(id="ask-answers")
        yield KeyFooter(palette=False)

    def on_mount(self) -> None:
        self.set_interval(0.5, self._count_seconds)
        self._tell()

    def on_unmount(self) -> None:
        for future in self._waiting:
            future.cancel()

    def action_close(self) -> None:
        self.dismiss(None)

    def action_order(self) -> None:
        self._by_score = not self._by_score
        self._show()

    def action_diff(self) -> None:
        self._diff = not self._diff
        self._show()

    @on(AskForm.Submitted)
    def action_write(self) -> None:
        """Send the request on the form. The same request sent again uses another seed."""
        try:
            request = self._form.request()
        except ValueError as problem:
            self._problem = str(problem)
            self._tell()
            return
        self._problem = ""
        seed = self._requests.count(request)
        self._requests.append(request)
        number = len(self._requests)
        writing = Writing(
            number=number,
            asked=f"{request.told}   seed {seed}",
            columns=tuple(Column(writer=writer) for writer in request.writers),
            begun=self._asked.begun,
            compared=request.compared,
        )
        self._writings.insert(0, writing)
        for forgotten in self._writings[KEPT:]:
            self._drop(forgotten)
        del self._writings[KEPT:]
        for writer in request.writers:
            self._send(number, replace(request.question, writer=writer, seed=seed), request.checkpoint)
        self._show()
        self.query_one(CompletionList).scroll_to(y=0, animate=False, force=True)

    def _send(self, number: int, question: Question, checkpoint: str) -> None:
        try:
            future = self._ask(question, checkpoint)
        except TrainerError as error:
            self._fill(number, Column(writer=question.writer, problem=_line(error)))
            return
        self._waiting[future] = (number, time.monotonic())
        self._await(number, question.writer, future)

    @work
    async def _await(self, number: int, writer: Writer, future: Future[Answer]) -> None:
        try:
            answer = await asyncio.wrap_future(future)
            column = Column(writer=writer, answer=answer, problem=_line(answer.problem))
        except Exception as error:  # noqa: BLE001  loading a model may raise anything, and the screen stays
            column = Column(writer=writer, problem=_line(error))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # this screen is being closed
                raise
            column = Column(writer=writer, problem="nobody answered: the run has ended, ask again")
        del self._waiting[future]
        self._fill(number, column)
        self._show()

    def _fill(self, number: int, column: Column) -> None:
        """Add an answer to its request, if that is still listed."""
        self._writings = [one.with_column(column) if one.number == number else one for one in self._writings]

    def _drop(self, writing: Writing) -> None:
        for future, (number, _) in self._waiting.items():
            if number == writing.number:
                future.cancel()

    # Display

    @on(Input.Changed)
    @on(TextArea.Changed)
    @on(Select.Changed)
    def _take_back_problem(self) -> None:
        self._problem = ""
        self._tell()

    def _show(self) -> None:
        self.query_one(CompletionList).show(tuple(self._writings), by_score=self._by_score, diff=self._diff)
        self._tell()

    def _count_seconds(self) -> None:
        if self._waiting:
            self._tell()

    def _tell(self) -> None:
        self.query_one("#ask-status", Static).update(self._status())

    def _status(self) -> Content:
        if self._problem:
            return Content.styled(f"✖ {visible(self._problem)}", "$text-error")
        if self._waiting:
            count = len(self._waiting)
            seconds = time.monotonic() - min(since for _, since in self._waiting.values())
            how = (
                "loading the model, then it writes" if self._saved else "the trainer answers between two micro-batches"
            )
            answers = "1 answer" if count == 1 else f"{count} answers"
            return Content.styled(f"waiting for {answers}, {duration(seconds)}: {how}", "$text-accent")
        if not self._writings:
            return Content.styled("the same request once more is written from another seed", "$text-muted")
        notes = [
            *(["the best score first"] if self._by_score else []),
            *(["underlined: not the reference's words, struck: not the policy's"] if self._diff else []),
        ]
        return Content.styled("   ".join(notes), "$text-muted")


def _line(problem: Exception | str) -> str:
    if isinstance(problem, Exception) and not isinstance(problem, TrainerError):
        problem = f"{type(problem).__name__}: {problem}"
    return " ".join(str(problem).splitlines())
