"""The ask screen: what the models of the run write to a prompt now, or from a token of a response on."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, cast

from rich.cells import cell_len
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Input, OptionList, Select, Static, TextArea

from trainer.errors import TrainerError, counted
from trainer.questions import Answer, Question, Writer, WrittenResponse, unanswered
from workbench.kit.dialog import Dialog, PlainArea
from workbench.kit.drawing import Drawn, ScrolledLines, scroll_bindings, wrapped
from workbench.kit.keys import bind
from workbench.kit.word_diff import word_diff
from workbench.run.sample_table import TokenSample
from workbench.samples.export import parsed
from workbench.samples.token_facts import TokenFacts, percent
from workbench.text import Line, as_sent, beside, duration, fit, fit_start, number, packed, plain, score_text, visible

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
_SIDE_BY_SIDE = 96  # columns of the list in a terminal of 100
_DIVIDER = " │ "
_GAP = "  "  # between the facts of a response


class AskScreen(Dialog[None]):
    """Screen that sends requests to the models and lists the answers; closing it cancels those still waiting.

    ask: called with a question and the name of a checkpoint, or "" for the policy that is being trained; it and its
    future may raise TrainerError. sample: whose prompt, or whose response before token `at`, is to be continued; None
    for a prompt that the user types. temperature, max_new_tokens: initial values of the form. checkpoints: those of a
    run that is not running, newest first.
    """

    TITLE = "Ask"
    HELP = "Asks the policy, and the reference beside it, to go on with a text. {ask.write} sends it from any field."
    DOCS = "samples"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("ctrl+r", "write", "generate", "ask.write", "Generate responses; requests are queued"),
        bind("o", "switch('by_score')", "best first", "ask.order", "Sort by score, or by time"),
        bind("d", "switch('diff')", "diff", "ask.diff", "Mark words that differ between policy and reference"),
        bind("y", "copy", "copy", "ask.copy", "Copy the request at the top of the list and its responses"),
        bind("escape", "dismiss", "close", "ask.close", "Close and cancel pending requests"),
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-normal"), (132, "-wide")]

    def __init__(
        self,
        ask: Ask,
        sample: TokenSample | None,
        at: int | None = None,
        *,
        temperature: float,
        max_new_tokens: int,
        checkpoints: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._ask, self._checkpoints, self._sample, self._at = ask, checkpoints, sample, at or 0
        self._choices = [] if sample is None or at is None else TokenFacts(sample, at).choices
        count = "4" if self._choices else "1"
        self._defaults = {"count": count, "temperature": f"{temperature:g}", "tokens": str(max_new_tokens)}
        self._list = AnswerList()
        self._sent: list[object] = []  # all requests: a repeated one gets another seed
        self._asked: list[AskedRequest] = []  # newest first
        self._problem = ""  # of the form

    def compose(self) -> ComposeResult:
        sample, choices = self._sample, self._choices
        yield Static(f"Try from token {self._at + 1}" if choices else "Ask the models", id="ask-title")
        if sample and choices:
            with Horizontal(id="ask-place") as place:
                place.styles.height = 2 + min(len(choices), _CHOICES_SHOWN - 1)
                yield Drawn(id="ask-so-far")
                with Vertical(id="ask-choices"):
                    heading = f" {'next token':{_TOKEN}}{'policy':>{_PERCENT}}{'reference':>{_PERCENT + 2}}"
                    yield Static(heading, markup=False, classes="note")
                    rows = [Content(_FREELY)]
                    for choice in choices:
                        shares = percent(choice.probability), percent(choice.ref_probability)
                        row = fit(choice.name, _TOKEN) + f"{shares[0]:>{_PERCENT}}{shares[1]:>{_PERCENT + 2}}"
                        rows.append(Content(row + "  ← original" * choice.chosen))
                    tooltip = "Token that the response continues with; enter generates"
                    yield OptionList(*rows, compact=True).with_tooltip(tooltip)
            rest = visible("".join(sample.texts[self._at :])[:500])
            yield Static(f"original: {score_text(sample.score)}   {rest}", markup=False, classes="note one-line")
        else:
            yield Static(id="ask-note", markup=False, classes="note")
            yield PlainArea(sample.prompt if sample else "", tooltip="The prompt; edit it freely")
        writers = [(" and ".join(writers), writers) for writers in _WRITERS]
        checkpoints = [(Text(visible(name)), name) for name in self._checkpoints]
        with Vertical(id="ask-settings"):
            with Horizontal():
                yield Static("model", classes="label")
                tooltip, first = "Model that responds; both use the same seed", _WRITERS[1 if choices else 0]
                yield Select(writers, value=first, allow_blank=False, compact=True, id="ask-writer", tooltip=tooltip)
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
        self.set_interval(0.5, self._show_status)  # it counts the seconds
        self._changed()

    def action_switch(self, name: str) -> None:
        setattr(self._list, name, not getattr(self._list, name))
        self._show()

    def action_copy(self) -> None:
        if (request := self._list.topmost) is not None:
            text = "\n".join(plain(line) for line in request_lines(request, _UNWRAPPED, side_by_side=False))
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
            begun="".join(self._sample.texts[: self._at]) if self._sample else "",
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
        prompt: str | list[dict[str, str]] | None = None
        tokens, prefix, columns = list[int](), list[int](), dict[str, Any]()
        title, compared = "original prompt", math.nan
        if (sample := self._sample) is not None:
            source, row = parsed(sample.source_prompt), parsed(sample.columns)
            prompt = source if isinstance(source, str | list) else None  # for the rewards; None: as rendered
            columns = row if isinstance(row, dict) else {}
            tokens, prefix, compared = [*sample.prompt_tokens], [*sample.tokens[: self._at]], sample.score
        if self._choices:
            title = _FREELY
            if place := self.query_one(OptionList).highlighted:
                choice = self._choices[place - 1]
                prefix.append(choice.token)
                title = fit(choice.name, _TITLE).rstrip()
        elif (area := self.query_one(PlainArea)).text != area.first or not tokens:
            if not area.text.strip():
                raise ValueError("the prompt is empty; type one")
            prompt = text = as_sent(area.text, sample.prompt if sample else "")
            tokens = []
            title, compared = f"“{fit(visible(' '.join(text.split())), _TITLE).rstrip()}”", math.nan
        numbers = {name: self._number(name) for name in _NUMBERS}
        question = Question(
            prompt=prompt,
            prompt_tokens=tokens or None,
            prefix=prefix,
            columns=columns,
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
        if not self._choices:
            area, note = self.query_one(PlainArea), ""
            if self._sample is not None and self._sample.prompt:
                is_first = area.text == area.first
                note = "  unchanged: sent as its original tokens" if is_first else "  edited: rendered like the data"
            self.query_one("#ask-note", Static).update(f"prompt{note}")

    @on(OptionList.OptionHighlighted)
    def _show_choice(self, event: OptionList.OptionHighlighted) -> None:
        assert self._sample is not None
        texts = self._sample.prompt, "".join(self._sample.texts[: self._at])
        following = self._choices[event.option_index - 1].text if event.option_index else ""
        self.query_one("#ask-so-far", Drawn).show(partial(so_far_lines, *texts, following))

    def _show(self) -> None:
        self._list.show(tuple(self._asked))
        self._show_status()

    def _show_status(self) -> None:
        color = "$text-muted"
        waiting = [request for request in self._asked for answer in request.answers.values() if answer is None]
        if self._problem:
            text, color = f"✖ {visible(self._problem)}", "$text-error"
        elif waiting:
            seconds = time.monotonic() - min(request.sent for request in waiting)
            place = "loading the model" if self._checkpoints else "the trainer answers between two micro-batches"
            color = ""
            text = f"waiting for {counted(len(waiting), 'answer')}, {duration(seconds)}: {place}"
        elif not self._asked:
            text = "Generating again uses another seed."
        else:
            order = "sorted by score" if self._list.by_score else ""
            diff = "underlined: only the policy; struck: only the reference" if self._list.diff else ""
            text = "   ".join(filter(None, [order, diff]))
        self.query_one("#ask-status", Static).update(Content.styled(text, color))


def so_far_lines(prompt: str, begun: str, following: str, width: int, height: int) -> list[Line]:
    """Return the end of the prompt, the response so far, and the text chosen to follow it."""
    room = 2 * width * height  # characters: a wide one takes two columns, and only combining ones take none
    begun = begun[-room:]
    prompt = prompt[-max(room - len(begun), 0) :] if len(begun) < room else ""
    return wrapped([(prompt, "muted"), (begun, "text"), (following, "strong"), ("▏", "muted")], width)[-height:]


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
        for role in ("heading", "muted", *_WRITERS[0], "facts", "better", "worse", "problem", "text", "gone", "new")
    }
    BINDINGS: ClassVar[list[BindingType]] = scroll_bindings("ask")

    by_score = diff = False  # see `request_lines`

    def __init__(self) -> None:
        super().__init__()
        self._requests: Sequence[AskedRequest] = ()
        self._blocks: Sequence[list[Line]] = ()  # the lines of each request

    def show(self, requests: Sequence[AskedRequest]) -> None:
        """Show `requests` in the order given."""
        self._requests = requests
        self.lay_out()

    @property
    def topmost(self) -> AskedRequest | None:
        """The request whose lines are the first in view; None without requests."""
        y = self.scroll_offset.y
        for request, lines in zip(self._requests, self._blocks, strict=True):
            if (y := y - len(lines)) < 0:
                return request
        return self._requests[-1] if self._requests else None

    def wrap(self, width: int) -> list[Line]:
        side_by_side = width >= _SIDE_BY_SIDE
        self._blocks = [
            request_lines(request, width, side_by_side=side_by_side, by_score=self.by_score, diff=self.diff)
            for request in self._requests
        ]
        return [line for lines in self._blocks for line in lines]


def request_lines(
    request: AskedRequest, width: int, *, side_by_side: bool, by_score: bool = False, diff: bool = False
) -> list[Line]:
    """Draw `request` in lines of at most `width` columns, its writers beside each other or one after the other.

    by_score: best response first, those without a score last. diff: mark the words in which the first responses of
    policy and reference differ.
    """
    side_by_side = side_by_side and len(request.answers) > 1
    room = (width - len(_DIVIDER)) // 2 if side_by_side else width
    found = {writer: [*answer.completions] if answer else [] for writer, answer in request.answers.items()}
    if by_score:
        for responses in found.values():
            responses.sort(key=lambda one: math.inf if math.isnan(one.score) else -one.score)
    texts = {writer: [one.text.removeprefix(request.begun) for one in found[writer]] for writer in found}
    marked: dict[Writer, Line] = {}
    if diff and len(texts) > 1 and all(texts.values()):
        parts = word_diff(texts["reference"][0], texts["policy"][0])
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
    if side_by_side:
        return [heading, *beside(blocks, room, (_DIVIDER, "muted"))]
    return [heading, *(line for block in blocks for line in block)]


def _writer_lines(writer: Writer, answer: Answer | None, width: int) -> list[Line]:
    """Return the heading of a model's responses: who wrote, and the mean score; then a problem or that it waits."""
    if answer is None:
        return [[(fit_start(writer, width), writer)], [(fit_start("waiting…", width), "muted")]]
    facts: list[str] = [writer]
    if answer.completions:
        if writer == "policy":
            facts.append(f"after {counted(answer.iteration, 'iteration')}")
        scores = [one.score for one in answer.completions if math.isfinite(one.score)]
        if len(scores) > 1:
            facts.append(f"mean score {_signed(sum(scores) / len(scores))}")
        facts.append(duration(answer.seconds))
    heading: Line = [(fit_start(" · ".join(facts), width), writer)]
    return [heading, *(wrapped([(f"✖ {answer.problem}", "problem")], width) if answer.problem else [])]


def response_facts(response: WrittenResponse, writer: Writer, compared: float) -> Line:
    """Return the score, its difference to `compared`, the KL, the length, how it ended, and the parts of the score.

    The KL is log pi / pi_ref in nats, summed over the response: where the policy wrote, its k1 estimate.
    """
    score, by = response.score, response.score - compared
    facts: Line = [(score_text(score), "facts")]
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
