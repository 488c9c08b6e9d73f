"""The ask screen: what the models of the run write to a prompt now, or from a token of a response on."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, cast

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Input, OptionList, Select, Static, TextArea
from textual.widgets.option_list import Option

from trainer.errors import TrainerError
from trainer.plurals import counted
from trainer.questions import Answer, Question, Writer, unanswered
from workbench.columns import fit
from workbench.kit.dialog import Dialog, PlainArea
from workbench.kit.drawing import Drawn, component_classes, wrapped
from workbench.kit.lines import Line
from workbench.numbers import duration, score_text
from workbench.run.sample_table import TokenSample
from workbench.samples.answer_list import AnswerList, AskedRequest, request_text
from workbench.samples.token_sentence import percent
from workbench.text import as_sent, visible

Ask = Callable[[Question, str], Future[Answer]]

KEPT = 20  # requests in the list
_CHOICES_SHOWN = 7  # lines
_TITLE = 32  # columns for the prompt or token in the title of a request
_TOKEN, _PERCENT = 17, 9  # columns of a choice
_CHOICE_HEADING = f" {'next token':{_TOKEN}}{'policy':>{_PERCENT}}{'reference':>{_PERCENT + 2}}"
_WRITERS: tuple[tuple[Writer, ...], ...] = (("policy", "reference"), ("policy",), ("reference",))
_NUMBERS: dict[str, tuple[type[int | float], float, str, str]] = {  # type, least, most as printed, tooltip
    "count": (int, 1, "16", "Responses of each model, 1 to 16"),
    "temperature": (float, 0.01, "10", "Sampling temperature, 0.01 to 10 (default: that of the rollouts)"),
    "tokens": (int, 1, "100,000", "Maximum tokens in a response"),
}


class NextToken(NamedTuple):
    """A token to continue with; without tokens, the writer samples its own."""

    text: str
    tokens: tuple[int, ...] = ()
    logprob: float = math.nan  # nats
    ref_logprob: float = math.nan  # nats
    written: bool = False  # the sample's own token

    @property
    def label(self) -> str:
        """The text in quotes, so that spaces are visible; the token id where the token is part of a character."""
        if not self.tokens:
            return self.text
        return f"“{visible(self.text)}”" if self.text else f"token {self.tokens[0]}"

    @property
    def row(self) -> Content:
        """The label, and the probabilities under policy and reference."""
        shares = [percent(math.exp(x)) if x <= 0 else "-" for x in (self.logprob, self.ref_logprob)]
        policy, reference = shares if self.tokens else ("", "")
        end = "  ← original" * self.written
        return Content(f"{fit(self.label, _TOKEN)}{policy:>{_PERCENT}}{reference:>{_PERCENT + 2}}{end}")


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
    choices: Sequence[NextToken] = ()  # empty where the prompt itself may be edited

    @classmethod
    def of_prompt(cls, sample: TokenSample) -> StartingPoint:
        """Return the sample's prompt, to be sent as it was or edited."""
        source, columns = _parsed(sample.source_prompt), _parsed(sample.columns)
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
        logprob, ref_logprob = (
            sample.numbers[name][index] if name in sample.numbers else math.nan for name in ("logprobs", "ref_logprobs")
        )
        written = NextToken(sample.texts[index], (sample.tokens[index],), logprob, ref_logprob, written=True)
        found = sample.alternatives[index] if index < len(sample.alternatives) else ()
        others = [NextToken(one.text, (one.token,), one.logprob, one.ref_logprob) for one in found]
        ranked = [written if one.tokens == written.tokens else one for one in others]
        return replace(
            cls.of_prompt(sample),
            prefix=sample.tokens[:index],
            begun="".join(sample.texts[:index]),
            rest="".join(sample.texts[index:]),
            choices=[NextToken("sample freely"), *ranked, *([] if written in ranked else [written])],
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
        self._ask, self._start, self._checkpoints = ask, start, checkpoints
        count = "4" if start.choices else "1"
        self._defaults = {"count": count, "temperature": f"{temperature:g}", "tokens": str(max_new_tokens)}
        self._list = AnswerList()
        self._sent: list[object] = []  # all requests: a repeated one gets another seed
        self._asked: list[AskedRequest] = []  # newest first
        self._waiting: dict[Future[Answer], tuple[AskedRequest, float]] = {}  # and when it was sent
        self._problem = ""

    def compose(self) -> ComposeResult:
        start = self._start
        yield Static(f"Try from token {len(start.prefix) + 1}" if start.choices else "Ask the models", id="ask-title")
        if start.choices:
            with Horizontal(id="ask-place") as place:
                place.styles.height = 1 + min(len(start.choices), _CHOICES_SHOWN)
                yield ResponseSoFar(start.prompt, start.begun)
                with Vertical(id="ask-choices"):
                    yield Static(_CHOICE_HEADING, markup=False, classes="note")
                    yield OptionList(*(Option(choice.row) for choice in start.choices), compact=True).with_tooltip(
                        "Token that the response continues with; enter generates"
                    )
            before = f"original: {score_text(start.score)}   {visible(start.rest[:500])}"
            yield Static(before, markup=False, classes="note one-line")
        else:
            yield Static(id="ask-note", markup=False)
            yield PlainArea(start.prompt, tooltip="The prompt; edit it freely")
        with Vertical(id="ask-settings"):
            with Horizontal():
                yield from self._compose_models()
            with Horizontal():
                for name, (kind, _, _, tooltip) in _NUMBERS.items():
                    yield Static(name, classes="label")
                    number = Input(self._defaults[name], compact=True, max_length=7, id=f"ask-{name}", tooltip=tooltip)
                    number.type = "integer" if kind is int else "number"
                    yield number
                yield Button("Generate", compact=True, id="ask-write", tooltip="Generate responses; they appear below")
        yield Static(id="ask-status", markup=False)
        yield self._list

    def _compose_models(self) -> ComposeResult:
        yield Static("model", classes="label")
        yield Select(
            [(" and ".join(writers), writers) for writers in _WRITERS],
            value=_WRITERS[1 if self._start.choices else 0],
            allow_blank=False,
            compact=True,
            id="ask-writer",
            tooltip="Model that responds; both use the same seed",
        )
        if not self._checkpoints:
            yield Static("the policy in training", classes="note")
            return
        yield Static("checkpoint", classes="label", id="ask-checkpoint-label")
        yield Select(
            [(Text(visible(name)), name) for name in self._checkpoints],
            value=self._checkpoints[0],
            allow_blank=False,
            compact=True,
            id="ask-checkpoint",
            tooltip="Checkpoint of the policy, newest first",
        )

    def on_mount(self) -> None:
        self.query_one("OptionList, PlainArea").focus()
        self.set_interval(0.5, self._count_seconds)
        self._changed()

    def on_unmount(self) -> None:
        for future in self._waiting:
            future.cancel()

    def action_order(self) -> None:
        self._list.by_score = not self._list.by_score
        self._show()

    def action_diff(self) -> None:
        self._list.diff = not self._list.diff
        self._show()

    def action_copy(self) -> None:
        if (request := self._list.topmost) is not None:
            self.copy(request_text(request), f"request {request.number} and its responses")

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
        del self._asked[KEPT:]
        for future, (waiting, _) in self._waiting.items():
            if waiting not in self._asked:
                future.cancel()
        for writer in writers:
            self._send(request, replace(question, writer=writer, seed=seed), checkpoint)
        self._show()
        self._list.scroll_to(y=0, animate=False, force=True)

    def _question(self) -> tuple[Question, str, float]:
        """Return the question on the form, its title, and the score to compare with. Raises ValueError in one line."""
        start = self._start
        prompt, prompt_tokens, prefix = start.source, list(start.prompt_tokens) or None, list(start.prefix)
        title, compared = "original prompt", start.score
        if start.choices:
            choice = start.choices[self.query_one(OptionList).highlighted or 0]
            prefix += choice.tokens
            title = fit(choice.label, _TITLE).rstrip()
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

    def _send(self, request: AskedRequest, question: Question, checkpoint: str) -> None:
        try:
            future = self._ask(question, checkpoint)
        except TrainerError as error:
            request.answers[question.writer] = unanswered(question, _line(error))
            return
        self._waiting[future] = (request, time.monotonic())
        self._await(request, question, future)

    @work
    async def _await(self, request: AskedRequest, question: Question, future: Future[Answer]) -> None:
        try:
            answer = await asyncio.wrap_future(future)
            answer = replace(answer, problem=_line(answer.problem))
        except Exception as error:  # noqa: BLE001  loading a model may raise anything, and the screen stays
            answer = unanswered(question, _line(error))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # this screen is being closed
                raise
            answer = unanswered(question, "no answer: the run has ended; ask again")
        del self._waiting[future]
        request.answers[question.writer] = answer
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
        for so_far in self.query(ResponseSoFar):
            choice = self._start.choices[event.option_index]
            so_far.continue_with(choice.text if choice.tokens else "")

    def _show(self) -> None:
        self._list.show(tuple(self._asked))
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
            place = "loading the model" if self._checkpoints else "the trainer answers between two micro-batches"
            color = "$text-accent"
            text = f"waiting for {counted(len(self._waiting), 'answer')}, {duration(seconds)}: {place}"
        elif not self._asked:
            text = "Generating again uses another seed."
        else:
            order = "sorted by score" if self._list.by_score else ""
            diff = "underlined: only the policy; struck: only the reference" if self._list.diff else ""
            text = "   ".join(filter(None, [order, diff]))
        self.query_one("#ask-status", Static).update(Content.styled(text, color))


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


def _line(problem: Exception | str) -> str:
    if isinstance(problem, Exception) and not isinstance(problem, TrainerError):
        problem = f"{type(problem).__name__}: {problem}"
    return " ".join(str(problem).splitlines())


def _parsed(text: str) -> Any:
    """Parse JSON of a samples file; None where there is none or it cannot be read."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
