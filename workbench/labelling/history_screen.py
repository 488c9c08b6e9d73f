"""Screen that lists the labels of a session, the newest first, so that the user can change one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from trainer.errors import TrainerError
from trainer.preferences.items import SessionItem
from workbench.kit.dialog import Dialog
from workbench.kit.key_footer import KeyFooter
from workbench.labelling.shown import Turn, said, shown
from workbench.text import duration, visible

if TYPE_CHECKING:
    from workbench.labelling.desk import LabelDesk

PAGE = 200  # labels read at once
_LONGEST = 1500  # characters of a text that this screen shows
_PROMPT = 200  # characters at the end of a prompt in the list


def history_line(item: SessionItem) -> str:
    """Return a line with the item's number, choice, seconds, flag, note and the end of its prompt."""
    judgement = item.label.judgement if item.label else None
    seconds = duration(judgement.seconds) if judgement and judgement.seconds is not None else "-"
    flag = "⚑" if judgement and judgement.flags else " "
    note = f"“{visible(judgement.note)}”  " if judgement and judgement.note else ""
    prompt = visible(_plain(shown(item.item).prompt)[-_PROMPT:])
    return f"{item.position + 1:>5}  {_choice(item):<20} {seconds:>7} {flag} {note}{prompt}"


class HistoryScreen(Dialog[int | None]):
    """History dialog. Its result is the position of the item to change; None if none was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,h", "close", "close", id="label-history.close", tooltip="Back to the item that is next"),
    ]
    DEFAULT_CLASSES = "label-form"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]

    def __init__(self, desk: LabelDesk) -> None:
        super().__init__()
        self._desk = desk
        self._items: list[SessionItem] = []  # newest label first
        self._more = True  # whether there may be older ones
        self._reading = False

    def compose(self) -> ComposeResult:
        yield Static("Labels of this session, newest first", classes="title")
        with Container(id="body"):
            yield OptionList(markup=False, compact=True).with_tooltip("Enter opens a label again, to change it")
            with VerticalScroll():
                yield Static(id="detail", markup=False)
        yield Static(id="status", markup=False)
        yield KeyFooter(palette=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self._read()

    def action_close(self) -> None:
        self.dismiss(None)

    @on(OptionList.OptionSelected)
    def _change(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._items[event.option_index].position)

    @on(OptionList.OptionHighlighted)
    def _show(self, event: OptionList.OptionHighlighted) -> None:
        self.query_one("#detail", Static).update(_detail(self._items[event.option_index]))
        self.query_one(VerticalScroll).scroll_home(animate=False)
        if event.option_index == len(self._items) - 1 and self._more and not self._reading:
            self._read()

    @work
    async def _read(self) -> None:
        """Append the next page of older labels to the list."""
        last = self._items[-1].label if self._items else None
        self._reading = True
        try:
            items = await asyncio.wrap_future(self._desk.history(PAGE, last.id if last else None))
        except TrainerError as error:
            self.query_one("#status", Static).update(Content.styled(f"✖ {visible(str(error))}", "$text-error"))
            return
        finally:
            self._reading = False
        self._more = len(items) == PAGE
        self._items += items
        rows = self.query_one(OptionList)
        rows.add_options([Option(Content(history_line(item))) for item in items])
        if rows.highlighted is None and self._items:
            rows.highlighted = 0
        known = f"{len(self._items):,}{' and more' * self._more}"
        told = f"{known} labelled: what you change is kept beside what it was" if self._items else _NONE
        self.query_one("#status", Static).update(Content.styled(told, "$text-muted"))


def _detail(item: SessionItem) -> Content:
    texts, label = shown(item.item), item.label
    parts: list[tuple[str, str]] = [(f"{_choice(item)}\n", "$text-accent bold")]
    if label and label.judgement.note:
        parts.append((f"note: {_cut(label.judgement.note)}\n", "$text-accent"))
    parts += [("\nprompt\n", "$text-muted"), (_cut(_plain(texts.prompt), end=True), "")]
    for number, completion in enumerate(texts.completions, 1):
        parts += [(f"\n\n{number}\n", "$text-muted"), (_cut(_plain(completion)), "")]
    return Content.assemble(*parts)


def _choice(item: SessionItem) -> str:
    return said(item.item, item.label.judgement) if item.label else "-"


def _plain(turns: Sequence[Turn]) -> str:
    return "\n\n".join(f"{turn.role}: {turn.text}" if turn.role else turn.text for turn in turns)


def _cut(text: str, *, end: bool = False) -> str:
    """Cut a text to its start, or to its end; the label pane shows all of it."""
    if len(text) <= _LONGEST:
        return visible(text, keep_newlines=True)
    part = text[-_LONGEST:] if end else text[:_LONGEST]
    shown = visible(part, keep_newlines=True)
    return f"…{shown}" if end else f"{shown}…"


_NONE = "nothing is labelled yet in this session"
