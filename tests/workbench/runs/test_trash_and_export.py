"""Runs come back from the trash, are found by a filter, and their comparison is saved as a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs_app import RunsApp
from scripted_run import iteration, make_run, started, write_events
from textual.widgets import Input
from waiting import until
from workbench_app import settle

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder, restore_run, trash_run
from workbench.kit.cursor_list import FilterField
from workbench.kit.dialog import TextPromptScreen
from workbench.runs.details import write_comparison
from workbench.runs.table import RunTable


@pytest.fixture(autouse=True)
def runs() -> None:
    for name in ("alpha", "beta", "gamma"):
        make_run(name)


def test_a_run_gets_its_name_back_or_one_with_a_number_if_that_is_in_use() -> None:
    first = trash_run(RunFolder(Path("runs/alpha")))
    make_run("alpha")
    text = Path("runs/alpha/config.toml").read_text()
    Path("runs/alpha/config.toml").write_text(text.replace('name = ""', 'name = "alpha"'))
    second = trash_run(RunFolder(Path("runs/alpha")))
    assert second.name == "alpha.2"
    assert restore_run(RunFolder(second)).root == Path("runs/alpha")
    again = restore_run(RunFolder(first))
    assert again.root == Path("runs/alpha-2")
    assert not any(Path("runs/.trash").iterdir())


async def test_undo_and_the_list_of_the_trash_restore_runs() -> None:
    app = RunsApp()
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("u", "R")  # nothing to undo yet, and this is not the trash
        await settle(pilot)
        assert sorted(app.names) == ["alpha", "beta", "gamma"]
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
        assert sorted(app.names) == ["alpha", "beta", "gamma"]
        assert left in app.names
        assert app.pane.border_subtitle == ""
        await pilot.press("u")
        await settle(pilot)
        assert sorted(app.names) == ["alpha", "beta", "gamma"], "each was restored once"


async def test_the_filter_finds_runs_stays_in_sight_and_esc_removes_it() -> None:
    app = RunsApp()
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("slash", *"be STOPPED".replace(" ", "_"))
        assert app.names == []
        app.query_one(FilterField).value = "be STOPPED"
        await pilot.pause()
        assert app.names == ["beta"]
        assert app.pane.border_subtitle == "1 of 3"
        await pilot.press("enter", "y")
        assert app.clipboard == "runs/beta"
        assert app.query_one(FilterField).display
        await pilot.press("escape")
        await pilot.pause()
        assert sorted(app.names) == ["alpha", "beta", "gamma"]
        assert not app.query_one(FilterField).display
        for query, found in (("starter", 3), ("lexicon", 3), ("no such", 0)):
            app.query_one(FilterField).value = query
            await pilot.pause()
            assert len(app.names) == found, query


async def test_the_comparison_of_marked_runs_is_saved_under_a_free_name() -> None:
    Path("comparison.md").write_text("mine")
    app = RunsApp()
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
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
        write_comparison([RunFolder(Path("runs/alpha")), RunFolder(Path("runs/beta"))], Path("comparison-2.md"))


def test_a_backquote_in_a_name_does_not_end_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    make_run("```x")
    path = write_comparison([RunFolder(Path("runs/alpha")), RunFolder(Path("runs/```x"))], Path("out.md"))
    lines = path.read_text().splitlines()
    (start,) = [line for line in lines if line.endswith("text") and line.startswith("`")]
    fence = start.removesuffix("text")
    assert len(fence) > 3
    assert sum(line == fence for line in lines) == 1


async def test_scores_are_drawn_as_a_curve_that_is_no_column_to_sort_by_and_grows_with_its_journal() -> None:
    app = RunsApp()
    steps = [iteration(number, score_mean=score) for number, score in enumerate((0.0, 0.5, 1.0), 3)]
    write_events(Path("runs/beta"), started(name="beta", resumed_at=2), *steps)
    app.pane.display = False
    async with app.run_test(size=(120, 30)) as pilot:
        app.pane.refresh_runs()  # while it has no size
        await settle(pilot)
        app.pane.display = True
        table = app.query_one(RunTable)

        def beta() -> str:
            return next((line.text for line in map(table.render_line, range(1, 4)) if "beta" in line.text), "")

        await until(pilot, lambda: "beta" in beta())
        line = beta()
        assert "▂▂▁▅█" in line
        assert "score curve" in table.render_line(0).text
        await pilot.press(*["o"] * 12)
        assert table.sorted_by != "curve"
        write_events(Path("runs/beta"), iteration(6, score_mean=-1.0))
        app.pane.refresh_runs()
        await until(pilot, lambda: "█▁ " in beta())
