"""Dialogs: their base class, and those that ask for a yes or no, for one of a list, and for a line of text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, NamedTuple, TypeVar, cast

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import on, work
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Button, Input, OptionList, SelectionList, Static, TextArea

from workbench.kit.footer import KeyFooter
from workbench.kit.keys import ANYWHERE, bind, hidden_key, keys_of
from workbench.kit.pane import MountedWhole
from workbench.text import fit_start, padded, typed, visible

T = TypeVar("T")


class Dialog(MountedWhole, ModalScreen[T]):
    """A modal screen. TITLE, HELP and DOCS are those of its help, as of a pane."""

    TITLE = "This dialog"
    HELP = ""
    DOCS = "workbench"
    BINDINGS: ClassVar[list[BindingType]] = ANYWHERE

    _answer: tuple[T | None] | None = None  # to be given once no other screen lies over this one

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Close this dialog with `result`, or as soon as it is on top; once it is closed, do nothing.

        Textual would close whatever screen is on top: two quick keys would take the screen below as well.
        """
        if self.is_active:
            return super().dismiss(result)
        if self in self.app.screen_stack:
            self._answer = (result,)
        return cast("AwaitComplete", AwaitComplete.nothing())

    async def mount_composed_widgets(self, widgets: list[Widget]) -> None:
        """Add the footer to what a dialog composes; mounted later, it would move the dialog on the screen."""
        await super().mount_composed_widgets([*widgets, KeyFooter()])

    def on_screen_resume(self) -> None:
        if self._answer is not None:
            (result,), self._answer = self._answer, None
            self.dismiss(result)  # another dialog may lie over this one again

    def hint(self, *parts: tuple[str, str]) -> Content:
        """Return a line about keys. parts: pairs of a key, or the id of a binding, and what it does."""
        keys = keys_of(self)
        pieces: list[str | tuple[str, str]] = []
        for key, does in parts:
            pieces += ["   " if pieces else "", (keys.get(key, key), "bold"), f" {does}"]
        return Content.assemble(*pieces)


class ConfirmScreen(Dialog[bool]):
    """A question before an action. The button that does nothing has the focus, so enter by mistake does no harm.

    question: any text, as are the labels `yes` and `no`. detail: a text, or widgets, of which the first that scrolls
    does so with the keys for pages. wanted: the question says what the user has just asked for, so enter agrees.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("y", "dismiss(True)", "yes", "confirm.yes", "Confirm"),
        bind("n,escape", "dismiss(False)", "no", "confirm.no", "Close without a change"),
        hidden_key("left,right,up,down", "app.focus_next", "other", "confirm.other", "Switch buttons"),
        bind("pagedown", "read(1)", "read on", "confirm.on", "Scroll what is asked about down"),
        hidden_key("pageup", "read(-1)", "back", "confirm.back", "Scroll what is asked about up"),
    ]

    def __init__(
        self,
        question: str,
        detail: str | Sequence[Widget] = "",
        yes: str = "Yes",
        no: str = "No",
        *,
        wanted: bool = False,
        more: Sequence[Button] = (),
    ) -> None:
        super().__init__()
        self._question, self._wanted = question, wanted
        text = Static(visible(str(detail), keep_newlines=True), markup=False, classes="detail")
        self._detail = [text] if isinstance(detail, str) else detail
        keys = ("esc", "enter") if wanted else ("n", "y")
        self._buttons = [
            Button(button_label(keys[0], no), compact=True, id="no", action="screen.dismiss(False)"),
            Button(button_label(keys[1], yes), compact=True, id="yes", action="screen.dismiss(True)"),
            *more,
        ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(visible(self._question), markup=False, classes="question")
            yield from self._detail
            yield Horizontal(*self._buttons, classes="buttons")

    def on_mount(self) -> None:
        self.query_one("#yes" if self._wanted else "#no").focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "read" or bool(self.query(VerticalScroll))

    def action_read(self, pages: int) -> None:
        detail = self.query(VerticalScroll).first()
        detail.scroll_relative(y=pages * max(detail.size.height - 1, 1), animate=False)


def button_label(key: str, text: str) -> Content:
    """Return the label of a button: the key that presses it, then `text`."""
    return Content.assemble((key, "bold"), " ", visible(text))


class Reply(NamedTuple):
    """One answer of an `AnswerScreen`."""

    id: str
    title: str
    text: str = ""


_WIDTH = 72  # columns of a dialog at most
_FRAME = 9  # columns of a dialog around an answer, with a scroll bar


class AnswerScreen(Dialog[str | None]):
    """A question with a list of answers, one on each line. The result is the id of one, or None when cancelled.

    If a text does not fit, the whole text of the answer under the cursor is below the list.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape", "dismiss", "cancel", "answer.cancel", "Close without a change")
    ]

    def __init__(self, question: str, answers: Sequence[Reply]) -> None:
        super().__init__()
        self._question, self._answers = question, answers

    def compose(self) -> ComposeResult:
        wide = max(cell_len(visible(answer.title)) for answer in self._answers) + 2
        room = max(min(_WIDTH, self.app.size.width * 9 // 10) - _FRAME - wide, 20)
        with Vertical(classes="dialog"):
            yield Static(visible(self._question), markup=False, classes="question")
            # The text is not muted: on the row under the cursor, muted text cannot be read in every theme.
            yield OptionList(
                *(
                    Content.assemble((padded(visible(one.title), wide), "bold"), fit_start(visible(one.text), room))
                    for one in self._answers
                )
            )
            lines = max(len(Content(visible(answer.text)).wrap(wide + room)) for answer in self._answers)
            if any(cell_len(visible(answer.text)) > room for answer in self._answers):
                yield (detail := Static(markup=False, classes="detail"))
                detail.styles.height = lines + 1  # of the longest, and a blank one: the list stays where it is

    @on(OptionList.OptionHighlighted)
    def _show_text(self, event: OptionList.OptionHighlighted) -> None:
        for detail in self.query(".detail").results(Static):
            detail.update(visible(self._answers[event.option_index].text), layout=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._answers[event.option_index].id)


class TextPromptScreen(Dialog[str | None]):
    """A prompt for a text, which is its result; None when cancelled. It stays open until the text is accepted.

    check: returns why a text that is not blank is refused, in one line, as it is typed; empty when it is not. submit:
    uses the text, and returns the same.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape", "cancel", "cancel", "prompt.cancel", "Close without a change")
    ]

    def __init__(
        self,
        title: str,
        value: str,
        check: Callable[[str], str] = lambda _: "",
        submit: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        super().__init__()
        self._title, self._value, self._submit = title, value, submit
        self._check = lambda text: check(text) if text.strip() else "Enter a text"
        self._submitting = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(visible(self._title), markup=False, classes="question")
            yield Input(visible(self._value, joined=True), compact=True)
            yield Static(classes="detail")

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._show("")

    @on(Input.Changed)
    def _check_text(self, event: Input.Changed) -> None:
        self._show(self._check(event.value))

    @on(Input.Submitted)
    @work
    async def _accept(self, event: Input.Submitted) -> None:
        if self._submitting or self._check(event.value):
            return
        self._submitting = True
        try:
            problem = await self._submit(event.value) if self._submit else ""
        finally:
            self._submitting = False
        if problem:
            self._show(problem)
        else:
            self.dismiss(event.value)

    def action_cancel(self) -> None:
        if not self._submitting:
            self.dismiss(None)

    def _show(self, problem: str) -> None:
        """Show the problem, or the keys if there is none."""
        keys = self.hint(("enter", "OK"), ("prompt.cancel", "cancel"))
        self.query_one(".detail", Static).update(Content(f"✖ {visible(problem)}") if problem else keys)


class PlainArea(TextArea):
    """An editor of a text of several lines that shows control characters as symbols.

    first: the text before it was edited.
    """

    def __init__(self, text: str, *, tooltip: str) -> None:
        super().__init__(typed(text), compact=True, highlight_cursor_line=False, tooltip=tooltip)
        self.first = self.text  # the document normalises line ends

    def on_mount(self) -> None:
        self.move_cursor(self.document.end)


class ChoiceList(SelectionList[str]):
    """List of choices with a mark in the box of the chosen ones. Textual's boxes differ in their colours only."""

    def render_line(self, y: int) -> Strip:
        line = super().render_line(y)
        place = self.scroll_offset.y + y
        if place >= self.option_count:
            return line
        _, mark, _, gap, *rest = line
        style = (gap.style or Style.null()) + Style.from_meta(mark.style.meta if mark.style else {})
        box = "[✓]" if self.get_option_at_index(place).value in self.selected else "[ ]"
        return Strip([Segment(box, style), gap, *rest])
