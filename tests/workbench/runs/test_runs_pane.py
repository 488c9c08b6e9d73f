"""The runs pane lists the runs on disk, keeps its cursor and marks, and asks the app for what it cannot do itself."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.cells import cell_len
from runs_app import RunsApp
from scripted_run import ended, iteration, make_run, started, write_events
from textual.pilot import Pilot
from textual.widgets import Input, Static
from waiting import until
from workbench_app import settle

from trainer.errors import StorageError
from trainer.runs.checkpoint_files import write_state
from trainer.runs.folder import RunFolder, rename_run, restore_run, trash_run
from trainer.runs.listing import RunSummary
from workbench.kit.cursor_list import FilterField
from workbench.kit.dialog import ConfirmScreen, TextPromptScreen
from workbench.kit.pane import Badge
from workbench.run.view import RunView
from workbench.runs import bench_screen
from workbench.runs import pane as runs_pane
from workbench.runs.bench_screen import RewardBenchScreen
from workbench.runs.details import Detail, detail_content, read_detail, write_comparison
from workbench.runs.pane import RunsPane
from workbench.runs.table import COLUMNS, RunTable, age, column_widths, sorted_runs


def summary(name: str, **changes: Any) -> RunSummary:
    values: dict[str, Any] = {
        "folder": RunFolder(Path("runs", name)),
        "state": "done",
        "iteration": 12,
        "iterations": 40,
        "score": 0.5,
        "kl": 7.9,
        "model": "starter",
        "started": 1000.0,
        "problem": "",
    }
    return RunSummary(**values | changes)


@asynccontextmanager
async def listed(width: int = 80, height: int = 24) -> AsyncIterator[tuple[RunsApp, Pilot[None]]]:
    """Open the pane, and wait until it has read the runs."""
    app = RunsApp()
    async with app.run_test(size=(width, height)) as pilot:
        await settle(pilot)
        yield app, pilot


async def until_listed(pilot: Pilot[None], app: RunsApp) -> None:
    app.pane.refresh_runs()
    await settle(pilot)


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make three runs, the oldest a-run and the newest c-run."""
    for number, name in enumerate(("a-run", "b-run", "c-run"), 1):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda n=number: 1_700_000_000.0 + n)
            make_run(name)
    return tmp_path


# Parts without an application


def test_runs_are_sorted_newest_first_and_those_without_a_value_last_both_ways() -> None:
    runs = [summary("a", started=1.0), summary("b", started=None), summary("c", started=3.0), summary("d", started=2.0)]
    assert [run.name for run in sorted_runs(runs, "age")] == ["c", "d", "a", "b"]
    assert [run.name for run in sorted_runs(runs, "age", reverse=True)] == ["a", "d", "c", "b"]
    assert [run.name for run in sorted_runs(runs, "name")] == ["a", "b", "c", "d"]
    scores = [summary("a", score=0.1), summary("b", score=0.9), summary("c", score=None), summary("d", score=0.9)]
    assert [run.name for run in sorted_runs(scores, "score")] == ["b", "d", "a", "c"]


def test_ages_are_in_the_largest_whole_unit() -> None:
    ages = {-5: "0s", 59: "59s", 60: "1m", 119: "1m", 3599: "60m", 3600: "1h", 86400 * 40: "40d"}
    assert {seconds: age(1000.0, 1000.0 + seconds) for seconds in ages} == ages
    assert age(None, 5.0) == "-"


NATURAL = {"name": 30, "state": 13, "iteration": 9, "score": 6, "kl": 8, "age": 4, "model": 40}


def test_columns_fit_every_width_and_the_least_wanted_go_first() -> None:
    wanted = ["name", "state", "score", "iteration", "age", "kl", "model"]
    for width in range(1, 201):
        widths = column_widths(NATURAL, width)
        assert 2 + sum(widths.values()) + 2 * (len(widths) - 1) <= max(width, 2)
        assert set(widths) == set(wanted[: max(len(widths), 1)])
        assert list(widths) == [column.key for column in COLUMNS if column.key in widths]
        alarmed = column_widths(NATURAL | {"state": 24}, width)
        assert alarmed.get("state", 24) == 24 or alarmed["name"] <= 13, "a state is read whole before a name"
    assert list(column_widths(NATURAL, 38)) == ["name", "state", "score"]
    assert column_widths(NATURAL, 130) == NATURAL
    names = column_widths({"name": 15, "state": 18, "iteration": 10, "score": 13, "kl": 10, "age": 4, "curve": 16}, 76)
    assert (names["name"], names["state"], "kl" in names) == (15, 18, False), "KL goes before a name is cut"


def test_details_show_why_a_run_failed_and_what_is_damaged() -> None:
    run = summary("a", state="failed", problem="loss was NaN [/x]\x1b")
    detail = Detail(run.folder, "seed 7   2 checkpoints", ["checkpoint 'step-000050' ignored: damaged"])
    text = detail_content(run, detail, [("KL nats", "7.90")]).plain
    for part in (
        "seed 7   2 checkpoints",
        "KL nats 7.90",
        "loss was NaN [/x]␛",
        "ignored: damaged",
    ):
        assert part in text
    assert str(run.folder.root) in text
    assert "seed" not in detail_content(run, None, []).plain
    assert "model" not in detail_content(run, None, [("model", "")]).plain, "nobody knows it"
    assert len(detail_content(summary("a", problem="x" * 1_000_000), None, [])) < 1000


def test_details_are_read_from_configuration_and_checkpoints() -> None:
    folder = RunFolder(Path("runs/a-run"))
    folder.config.write_text(folder.config.read_text().replace("seed = 0", "seed = 41"))
    for number in (4, 5):
        folder.checkpoint(number).mkdir(parents=True)
    assert read_detail(folder).text == "seed 41   no checkpoint"
    write_state(folder.checkpoint(4), {"version": 1})
    detail = read_detail(folder)
    assert detail.text == "seed 41   1 checkpoint, newest step-000004"
    assert "step-000005" in detail.problems[0]
    for damaged in ("run = 3", "["):
        folder.config.write_text(damaged)
        assert read_detail(folder).text == "1 checkpoint, newest step-000004"


# In an application


async def test_runs_are_listed_newest_first_with_word_and_sign() -> None:
    async with listed(120, 30) as (app, pilot):
        assert app.names == ["c-run", "b-run", "a-run"]
        heading, first = app.drawn()[:2]
        assert " ".join(heading.split()) == "run state iteration score last 5 KL last 5 score curve ▾age model"
        assert first.split()[:6] == ["c-run", "■", "stopped", "2/100", "0.150", "0.75"]
        assert first.rstrip().endswith("starter")
        assert "seed 0" in app.text("#run-detail")
        write_events(Path("runs/c-run"), started(resumed_at=0), iteration(1, score_mean=math.nan, kl=math.inf))
        await until_listed(pilot, app)
        assert app.drawn()[1].split()[4:6] == ["-", "-"]


@pytest.mark.parametrize("size", [(38, 20), (80, 24), (200, 60)])
async def test_lines_fill_the_table_and_the_name_is_seen_at_every_size(size: tuple[int, int]) -> None:
    async with listed(*size) as (app, _):
        lines = app.drawn()
        assert {cell_len(line) for line in lines} == {app.table.size.width}
        assert "…" not in lines[0], "a heading that has no room is shorter"
        assert "c-run" in lines[1]
        assert "stopped" in lines[1]
        assert "2/100" in lines[1] + app.text("#run-detail")
        assert "starter" in lines[1] + app.text("#run-detail")


def selected(app: RunsApp) -> str:
    assert app.pane.selected is not None
    return app.pane.selected.name


async def test_the_cursor_stays_on_its_run_and_within_the_table_when_others_come_and_go(workspace: Path) -> None:
    async with listed() as (app, pilot):
        await pilot.press("down")
        assert selected(app) == "b-run"
        make_run("d-run")
        await until_listed(pilot, app)
        assert (app.names[0], selected(app)) == ("d-run", "b-run")
        await pilot.press("o", "o", "O")
        assert selected(app) == "b-run"
        await pilot.press("end")
        last = selected(app)
        (workspace / "runs" / last).rename(workspace / last)
        await until_listed(pilot, app)
        assert selected(app) == app.names[-1]
        (workspace / "runs").rename(workspace / "gone")
        await until_listed(pilot, app)
        assert app.pane.selected is None
        assert "No runs in 'runs'" in " ".join(app.drawn())
        await pilot.press("enter", "r", "d", "e", "D", "m", "o", "pagedown", "up")
        assert app.heard == []


async def test_the_table_refreshes_itself_and_a_hidden_one_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_pane, "INTERVAL", 0.01)
    async with listed() as (app, pilot):
        make_run("d-run")
        await until(pilot, lambda: "d-run" in app.names)
        app.pane.display = False
        await settle(pilot)
        read: list[Any] = []
        monkeypatch.setattr(runs_pane, "read_workspace", lambda *asked: read.append(asked))
        await pilot.pause(0.1)
        assert read == []
        app.pane.display = True
        await until(pilot, lambda: bool(read))


async def test_the_result_of_another_folder_is_dropped(workspace: Path) -> None:
    async with listed() as (app, pilot):
        (workspace / "others").mkdir()
        (workspace / "runs/a-run").rename(workspace / "others/x-run")
        app.pane.refresh_runs()
        app.pane.set_runs_dir(Path("others"))
        await settle(pilot)
        assert app.names == ["x-run"]


async def test_a_run_that_is_being_trained_can_be_opened_but_not_resumed_renamed_or_trashed() -> None:
    app = RunsApp()
    with RunFolder(Path("runs/c-run")).lock():
        async with app.run_test() as pilot:
            await settle(pilot)
            assert "● training" in app.drawn()[1]
            await pilot.press("r", "e", "D")
            await pilot.pause()
            assert app.heard == []
            assert not isinstance(app.screen, ConfirmScreen | TextPromptScreen)
            await pilot.press("enter")
            await pilot.pause()
            assert len(app.heard) == 1


async def test_clicks_choose_open_and_sort() -> None:
    async with listed(120, 30) as (app, pilot):
        await pilot.click(RunTable, offset=(5, 3))
        assert selected(app) == "a-run"
        assert app.heard == []
        await pilot.click(RunTable, offset=(5, 2), times=2)
        await pilot.pause()
        assert app.requested == [("open", Path("runs/b-run"))]
        await pilot.click(RunTable, offset=(3, 0))
        assert app.names == ["a-run", "b-run", "c-run"]
        await pilot.click(RunTable, offset=(3, 0))
        assert app.names == ["c-run", "b-run", "a-run"]
        await pilot.click(RunTable, offset=(3, 20))  # below the last run


async def test_a_run_is_renamed_with_its_mark_and_the_app_is_informed_also_if_the_runs_are_read_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = RunsApp()

    def rename(folder: RunFolder, name: str) -> RunFolder:
        renamed = rename_run(folder, name)
        app.call_from_thread(app.pane.refresh_runs)
        while "better" not in app.names:
            threading.Event().wait(0.01)
        return renamed

    monkeypatch.setattr(runs_pane, "rename_run", rename)
    async with app.run_test() as pilot:
        await settle(pilot)
        await pilot.press("m", "e")
        await pilot.pause()
        field = app.screen.query_one(Input)
        assert field.value == "c-run"
        for name, problem in (("b-run", "run 'b-run' exists already"), ("a b", "is not a name for a run")):
            field.value = name
            await pilot.press("enter")
            await settle(pilot)
            assert problem in str(app.screen.query_one(".detail", Static).render())
        assert app.names == ["c-run", "b-run", "a-run"]
        assert app.toasts == [], "it is reported where it is typed"
        field.value = "better"
        await pilot.press("enter")
        await settle(pilot)
        assert "better" in app.names
        assert "c-run" not in app.names
        (moved,) = app.moved
        assert (moved.folder, moved.to.name) == (Path("runs/c-run"), "better")
        assert "◆ better" in " ".join(app.drawn())


async def test_a_run_goes_to_the_trash_after_a_yes_only_and_not_if_someone_began_to_train_it() -> None:
    async with listed() as (app, pilot):
        await pilot.press("D", "n")
        await settle(pilot)
        assert Path("runs/c-run").is_dir()
        with RunFolder(Path("runs/c-run")).lock():
            await pilot.press("D", "y")
            await settle(pilot)
            assert Path("runs/c-run").is_dir()
            (toast,) = app.toasts
            assert "c-run" in toast
        await until_listed(pilot, app)
        await pilot.press("delete", "y")
        await settle(pilot)
        assert not Path("runs/c-run").exists()
        assert app.names == ["b-run", "a-run"]
        (moved,) = app.moved
        assert moved.folder == Path("runs/c-run")
        assert (moved.to / "events.jsonl").is_file()
        assert moved.to.parent == Path("runs/.trash")


def compared(app: RunsApp) -> list[list[str]]:
    """Return the names of the runs that the pane has asked to compare, each time."""
    return [
        [folder.name for folder in message.folders]
        for message in app.heard
        if isinstance(message, RunsPane.CompareChanged)
    ]


async def test_two_marked_runs_are_compared_and_one_or_none_is_not(workspace: Path) -> None:
    config = Path("runs/a-run/config.toml")
    config.write_text(config.read_text().replace("kl_coef = 0.05", "kl_coef = 0.2"))
    async with listed() as (app, pilot):
        assert not app.query_one("#run-comparison").display
        await pilot.press("m")
        await settle(pilot)
        assert app.heard == []
        assert "Mark another" in app.text("#run-differences")
        await pilot.press("end", "m")
        await settle(pilot)
        lines = app.text("#run-differences").splitlines()
        assert lines[0].split() == ["setting", "A", "c-run", "B", "a-run"]
        assert lines[1].split() == ["ppo.kl_coef", "0.05", "0.2"]
        await until_listed(pilot, app)  # marks survive
        assert [line[:2] for line in app.drawn()[1:4]] == ["◆ ", "  ", "◆ "]
        await pilot.press("m", "up", "m")
        await settle(pilot)
        assert app.text("#run-differences") == "No shared setting differs"
        await pilot.press("down", "m")
        await settle(pilot)
        (workspace / "runs/b-run").rename(workspace / "b-run")
        await until_listed(pilot, app)
        assert compared(app)[-1] == ["c-run", "a-run"], "a run that vanishes is no longer compared"
        await pilot.press("home", "m", "end", "m")
        await settle(pilot)
        assert not app.query_one("#run-comparison").display
        assert (compared(app)[0], compared(app)[-1]) == (["c-run", "a-run"], [])


async def test_damaged_runs_show_their_problem_and_can_be_trashed(workspace: Path) -> None:
    (workspace / "runs/b-run/config.toml").write_text("[")
    (workspace / "runs/b-run/events.jsonl").write_bytes(b"\x00\xff not a journal\n")
    async with listed() as (app, pilot):
        await pilot.press("end")  # it has no start, so it comes last
        await settle(pilot)
        assert selected(app) == "b-run"
        assert "config.toml" in app.text("#run-detail")
        await pilot.press("D", "y")
        await settle(pilot)
        assert app.names == ["c-run", "a-run"]


async def test_names_and_reasons_are_text_whatever_they_hold() -> None:
    name = "[@click=app.quit]x [x] \x1b[31m \u202e 🎉"
    make_run(name)
    start = started(model="[/m]\x1b" + "m" * 1_000_000)
    write_events(Path("runs", name), start, ended("failed", 2, reason="[/r] \x9b"))
    async with listed(160, 30) as (app, pilot):
        shown = "\n".join([*app.drawn(), app.text("#run-detail")])
        assert "[@click=app.quit]x [x] ␛[31m \\u202e 🎉" in shown
        assert "[/r] \\x9b" in shown
        assert not {"\x1b", "\x9b", "\u202e"} & set(shown)
        assert max(map(cell_len, app.drawn())) <= 160
        await pilot.press("D")
        await pilot.pause()
        assert "[x] ␛[31m" in str(app.screen.query_one(".question", Static).render())
        await pilot.press("y")
        await settle(pilot)
        assert app.names == ["c-run", "b-run", "a-run"]


def view_of_run(folder: Path) -> RunView:
    view = RunView()
    view.take(started(name=folder.name, folder=str(folder)))
    return view


async def test_the_run_on_the_screen_is_distinguished_from_the_others() -> None:
    async with listed() as (app, _):
        for folder, marks in (
            (Path("runs/b-run").absolute(), ["  ", "▸ ", "  "]),
            (Path("/elsewhere/b-run"), ["  "] * 3),
        ):
            app.pane.update_run(view_of_run(folder))
            assert [line[:2] for line in app.drawn()[1:4]] == marks


async def test_the_badge_of_a_hidden_pane_counts_the_runs_elsewhere_until_they_end() -> None:
    app = RunsApp()
    app.pane.display = False
    async with app.run_test() as pilot:
        await settle(pilot)
        assert app.pane.badge == Badge()
        with RunFolder(Path("runs/c-run")).lock(), RunFolder(Path("runs/b-run")).lock():
            app.pane.refresh_runs()
            await until(pilot, lambda: app.pane.badge == Badge("●2"))
            app.pane.update_run(view_of_run(Path("runs/b-run").absolute()), shown=False)
            assert app.pane.badge == Badge("●1"), "without the run on the screen"
        await until(pilot, lambda: app.pane.badge == Badge())


async def test_an_unresolved_error_is_shown_beside_the_state() -> None:
    app = RunsApp()
    async with app.run_test(size=(120, 24)) as pilot:
        await until_listed(pilot, app)
        table = app.query_one(RunTable)
        for state, alarms, shown in (
            ("done", {"throughput": "warning"}, "✓ done "),
            ("done", {"kl_high": "error"}, "⚠ done, KL high "),
            ("done", {"kl_high": "error", "step_nan": "error"}, "⚠ done, KL high +1 "),
            ("stopped", {"kl_high": "error"}, "■ stopped, KL high "),
            ("training", {"\x1b[2J": "error"}, "● training, ␛[2J "),
        ):
            table.show([summary("a", state=state, alarms=alarms), summary("b", started=0.0)], 2000.0, {})
            table.cursor = 1
            assert shown in table.render_line(1).text
            role = "run-table--alarmed" if "⚠" in shown else f"run-table--{state}"
            (drawn,) = [segment for segment in table.render_line(1) if state in segment.text]
            assert drawn.style is not None
            assert drawn.style.color == table.get_component_rich_style(role).color


# The trash, the filter and the comparison


def test_a_run_gets_its_name_back_or_one_with_a_number_if_that_is_in_use() -> None:
    first = trash_run(RunFolder(Path("runs/a-run")))
    make_run("a-run")
    text = Path("runs/a-run/config.toml").read_text()
    Path("runs/a-run/config.toml").write_text(text.replace('name = ""', 'name = "a-run"'))
    second = trash_run(RunFolder(Path("runs/a-run")))
    assert second.name == "a-run.2"
    assert restore_run(RunFolder(second)).root == Path("runs/a-run")
    again = restore_run(RunFolder(first))
    assert again.root == Path("runs/a-run-2")
    assert not any(Path("runs/.trash").iterdir())


async def test_undo_and_the_list_of_the_trash_restore_runs() -> None:
    async with listed(100, 30) as (app, pilot):
        await pilot.press("u", "R")  # nothing to undo yet, and this is not the trash
        await settle(pilot)
        assert sorted(app.names) == ["a-run", "b-run", "c-run"]
        for _ in range(2):
            await pilot.press("end", "D", "y")
            await settle(pilot)
        (left,) = app.names
        await pilot.press("u")
        await settle(pilot)
        assert len(app.names) == 2
        await pilot.press("T")
        await settle(pilot)
        (gone,) = app.names
        assert app.pane.border_subtitle == "trash"
        await pilot.press("D", "e", "r", "m", "d")  # a run in the trash is only looked at, copied or restored
        await settle(pilot)
        assert app.screen.query_one(RunTable)
        await pilot.press("R")
        await settle(pilot)
        assert app.names == []
        assert "The trash is empty" in app.query_one(RunTable).render_line(1).text
        assert (str(app.moved[-1].folder), app.moved[-1].to.name) == (f"runs/.trash/{gone}", gone)
        await pilot.press("escape")
        await settle(pilot)
        assert sorted(app.names) == ["a-run", "b-run", "c-run"]
        assert left in app.names
        assert app.pane.border_subtitle == ""
        await pilot.press("u")
        await settle(pilot)
        assert sorted(app.names) == ["a-run", "b-run", "c-run"], "each was restored once"


async def test_the_filter_finds_runs_stays_in_sight_and_esc_removes_it() -> None:
    async with listed(100, 30) as (app, pilot):
        await pilot.press("slash", "x", "y")
        assert app.names == []
        app.query_one(FilterField).value = "b- STOPPED"
        await pilot.pause()
        assert app.names == ["b-run"]
        assert app.pane.border_subtitle == "1 of 3"
        await pilot.press("enter", "y")
        assert app.clipboard == "runs/b-run"
        assert app.query_one(FilterField).display
        await pilot.press("escape")
        await pilot.pause()
        assert sorted(app.names) == ["a-run", "b-run", "c-run"]
        assert not app.query_one(FilterField).display
        for query, found in (("starter", 3), ("lexicon", 3), ("no such", 0)):
            app.query_one(FilterField).value = query
            await pilot.pause()
            assert len(app.names) == found, query


async def test_the_comparison_of_marked_runs_is_saved_under_a_free_name() -> None:
    Path("comparison.md").write_text("mine")
    async with listed(100, 30) as (app, pilot):
        await pilot.press("m", "x")
        assert not isinstance(app.screen, TextPromptScreen), "one run is not compared"
        await pilot.press("down", "m")
        await settle(pilot)
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, TextPromptScreen))
        assert app.screen.query_one(Input).value == "comparison-2.md"
        await pilot.press("enter")
        await settle(pilot)
        assert not isinstance(app.screen, TextPromptScreen)
    assert Path("comparison.md").read_text() == "mine"
    written = Path("comparison-2.md").read_text()
    assert written.startswith("# ")
    assert "\n```text\n" in written
    assert "score against KL" in written
    with pytest.raises(StorageError, match=r"comparison-2\.md"):
        write_comparison([RunFolder(Path("runs/a-run")), RunFolder(Path("runs/b-run"))], Path("comparison-2.md"))


def test_a_backquote_in_a_name_does_not_end_the_fence() -> None:
    make_run("```x")
    path = write_comparison([RunFolder(Path("runs/a-run")), RunFolder(Path("runs/```x"))], Path("out.md"))
    lines = path.read_text().splitlines()
    (start,) = [line for line in lines if line.endswith("text") and line.startswith("`")]
    fence = start.removesuffix("text")
    assert len(fence) > 3
    assert sum(line == fence for line in lines) == 1


async def test_scores_are_drawn_as_a_curve_that_is_no_column_to_sort_by_and_grows_with_its_journal() -> None:
    app = RunsApp()
    steps = [iteration(number, score_mean=score) for number, score in enumerate((0.0, 0.5, 1.0), 3)]
    write_events(Path("runs/b-run"), started(name="b-run", resumed_at=2), *steps)
    app.pane.display = False
    async with app.run_test(size=(120, 30)) as pilot:
        app.pane.refresh_runs()  # while it has no size
        await settle(pilot)
        app.pane.display = True
        table = app.query_one(RunTable)

        def curve() -> str:
            return next((line.text for line in map(table.render_line, range(1, 4)) if "b-run" in line.text), "")

        await until(pilot, lambda: "b-run" in curve())
        line = curve()
        assert "▂▂▁▅█" in line
        assert "score curve" in table.render_line(0).text
        await pilot.press(*["o"] * 12)
        assert table.sorted_by != "curve"
        write_events(Path("runs/b-run"), iteration(6, score_mean=-1.0))
        app.pane.refresh_runs()
        await until(pilot, lambda: "█▁ " in curve())


async def test_a_reward_is_tried_on_the_selected_run_and_closing_the_report_ends_the_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program(*lines: str) -> None:
        command = [sys.executable, "-c", "\n".join(("import os, sys, time", *lines))]
        monkeypatch.setattr(bench_screen, "own_command", lambda *arguments: [*command, *arguments])

    def report() -> str:
        return str(app.screen.query_one("#report", Static).render())

    folder = make_run("a-0001")
    async with listed() as (app, pilot):
        for fails in (0, 3):
            program("print(*sys.argv[1:], '[/x]\\x1b[31m')", "print('why not', file=sys.stderr)", f"sys.exit({fails})")
            app.table.focus()
            await pilot.press("w")
            await until(pilot, lambda: isinstance(app.screen, TextPromptScreen))
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, RewardBenchScreen) and "…" not in report())
            told = "why not" if fails else f"reward-bench {Path(folder).resolve()} --reward lexicon [/x]"
            assert "".join(report().split()).startswith("".join(told.split()))
            assert "\x1b" not in report()
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is app.screen_stack[0])
        program("print(os.getpid(), file=open('pid', 'w'), flush=True)", "time.sleep(3600)")
        app.table.focus()
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, TextPromptScreen))
        await pilot.press("enter")
        await until(pilot, lambda: Path("pid").exists() and Path("pid").read_text().endswith("\n"))
        await pilot.press("escape")
        pid = int(Path("pid").read_text())
        await until(pilot, lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")
