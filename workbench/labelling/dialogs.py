"""Dialogs of labelling: the base of its forms, a session's guidelines, the note on an item, the history of labels."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, OptionList, Select, Static, TextArea
from textual.widgets.option_list import Option

from trainer.errors import TrainerError, counted
from trainer.preferences.records import FLAGGED, Judgement, SessionItem
from workbench.kit.cursor_list import FilterField
from workbench.kit.dialog import Dialog, PlainArea
from workbench.kit.keys import bind, hidden_key
from workbench.kit.saving import PathSuggester
from workbench.labelling.texts import copy_text, judgement_text, plain_text, texts_of
from workbench.text import as_sent, duration, fit_end, has_words, typed, visible

if TYPE_CHECKING:
    from workbench.labelling.session_worker import SessionWorker

R = TypeVar("R")
T = TypeVar("T")

_LONGEST = 1500  # characters of a text that the history shows
_PROMPT = 200  # columns at the end of a prompt in the list


class LabelForm(Dialog[T]):
    """Dialog with a frame and its title, fields, a status line and the keys. A subclass implements `fields`."""

    DEFAULT_CLASSES = "label-form"
    busy = False  # writing: the dialog stays open until that is done

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def fields(self) -> ComposeResult:
        """Yield the widgets above the status line."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        with Vertical(id="form") as form:
            form.border_title = Content(visible(self._title))
            yield from self.fields()
            yield Static(id="status", markup=False)

    def action_close(self) -> None:
        if self.busy:
            self.show_status("Writing...", "$text-warning")
        else:
            self.dismiss(None)

    def value(self, name: str) -> str:
        """Return what is typed or chosen in a field."""
        field = self.query_one(f"#{name}")
        assert isinstance(field, Input | Select)
        return str(field.value)

    def show_status(self, content: Content | str, style: str = "") -> None:
        """Show what is going on, or what a key does."""
        shown = Content.styled(content, style) if isinstance(content, str) else content
        self.query_one("#status", Static).update(shown)

    def show_problem(self, problem: str) -> None:
        self.show_status(f"✖ {visible(problem)}", "$text-error")

    async def tried(self, work: Awaitable[R], advice: str = "") -> R | None:
        """Return the result of `work`; None if it fails: then show why, and `advice`."""
        try:
            return await work
        except TrainerError as error:
            self.show_problem(f"{error}{advice}")
            return None


def row(*fields: tuple[str, Widget], unit: str = "") -> Horizontal:
    """Return one line of fields, each after its label. unit: behind the last one."""
    parts: list[Widget] = []
    for place, (label, widget) in enumerate(fields):
        parts += [Static(label, classes="second label" if place else "label"), widget]
    return Horizontal(*parts, *([Static(unit, classes="label")] if unit else []), classes="fields")


def columns_field(value: str = "") -> Input:
    """Return the field for the names of a source's columns."""
    tooltip = "Names of columns, as with --column: ROLE=NAME, with commas between them; empty for the usual names"
    return text_field("columns", tooltip, value, placeholder="usual names, or prompt=question, a=left, b=right")


def columns_in(text: str) -> tuple[str, ...]:
    """Return the assignments in what was typed into a `columns_field`."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def path_field(name: str, tooltip: str, value: str = "", **more: Any) -> Input:
    """Return a field for a path, which is completed while it is typed. more: arguments of Input."""
    return text_field(name, f"{tooltip}; → takes the suggested path", value, suggester=PathSuggester(), **more)


def text_field(name: str, tooltip: str, value: str = "", **more: Any) -> Input:
    """Return a field for a line of text, shown without control characters. more: arguments of Input."""
    return Input(visible(value, joined=True), compact=True, id=name, tooltip=tooltip, **more)


def choice(name: str, options: list[tuple[str, str]], tooltip: str) -> Select[str]:
    """Return a field with `options`, the first one chosen."""
    return Select(options, value=options[0][1], allow_blank=False, compact=True, id=name, tooltip=tooltip)


class GuidelinesScreen(Dialog[bool]):
    """Guidelines dialog with scrollable text. Its result is True if enter closed it.

    begin: whether enter begins a session and escape cancels it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("enter", "dismiss(True)", "go on", "label-guidelines.go-on", "Start labelling", priority=True),
        bind("escape", "dismiss(False)", "close", "label-guidelines.close", "Close the guidelines"),
        hidden_key("g", "dismiss(False)", "close", "label-guidelines.same", "Close the guidelines"),
    ]

    def __init__(self, text: str, *, begin: bool = False) -> None:
        super().__init__()
        self._text, self._begin = text, begin

    def compose(self) -> ComposeResult:
        area = TextArea(typed(self._text), read_only=True, show_cursor=False, compact=True, highlight_cursor_line=False)
        close = "label-guidelines.close"
        begins = ("label-guidelines.go-on", "starts labelling"), (close, "goes back")
        hints = begins if self._begin else ((close, "closes"), ("↑ ↓", "scroll"))
        with Vertical(classes="dialog"):
            yield Static("Guidelines", classes="question")
            yield area.with_tooltip("Guidelines of this session")
            yield Static(self.hint(*hints), classes="detail")


class NoteScreen(Dialog[str | None]):
    """Note dialog. Its result is the edited note; None if it is unchanged. Every key that closes it keeps the text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("enter,escape", "keep", "keep", "label-note.keep", "Save the note and close", priority=True),
        hidden_key("ctrl+j", "line", "new line", "label-note.line", "Start a new line", priority=True),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        hints = ("label-note.keep", "saves it"), ("label-note.line", "starts a line"), ("ctrl+z", "undoes")
        with Vertical(classes="dialog"):
            yield Static("Note on this comparison", classes="question")
            yield PlainArea(self._text, tooltip="Saved with the label")
            yield Static(self.hint(*hints), classes="detail")

    def action_keep(self) -> None:
        area = self.query_one(PlainArea)
        self.dismiss(None if area.text == area.first else as_sent(area.text, self._text).strip())

    def action_line(self) -> None:
        self.query_one(PlainArea).insert("\n")


class LabelHistoryScreen(LabelForm[int | None]):
    """Labels of a session, the newest first. Its result is the position of the item to change; None if none was."""

    AUTO_FOCUS = "OptionList"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("slash", "filter", "filter", "label-history.filter", "List the labels with these words"),
        bind("y", "copy", "copy", "label-history.copy", "Copy prompt, completions and choice"),
        bind("escape,h", "close", "close", "label-history.close", "Return to the next item"),
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]

    def __init__(self, worker: SessionWorker) -> None:
        super().__init__("Labels of this session, newest first")
        self._worker = worker
        self._items: dict[str, tuple[SessionItem, Judgement]] = {}  # by position, the newest label first

    def fields(self) -> ComposeResult:
        with Container(id="body"):
            yield FilterField("words of a text, a note or a choice; flagged")
            yield OptionList(markup=False, compact=True).with_tooltip("Enter opens a label again, to change it")
            with VerticalScroll():
                yield Static(id="detail", markup=False)

    def action_filter(self) -> None:
        self.query_one(FilterField).open()

    def action_copy(self) -> None:
        rows = self.query_one(OptionList)
        if rows.highlighted is not None:
            item, judgement = self._items[str(rows.get_option_at_index(rows.highlighted).id)]
            parts = [copy_text(texts_of(item.item)), f"[choice]\n{judgement_text(item.item, judgement)}"]
            parts += [f"[note]\n{judgement.note}"] if judgement.note else []
            self.copy("\n\n".join(parts), "the label")

    def action_close(self) -> None:
        field = self.query_one(FilterField)
        if field.display:
            field.clear_filter()
        else:
            super().action_close()

    @on(OptionList.OptionSelected)
    def _change(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(int(str(event.option.id)))  # the list may have been filtered since

    @on(OptionList.OptionHighlighted)
    def _show(self, event: OptionList.OptionHighlighted) -> None:
        self.query_one("#detail", Static).update(_detail(*self._items[str(event.option.id)]))
        self.query_one(VerticalScroll).scroll_home(animate=False)

    @work
    async def on_mount(self) -> None:
        items = await self.tried(asyncio.wrap_future(self._worker.history()))
        if items is not None:
            self._items = {str(item.position): (item, item.label.judgement) for item in items if item.label is not None}
            self._list()

    @on(Input.Changed)
    def _list(self) -> None:
        """List the labels that the filter leaves: number, choice, seconds, flag, note and the prompt's end."""
        self.query_one("#detail", Static).update("")
        query, rows, options = self.query_one(FilterField).value, self.query_one(OptionList), list[Option]()
        for place, (item, judgement) in self._items.items():
            choice, texts, note = judgement_text(item.item, judgement), texts_of(item.item), judgement.note
            flag, whole = FLAGGED if judgement.flags else "", map(plain_text, (texts.prompt, *texts.completions))
            if query and not has_words("\n".join([choice, flag, note, *whole]), query):
                continue
            seconds = "-" if judgement.seconds is None else duration(judgement.seconds)
            line = f"{item.position + 1:>5}  {choice:<20} {seconds:>7} {'⚑' if judgement.flags else ' '} "
            line += f"“{visible(note)}”  " if note else ""
            options.append(Option(Content(line + fit_end(visible(plain_text(texts.prompt)), _PROMPT)), id=place))
        rows.clear_options()
        rows.add_options(options)
        rows.highlighted = 0 if options else None
        known = counted(len(self._items), "label")
        if query:
            status = f"{rows.option_count:,} of {known}"
        else:
            status = f"{known}; a changed label keeps its earlier choice on record" if self._items else "No labels yet"
        self.show_status(status, "$text-muted")


def _detail(item: SessionItem, judgement: Judgement) -> Content:
    """Return a label and the texts of its item, of long ones the ends that a list needs; the pane shows all of it."""

    def cut(text: str, *, end: bool = False) -> str:
        part = visible(text[-_LONGEST:] if end else text[:_LONGEST], keep_newlines=True)
        if len(text) <= _LONGEST:
            return part
        return f"…{part}" if end else f"{part}…"

    texts = texts_of(item.item)
    parts: list[tuple[str, str]] = [(f"{judgement_text(item.item, judgement)}\n", "bold")]
    if judgement.note:
        parts.append((f"note: {cut(judgement.note)}\n", ""))
    parts += [("\nprompt\n", "$text-muted"), (cut(plain_text(texts.prompt), end=True), "")]
    for number, completion in enumerate(texts.completions, 1):
        parts += [(f"\n\n{number}\n", "$text-muted"), (cut(plain_text(completion)), "")]
    return Content.assemble(*parts)
