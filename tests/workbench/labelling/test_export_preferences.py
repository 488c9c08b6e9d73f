"""Exporting: what is written and left out is counted first, and no file is replaced without consent."""

from __future__ import annotations

from pathlib import Path

import pytest
from label_screens import HOSTILE, NOTHING, SIZES, Host, is_obeyed, keep, opened, paste, status, text_of
from preference_rows import read_lines
from textual.widgets import Input, Select
from waiting import until

from workbench.kit.dialog import ConfirmScreen
from workbench.labelling.transfer import ExportPreferencesScreen

STORE = Path("preferences.db")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a store with two decided pairs, two ties, a skip, and both bad."""
    monkeypatch.chdir(tmp_path)
    keep(STORE, ["a", "b", "tie", "tie", "skip", "both_bad"])
    return tmp_path


def choose(app: Host, name: str, value: str) -> None:
    app.screen.query_one(f"#{name}", Select).value = value


def path(app: Host) -> Input:
    return app.screen.query_one("#path", Input)


async def test_enter_writes_what_was_counted(folder: Path) -> None:
    async with opened(ExportPreferencesScreen(STORE)) as (app, pilot):
        await until(pilot, lambda: status(app) == "enter writes it")
        assert path(app).value == str(folder / "preferences-trl.jsonl")
        assert [file.name for file in folder.iterdir() if "trl" in file.name] == []
        await pilot.press("enter")
        await app.answered(pilot)
        written = folder / "preferences-trl.jsonl"
        assert app.answer == f"Exported {written} as trl: 2 rows, left out: 1 both bad, 1 skip, 2 ties"
    assert [row["chosen"] for row in read_lines(written)] == ["x", "y"]


@pytest.mark.parametrize(
    ("format", "ties", "counted"),
    [
        ("trl", "keep", "2 rows, left out: 1 both bad, 1 skip, 2 ties"),
        ("kto", "keep", "6 rows, left out: 1 skip, 2 ties"),
        ("columns", "keep", "5 rows, left out: 1 skip"),
        ("columns", "drop", "3 rows, left out: 1 skip, 2 ties"),
        ("k-way", "keep", "6 rows"),
        ("k-way", "drop", "4 rows, left out: 2 ties"),
    ],
)
async def test_every_format_is_written_and_counted(format: str, ties: str, counted: str, folder: Path) -> None:
    async with opened(ExportPreferencesScreen(STORE)) as (app, pilot):
        choose(app, "format", format)
        choose(app, "ties", ties)
        written = folder / f"preferences-{format}.jsonl"
        await until(pilot, lambda: path(app).value == str(written))
        await pilot.press("ctrl+r")
        assert await app.answered(pilot) == f"Exported {written} as {format}: {counted}"
    assert len(read_lines(folder / f"preferences-{format}.jsonl")) == int(counted.split()[0])


async def test_provenance_comes_along_when_asked_for(folder: Path) -> None:
    async with opened(ExportPreferencesScreen(STORE)) as (app, pilot):
        choose(app, "provenance", "yes")
        await pilot.pause()
        await until(pilot, lambda: "enter" in status(app))
        await pilot.press("enter")
        await app.answered(pilot)
    assert read_lines(folder / "preferences-trl.jsonl")[0]["judgement"]["labeller"] == "ann"


async def test_an_existing_file_is_replaced_only_when_the_user_agrees(folder: Path) -> None:
    taken = folder / "mine.jsonl"
    taken.write_text("mine")
    async with opened(ExportPreferencesScreen(STORE)) as (app, pilot):
        path(app).value = str(taken)
        await until(pilot, lambda: "asks before it overwrites" in status(app))
        for key in ("enter", "escape", "n"):
            await pilot.press("enter")
            await until(
                pilot, lambda: isinstance(app.screen, ConfirmScreen) and "Overwrite mine.jsonl?" in text_of(app)
            )
            await pilot.press(key)
            await until(pilot, lambda: isinstance(app.screen, ExportPreferencesScreen))
            assert taken.read_text() == "mine"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await app.answered(pilot)
    assert len(read_lines(taken)) == 2


async def test_a_typed_path_stays_when_another_format_is_chosen(folder: Path) -> None:
    async with opened(ExportPreferencesScreen(STORE)) as (app, pilot):
        path(app).value = "mine.jsonl"
        choose(app, "format", "kto")
        await pilot.pause()
        assert path(app).value == "mine.jsonl"


@pytest.mark.parametrize(
    ("format", "name", "problem"),
    [
        ("trl", "", "Enter a file name"),
        ("trl", ".", "is a folder"),
        ("trl", "x.csv", "'x.csv': format trl is written to .jsonl or .parquet"),
        ("k-way", "[/x]\x1b.parquet", "'[/x]␛.parquet': format k-way is written to .jsonl"),
    ],
)
async def test_an_impossible_export_is_reported_and_writes_nothing(
    format: str, name: str, problem: str, folder: Path
) -> None:
    before = {*folder.iterdir()}
    async with opened(ExportPreferencesScreen(STORE)) as (app, pilot):
        choose(app, "format", format)
        await paste(pilot, path(app), name)
        await pilot.press("enter")
        await until(pilot, lambda: problem in status(app))
        assert "✖" in status(app)
        assert not is_obeyed(text_of(app))
        assert app.answer is NOTHING
        path(app).value = "x.jsonl"
        await until(pilot, lambda: "enter writes it" in status(app))
        await pilot.press("enter")
        await app.answered(pilot)
    assert {file.name for file in {*folder.iterdir()} - before if file.suffix == ".jsonl"} == {"x.jsonl"}


async def test_a_store_without_preferences_is_reported(folder: Path) -> None:
    keep(folder / "skips.db", ["skip"])
    for store, problem in (
        ("none.db", "✖ there is no preference store"),
        ("skips.db", "✖ no preference to write as trl: left out 1 skip"),
    ):
        async with opened(ExportPreferencesScreen(folder / store)) as (app, pilot):
            await pilot.press("enter")
            await until(pilot, lambda problem=problem: problem in status(app))
            assert app.answer is NOTHING


@pytest.mark.parametrize("size", SIZES)
async def test_everything_is_visible_and_hostile_text_is_text(size: tuple[int, int], folder: Path) -> None:
    store = folder / f"{HOSTILE.replace('/', '')}.db"
    keep(store, ["a"])
    async with opened(ExportPreferencesScreen(store), size) as (app, pilot):
        await until(pilot, lambda: "writes it" in status(app))
        for widget in (*app.screen.query("Input, #format, #ties, #provenance, #status, KeyFooter"),):
            assert app.screen.region.contains_region(widget.region), widget
            assert widget.region.height > 0
        assert not is_obeyed(text_of(app))
        assert all(widget.tooltip for widget in app.screen.query("Input, Select"))
