"""Documentation in the program: the palette finds its pages, which are read where they were found."""

from __future__ import annotations

import tomllib

from apart import ROOT
from textual.containers import VerticalScroll
from textual.widgets import Markdown
from waiting import until
from workbench_app import screen_text, workbench

from workbench.kit.help import DocScreen, find_pages, pages
from workbench.kit.pane import Pane


def test_a_wheel_has_the_pages_and_nothing_else_of_their_folder() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert "/docs/*.md" in build["wheel"]["include"]
    assert build["wheel"]["sources"]["docs"] == "workbench/docs"


async def test_a_page_is_found_by_its_words_and_a_link_leads_to_another() -> None:
    async with workbench() as (screen, pilot):
        app = screen.app
        assert {pane.DOCS for pane in screen.query(Pane)} <= {*pages()}
        found = await find_pages(screen, "keys.toml preset")  # type: ignore[arg-type]
        assert "workbench" in [one.name for one in found]
        next(one for one in found if one.name == "workbench").open()
        await until(pilot, lambda: isinstance(app.screen, DocScreen))
        await until(pilot, lambda: "The workbench" in screen_text(app.screen))  # type: ignore[arg-type]
        page = app.screen.query_one(Markdown)
        page.post_message(Markdown.LinkClicked(page, "keys.md#main-screen"))
        await until(pilot, lambda: "This page is printed by" in screen_text(app.screen))  # type: ignore[arg-type]
        assert app.screen.query_one(VerticalScroll).scroll_y == 0
        page.post_message(Markdown.LinkClicked(page, "../../etc/passwd"))
        await until(pilot, lambda: "../../etc/passwd is not a page" in screen_text(app.screen))  # type: ignore[arg-type]
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
