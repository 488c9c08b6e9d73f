"""Choosing what to export takes a few keys, and no path that is wrong or taken goes unnoticed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from styles_helper import styles_path
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from workbench.samples.export_screen import ExportChoice, SampleExportScreen

NOTHING = object()


class Asking(App[None]):
    CSS_PATH = styles_path("dialogs.tcss", "history.tcss")
    answer: object = NOTHING

    def take(self, answer: object) -> None:
        self.answer = answer

    @property
    def path(self) -> str:
        return self.screen.query_one(Input).value

    @property
    def detail(self) -> str:
        return str(self.screen.query_one(".detail", Static).render())


@asynccontextmanager
async def asking(
    folder: Path, *, shown: int = 8, marked: int = 2, size: tuple[int, int] = (120, 36)
) -> AsyncIterator[tuple[Asking, Pilot[None]]]:
    app = Asking()
    async with app.run_test(size=size) as pilot:
        app.push_screen(
            SampleExportScreen({"this": 1, "shown": shown, "marked": marked}, folder, "a-0001-12.3"), app.take
        )
        await pilot.pause()
        yield app, pilot


async def test_enter_twice_exports_this_sample_as_json_lines(tmp_path: Path) -> None:
    async with asking(tmp_path) as (app, pilot):
        await pilot.press("enter", "enter")
        await pilot.pause()
        assert app.answer == ExportChoice("this", "jsonl", tmp_path / "a-0001-12.3.jsonl")


@pytest.mark.parametrize(
    ("downs", "choice", "name"),
    [
        (1, ("this", "markdown"), "a-0001-12.3.md"),
        (2, ("this", "svg"), "a-0001-12.3.svg"),
        (3, ("this", "html"), "a-0001-12.3.html"),
        (4, ("shown", "jsonl"), "a-0001-12.3-shown.jsonl"),
        (7, ("marked", "markdown"), "a-0001-12.3-marked.md"),
    ],
)
async def test_every_choice_fills_in_a_name_of_its_own(
    downs: int, choice: tuple[str, str], name: str, tmp_path: Path
) -> None:
    async with asking(tmp_path) as (app, pilot):
        await pilot.press(*["down"] * downs, "enter", "enter")
        await pilot.pause()
        assert app.answer == (*choice, tmp_path / name)


async def test_several_samples_have_no_picture(tmp_path: Path) -> None:
    async with asking(tmp_path) as (app, _):
        rows = app.screen.query_one(OptionList)
        labels = [str(rows.get_option_at_index(place).prompt) for place in range(rows.option_count)]
        assert [label for label in labels if "picture" in label or "page" in label] == [
            label for label in labels[2:4] if label.startswith("this sample")
        ]
        assert "all 8 listed" in labels[4]
        assert "all 2 marked" in labels[6]


async def test_an_empty_set_of_samples_cannot_be_chosen(tmp_path: Path) -> None:
    async with asking(tmp_path, shown=0, marked=1) as (app, pilot):
        await pilot.press(*["down"] * 4, "enter", "enter")
        await pilot.pause()
        assert isinstance(app.answer, ExportChoice)
        assert app.answer.what == "marked"


async def test_a_name_that_is_taken_is_not_proposed(tmp_path: Path) -> None:
    (tmp_path / "a-0001-12.3.jsonl").write_text("")
    async with asking(tmp_path) as (app, _):
        assert app.path == str(tmp_path / "a-0001-12.3-2.jsonl")


async def test_a_typed_name_keeps_all_but_its_suffix_when_another_format_is_chosen(tmp_path: Path) -> None:
    async with asking(tmp_path) as (app, pilot):
        app.screen.query_one(Input).value = str(tmp_path / "mine v1.5")
        await pilot.press("down")
        await pilot.pause()
        assert app.path == str(tmp_path / "mine v1.5.md")
        await pilot.press("enter", "up", "down")
        await pilot.pause()
        assert app.path == str(tmp_path / "mine v1.5.svg")
        await pilot.press("enter", "enter")
        await pilot.pause()
        assert app.answer == ("this", "svg", tmp_path / "mine v1.5.svg")


async def test_an_unwritable_path_is_reported_and_not_accepted(tmp_path: Path) -> None:
    async with asking(tmp_path) as (app, pilot):
        await pilot.press("enter")
        for path, problem in (("", "Enter a file name"), (str(tmp_path), "is a folder"), ("x" * 300, "too long")):
            app.screen.query_one(Input).value = path
            await pilot.press("enter")
            await pilot.pause()
            assert problem in app.detail
            assert app.answer is NOTHING


async def test_for_an_existing_file_the_name_that_will_be_written_is_shown(tmp_path: Path) -> None:
    (tmp_path / "[x].md").write_text("")
    async with asking(tmp_path) as (app, pilot):
        app.screen.query_one(Input).value = str(tmp_path / "[x].md")
        await pilot.pause()
        assert "[x]-2.md will be written" in app.detail


async def test_a_path_in_the_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    async with asking(tmp_path) as (app, pilot):
        await pilot.press("enter")
        app.screen.query_one(Input).value = "~/b.jsonl"
        await pilot.pause()
        assert "already" not in app.detail
        await pilot.press("enter")
        await pilot.pause()
        assert app.answer == ("this", "jsonl", tmp_path / "b.jsonl")


async def test_escape_writes_nothing(tmp_path: Path) -> None:
    async with asking(tmp_path) as (app, pilot):
        await pilot.press("enter", "escape")
        await pilot.pause()
        assert app.answer is None


@pytest.mark.parametrize("size", [(60, 20), (80, 24)])
async def test_everything_is_visible_on_a_small_terminal(size: tuple[int, int], tmp_path: Path) -> None:
    async with asking(tmp_path, size=size) as (app, _):
        for widget in (app.screen.query_one(OptionList), app.screen.query_one(Input), app.screen.query_one(".detail")):
            assert app.screen.region.contains_region(widget.region)
            assert widget.region.height > 0
