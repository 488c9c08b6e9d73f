"""The form of the ask screen: what to write, with which model and with which settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Input, OptionList, Select, Static, TextArea
from textual.widgets.option_list import Option

from trainer.control.questions import Question, Writer
from workbench.kit.cells import fit
from workbench.kit.drawing import Drawn, Line, component_classes, wrapped
from workbench.kit.whole import MountedWhole
from workbench.samples.asked import Asked, Choice
from workbench.samples.completion_list import signed
from workbench.samples.sentence import percent
from workbench.text import as_sent, typed, visible

MOST = 16  # completions of a request
LONGEST = 100_000  # tokens
COLDEST, HOTTEST = 0.01, 10.0  # temperature, as for the rollouts
_CHOICES_SHOWN = 7  # lines
_TOLD = 32  # columns for the prompt or token in the title of a request

_AS_IT_WAS = "as it was: its tokens are sent"
_EDITED = "edited: rendered as the run renders its data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The filled-in form: a question without writer and seed, and the writers that answer it."""

    question: Question
    writers: tuple[Writer, ...]
    checkpoint: str  # empty for the policy that is trained
    told: str  # title, in a few words
    compared: float  # score to compare with


class AskForm(MountedWhole, Vertical):
    """Form for the prompt or the choices at a token, the model, the count, the temperature and the length."""

    class Submitted(Message):
        """Message sent when the form is submitted."""

    def __init__(
        self,
        asked: Asked,
        *,
        temperature: float,
        max_new_tokens: int,
        checkpoints: Sequence[str] = (),
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self._asked = asked
        self._start = {
            "count": str(4 if asked.choices else 1),
            "temperature": f"{temperature:g}",
            "tokens": str(max_new_tokens),
        }
        self._checkpoints = checkpoints

    def compose(self) -> ComposeResult:
        yield from self._compose_place() if self._asked.choices else self._compose_prompt()
        with Vertical(id="ask-settings"):
            with Horizontal():
                yield Static("by", classes="label")
                yield Select(
                    [("policy and reference", "both"), ("policy", "policy"), ("reference", "reference")],
                    value="policy" if self._asked.choices else "both",
                    allow_blank=False,
                    compact=True,
                    id="ask-writer",
                    tooltip="Which model writes; both do so from the same seed",
                )
                if self._checkpoints:
                    yield Static("saved as", classes="label")
                    yield Select(
                        [(Text(visible(name)), name) for name in self._checkpoints],
                        value=self._checkpoints[0],
                        allow_blank=False,
                        compact=True,
                        id="ask-checkpoint",
                        tooltip="The checkpoint whose policy writes, newest first",
                    )
                else:
                    yield Static("the policy as trained now", classes="note")
            with Horizontal():
                for name, (kind, tooltip) in _INPUTS.items():
                    yield Static(name, classes="label")
                    yield Input(
                        self._start[name], type=kind, compact=True, max_length=7, id=f"ask-{name}", tooltip=tooltip
                    )
                yield Button("Write", compact=True, id="ask-write", tooltip="Ask for it; the answers come below")

    def _compose_prompt(self) -> ComposeResult:
        yield Static(id="ask-note", markup=False)
        yield PromptArea(typed(self._asked.prompt))

    def _compose_place(self) -> ComposeResult:
        asked = self._asked
        with Horizontal(id="ask-place") as place:
            place.styles.height = 1 + min(len(asked.choices), _CHOICES_SHOWN)
            yield Place(asked.prompt, asked.begun)
            with Vertical(id="ask-choices"):
                yield Static(_CHOICE_HEADING, markup=False, classes="note")
                yield OptionList(
                    *(Option(_choice_label(choice)) for choice in asked.choices),
                    compact=True,
                ).with_tooltip("What the response goes on with; enter writes from it")
        before = f"as it was: score {signed(asked.score)}   {visible(asked.rest[:500])}"
        yield Static(Content(before), classes="note one-line", id="ask-before")

    def on_mount(self) -> None:
        self._tell_prompt()
        self.query_one("OptionList, TextArea").focus()

    def request(self) -> Request:
        """Return the request on the form. Raises ValueError, in one line, when an input is not valid."""
        asked = self._asked
        prompt, prompt_tokens = asked.source, [int(token) for token in asked.prompt_tokens] or None
        prefix = [int(token) for token in asked.prefix]
        told, compared = "the prompt as it was", asked.score
        if asked.choices:
            choice = asked.choices[self.query_one(OptionList).highlighted or 0]
            prefix += choice.tokens
            told = _short(choice.shown)
        elif not (self._unchanged and prompt_tokens):
            prompt, prompt_tokens = (text := self._typed_prompt()), None
            told, compared = f"“{_short(visible(' '.join(text.split())))}”", math.nan
        count = self._whole("count", MOST)
        temperature, tokens = self._temperature(), self._whole("tokens", LONGEST)
        checkpoint = str(self.query_one("#ask-checkpoint", Select).value) if self._checkpoints else ""
        return Request(
            question=Question(
                prompt=prompt,
                prompt_tokens=prompt_tokens,
                prefix=prefix,
                columns=dict(asked.columns),
                count=count,
                temperature=temperature,
                max_new_tokens=tokens,
            ),
            writers=_WRITERS[self.query_one("#ask-writer", Select).value],
            checkpoint=checkpoint,
            told=f"{told}   temperature {temperature:g}   {checkpoint}".rstrip(),
            compared=compared,
        )

    # Widgets

    @on(Input.Submitted)
    @on(Button.Pressed)
    @on(OptionList.OptionSelected)
    def _submit(self, event: Message) -> None:
        event.stop()
        self.post_message(self.Submitted())

    @on(TextArea.Changed)
    def _tell_prompt(self) -> None:
        if not self._asked.choices:
            note = "" if not self._asked.prompt else _AS_IT_WAS if self._unchanged else _EDITED
            self.query_one("#ask-note", Static).update(f"prompt  {note}")

    @on(OptionList.OptionHighlighted)
    def _show_choice(self, event: OptionList.OptionHighlighted) -> None:
        choice = self._asked.choices[event.option_index]
        self.query_one(Place).go_on_with(choice.text if choice.tokens else "")

    @property
    def _unchanged(self) -> bool:
        area = self.query_one(PromptArea)
        return area.text == area.first

    def _typed_prompt(self) -> str:
        text = self.query_one(PromptArea).text
        if not text.strip():
            raise ValueError("the prompt is empty: type one")
        return as_sent(text, self._asked.prompt)

    def _whole(self, name: str, most: int) -> int:
        text = self.query_one(f"#ask-{name}", Input).value
        if not (text.isdecimal() and 1 <= int(text) <= most):
            raise ValueError(f"{name} = {text or 'nothing'}: write a whole number from 1 to {most:,}")
        return int(text)

    def _temperature(self) -> float:
        text = self.query_one("#ask-temperature", Input).value
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not COLDEST <= value <= HOTTEST:
            raise ValueError(f"temperature = {text or 'nothing'}: write a number from {COLDEST:g} to {HOTTEST:g}")
        return value


class PromptArea(TextArea):
    """Editor of the prompt; control characters in pasted text are shown as symbols."""

    def __init__(self, text: str) -> None:
        super().__init__(text, compact=True, highlight_cursor_line=False, tooltip="The prompt; type any other")
        self.first = self.text  # the document normalises line ends

    def on_mount(self) -> None:
        self.move_cursor(self.document.end)

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        await super()._on_paste(events.Paste(typed(event.text)))


class Place(Drawn):
    """The end of the prompt, the response so far, and the text chosen to follow it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes("text", "strong", "muted")

    def __init__(self, prompt: str, begun: str) -> None:
        super().__init__()
        self._prompt, self._begun, self._next = prompt, begun, ""

    def go_on_with(self, text: str) -> None:
        """Show `text` as the continuation."""
        self._next = text
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        room = 2 * width * height  # characters: a wide one takes two columns, and only combining ones take none
        begun = self._begun[-room:]
        prompt = self._prompt[-max(room - len(begun), 0) :] if len(begun) < room else ""
        lines = wrapped([(prompt, "muted"), (begun, "text"), (self._next, "strong"), ("▏", "muted")], width)
        return lines[-height:]


_INPUTS: dict[str, tuple[Literal["integer", "number"], str]] = {
    "count": ("integer", f"How many completions of each model, 1 to {MOST}"),
    "temperature": ("number", f"{COLDEST:g} to {HOTTEST:g}; that of the rollouts to begin with"),
    "tokens": ("integer", "The longest that may be written, in tokens"),
}
_WRITERS: dict[object, tuple[Writer, ...]] = {
    "both": ("policy", "reference"),
    "policy": ("policy",),
    "reference": ("reference",),
}
_TOKEN, _PERCENT = 17, 9  # columns of a choice
_CHOICE_HEADING = f" {'goes on with':{_TOKEN}}{'policy':>{_PERCENT}}{'reference':>{_PERCENT + 2}}"


def _choice_label(choice: Choice) -> Content:
    chances = (_chance(choice.logprob), _chance(choice.ref_logprob)) if choice.tokens else ("", "")
    return Content.assemble(
        fit(choice.shown, _TOKEN),
        f"{chances[0]:>{_PERCENT}}{chances[1]:>{_PERCENT + 2}}",
        ("  ← as it was" if choice.written else ""),
    )


def _short(text: str) -> str:
    return fit(text, _TOLD).rstrip()


def _chance(logprob: float) -> str:
    return percent(math.exp(logprob)) if logprob <= 0 else "-"
