"""The help: what the focused pane or the dialog is for, all its keys, and the pages of the documentation."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import ScrollableContainer, Vertical, VerticalScroll
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Input, Markdown, Static

from workbench.kit.command_provider import PaletteEntry, around
from workbench.kit.dialog import Dialog
from workbench.kit.drawing import scroll_bindings
from workbench.kit.keys import bind, remapped, with_keys
from workbench.kit.pane import Pane
from workbench.text import has_words, visible

EVERYWHERE = "Everywhere"
UNAVAILABLE = "Unavailable now"
FOCUSED = "Where the cursor is"  # the keys of Textual's own widgets: fields, lists

_TWO = 96  # columns from which the keys are in two columns
_WIDEST_KEYS = 16  # columns of keys at most
_MARKS = re.compile(r"<!--.*?-->|^[-|: ]+$|\]\([^)]*\)|[`*#|\[\]]", re.DOTALL | re.MULTILINE)  # of Markdown
_SCROLLING = {binding.action for binding in Binding.make_bindings(ScrollableContainer.BINDINGS)}  # known to all


Explained = Pane | Dialog[Any] | None
"""Subject of the help: the focused pane, the dialog on top, or only the application."""


class HelpRow(NamedTuple):
    """A line of the help: an action and its keys."""

    group: str  # the title of the pane or the dialog, EVERYWHERE or FOCUSED
    keys: str  # as remapped, in the footer's spelling, with spaces between
    description: str
    tooltip: str
    in_force: bool  # whether the keys work now: not while text is typed, nor where the action does not apply
    in_footer: bool = True  # unlike those that move a cursor, and others of less importance


def help_rows(app: App[Any], pane: Explained) -> list[HelpRow]:
    """Return the keys of `pane`, of the current screen and the app, and of the focused widget, in this order.

    In each group, those that the footer shows come first. Keys that do not work now are included: a key that a text
    field swallows still belongs to the pane.
    """
    active = app.screen.active_bindings
    focused = list(app.focused.ancestors_with_self) if app.focused is not None else []
    inside = [node for node in focused if node not in (app, app.screen)]
    nodes = dict.fromkeys([*inside, *(pane.walk_children(with_self=True) if pane else []), app.screen, app])
    found = [(node, binding) for node in nodes for binding in remapped(node)]
    found += [(one.node, one.binding) for one in active.values() if not one.binding.id]  # of Textual's own widgets
    rows: dict[object, HelpRow] = {}
    for node, binding in found:
        name = binding.id or binding.action
        if binding.system or not binding.description or name in _SCROLLING:
            continue
        everywhere = (node in (app, app.screen) and node is not pane) or str(binding.id).startswith("app.")
        group = EVERYWHERE if everywhere else pane.TITLE if pane is not None and binding.id else FOCUSED
        now = active.get(binding.key)
        in_force = now is not None and now.enabled and now.node is node and now.binding.action == binding.action
        row = rows.get(name, HelpRow(group, "", binding.description, binding.tooltip, False, binding.show))
        keys = " ".join(dict.fromkeys([*row.keys.split(), app.get_key_display(binding)]))
        rows[name] = row._replace(keys=keys, in_force=row.in_force or in_force)
    order = {EVERYWHERE: 1, FOCUSED: 2}
    return sorted(rows.values(), key=lambda row: (order.get(row.group, 0), not row.in_footer))


def about(pane: Pane | Dialog[Any]) -> str:
    """Return what `pane` is for, with the keys that the user has set."""
    return with_keys(pane.HELP, pane, *pane.query("*"))


class HelpScreen(Dialog[None]):
    """The help over the screen that it explains. It can be searched; the keys that open it also close it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"help--{part}" for part in ("group", "key", "description", "unavailable")}
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape", "dismiss", "close", "help.close", "Close the help"),
        bind("slash", "focus('Input')", "search", "help.search", "Search keys and descriptions"),
        bind("enter", "read", "read more", "help.read", "Read the page of the documentation about this"),
        *scroll_bindings("help", "up down page-up page-down first last", "scroll('{}')"),
    ]

    def __init__(self, rows: Sequence[HelpRow], pane: Explained) -> None:
        super().__init__()
        self._rows, self._pane = rows, pane

    @classmethod
    def toggle(cls, app: App[Any]) -> None:
        """Show the help of the focused pane or of the dialog on top, or close the help."""
        if isinstance(app.screen, cls):
            app.screen.dismiss()
            return
        around = app.focused.ancestors_with_self if app.focused is not None else ()
        pane: Explained = next((node for node in around if isinstance(node, Pane)), None)
        if isinstance(app.screen, Dialog):
            pane = app.screen
        app.push_screen(cls(help_rows(app, pane), pane))

    def compose(self) -> ComposeResult:
        with Vertical(id="help") as dialog:
            dialog.border_title = f"Help: {self._pane.TITLE}" if self._pane else "Help"
            yield Input(placeholder="Search keys and descriptions", compact=True)
            with VerticalScroll():
                yield Static(id="help-rows", markup=False)

    def on_mount(self) -> None:
        self._show()
        self.query_one(VerticalScroll).focus()

    @on(Input.Changed)
    @on(Resize)
    def _show(self) -> None:
        """Show the purpose of the pane, then its keys and what they do, in two columns where there is room.

        Only the rows with every word of the search are shown. Keys that do not work now are last.
        """
        query = self.query_one(Input).value
        group_style, key_style, description_style, unavailable_style = (
            self.get_component_rich_style(f"help--{part}", partial=True)
            for part in ("group", "key", "description", "unavailable")
        )
        found = [row for row in self._rows if has_words(" ".join(row[:4]), query)]
        groups: dict[str, list[list[Text]]] = {}  # cells of the rows, by heading
        for row in sorted(found, key=lambda row: not row.in_force):
            styles = (key_style, description_style) if row.in_force else (unavailable_style, unavailable_style)
            what = row.tooltip or row.description.capitalize()
            cells = [Text(row.keys, styles[0]), Text(f"{what[:1].upper()}{what[1:]}", styles[1])]
            groups.setdefault(row.group if row.in_force else UNAVAILABLE, []).append(cells)
        columns = 2 if self.query_one(VerticalScroll).content_size.width >= _TWO else 1
        wide = min(max((cell_len(row.keys) for row in found), default=0), _WIDEST_KEYS)
        above = about(self._pane) if self._pane and not query else ""
        if not found:
            above = f"No keys match {visible(query)}."
        parts: list[Text | Table] = [Text(above)] if above else []
        for heading, rows in groups.items():
            halves, most = Table.grid(expand=True), -(-len(rows) // columns)
            tables = [Table.grid(padding=(0, 2, 0, 0), expand=True) for _ in range(columns)]
            for place, table in enumerate(tables):
                halves.add_column(ratio=1)
                table.add_column(width=wide)
                table.add_column(ratio=1)
                for cells in rows[place * most : (place + 1) * most]:
                    table.add_row(*cells)
            halves.add_row(*tables)
            parts += [Text(f"\n{heading}", group_style), halves]
        self.query_one("#help-rows", Static).update(Group(*parts))

    @on(Input.Submitted)
    def _leave_search(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_read(self) -> None:
        """Show the page of the documentation about the pane, over the help."""
        self.app.push_screen(DocScreen((self._pane or self).DOCS))

    def action_scroll(self, how: str) -> None:
        """Scroll the table at once. how: the name of a widget's action, such as `scroll_up` or `page_up`."""
        getattr(self.query_one(VerticalScroll), f"scroll_{how.removeprefix('scroll_')}")(animate=False)


@cache
def pages() -> dict[str, str]:
    """Read the pages by name, without .md: from inside an installed package, or beside it in the source tree."""
    package = Path(__file__).parents[1]
    folder = package / "docs" if (package / "docs").is_dir() else package.parent / "docs"
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}


class DocScreen(Dialog[None]):
    """A page of the documentation. Links to other pages open them here; others are only shown."""

    BINDINGS: ClassVar[list[BindingType]] = [bind("escape", "dismiss", "close", "docs.close", "Close the page")]

    def __init__(self, page: str) -> None:
        super().__init__()
        self._page = page

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"), VerticalScroll():
            yield Markdown(open_links=False)

    async def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        await self._show(self._page)

    @on(Markdown.LinkClicked)
    async def _follow(self, event: Markdown.LinkClicked) -> None:
        await self._show(event.href.partition("#")[0].removesuffix(".md"))

    async def _show(self, page: str) -> None:
        text = (await asyncio.to_thread(pages)).get(page)
        if text is None:
            self.warn(f"{page} is not a page of the documentation")
            return
        await self.query_one(Markdown).update(text)
        self.query_one(VerticalScroll).scroll_home(animate=False)


async def find_pages(screen: Screen[object], words: str) -> list[PaletteEntry]:
    """Find pages of the documentation by their words; a page with the words as typed comes first."""
    texts = {page: " ".join(_MARKS.sub("", text).split()) for page, text in (await asyncio.to_thread(pages)).items()}
    found = [page for page, text in texts.items() if has_words(f"{page} {text}", words)]
    found.sort(key=lambda page: words.casefold() not in texts[page].casefold())
    return [
        PaletteEntry(
            page,
            around(texts[page], words),
            lambda page=page: screen.app.push_screen(DocScreen(page)),  # type: ignore[misc]
        )
        for page in found
    ]
