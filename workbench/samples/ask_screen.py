"""The ask screen: what the models of the run write to a prompt now, or from a token of a response on."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Input, OptionList, Select, Static, TextArea

from trainer.errors import TrainerError
from trainer.plurals import counted
from trainer.questions import Answer, Question, Writer, unanswered
from workbench.kit.dialog import Dialog, PlainArea
from workbench.kit.drawing import Drawn, component_classes, wrapped
from workbench.numbers import duration, score_text
from workbench.run.sample_table import TokenSample
from workbench.samples.answer_list import AnswerList, AskedRequest, request_lines
from workbench.samples.export import parsed
from workbench.samples.token_facts import LikelyToken, TokenFacts, percent
from workbench.text import Line, as_sent, fit, plain, visible

Ask = Callable[[Question, str], Future[Answer]]

KEPT = 20  # requests in the list
_CHOICES_SHOWN = 7  # lines
_TITLE = 32  # columns for the prompt or token in the title of a request
_TOKEN, _PERCENT = 17, 9  # columns of a choice
_FREELY = "sample freely"
_WRITERS: tuple[tuple[Writer, ...], ...] = (("policy", "reference"), ("policy",), ("reference",))
_NUMBERS: dict[str, tuple[type[int | float], float, str, str]] = {  # type, least, most as printed, tooltip
    "count": (int, 1, "16", "Responses of each model, 1 to 16"),
    "temperature": (float, 0.01, "10", "Sampling temperature, 0.01 to 10 (default: that of the rollouts)"),
    "tokens": (int, 1, "100,000", "Maximum tokens in a response"),
}
_UNWRAPPED = 1_000_000  # columns of a copy


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    """A prompt or response to continue, and the score to compare with. Empty: the user has yet to type a prompt."""

    prompt: str = ""  # as rendered
    prompt_tokens: Sequence[int] = ()
    source: str | list[dict[str, str]] | None = None  # the prompt in the data, for the rewards; None: as rendered
    columns: Mapping[str, Any] = field(default_factory=dict)  # of the prompt's row, for the rewards
    score: float = math.nan  # of the sample's response
    prefix: Sequence[int] = ()  # the response's tokens before the chosen one
    begun: str = ""  # their text
    rest: str = ""  # text of the response from the chosen token on
    choices: Sequence[LikelyToken] = ()  # tokens to continue with; empty where the prompt itself may be edited

    @classmethod
    def of_prompt(cls, sample: TokenSample) -> StartingPoint:
        """Return the sample's prompt, to be sent as it was or edited."""
        source, columns = parsed(sample.source_prompt), parsed(sample.columns)
        return cls(
            prompt=sample.prompt,
            prompt_tokens=sample.prompt_tokens,
            source=source if isinstance(source, str | list) else None,
            columns=columns if isinstance(columns, dict) else {},
            score=sample.score,
        )

    @classmethod
    def at_token(cls, sample: TokenSample, index: int) -> StartingPoint:
        """Return the response before token `index`, with that token and its alternatives as choices."""
        return replace(
            cls.of_prompt(sample),
            prefix=sample.tokens[:index],
            begun="".join(sample.texts[:index]),
            rest="".join(sample.texts[index:]),
            choices=TokenFacts(sample, index).choices,
        )


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
        Binding("o", "switch('by_score')", "best first", id="ask.order", tooltip="Sort by score, or by time"),
        Binding(
            "d", "switch('diff')", "diff", id="ask.diff", tooltip="Mark words that differ between policy and reference"
        ),
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
        self._ask, self._start, self._checkpoints = ask, start, checkpoints
        count = "4" if start.choices else "1"
        self._defaults = {"count": count, "temperature": f"{temperature:g}", "tokens": str(max_new_tokens)}
        self._list = AnswerList()
        self._sent: list[object] = []  # all requests: a repeated one gets another seed
        self._asked: list[AskedRequest] = []  # newest first
        self._problem = ""  # of the form

    def compose(self) -> ComposeResult:
        start = self._start
        yield Static(f"Try from token {len(start.prefix) + 1}" if start.choices else "Ask the models", id="ask-title")
        if start.choices:
            with Horizontal(id="ask-place") as place:
                place.styles.height = 2 + min(len(start.choices), _CHOICES_SHOWN - 1)
                yield ResponseSoFar(start.prompt, start.begun)
                with Vertical(id="ask-choices"):
                    heading = f" {'next token':{_TOKEN}}{'policy':>{_PERCENT}}{'reference':>{_PERCENT + 2}}"
                    yield Static(heading, markup=False, classes="note")
                    rows = [Content(_FREELY), *(Content(_choice_row(choice)) for choice in start.choices)]
                    tooltip = "Token that the response continues with; enter generates"
                    yield OptionList(*rows, compact=True).with_tooltip(tooltip)
            before = f"original: {score_text(start.score)}   {visible(start.rest[:500])}"
            yield Static(before, markup=False, classes="note one-line")
        else:
            yield Static(id="ask-note", markup=False, classes="note")
            yield PlainArea(start.prompt, tooltip="The prompt; edit it freely")
        writers = [(" and ".join(writers), writers) for writers in _WRITERS]
        checkpoints = [(Text(visible(name)), name) for name in self._checkpoints]
        with Vertical(id="ask-settings"):
            with Horizontal():
                yield Static("model", classes="label")
                yield Select(
                    writers,
                    value=_WRITERS[1 if start.choices else 0],
                    allow_blank=False,
                    compact=True,
                    id="ask-writer",
                    tooltip="Model that responds; both use the same seed",
                )
                if checkpoints:
                    tooltip = "Checkpoint of the policy, newest first"
                    yield Static("checkpoint", classes="label", id="ask-checkpoint-label")
                    yield Select(checkpoints, allow_blank=False, compact=True, id="ask-checkpoint", tooltip=tooltip)
                else:
                    yield Static("the policy in training", classes="note")
            with Horizontal():
                for name, (kind, _, _, tooltip) in _NUMBERS.items():
                    yield Static(name, classes="label")
                    entry = Input(self._defaults[name], compact=True, max_length=7, id=f"ask-{name}", tooltip=tooltip)
                    entry.type = "integer" if kind is int else "number"
                    yield entry
                yield Button("Generate", compact=True, id="ask-write", tooltip="Generate responses; they appear below")
        yield Static(id="ask-status", markup=False)
        yield self._list

    def on_mount(self) -> None:
        self.query_one("OptionList, PlainArea").focus()
        self.set_interval(0.5, self._count_seconds)
        self._changed()

    def _count_seconds(self) -> None:
        if self._waiting:
            self._show_status()

    def action_switch(self, name: str) -> None:
        setattr(self._list, name, not getattr(self._list, name))
        self._show()

    def action_copy(self) -> None:
        if (request := self._list.topmost) is not None:
            text = "\n".join(plain(line) for line in request_lines(request, _UNWRAPPED, beside=False))
            self.copy(text.strip() + "\n", f"request {request.number} and its responses")

    @on(Input.Submitted)
    @on(Button.Pressed)
    @on(OptionList.OptionSelected)
    def action_write(self) -> None:
        """Send the request on the form. The same request sent again uses another seed."""
        try:
            question, title, compared = self._question()
        except ValueError as problem:
            self._problem = str(problem)
            self._show_status()
            return
        checkpoint = str(self.query_one("#ask-checkpoint", Select).value) if self._checkpoints else ""
        writers = cast("tuple[Writer, ...]", self.query_one("#ask-writer", Select).value)
        sent = (question, writers, checkpoint)
        seed = self._sent.count(sent)
        self._sent.append(sent)
        parts = [title, f"temperature {question.temperature:g}", checkpoint, f"seed {seed}"]
        request = AskedRequest(
            number=len(self._sent),
            title="   ".join(filter(None, parts)),
            answers=dict.fromkeys(writers),
            begun=self._start.begun,
            compared=compared,
        )
        self._asked.insert(0, request)
        for old in self._asked[KEPT:]:
            self.workers.cancel_group(self, f"request-{old.number}")
        del self._asked[KEPT:]
        for writer in writers:
            answering = self._write_answer(request, replace(question, writer=writer, seed=seed), checkpoint)
            self.run_worker(answering, group=f"request-{request.number}")
        self._show()
        self._list.scroll_to(y=0, animate=False, force=True)

    def _question(self) -> tuple[Question, str, float]:
        """Return the question on the form, its title, and the score to compare with. Raises ValueError in one line."""
        start = self._start
        prompt, prompt_tokens, prefix = start.source, list(start.prompt_tokens) or None, list(start.prefix)
        title, compared = "original prompt", start.score
        if start.choices:
            title = _FREELY
            if place := self.query_one(OptionList).highlighted:
                choice = start.choices[place - 1]
                prefix.append(choice.token)
                title = fit(choice.name, _TITLE).rstrip()
        elif not (self._unchanged and prompt_tokens):
            text = self.query_one(PlainArea).text
            if not text.strip():
                raise ValueError("the prompt is empty; type one")
            prompt = text = as_sent(text, start.prompt)
            prompt_tokens = None
            title, compared = f"“{fit(visible(' '.join(text.split())), _TITLE).rstrip()}”", math.nan
        numbers = {name: self._number(name) for name in _NUMBERS}
        question = Question(
            prompt=prompt,
            prompt_tokens=prompt_tokens,
            prefix=prefix,
            columns=dict(start.columns),
            count=int(numbers["count"]),
            temperature=numbers["temperature"],
            max_new_tokens=int(numbers["tokens"]),
        )
        return question, title, compared

    def _number(self, name: str) -> float:
        (kind, least, most, _), text = _NUMBERS[name], self.query_one(f"#ask-{name}", Input).value
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= float(most.replace(",", "")):
            what = "whole number" if kind is int else "number"
            raise ValueError(f"{name} = {text or 'nothing'}; use a {what} from {least:g} to {most}")
        return value

    @property
    def _unchanged(self) -> bool:
        area = self.query_one(PlainArea)
        return area.text == area.first

    async def _write_answer(self, request: AskedRequest, question: Question, checkpoint: str) -> None:
        """Send a question and show its answer, or why there is none. Cancelled, it cancels the question."""
        try:
            answer = await asyncio.wrap_future(self._ask(question, checkpoint))
        except Exception as error:  # noqa: BLE001  loading a model may raise anything, and the screen stays
            known = isinstance(error, TrainerError)
            answer = unanswered(question, str(error) if known else f"{type(error).__name__}: {error}")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # the request was dropped, or this screen is being closed
                raise
            answer = unanswered(question, "no answer: the run has ended; ask again")
        request.answers[question.writer] = replace(answer, problem=" ".join(answer.problem.splitlines()))
        self._show()

    @on(Input.Changed)
    @on(TextArea.Changed)
    @on(Select.Changed)
    def _changed(self) -> None:
        self._problem = ""
        self._show_status()
        if not self._start.choices:
            note = "unchanged: sent as its original tokens" if self._unchanged else "edited: rendered like the data"
            self.query_one("#ask-note", Static).update(f"prompt  {note}" if self._start.prompt else "prompt")

    @on(OptionList.OptionHighlighted)
    def _show_choice(self, event: OptionList.OptionHighlighted) -> None:
        following = ["", *(choice.text for choice in self._start.choices)]
        for so_far in self.query(ResponseSoFar):
            so_far.continue_with(following[event.option_index])

    def _show(self) -> None:
        self._list.show(tuple(self._asked))
        self._show_status()

    @property
    def _waiting(self) -> list[AskedRequest]:
        """The requests that are being answered, once for each answer that is awaited."""
        return [request for request in self._asked for answer in request.answers.values() if answer is None]

    def _show_status(self) -> None:
        color, waiting = "$text-muted", self._waiting
        if self._problem:
            text, color = f"✖ {visible(self._problem)}", "$text-error"
        elif waiting:
            seconds = time.monotonic() - min(request.sent for request in waiting)
            place = "loading the model" if self._checkpoints else "the trainer answers between two micro-batches"
            color = "$text-accent"
            text = f"waiting for {counted(len(waiting), 'answer')}, {duration(seconds)}: {place}"
        elif not self._asked:
            text = "Generating again uses another seed."
        else:
            order = "sorted by score" if self._list.by_score else ""
            diff = "underlined: only the policy; struck: only the reference" if self._list.diff else ""
            text = "   ".join(filter(None, [order, diff]))
        self.query_one("#ask-status", Static).update(Content.styled(text, color))


def _choice_row(choice: LikelyToken) -> str:
    shares = f"{percent(choice.probability):>{_PERCENT}}{percent(choice.ref_probability):>{_PERCENT + 2}}"
    return fit(choice.name, _TOKEN) + shares + "  ← original" * choice.chosen


class ResponseSoFar(Drawn):
    """The end of the prompt, the response so far, and the text chosen to follow it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes("text", "strong", "muted")

    def __init__(self, prompt: str, begun: str) -> None:
        super().__init__()
        self._prompt, self._begun, self._next = prompt, begun, ""

    def continue_with(self, text: str) -> None:
        """Show `text` as the continuation."""
        self._next = text
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        room = 2 * width * height  # characters: a wide one takes two columns, and only combining ones take none
        begun = self._begun[-room:]
        prompt = self._prompt[-max(room - len(begun), 0) :] if len(begun) < room else ""
        lines = wrapped([(prompt, "muted"), (begun, "text"), (self._next, "strong"), ("▏", "muted")], width)
        return lines[-height:]
