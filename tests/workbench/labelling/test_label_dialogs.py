"""Dialogs of labelling: text is never obeyed, what was typed is kept, nothing is written unseen or unasked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from label_screens import (
    HOSTILE,
    NOTHING,
    SIZES,
    Host,
    answer_to,
    is_obeyed,
    keep,
    kept,
    opened,
    paste,
    status,
    text_of,
)
from preference_rows import read_lines, write_lines
from textual import events
from textual.widgets import Input, OptionList, Select, Static, TextArea
from waiting import until

from trainer.errors import StorageError
from trainer.preferences import formats
from trainer.preferences.records import Comparison, Item, Judgement, Preference, SessionItem
from trainer.preferences.store import PreferenceStore
from workbench.kit.dialog import ConfirmScreen
from workbench.labelling.dialogs import GuidelinesScreen, LabelHistoryScreen, NoteScreen
from workbench.labelling.transfer import ExportPreferencesScreen, ImportPreferencesScreen

LONG = "\n".join(f"Rule {number}: {HOSTILE} " + "words " * 40 for number in range(2_000))


@pytest.mark.parametrize(("key", "answer"), [("enter", True), ("escape", False), ("g", False)])
async def test_guidelines_are_closed_by_a_key(key: str, answer: bool) -> None:
    async with opened(GuidelinesScreen("Be fair.", begin=True)) as (app, pilot):
        assert "Be fair." in text_of(app)
        assert "starts labelling" in text_of(app)
        await pilot.press(key)
        assert await app.answered(pilot) is answer


@pytest.mark.parametrize("size", SIZES)
async def test_long_and_hostile_guidelines_are_scrolled_and_leave_the_keys_visible(size: tuple[int, int]) -> None:
    async with opened(GuidelinesScreen(LONG), size) as (app, pilot):
        shown = text_of(app)
        assert "Rule 0: [/x] ␛[31m [@click" in shown
        assert "closes" in shown
        assert not is_obeyed(shown)
        await pilot.press("pagedown", "pagedown")
        await until(pilot, lambda: "words" in text_of(app) and "Rule 0:" not in text_of(app))
        await pilot.press("x", "backspace")
        assert app.screen.query_one(TextArea).text.count("Rule") == 2_000


@pytest.mark.parametrize(
    ("note", "keys", "kept"),
    [
        ("was", ("space", *"good", "enter"), "was good"),
        ("was", ("space", *"good", "escape"), "was good"),
        ("", ("a", "ctrl+j", "b", "enter"), "a\nb"),
        ("was", (*["backspace"] * 3, "enter"), ""),
        *((note, ("x", "backspace", "escape"), None) for note in ("", "was", "one\r\ntwo\x1b")),  # unchanged
    ],
)
async def test_a_note_is_kept_whichever_way_it_is_left(note: str, keys: tuple[str, ...], kept: str | None) -> None:
    assert await answer_to(NoteScreen(note), *keys) == kept


@pytest.mark.parametrize("size", SIZES)
async def test_control_characters_of_a_note_are_shown_and_kept(size: tuple[int, int]) -> None:
    async with opened(NoteScreen(HOSTILE), size) as (app, pilot):
        assert not is_obeyed(text_of(app))
        app.post_message(events.Paste("\x1b[2J"))
        await until(pilot, lambda: "␛[2J" in text_of(app))
        assert not is_obeyed(text_of(app))
        await pilot.press("!", "enter")
        await app.answered(pilot)
        assert app.answer.startswith(HOSTILE)
        assert app.answer.endswith("!")


def labelled(
    position: int, choice: Any = "a", *, prompt: str = "", order: tuple[int, int] = (0, 1), **more: Any
) -> Any:
    """Return an item with a label whose id is one more than its position."""
    comparison = Comparison(prompt=prompt or f"prompt {position}", completions=(f"x{position}", f"y{position}"))
    judgement = Judgement.chosen(choice, order_shown=order, **more)
    item = Item(comparison=comparison, queue="samples", order=order)
    label = Preference(comparison=comparison, judgement=judgement, id=position + 1)
    return SessionItem(position=position, item=item, label=label)


class Session:
    """Stand-in that gives labels."""

    def __init__(self, items: list[SessionItem], problem: Exception | None = None) -> None:
        self.items, self.problem = items, problem

    def history(self) -> Future[list[SessionItem]]:
        future: Future[list[SessionItem]] = Future()
        if self.problem:
            future.set_exception(self.problem)
        else:
            future.set_result(self.items)
        return future


def history(*items: SessionItem, problem: Exception | None = None) -> LabelHistoryScreen:
    session: Any = Session(list(items), problem)
    return LabelHistoryScreen(session)


def rows(app: Host) -> list[str]:
    listed = app.screen.query_one(OptionList)
    return [str(listed.get_option_at_index(place).prompt) for place in range(listed.option_count)]


def detail(app: Host) -> str:
    return str(app.screen.query_one("#detail", Static).render())


async def test_a_label_is_described_by_the_sides_as_they_were_shown() -> None:
    prompt = f"{'word ' * 100}at the end"
    items = [
        labelled(4, "a", seconds=9.0, note="why not"),
        labelled(5, "b", order=(1, 0), strength=3),
        labelled(6, "skip", prompt=prompt),
    ]
    async with opened(history(*items)) as (app, pilot):
        await until(pilot, lambda: len(rows(app)) == 3)
        assert rows(app)[0].split() == ["5", "1", "is", "better", "9.0s", "“why", "not”", "prompt", "4"]
        assert rows(app)[1].split() == ["6", "1", "is", "strongly", "better", "-", "prompt", "5"]
        assert rows(app)[2].endswith(f"  …{prompt[-199:]}")
        assert " skipped " in rows(app)[2]
        await until(pilot, lambda: "1\nx4\n\n2\ny4" in detail(app))
        await pilot.press("down")
        await until(pilot, lambda: "1\ny5\n\n2\nx5" in detail(app))


async def test_enter_gives_the_position_of_the_label_and_escape_none() -> None:
    for keys, answer in ((["down", "enter"], 3), (["escape"], None), (["h"], None)):
        async with opened(history(labelled(7), labelled(3), labelled(5))) as (app, pilot):
            await until(pilot, lambda: len(rows(app)) == 3)
            await pilot.press(*keys)
            assert await app.answered(pilot) == answer


async def test_an_empty_history_and_an_unreadable_store_are_reported() -> None:
    async with opened(history()) as (app, pilot):
        await until(pilot, lambda: "No labels yet" in status(app))
        await pilot.press("enter")
        assert app.answer is NOTHING
    async with opened(history(problem=StorageError("'p.db' has been locked [/x]\x1b"))) as (app, pilot):
        await until(pilot, lambda: "✖ 'p.db' has been locked [/x]␛" in status(app))
        await pilot.press("escape")
        await until(pilot, lambda: app.answer is None)


@pytest.mark.parametrize("size", SIZES)
async def test_hostile_and_long_texts_leave_the_list_visible(size: tuple[int, int]) -> None:
    item = labelled(0, prompt=HOSTILE * 2_000, note=HOSTILE, flags=("odd",))
    async with opened(history(item), size) as (app, pilot):
        await until(pilot, lambda: "note: " in text_of(app))
        assert not is_obeyed(text_of(app))
        assert "⚑" in text_of(app)
        assert app.screen.query_one(OptionList).region.height >= 4
        assert app.screen.region.contains_region(app.screen.query_one("#status").region)


async def test_all_labels_are_listed_the_newest_first_or_those_with_the_words_of_the_filter() -> None:
    items = [labelled(place, flags=("flagged",) if place in (3, 7) else ()) for place in reversed(range(409))]
    async with opened(history(*items)) as (app, pilot):
        await until(pilot, lambda: status(app).startswith("409 labels;"))
        assert [row.split()[0] for row in rows(app)] == [str(one.position + 1) for one in items]
        await pilot.press("slash", *"flagged")
        await until(pilot, lambda: [row.split()[0] for row in rows(app)] == ["8", "4"])
        assert status(app) == "2 of 409 labels"
        await until(pilot, lambda: "x7" in detail(app))
        await pilot.press("enter", "escape")  # back to the list, then to all labels
        await until(pilot, lambda: len(rows(app)) == 409)
        assert app.answer is NOTHING
        await pilot.press("slash", *"flagged", "enter")
        await until(pilot, lambda: len(rows(app)) == 2)
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.answer == 3)


async def test_a_label_is_copied_with_its_choice_and_note() -> None:
    async with opened(history(labelled(4, "b", note="too short"))) as (app, pilot):
        await until(pilot, lambda: bool(rows(app)))
        await pilot.press("y")
        wanted = "[prompt]\nprompt 4\n\n[1]\nx4\n\n[2]\ny4\n\n[choice]\n2 is better\n\n[note]\ntoo short"
        assert app.clipboard == wanted


STORE, NEW = Path("preferences.db"), Path("imported.db")
ROWS = [{"prompt": f"prompt {n}", "chosen": f"good {n}", "rejected": f"bad {n}"} for n in range(5)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a store with two decided pairs, two ties, a skip, and both bad."""
    monkeypatch.chdir(tmp_path)
    keep(STORE, ["a", "b", "tie", "tie", "skip", "both_bad"])
    return tmp_path


def name_source(app: Host, source: str) -> None:
    app.screen.query_one("#source", Input).value = source


def preview(app: Host) -> str:
    return str(app.screen.query_one("#preview", Static).render())


async def test_enter_previews_and_enter_again_imports_all_but_the_broken_rows() -> None:
    rows = [*(json.dumps(row) + "\n" for row in [*ROWS, ROWS[0]]), *["oops\n"] * 25]
    Path("rows.jsonl").write_text("".join(rows))
    async with opened(ImportPreferencesScreen(NEW)) as (app, pilot):
        await pilot.press(*"rows.jsonl", "enter")
        await until(pilot, lambda: "31 rows   format trl   25 broken   enter imports 6" in status(app))
        for text in (
            "prompt 0",
            "better  good 0",
            "worse  bad 0",
            "prompt 2",
            "rows.jsonl:7: not JSON: Expecting value",
        ):
            assert text in preview(app)
        assert "prompt 3" not in preview(app)
        assert "and 5 more" in preview(app)
        assert not NEW.exists()
        await pilot.press("enter")
        assert await app.answered(pilot) == "Imported 5 preferences from rows.jsonl, skipped 1 duplicate"
    assert [one.comparison.completions[0] for one in kept(NEW)] == [f"good {n}" for n in range(5)]


async def test_another_source_or_format_must_be_previewed_before_it_is_imported() -> None:
    write_lines(Path("rows.jsonl"), *ROWS)
    write_lines(Path("others.jsonl"), ROWS[0])
    async with opened(ImportPreferencesScreen(NEW)) as (app, pilot):
        name_source(app, "rows.jsonl")
        await pilot.press("enter")
        await until(pilot, lambda: "enter imports 5" in status(app))
        name_source(app, "others.jsonl")
        await until(pilot, lambda: "nothing is written yet" in status(app))
        assert preview(app) == ""
        await pilot.press("enter")
        await until(pilot, lambda: "enter imports 1" in status(app))
        app.screen.query_one("#format", Select).value = "columns"
        await until(pilot, lambda: "nothing is written yet" in status(app))
        await pilot.press("enter")
        await until(pilot, lambda: "nothing to import" in status(app))
        assert "others.jsonl:1: " in preview(app)
        await pilot.press("enter")
        await pilot.pause()
        assert app.answer is NOTHING
    assert not NEW.exists()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "Name a file"),
        ("no.jsonl", "no such file"),
        ("odd.jsonl", "the columns are question"),
        ("[/x]\x1b.jsonl", "'[/x]␛.jsonl': no such file"),
        ("text.exe", "unknown suffix"),
    ],
)
async def test_an_unreadable_source_is_reported_and_another_can_be_previewed(source: str, problem: str) -> None:
    write_lines(Path("odd.jsonl"), {"question": "?"})
    write_lines(Path("rows.jsonl"), *ROWS)
    Path("text.exe").touch()
    async with opened(ImportPreferencesScreen(NEW)) as (app, pilot):
        await paste(pilot, app.screen.query_one("#source", Input), source)
        await pilot.press("enter")
        await until(pilot, lambda: problem in status(app))
        assert "✖" in status(app)
        assert not is_obeyed(text_of(app))
        name_source(app, "rows.jsonl")
        await pilot.press("enter")
        await until(pilot, lambda: "enter imports 5" in status(app))


async def test_columns_are_named_as_on_the_command_line() -> None:
    rows = [{"question": "p", "left": "x", "right": "y", "better": 1}, {"question": "q", "left": "x", "right": "y"}]
    write_lines(Path("poll.jsonl"), rows[0], rows[1] | {"better": 0})
    async with opened(ImportPreferencesScreen(NEW)) as (app, pilot):
        name_source(app, "poll.jsonl")
        for names, problem in (
            ("", "the columns are question, left, right, better"),
            ("prompt=question, a", "column a: must be ROLE=NAME"),
            ("prompt=question, a=left,b=right,choice=better", "which one means that left is better?"),
        ):
            app.screen.query_one("#columns", Input).value = names
            await pilot.press("enter")
            await until(pilot, lambda problem=problem: problem in status(app))
        app.screen.query_one("#columns", Input).value = "prompt=question,a=left,b=right,choice=better, first=0"
        await pilot.press("enter")
        await until(pilot, lambda: "enter imports 2" in status(app))
        await pilot.press("enter")
        await app.answered(pilot)
    assert [one.judgement.choice for one in kept(NEW)] == ["b", "a"]


async def test_an_unwritable_store_is_reported_and_enter_tries_again() -> None:
    write_lines(Path("rows.jsonl"), *ROWS)
    NEW.mkdir()
    async with opened(ImportPreferencesScreen(NEW)) as (app, pilot):
        name_source(app, "rows.jsonl")
        await pilot.press("enter")
        await until(pilot, lambda: "enter imports" in status(app))
        await pilot.press("enter")
        await until(pilot, lambda: "✖ cannot open" in status(app))
        assert "Safe to retry; duplicates are skipped." in status(app)
        assert app.answer is NOTHING
        NEW.rmdir()
        await pilot.press("enter")
        await app.answered(pilot)
    assert len(kept(NEW)) == 5


async def test_the_screen_cannot_be_left_while_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(Path("rows.jsonl"), *ROWS)
    go_on, add_many = Event(), PreferenceStore.add_many

    def slow(*args: object, **options: object) -> object:
        go_on.wait()
        return add_many(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(PreferenceStore, "add_many", slow)
    async with opened(ImportPreferencesScreen(NEW)) as (app, pilot):
        name_source(app, "rows.jsonl")
        await pilot.press("enter")
        await until(pilot, lambda: "enter imports" in status(app))
        try:
            await pilot.press("enter", "enter", "escape")
            assert "Writing" in status(app)
        finally:
            go_on.set()
        assert await app.answered(pilot) == "Imported 5 preferences from rows.jsonl"


async def test_a_source_that_is_forgotten_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(Path("rows.jsonl"), *ROWS)
    read, stop, ended = formats.read_preferences, Event(), Event()

    def endless(*given: Any, **options: Any) -> Any:
        def rows(first: object) -> Iterator[Any]:
            try:
                while not stop.wait(0.01):
                    yield first
            finally:
                ended.set()

        reading = read(*given, **options)
        reading.preferences = rows(next(reading.preferences))
        return reading

    monkeypatch.setattr(formats, "read_preferences", endless)
    async with opened(ImportPreferencesScreen(NEW)) as (app, pilot):
        try:
            name_source(app, "rows.jsonl")
            await pilot.press("enter")
            assert status(app) == "Reading..."
            name_source(app, "others.jsonl")
            await until(pilot, ended.is_set)
        finally:
            stop.set()


@pytest.mark.parametrize("size", SIZES)
async def test_hostile_rows_are_text_and_the_status_stays_visible(size: tuple[int, int]) -> None:
    keep(NEW, ["a"])
    long = HOSTILE * 500  # cut in the preview
    ranked = {"prompt": long, "completions": [long, "z", "w"], "ranking": [[2], [0, 1]]}
    skipped = {"prompt": [{"role": "user", "content": long}], "completions": [long, "z"], "verdict": "skip"}
    write_lines(Path("rows.jsonl"), ranked, skipped, skipped | {"verdict": "both_bad"}, {HOSTILE: long})
    async with opened(ImportPreferencesScreen(NEW), size) as (app, pilot):
        name_source(app, "rows.jsonl")
        await pilot.press("enter")
        await until(pilot, lambda: "enter imports 3" in " ".join(status(app).split()))
        shown = text_of(app)
        assert not is_obeyed(shown)
        assert max(map(len, preview(app).splitlines())) < 320
        assert "1.  w" in preview(app)
        assert preview(app).count("2.  ") == 2
        assert "skipped  " in preview(app)
        assert "both bad  " in preview(app)
        assert app.screen.region.contains_region(app.screen.query_one("#status").region)
        assert app.screen.query_one("VerticalScroll").region.height >= 6
        assert all(widget.tooltip for widget in app.screen.query("Input, Select"))


def choose(app: Host, name: str, value: str) -> None:
    app.screen.query_one(f"#{name}", Select).value = value


def path(app: Host) -> Input:
    return app.screen.query_one("#path", Input)


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
