"""Home as a user drives it: its choices, its runs, what enter does, and every size."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event

import pytest
import scripted_run
from label_session import items
from rich.cells import cell_len
from scripted_run import Script
from textual.widgets import OptionList
from waiting import until
from workbench_app import HOME, screen_text, settle, start_run, status, workbench
from workspace_runs import LONG_NAME, write_run, write_workspace

from trainer.files import read_toml
from trainer.preferences.records import SessionPlan
from trainer.preferences.sessions import begin_session
from trainer.preferences.store import PreferenceStore
from trainer.runs.folder import RunFolder
from trainer.runs.listing import RunSummary
from workbench.kit.pane import Pane
from workbench.run import run_listing
from workbench.run.run_listing import Glance
from workbench.runs.table import HomeChoices, RunTable
from workbench.screen.main_screen import MainScreen
from workbench.system.environment import ScreenSettings

CONFIG = Path("config")


@pytest.fixture(autouse=True)
def _settings_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPO_WORKBENCH_CONFIG_DIR", str(tmp_path / "config"))


def shown(screen: MainScreen) -> set[str | None]:
    return {pane.id for pane in screen.query(Pane) if pane.display}


def footer(screen: MainScreen) -> str:
    return screen_text(screen).splitlines()[-1]


def has_choice(screen: MainScreen, title: str) -> bool:
    return f"  {title}  " in screen_text(screen)


async def test_an_empty_workspace_says_how_to_begin() -> None:
    async with workbench(Script(scripted_run.wait), size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, lambda: "No runs in 'runs' yet. Press space to train." in screen_text(screen))
        text = screen_text(screen)
        assert shown(screen) == {"home"}
        assert "SmolLM2-135M, 50 iterations" in text
        assert has_choice(screen, "Train the quickstart")
        assert "GB, fits up to" in text
        *rows, _footer = text.rstrip().splitlines()
        assert not any("…" in row for row in rows)


async def test_runs_are_listed_with_state_and_curves_at_every_size() -> None:
    write_workspace(time.time())
    async with workbench(size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, lambda: "broken" in screen_text(screen))
        for width, height in ((80, 24), (120, 40), (200, 60)):
            await pilot.resize_terminal(width, height)
            await settle(pilot)
            lines = screen_text(screen).splitlines()
            text = "\n".join(lines)
            assert all(cell_len(line) <= width for line in lines)
            for words in ("✖ failed", "⚠ done, KL high", "✓ done", "40/40", LONG_NAME):
                assert words in text
        assert text.count("│") > 60  # two large charts
        assert "▁" in text
        await pilot.resize_terminal(60, 20)
        await settle(pilot)
        assert has_choice(screen, "Train the quickstart")


async def test_what_a_slow_reading_finds_is_shown_though_another_was_requested_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_workspace(time.time())
    reading, go_on, glance_at = Event(), Event(), run_listing.glance_at

    def slow(run: RunSummary) -> Glance:
        reading.set()
        go_on.wait(60)
        return glance_at(run)

    monkeypatch.setattr(run_listing, "glance_at", slow)
    async with workbench(size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, reading.is_set)
        await pilot.press("f2")
        await until(pilot, lambda: shown(screen) == {"config"})
        await pilot.press("f9")  # which looks at the folder again
        await until(pilot, lambda: shown(screen) == {HOME})
        assert "Reading runs" in screen_text(screen)
        go_on.set()
        await until(pilot, lambda: "broken" in screen_text(screen))


@pytest.mark.parametrize("key", ["t", "enter"])
async def test_a_run_can_be_started_while_the_runs_are_read(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_workspace(time.time())
    go_on, glance_at = Event(), run_listing.glance_at
    monkeypatch.setattr(run_listing, "glance_at", lambda run: go_on.wait(60) and glance_at(run))
    async with workbench(Script(scripted_run.wait), size=(80, 24), pane=HOME) as (screen, pilot):
        assert "Reading runs" in screen_text(screen)
        await start_run(pilot, key)
        await until(pilot, lambda: screen.supervisor.trains_here)
        go_on.set()


async def test_the_cursor_goes_from_the_choices_to_the_runs_and_enter_opens_one() -> None:
    write_workspace(time.time())
    async with workbench(size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, lambda: "broken" in screen_text(screen))
        choices, table = screen.query_one(HomeChoices), screen.query_one(RunTable)
        assert choices.has_focus
        await until(pilot, lambda: "choose" in footer(screen))
        await pilot.press(*["down"] * 3)
        await until(pilot, lambda: table.has_focus)
        await pilot.press("up")
        await until(pilot, lambda: choices.has_focus)
        await pilot.press("f7", "end")
        await until(pilot, lambda: table.has_focus and table.selected is not None and table.selected.name == "old")
        await until(pilot, lambda: "open" in footer(screen))
        await pilot.press("y")
        await until(pilot, lambda: screen.app.clipboard == str(Path("runs/old")))
        await pilot.press("enter")
        await until(pilot, lambda: "✓ done" in status(screen))
        assert shown(screen) == {"training"}
        await pilot.press("f9")
        await until(pilot, lambda: shown(screen) == {"home"})
        assert choices.has_focus


async def test_a_run_that_trains_elsewhere_is_watched_by_enter() -> None:
    write_workspace(time.time())
    with RunFolder(Path("runs/old")).lock():
        async with workbench(size=(120, 40), pane=HOME) as (screen, pilot):
            await until(pilot, lambda: "● training" in screen_text(screen))
            await pilot.press("f7", "end", "enter")
            await until(pilot, lambda: "training" in shown(screen))
            assert screen.supervisor.shows(Path("runs/old"))


async def test_a_run_that_starts_from_home_goes_to_training_and_home_then_leads_back() -> None:
    folder = write_run("quickstart-0001", 2, began=time.time(), end=None)

    async with workbench(Script(scripted_run.wait), size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, lambda: has_choice(screen, "Train the quickstart"))
        screen.supervisor.start(screen.config.document.config)  # type: ignore[arg-type]  what starting ends in
        await until(pilot, lambda: shown(screen) == {"training"})
        await until(pilot, lambda: "iteration 1/12" in status(screen))
        with RunFolder(folder).lock():
            for keys in (["f9", "enter"], ["f7", "enter"]):
                await pilot.press(keys[0])
                await until(pilot, lambda: has_choice(screen, "Go to the run"))
                assert not has_choice(screen, "Train the quickstart")
                await pilot.press(keys[1])
                await until(pilot, lambda: shown(screen) == {"training"})
            assert screen.supervisor.trains_here


@pytest.mark.parametrize(("limit", "shown"), [(0, "at least 3 items waiting"), (20, "20 items waiting")])
async def test_what_waits_for_labels_is_counted_to_the_end_of_a_session_and_not_of_its_buffer(
    limit: int, shown: str
) -> None:
    with PreferenceStore(Path("preferences.db")) as store:
        begin_session(store, "ann", SessionPlan(queues=(), limit=limit)).put(items(3))
    async with workbench(Script(scripted_run.wait), size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, lambda: f" {shown}" in screen_text(screen))


async def test_label_opens_its_dialog_at_once() -> None:
    async with workbench(size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, lambda: has_choice(screen, "Label"))
        await pilot.press("l")
        await until(pilot, lambda: bool(screen.app.screen.query(OptionList)))
        assert shown(screen) == {"label"}


async def test_a_configuration_with_problems_is_to_be_fixed_before_it_is_trained(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[ppo]\nkl_coef = -1\n")
    async with workbench(source=str(broken), size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, lambda: "Fix the configuration" in screen_text(screen))
        await pilot.press("down", "t")
        await until(pilot, lambda: shown(screen) == {"config"})


async def test_the_visit_is_kept_and_the_next_one_shows_what_is_new(tmp_path: Path) -> None:
    now = time.time()
    settings = ScreenSettings(visits={str(tmp_path): now - 8700, "/elsewhere": now})
    settings.save(tmp_path / "config")
    write_workspace(now)
    async with workbench(size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, lambda: "✖ broken failed at 3/40" in screen_text(screen))
    visits = read_toml(tmp_path / "config" / "workbench.toml")["visits"]
    assert visits[str(tmp_path)] >= now
    assert visits["/elsewhere"] == now


def test_damaged_visits_are_ignored_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    (tmp_path / "workbench.toml").write_text('[visits]\n"/a" = "noon"\n"/b" = 5.5\n"/c" = -1\n')
    settings = ScreenSettings.load(tmp_path)
    assert settings.visits == {"/b": 5.5}
    for number in range(80):
        settings.visit(Path(f"/{number}"))
    assert len(settings.visits) == 50
    assert "/79" in settings.visits


async def test_a_click_does_what_it_is_on_and_nothing_of_the_other_list() -> None:
    write_workspace(time.time())
    async with workbench(size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, lambda: "broken" in screen_text(screen))
        await pilot.click(HomeChoices, offset=(5, 2))
        await until(pilot, lambda: bool(screen.app.screen.query(OptionList)))
        await pilot.press("escape")
        await settle(pilot)
        assert screen.supervisor.folder is None, "no run was opened"
