"""The documentation, read inside the program: its pages in the command palette, and the screen that shows one."""

from __future__ import annotations

import asyncio
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Markdown

from workbench.kit.command_provider import Finder, Found, around
from workbench.kit.dialog import Dialog
from workbench.text import has_words


def docs_dir() -> Path:
    """Return the folder of the pages: inside an installed package, or beside it in the source tree."""
    package = Path(__file__).parents[1]
    inside = package / "docs"
    return inside if inside.is_dir() else package.parent / "docs"


@cache
def pages() -> dict[str, str]:
    """Read the pages by name, without .md."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(docs_dir().glob("*.md"))}


class DocScreen(Dialog[None]):
    """A page of the documentation. Links to other pages open them here; others are only shown."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "close", id="docs.close", tooltip="Close the page"),
    ]

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


class DocsFinder(Finder):
    """Finder of the pages of the documentation, by their words; a page with the words as typed comes first."""

    KIND: ClassVar[str] = "docs"

    async def find(self, words: str) -> list[Found]:
        texts = {page: " ".join(text.split()) for page, text in (await asyncio.to_thread(pages)).items()}
        found = [page for page, text in texts.items() if has_words(f"{page} {text}", words)]
        found.sort(key=lambda page: words.casefold() not in texts[page].casefold())
        return [Found(page, f"{page}.md  {around(texts[page], words)}", partial(self._open, page)) for page in found]

    def _open(self, page: str) -> None:
        self.app.push_screen(DocScreen(page))
