"""The documentation, read inside the program: its pages and headings, and the screen that shows a page."""

from __future__ import annotations

import asyncio
import re
from functools import cache, partial
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Markdown

from workbench.kit.command_provider import Finder, Found, around
from workbench.kit.dialog import Dialog
from workbench.text import has_words, visible

_HEADING = re.compile(r"^(#{1,3}) (.+)$")
_FENCE = "```"


class Section(NamedTuple):
    """A heading of a page, and the text below it."""

    page: str  # name of the file, without .md
    title: str
    text: str  # on one line, without marks of code


def docs_dir() -> Path:
    """Return the folder of the pages: inside an installed package, or beside it in the source tree."""
    package = Path(__file__).parents[1]
    inside = package / "docs"
    return inside if inside.is_dir() else package.parent / "docs"


@cache
def sections() -> tuple[Section, ...]:
    """Read the sections of all pages, page by page. Reads files."""
    return tuple(
        Section(path.stem, title, text)
        for path in sorted(docs_dir().glob("*.md"))
        for title, text in _sections(path.read_text(encoding="utf-8"))
    )


def _sections(page: str) -> list[tuple[str, str]]:
    """Return each heading as it is shown, with the text below it."""
    found, in_code = list[tuple[str, list[str]]](), False
    for line in page.splitlines():
        in_code ^= line.startswith(_FENCE)
        if not in_code and (heading := _HEADING.match(line)):
            found.append((heading[2].replace("`", ""), []))
        elif found:
            found[-1][1].extend(line.replace("`", "").split())
    return [(title, " ".join(words)) for title, words in found]


class DocScreen(Dialog[None]):
    """A page of the documentation. Links to other pages open them here; others are only shown.

    text: of the page. title: the heading to begin at.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "close", id="docs.close", tooltip="Close the page"),
    ]

    def __init__(self, text: str, title: str = "") -> None:
        super().__init__()
        self._text, self._title = text, title

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"), VerticalScroll():
            yield Markdown(self._text, open_links=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.call_after_refresh(self._go_to, self._title)

    def _go_to(self, title: str) -> None:
        """Scroll to a heading."""
        page = self.query_one(Markdown)
        place = next((block for _, label, block in page.table_of_contents if label.replace("`", "") == title), None)
        if place is not None:
            self.query_one(VerticalScroll).scroll_to_widget(page.query_one(f"#{place}"), top=True, animate=False)

    @on(Markdown.LinkClicked)
    @work(exclusive=True)
    async def _follow(self, event: Markdown.LinkClicked) -> None:
        name = Path(event.href.partition("#")[0])
        if name.suffix != ".md" or (text := await asyncio.to_thread(read_page, name.stem)) is None:
            self.notify(visible(f"{event.href} is not a page of the documentation"), markup=False)
            return
        await self.query_one(Markdown).update(text)
        self.query_one(VerticalScroll).scroll_home(animate=False)


def read_page(name: str) -> str | None:
    """Read the page `name`; None if there is none."""
    try:
        return (docs_dir() / f"{name}.md").read_text(encoding="utf-8")
    except OSError:
        return None


class DocsFinder(Finder):
    """Finder of the pages of the documentation: by their headings, then by the words as typed, then by all words."""

    KIND: ClassVar[str] = "docs"

    async def find(self, words: str) -> list[Found]:
        found = await asyncio.to_thread(_search, words)
        return [
            Found(one.title, f"{one.page}.md  {around(one.text, words) if words else ''}", partial(self._open, one))
            for one in found
        ]

    async def _open(self, section: Section) -> None:
        text = await asyncio.to_thread(read_page, section.page)
        if text is not None:
            self.app.push_screen(DocScreen(text, section.title))


def _search(words: str) -> list[Section]:
    """Return the sections that contain every word, the best first. Reads files."""
    ranked = []
    for one in sections():
        title, text = f"{one.title} {one.page}", one.text.casefold()
        if has_words(f"{title} {text}", words):
            ranked.append((not has_words(title, words), words.casefold() not in text, one))
    return [one for *_, one in sorted(ranked, key=lambda found: found[:2])]
