"""Documentation in the program: the palette finds its headings, and a page is read where it was found."""

from __future__ import annotations

import tomllib
from pathlib import Path

from apart import ROOT
from textual.containers import VerticalScroll
from textual.widgets import Markdown
from waiting import until
from workbench_app import screen_text, workbench

from workbench.kit.docs_reader import DocScreen, DocsFinder, docs_dir, sections


def test_the_headings_of_all_pages_are_known_and_those_in_code_are_not() -> None:
    assert docs_dir() == ROOT / "docs"
    assert {one.page for one in sections()} == {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert ("workbench", "Themes") in {(one.page, one.title) for one in sections()}
    assert not [one for one in sections() if "`" in one.title]


def test_a_wheel_has_the_pages_and_nothing_else_of_their_folder() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert "/docs/*.md" in build["wheel"]["include"]
    assert build["wheel"]["sources"]["docs"] == "workbench/docs"


async def test_a_heading_is_found_and_shown_and_a_link_leads_to_its_page() -> None:
    async with workbench() as (screen, pilot):
        app = screen.app
        found = await DocsFinder(screen).find("screen costs")  # type: ignore[arg-type]
        assert found[0].name == "What the screen costs"
        app.call_later(found[0].open)
        await until(pilot, lambda: isinstance(app.screen, DocScreen))
        await until(pilot, lambda: "What the screen costs" in "".join(screen_text(app.screen).splitlines()[:7]))  # type: ignore[arg-type]
        page = app.screen.query_one(Markdown)
        page.post_message(Markdown.LinkClicked(page, "keys.md#main-screen"))
        await until(pilot, lambda: "This page is printed by" in screen_text(app.screen))  # type: ignore[arg-type]
        assert app.screen.query_one(VerticalScroll).scroll_y == 0
        page.post_message(Markdown.LinkClicked(page, "../../etc/passwd"))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
    assert Path("runs").exists() is False
