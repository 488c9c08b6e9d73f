"""Dialogs of labelling: the base of its forms, a session's guidelines, the note on an item, the history of labels."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, OptionList, Select, Static, TextArea
from textual.widgets.option_list import Option

from trainer.errors import TrainerError
from trainer.plurals import counted
from trainer.preferences.records import FLAGGED, Judgement, SessionItem
from workbench.kit.cursor_list import FilterField
from workbench.kit.dialog import Dialog, PlainArea, PlainInput
from workbench.labelling.texts import copy_text, judgement_text, plain_text, texts_of
from workbench.numbers import duration
from workbench.text import as_sent, fit_end, has_words, typed, visible

if TYPE_CHECKING:
    from workbench.labelling.session_worker import SessionWorker

R = TypeVar("R")
T = TypeVar("T")

PAGE = 200  # labels read at once
_LONGEST = 1500  # characters of a text that the history shows
_PROMPT = 200  # columns at the end of a prompt in the list


class LabelForm(Dialog[T]):
    """Dialog with a title, fields, a status line and the keys. A subclass implements `fields`."""

    DEFAULT_CLASSES = "label-form"
    busy = False  # writing: the dialog stays open until that is done

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def fields(self) -> ComposeResult:
        """Yield the widgets between the title and the status line."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        yield Static(visible(self._title), markup=False, classes="title one-line")
        yield from self.fields()
        yield Static(id="status", markup=False)

    def action_close(self) -> None:
        if self.busy:
            self.show_status("Writing...", "$text-warning")
        else:
            self.dismiss(None)

    def show_status(self, content: Content | str, style: str = "$text-accent") -> None:
        """Show what is going on, or what a key does."""
        self.query_one("#status", Static).update(
            Content.styled(content, style) if isinstance(content, str) else content
        )

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


def columns_field(value: str = "") -> PlainInput:
    """Return the field for the names of a source's columns."""
    tooltip = "Names of columns, as with --column: ROLE=NAME, with commas between them; empty for the usual names"
    return text_field("columns", tooltip, value, placeholder="usual names, or prompt=question, a=left, b=right")


def columns_in(text: str) -> tuple[str, ...]:
    """Return the assignments in what was typed into a `columns_field`."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def text_field(name: str, tooltip: str, value: str = "", **more: Any) -> PlainInput:
    """Return a field for a line of text. more: arguments of Input."""
    return PlainInput(value, compact=True, id=name, tooltip=tooltip, **more)


def choice(name: str, options: list[tuple[str, str]], tooltip: str) -> Select[str]:
    """Return a field with `options`, the first one chosen."""
    return Select(options, value=options[0][1], allow_blank=False, compact=True, id=name, tooltip=tooltip)


class GuidelinesScreen(Dialog[bool]):
    """Guidelines dialog with scrollable text. Its result is True if enter closed it.

    begin: whether enter begins a session and escape cancels it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "close(True)", "go on", priority=True, id="label-guidelines.go-on", tooltip="Start labelling"),
        Binding("escape", "close(False)", "close", id="label-guidelines.close", tooltip="Close the guidelines"),
        Binding("g", "close(False)", "close", show=False, id="label-guidelines.same", tooltip="Close the guidelines"),
    ]

    def __init__(self, text: str, *, begin: bool = False) -> None:
        super().__init__()
        self._text, self._begin = text, begin

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Guidelines", classes="question")
            yield TextArea(
                typed(self._text),
                read_only=True,
                show_cursor=False,
                compact=True,
                highlight_cursor_line=False,
                tooltip="Guidelines of this session",
            )
            go_on, close = "label-guidelines.go-on", "label-guidelines.close"
            begin = self.hint((go_on, "starts labelling"), (close, "goes back"))
            yield Static(begin if self._begin else self.hint((close, "closes"), ("↑ ↓", "scroll")), classes="detail")

    def on_mount(self) -> None:
        self.query_one(TextArea).focus()

    def action_close(self, agreed: bool) -> None:
        self.dismiss(agreed)


class NoteScreen(Dialog[str | None]):
    """Note dialog. Its result is the edited note; None if it is unchanged. Every key that closes it keeps the text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,escape", "keep", "keep", priority=True, id="label-note.keep", tooltip="Save the note and close"),
        Binding(
            "ctrl+j",
            "new_line",
            "new line",
            priority=True,
            show=False,
            id="label-note.line",
            tooltip="Start a new line",
        ),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Note on this comparison", classes="question")
            yield PlainArea(self._text, tooltip="Saved with the label")
            yield Static(
                self.hint(("label-note.keep", "saves it"), ("label-note.line", "starts a line"), ("ctrl+z", "undoes")),
                classes="detail",
            )

    def on_mount(self) -> None:
        self.query_one(PlainArea).focus()

    def action_keep(self) -> None:
        area = self.query_one(PlainArea)
        self.dismiss(None if area.text == area.first else as_sent(area.text, self._text).strip())

    def action_new_line(self) -> None:
        self.query_one(PlainArea).insert("\n")


class LabelHistoryScreen(LabelForm[int | None]):
    """Labels of a session, the newest first. Its result is the position of the item to change; None if none was."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", id="label-history.filter", tooltip="List the labels with these words"),
        Binding("y", "copy", "copy", id="label-history.copy", tooltip="Copy prompt, completions and choice"),
        Binding("escape,h", "close", "close", id="label-history.close", tooltip="Return to the next item"),
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]

    def __init__(self, worker: SessionWorker) -> None:
        super().__init__("Labels of this session, newest first")
        self._worker = worker
        self._items: list[SessionItem] = []  # newest label first
        self._listed: list[SessionItem] = []  # those that the filter leaves

    def fields(self) -> ComposeResult:
        with Container(id="body"):
            yield FilterField("words of a text, a note or a choice; flagged")
            yield OptionList(markup=False, compact=True).with_tooltip("Enter opens a label again, to change it")
            with VerticalScroll():
                yield Static(id="detail", markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self._read()

    def action_filter(self) -> None:
        self.query_one(FilterField).open()

    def action_copy(self) -> None:
        place = self.query_one(OptionList).highlighted
        if place is not None:
            item = self._listed[place]
            choice = f"[choice]\n{judgement_text(item.item, _judgement(item))}"
            note = f"\n\n[note]\n{_judgement(item).note}" if _judgement(item).note else ""
            self.copy(f"{copy_text(texts_of(item.item))}\n\n{choice}{note}", "the label")

    def action_close(self) -> None:
        field = self.query_one(FilterField)
        if field.display:
            field.clear_filter()
        else:
            super().action_close()

    @on(Input.Changed)
    def _filter(self) -> None:
        """List the labels that the filter leaves, with the cursor on the first."""
        self.query_one(OptionList).clear_options()
        self.query_one("#detail", Static).update("")
        self._listed = []
        self._list(self._items)

    @on(OptionList.OptionSelected)
    def _change(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(int(str(event.option.id)))  # the list may have been filtered since

    @on(OptionList.OptionHighlighted)
    def _show(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_index >= len(self._listed):
            return  # the filter has changed since
        self.query_one("#detail", Static).update(_detail(self._listed[event.option_index]))
        self.query_one(VerticalScroll).scroll_home(animate=False)

    @work
    async def _read(self) -> None:
        """List the labels page by page: those of the first page can be chosen at once."""
        items: list[SessionItem] | None = None
        while items is None or len(items) == PAGE:
            last = self._items[-1].label if self._items else None
            items = await self.tried(asyncio.wrap_future(self._worker.history(PAGE, last.id if last else None)))
            if items is None:
                return
            self._items += items
            self._list(items)

    def _list(self, items: Sequence[SessionItem]) -> None:
        """Append those of `items` that the filter leaves to the list."""
        query = self.query_one(FilterField).value
        found = [item for item in items if has_words(_searched(item), query)] if query else items
        self._listed += found
        rows = self.query_one(OptionList)
        rows.add_options([Option(Content(history_line(item)), id=str(item.position)) for item in found])
        if rows.highlighted is None and self._listed:
            rows.highlighted = 0
        known = counted(len(self._items), "label")
        if query:
            status = f"{len(self._listed):,} of {known}"
        else:
            status = f"{known}; a changed label keeps its earlier choice on record" if self._items else "No labels yet"
        self.show_status(status, "$text-muted")


def history_line(item: SessionItem) -> str:
    """Return a line with the item's number, choice, seconds, flag, note and the end of its prompt."""
    judgement = _judgement(item)
    choice = judgement_text(item.item, judgement)
    seconds = "-" if judgement.seconds is None else duration(judgement.seconds)
    flag = "⚑" if judgement.flags else " "
    note = f"“{visible(judgement.note)}”  " if judgement.note else ""
    prompt = fit_end(visible(plain_text(texts_of(item.item).prompt)), _PROMPT)
    return f"{item.position + 1:>5}  {choice:<20} {seconds:>7} {flag} {note}{prompt}"


def _searched(item: SessionItem) -> str:
    """Return the text that the filter searches."""
    texts, judgement = texts_of(item.item), _judgement(item)
    flag = FLAGGED if judgement.flags else ""
    completions = map(plain_text, texts.completions)
    parts = judgement_text(item.item, judgement), flag, judgement.note, plain_text(texts.prompt), *completions
    return "\n".join(parts)


def _detail(item: SessionItem) -> Content:
    texts, judgement = texts_of(item.item), _judgement(item)
    parts: list[tuple[str, str]] = [(f"{judgement_text(item.item, judgement)}\n", "$text-accent bold")]
    if judgement.note:
        parts.append((f"note: {_cut(judgement.note)}\n", "$text-accent"))
    parts += [("\nprompt\n", "$text-muted"), (_cut(plain_text(texts.prompt), end=True), "")]
    for number, completion in enumerate(texts.completions, 1):
        parts += [(f"\n\n{number}\n", "$text-muted"), (_cut(plain_text(completion)), "")]
    return Content.assemble(*parts)


def _judgement(item: SessionItem) -> Judgement:
    assert item.label is not None  # the history lists items with a label
    return item.label.judgement


def _cut(text: str, *, end: bool = False) -> str:
    """Cut a text to its start, or to its end; the label pane shows all of it."""
    if len(text) <= _LONGEST:
        return visible(text, keep_newlines=True)
    part = visible(text[-_LONGEST:] if end else text[:_LONGEST], keep_newlines=True)
    return f"…{part}" if end else f"{part}…"
