"""The log pane follows the file of native output and what Python code prints, as text."""

from __future__ import annotations

import time
import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from scripted_run import alarm, ended, iteration, started
from styles_helper import styles_path
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import Input, Static
from waiting import until
from workbench_app import settle

from trainer.events import Alert, Decision, Event, RolledBack
from workbench.kit.dialog import TextPromptScreen
from workbench.kit.pane import Badge
from workbench.kit.theming import ThemedApp
from workbench.log.pane import Entry, LogList, LogPane, printed_entry
from workbench.run.view import RunView


class LogApp(ThemedApp[None]):
    CSS_PATH = styles_path("log.tcss", "dialogs.tcss")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def compose(self) -> ComposeResult:
        yield LogPane(self.path)


@asynccontextmanager
async def logging(
    path: Path, size: tuple[int, int] = (80, 20)
) -> AsyncIterator[tuple[LogApp, Pilot[None], LogPane, LogList]]:
    app = LogApp(path)
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        yield app, pilot, app.query_one(LogPane), app.query_one(LogList)


def lines(app: App[None]) -> list[str]:
    table = app.query_one(LogList)
    found = (table.text_of_line(place) for place in range(table.virtual_size.height))
    return [line[0][12:] for line in found if line]


async def test_the_pane_shows_what_was_added_since_the_start_and_obeys_none_of_it(tmp_path: Path) -> None:
    log = tmp_path / "workbench.log"
    log.write_text("of a session before\n")
    async with logging(log) as (app, pilot, pane, _table):
        with log.open("a") as file:
            file.write("one [b]\x1b[2J\n 10 %\r 20 %\n")
        pane.read_new()
        await settle(pilot)
        print("printed by Python")
        await pilot.pause()
        assert lines(app) == ["one [b]␛[2J", " 20 %", "printed by Python"]


async def test_a_log_that_is_cut_or_very_long_is_shown_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "workbench.log"
    log.write_text("a" * 100)
    async with logging(log) as (app, pilot, pane, _table):
        log.write_text("cut\n")
        pane.read_new()
        await settle(pilot)
        with log.open("a") as file:
            file.write("b" * 5_000_000 + "\nlast\n")
        pane.read_new()
        await settle(pilot)
        assert lines(app)[0] == "cut"
        assert lines(app)[-1] == "last"
        assert len("".join(lines(app))) < 3000


async def test_a_line_without_room_is_shown_whole_below_the_list(tmp_path: Path) -> None:
    async with logging(tmp_path / "workbench.log", (40, 20)) as (app, pilot, pane, table):
        pane.write("word " * 20)
        await pilot.pause()
        assert table.render_line(0).text.rstrip().endswith("…")
        assert str(app.query_one("#log-line", Static).render()).split() == ["word"] * 20
        pane.write("short")
        await pilot.pause()
        assert not app.query_one("#log-line").display
        pane.write("x" * 5000)
        assert lines(app)[-1] == "x" * 1999 + "…"


async def test_lines_are_selected_with_the_mouse_and_copied_whole(tmp_path: Path) -> None:
    long = "much too long a line for so small a terminal"
    async with logging(tmp_path / "workbench.log", (40, 20)) as (app, pilot, pane, table):
        pane.write(f"first\n{long}\nlast")
        await pilot.pause()
        assert "…" in table.render_line(1).text
        await pilot.mouse_down(table, offset=(12, 0))
        await pilot.hover(table, offset=(15, 2))
        await pilot.mouse_up(table, offset=(15, 2))
        first, second, third = (app.screen.get_selected_text() or "").splitlines()
        assert first == "first"
        assert second.endswith(f"·  {long}")
        assert third.endswith("·  last")
        assert table.selected is not None
        assert table.selected.text == "last", "the end of a selection is not a click on a line"


def test_severity_is_guessed_from_words_and_a_traceback_is_one_error() -> None:
    text = """\
Downloading
UserWarning: deprecated
Traceback (most recent call last):
  File "x.py", line 1
    raise KeyError
KeyError: 3
terrors are fine
fatal: no memory"""
    entries: list[Entry] = []
    for line in text.splitlines():
        entries.append(printed_entry(line, entries[-1] if entries else None, 0.0))
    assert [entry.level for entry in entries] == ["info", "warning", *["error"] * 4, "info", "error"]
    assert [entry.goes_on for entry in entries] == [False, False, False, True, True, True, False, False]


async def test_lines_have_time_and_sign_and_are_filtered_copied_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    clock = types.SimpleNamespace(time=lambda: 3723.0, strftime=time.strftime, localtime=time.localtime)
    monkeypatch.setattr("workbench.log.pane.time", clock)
    async with logging(tmp_path / "workbench.log") as (app, pilot, pane, table):
        pane.write("first [b]\nsecond warning\nthird error")
        await pilot.pause()
        drawn = [table.render_line(y).text.rstrip() for y in range(3)]
        assert drawn == ["01:02:03 ·  first [b]", "01:02:03 ⚠  second warning", "01:02:03 ✖  third error"]
        colours = [list(table.render_line(y))[1].style for y in range(2)]
        assert len({style.color for style in colours if style}) == 2
        table.focus()
        await pilot.press("y")
        assert app.clipboard == "01:02:03 ✖ third error"
        await pilot.press("v")
        assert lines(app) == ["second warning", "third error"]
        assert "warnings and errors, 2 of 3" in str(pane.border_subtitle)
        await pilot.press("v", "v", "slash", *"first")
        await pilot.pause()
        assert lines(app) == ["first [b]"]
        await pilot.press("enter", "x")
        await until(pilot, lambda: isinstance(app.screen, TextPromptScreen))
        await pilot.press("enter")
        await settle(pilot)
        assert Path("log.txt").read_text() == "01:02:03 · first [b]\n"
        await pilot.press("escape")
        await pilot.pause()
        assert len(lines(app)) == 3
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, TextPromptScreen))
        assert app.screen.query_one(Input).value == "log-2.txt", "the first one exists"


async def test_the_end_follows_and_another_line_stays_where_it_is(tmp_path: Path) -> None:
    async with logging(tmp_path / "workbench.log") as (app, pilot, pane, table):
        pane.write("\n".join(f"line {number}" for number in range(1999)))
        pane.write("1999")
        await pilot.pause()
        assert table.selected is not None
        assert table.selected.text == "1999"
        table.focus()
        await pilot.press("pageup")
        before = table.selected.text
        pane.write("a\nb\nc")  # three more than are kept
        await pilot.pause()
        assert len(lines(app)) == 2000
        assert table.selected.text == before
        await pilot.press("end")
        pane.write("newest")
        await pilot.pause()
        assert table.selected.text == "newest"


async def test_errors_that_nobody_has_seen_are_counted_on_the_badge(tmp_path: Path) -> None:
    async with logging(tmp_path / "workbench.log") as (app, pilot, pane, _table):
        pane.write("an error in sight")
        assert pane.badge.text == ""
        pane.display = False
        await pilot.pause()
        pane.write("error: one\nTraceback (most recent call last):\n  File\nValueError: two\nfine")
        assert pane.badge == Badge("✖2", "error")
        pane.display = True
        await pilot.pause()
        assert pane.badge == Badge()
        assert lines(app)[-1] == "fine"
        pane.display = False
        await pilot.pause()
        pane.show_run(view := view_of(started(), alarm(1, level="error")))
        assert pane.badge == Badge(), "a run that is opened has had its errors"
        view.take(alarm(2, level="error"))
        pane.show_run(view)
        assert pane.badge == Badge("✖1", "error")


def view_of(*events: Event) -> RunView:
    view = RunView()
    for event in events:
        view.take(event)
    return view


async def test_each_message_of_a_run_gets_one_line_and_is_not_obeyed(tmp_path: Path) -> None:
    view = view_of(started(), iteration(1), alarm(1, message="a\x1b[2J\nb [b]c[/b]", advice="Lower it.", fixes=[]))
    reason = "the score fell back"
    async with logging(tmp_path / "workbench.log", (120, 30)) as (app, pilot, pane, _table):
        pane.show_run(view)
        pane.show_run(view)
        view.take(
            Decision(
                iteration=2,
                level="info",
                code="convergence_degradation",
                message=reason,
                rule="degradation",
                action="rollback",
                evidence={},
            )
        )
        view.take(RolledBack(iteration=2, to=1, reason=reason))
        pane.show_run(view)
        await pilot.pause()
        assert lines(app) == [
            "quickstart-0001 started: starter, 12 iterations, seed 0",
            "quickstart-0001, iteration 1: warning: KL high: a␛[2J␊b [b]c[/b]",
            "advice: Lower it.",
            "quickstart-0001, iteration 2: decision to roll back: the score fell back",
            "quickstart-0001, iteration 2: rolled back to iteration 1: the score fell back",
        ]


async def test_starts_and_ends_of_runs_have_the_time_of_their_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    now, view = time.time(), RunView()
    view.take(started(warnings=["no chat template"]), at=3723.0)
    view.take(alarm(1, level="error"), at=3724.0)
    view.take(ended("stopped", 6, reason="stopped by the user", seconds=61.0), at=now)
    view.take(started(resumed_at=6), at=now)
    view.take(ended("failed", 6, reason="the disk is full"), at=now)
    async with logging(tmp_path / "workbench.log", (120, 30)) as (app, pilot, pane, table):
        pane.show_run(view)
        pane.report("the disk is full")
        await pilot.pause()
        drawn = [table.render_line(y).text.rstrip() for y in range(len(lines(app)))]
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        assert drawn[0].startswith("01:02:03 ▸  quickstart-0001 started 1970-01-01 01:02: ")
        assert drawn[1] == " " * 12 + "no chat template"
        assert drawn[2].startswith("01:02:04 ✖  quickstart-0001, iteration 1: ")
        assert [line for line in drawn if line.startswith(clock)] == [
            f"{clock} ■  quickstart-0001 stopped after 1m 01s: stopped by the user",
            f"{clock} ▸  quickstart-0001 resumed after iteration 6: starter, 12 iterations, seed 0",
            f"{clock} ✖  quickstart-0001 failed after 4m 24s: the disk is full",
        ], "an end is not told twice"


async def test_lines_are_not_repeated_when_a_run_resumes_but_another_run_has_all_of_its_own(tmp_path: Path) -> None:
    reported = Alert(iteration=5, level="info", code="x", message="reported")
    view = view_of(started(), reported, alarm(6), ended("stopped", 6))
    async with logging(tmp_path / "workbench.log", (120, 30)) as (app, pilot, pane, _table):
        pane.show_run(view)
        await pilot.pause()
        before = lines(app)
        view.take(started(resumed_at=4))
        pane.show_run(view)
        await pilot.pause()
        assert lines(app)[: len(before)] == before
        assert lines(app)[len(before) :] == [before[0].replace("started", "resumed after iteration 4")]
        before = lines(app)
        view.take(Alert(iteration=5, level="info", code="x", message="again"))
        pane.show_run(view)
        pane.show_run(view_of(started(name="other"), reported))
        await pilot.pause()
        new = [
            "quickstart-0001, iteration 5: note: again",
            before[0].replace("quickstart-0001", "other"),
            "other, iteration 5: note: reported",
        ]
        assert lines(app) == [*before, *new]
        view.take(started(name="new"))  # in place of the run of this view
        view.take(Alert(iteration=1, level="info", code="x", message="reported"))
        pane.show_run(view)
        await pilot.pause()
        assert [line for line in lines(app) if line.startswith("new")] == [
            before[0].replace("quickstart-0001", "new"),
            "new, iteration 1: note: reported",
        ]
