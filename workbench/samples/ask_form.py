"""The form of the ask screen: what to continue, with which model and with which settings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, cast

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Input, OptionList, Select, Static, TextArea
from textual.widgets.option_list import Option

from trainer.questions import Question, Writer
from workbench.columns import fit
from workbench.kit.dialog import PlainArea
from workbench.kit.drawing import Drawn, component_classes, wrapped
from workbench.kit.lines import Line
from workbench.kit.pane import MountedWhole
from workbench.numbers import score_text
from workbench.run.sample_table import TokenSample
from workbench.samples.token_sentence import percent
from workbench.text import as_sent, visible

MOST = 16  # responses of a request
LONGEST = 100_000  # tokens
COLDEST, HOTTEST = 0.01, 10.0  # temperature, as for the rollouts
_CHOICES_SHOWN = 7  # lines
_TITLE = 32  # columns for the prompt or token in the title of a request
_TOKEN, _PERCENT = 17, 9  # columns of a choice
_CHOICE_HEADING = f" {'next token':{_TOKEN}}{'policy':>{_PERCENT}}{'reference':>{_PERCENT + 2}}"
_INPUTS: dict[str, tuple[Literal["integer", "number"], str]] = {
    "count": ("integer", f"Responses of each model, 1 to {MOST}"),
    "temperature": ("number", f"Sampling temperature, {COLDEST:g} to {HOTTEST:g} (default: that of the rollouts)"),
    "tokens": ("integer", "Maximum tokens in a response"),
}
_WRITERS: tuple[tuple[Writer, ...], ...] = (("policy", "reference"), ("policy",), ("reference",))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRequest:
    """The filled-in form: a question without writer and seed, and the writers that answer it."""

    question: Question
    writers: tuple[Writer, ...]
    checkpoint: str  # empty for the policy that is trained
    title: str
    compared: float  # score to compare with


class AskForm(MountedWhole, Vertical):
    """Form for the prompt or the choices at a token, the model, the count, the temperature and the length."""

    class Submitted(Message):
        """Message sent when the form is submitted."""

    def __init__(
        self,
        start: StartingPoint,
        *,
        temperature: float,
        max_new_tokens: int,
        checkpoints: Sequence[str] = (),
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self._start = start
        self._defaults = {
            "count": str(4 if start.choices else 1),
            "temperature": f"{temperature:g}",
            "tokens": str(max_new_tokens),
        }
        self._checkpoints = checkpoints

    def compose(self) -> ComposeResult:
        if self._start.choices:
            yield from self._compose_place()
        else:
            yield Static(id="ask-note", markup=False)
            yield PlainArea(self._start.prompt, tooltip="The prompt; edit it freely")
        with Vertical(id="ask-settings"):
            with Horizontal():
                yield Static("model", classes="label")
                yield Select(
                    [(" and ".join(writers), writers) for writers in _WRITERS],
                    value=_WRITERS[1 if self._start.choices else 0],
                    allow_blank=False,
                    compact=True,
                    id="ask-writer",
                    tooltip="Model that responds; both use the same seed",
                )
                if self._checkpoints:
                    yield Static("checkpoint", classes="label", id="ask-checkpoint-label")
                    yield Select(
                        [(Text(visible(name)), name) for name in self._checkpoints],
                        value=self._checkpoints[0],
                        allow_blank=False,
                        compact=True,
                        id="ask-checkpoint",
                        tooltip="Checkpoint of the policy, newest first",
                    )
                else:
                    yield Static("the policy in training", classes="note")
            with Horizontal():
                for name, (kind, tooltip) in _INPUTS.items():
                    yield Static(name, classes="label")
                    yield Input(
                        self._defaults[name], type=kind, compact=True, max_length=7, id=f"ask-{name}", tooltip=tooltip
                    )
                yield Button("Generate", compact=True, id="ask-write", tooltip="Generate responses; they appear below")

    def _compose_place(self) -> ComposeResult:
        start = self._start
        with Horizontal(id="ask-place") as place:
            place.styles.height = 1 + min(len(start.choices), _CHOICES_SHOWN)
            yield ResponseSoFar(start.prompt, start.begun)
            with Vertical(id="ask-choices"):
                yield Static(_CHOICE_HEADING, markup=False, classes="note")
                yield OptionList(
                    *(Option(_choice_label(choice)) for choice in start.choices),
                    compact=True,
                ).with_tooltip("Token that the response continues with; enter generates")
        before = f"original: {score_text(start.score)}   {visible(start.rest[:500])}"
        yield Static(Content(before), classes="note one-line", id="ask-before")

    def on_mount(self) -> None:
        self._show_note()
        self.query_one("OptionList, TextArea").focus()

    def request(self) -> AskRequest:
        """Return the request on the form. Raises ValueError, in one line, when an input is not valid."""
        start = self._start
        prompt, prompt_tokens = start.source, list(start.prompt_tokens) or None
        prefix = list(start.prefix)
        title, compared = "original prompt", start.score
        if start.choices:
            choice = start.choices[self.query_one(OptionList).highlighted or 0]
            prefix += choice.tokens
            title = _short(choice.label)
        elif not (self._unchanged and prompt_tokens):
            text = self.query_one(PlainArea).text
            if not text.strip():
                raise ValueError("the prompt is empty; type one")
            prompt = text = as_sent(text, start.prompt)
            prompt_tokens = None
            title, compared = f"“{_short(visible(' '.join(text.split())))}”", math.nan
        count = self._whole("count", MOST)
        temperature, tokens = self._temperature(), self._whole("tokens", LONGEST)
        checkpoint = str(self.query_one("#ask-checkpoint", Select).value) if self._checkpoints else ""
        return AskRequest(
            question=Question(
                prompt=prompt,
                prompt_tokens=prompt_tokens,
                prefix=prefix,
                columns=dict(start.columns),
                count=count,
                temperature=temperature,
                max_new_tokens=tokens,
            ),
            writers=cast("tuple[Writer, ...]", self.query_one("#ask-writer", Select).value),
            checkpoint=checkpoint,
            title=f"{title}   temperature {temperature:g}   {checkpoint}".rstrip(),
            compared=compared,
        )

    @on(Input.Submitted)
    @on(Button.Pressed)
    @on(OptionList.OptionSelected)
    def _submit(self, event: Message) -> None:
        event.stop()
        self.post_message(self.Submitted())

    @on(TextArea.Changed)
    def _show_note(self) -> None:
        if not self._start.choices:
            note = "unchanged: sent as its original tokens" if self._unchanged else "edited: rendered like the data"
            self.query_one("#ask-note", Static).update(f"prompt  {note}" if self._start.prompt else "prompt")

    @on(OptionList.OptionHighlighted)
    def _show_choice(self, event: OptionList.OptionHighlighted) -> None:
        choice = self._start.choices[event.option_index]
        self.query_one(ResponseSoFar).continue_with(choice.text if choice.tokens else "")

    @property
    def _unchanged(self) -> bool:
        area = self.query_one(PlainArea)
        return area.text == area.first

    def _whole(self, name: str, most: int) -> int:
        text = self.query_one(f"#ask-{name}", Input).value
        if not (text.isdecimal() and 1 <= int(text) <= most):
            raise ValueError(f"{name} = {text or 'nothing'}; use a whole number from 1 to {most:,}")
        return int(text)

    def _temperature(self) -> float:
        text = self.query_one("#ask-temperature", Input).value
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not COLDEST <= value <= HOTTEST:
            raise ValueError(f"temperature = {text or 'nothing'}; use a number from {COLDEST:g} to {HOTTEST:g}")
        return value


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


def _choice_label(choice: NextToken) -> Content:
    policy, reference = (_chance(choice.logprob), _chance(choice.ref_logprob)) if choice.tokens else ("", "")
    chances = f"{policy:>{_PERCENT}}{reference:>{_PERCENT + 2}}"
    return Content(fit(choice.label, _TOKEN) + chances + "  ← original" * choice.written)


def _short(text: str) -> str:
    return fit(text, _TITLE).rstrip()


def _chance(logprob: float) -> str:
    return percent(math.exp(logprob)) if logprob <= 0 else "-"


def _parsed(text: str) -> Any:
    """Parse JSON of a samples file; None where there is none or it cannot be read."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
