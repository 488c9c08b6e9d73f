"""Home: the loop and what comes next, what is new, and curves of the runs."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import scripted_run
from compared_runs import events_of_kind
from config_files import save_config
from label_session import items
from preferences_helper import add_label, preference
from rich.cells import cell_len
from runs_app import RunsApp
from scripted_run import Script, ended
from textual.widgets import OptionList
from waiting import until
from workbench_app import HOME, screen_text, settle, status, workbench
from workspace_runs import LONG_NAME, write_run, write_workspace

from trainer.config import Config, load_config
from trainer.events import RewardModelEvaluation
from trainer.preferences.records import SessionPlan
from trainer.preferences.sessions import begin_session
from trainer.preferences.store import PreferenceStore
from trainer.runs.folder import RunFolder
from trainer.runs.listing import RunSummary
from workbench.kit.drawing import Drawn
from workbench.kit.pane import Pane
from workbench.run import run_listing
from workbench.run.metrics import REWARD_MODEL
from workbench.run.run_listing import Glance, Workspace, read_workspace
from workbench.runs.loop import HomeFacts, HomeLoop, loop_lines
from workbench.runs.pane import RunsPane
from workbench.runs.table import RunTable
from workbench.screen.home import NextRun, home_facts
from workbench.screen.main_screen import MainScreen
from workbench.text import plain


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
        assert "GB, fits " in text
        for name in ("Prompts", "Policy", "Labels", "Reward model", "Policy on it"):
            assert text.count(name) >= 2, f"{name} is shown and explained"
        assert "^p commands" in footer(screen)
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
        assert "score against KL" in text
        assert "▁" in text
        await pilot.resize_terminal(60, 20)
        await settle(pilot)
        assert has_choice(screen, "Label")
        assert "5 Policy on it" in screen_text(screen)


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


async def test_the_cursor_goes_from_the_choices_to_the_runs_and_enter_opens_one() -> None:
    write_workspace(time.time())
    async with workbench(size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, lambda: "broken" in screen_text(screen))
        choices, table = screen.query_one(HomeLoop), screen.query_one(RunTable)
        assert choices.has_focus
        await until(pilot, lambda: "choose" in footer(screen))
        await pilot.press("right", "left", "down")
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


async def test_a_run_that_starts_from_home_goes_to_training_and_home_then_leads_back() -> None:
    folder = write_run("quickstart-0001", 2, began=time.time(), end=None)

    async with workbench(Script(scripted_run.wait), size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, lambda: has_choice(screen, "Label"))
        screen.supervisor.start(screen.config.document.config)  # type: ignore[arg-type]  what starting ends in
        await until(pilot, lambda: shown(screen) == {"training"})
        await until(pilot, lambda: "1/12" in status(screen))
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
        await until(pilot, lambda: has_choice(screen, "Train the quickstart"))
        await pilot.press("right")
        await until(pilot, lambda: f"Label  {shown}" in screen_text(screen))


async def test_a_configuration_with_problems_is_to_be_fixed_before_it_is_trained(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[ppo]\nkl_coef = -1\n")
    async with workbench(source=str(broken), size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, lambda: "Fix the configuration" in screen_text(screen))
        await pilot.press("right", "t")
        await until(pilot, lambda: shown(screen) == {"config"})


async def test_a_click_or_a_key_does_its_choice_and_nothing_of_the_other_list() -> None:
    write_workspace(time.time())
    async with workbench(size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, lambda: "broken" in screen_text(screen))
        await pilot.click(HomeLoop, offset=(40, 1))
        await until(pilot, lambda: bool(screen.app.screen.query(OptionList)))
        await pilot.press("escape")
        await settle(pilot)
        assert screen.supervisor.folder is None, "no run was opened"
        assert shown(screen) == {"label"}
        await pilot.press("f9", "l")
        await until(pilot, lambda: bool(screen.app.screen.query(OptionList)))


NOW = float(int(time.time()))


RUNS = Path("runs")


def read() -> Workspace:
    workspace = read_workspace(RUNS)
    assert workspace is not None
    return workspace


def test_runs_are_read_newest_first_with_their_curves() -> None:
    write_workspace(NOW)
    workspace = read()
    assert [glance.run.name for glance in workspace.glances] == [LONG_NAME, "broken", "absurd", "old"]
    newest = workspace.glances[0]
    assert newest.scores == [number / 40 for number in range(1, 15)]
    assert newest.kls == [3 * (number / 40) for number in range(1, 15)]
    assert newest.seconds == 10.0
    assert math.isfinite(workspace.glances[1].scores[-1]), "what came after the end of the run does not count"


def test_a_journal_is_read_again_only_if_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    write_workspace(NOW)
    shown = read()
    assert read_workspace(RUNS, shown.states) is None
    opened = []
    plain_read = run_listing.glance_at
    monkeypatch.setattr(run_listing, "glance_at", lambda run: opened.append(run.name) or plain_read(run))
    os.utime("runs/old/events.jsonl", (NOW, NOW))
    assert read_workspace(RUNS, shown.states) is not None
    assert opened == ["old"]
    assert len(read().glances) == len(shown.glances), "a reading that was not shown hides nothing from the next"
    with RunFolder(Path("runs/broken")).lock():
        again = read()
    assert opened == ["old", "broken"]
    assert {glance.run.name: glance.run.state for glance in again.glances}["broken"] == "training"
    assert (ended_ := read_workspace(RUNS, again.states)) is not None, "a trainer that was killed changes no file"
    assert {glance.run.name: glance.run.state for glance in ended_.glances}["broken"] == "failed"


def test_an_unreadable_journal_a_missing_folder_and_a_file_in_its_place_are_survived() -> None:
    assert read() == ([], "", {})
    assert read_workspace(RUNS, {}) is None
    Path("file").touch()
    assert "'file'" in (read_workspace(Path("file")) or read()).problem
    write_run("hurt", 2, began=NOW, end=None)
    Path("runs/hurt/events.jsonl").write_bytes(b"\x00\xff not a journal\n")
    [glance] = read().glances
    assert (glance.scores, glance.run.damaged) == ([], True)


def test_a_label_that_was_undone_is_not_counted(tmp_path: Path) -> None:
    with PreferenceStore(tmp_path / "preferences.db") as store:
        undone = add_label(store, preference("first"))
        store.undo(undone, "ann")
        add_label(store, preference("second"))
    plan = NextRun("quickstart", load_config("quickstart"), 0, "", RUNS, tmp_path / "preferences.db")
    assert home_facts(plan, Workspace([], "")).stations[2].state == "1 label"


def test_the_expected_time_comes_from_the_newest_run_of_the_same_model() -> None:
    def train(config: Config, workspace: Workspace) -> str:
        return home_facts(NextRun("mine", config, 0, "", RUNS, RUNS / "no.db"), workspace).stations[1].text

    config = Config.model_validate({"ppo": {"iterations": 60}})
    assert train(config, Workspace([], "")) == "SmolLM2-135M, 60 iterations"
    assert train(load_config("quickstart"), Workspace([], "")).endswith(", about 10 min"), "before its first run"
    write_workspace(NOW)
    assert train(config, read()) == "SmolLM2-135M, 60 iterations, about 10 min"
    other = Config.model_validate({"model": {"path": "elsewhere"}})
    assert train(other, read()) == "elsewhere, 100 iterations"


def rows(picture: Drawn) -> list[str]:
    return [picture.render_line(y).text for y in range(picture.size.height)]


async def test_score_against_kl_of_the_selected_run_or_the_marked_ones_fills_a_large_terminal() -> None:
    write_workspace(time.time())
    app = RunsApp()
    async with app.run_test(size=(120, 40)) as pilot:
        pane, picture, table = app.query_one(RunsPane), app.query_one("#run-picture", Drawn), app.query_one(RunTable)
        await until(pilot, lambda: len(table.items) == 4)
        await pilot.press("end")
        await until(pilot, lambda: rows(picture)[0].split()[:6] == ["score", "against", "KL,", "nats", "A", "old"])
        assert any("┤" in row for row in rows(picture)), "the y axis has numbers"
        assert any("a5" in row for row in rows(picture)), "iterations are beside points"
        assert picture.region.bottom == pane.content_region.bottom
        assert table.size.height == 5, "the heading and four runs"

        await pilot.press("m", "up", "m")
        comparison = app.query_one("#run-comparison")
        await until(pilot, lambda: rows(picture)[0].split()[:7] == ["score", "against", "KL,", "nats", "A", "old", "B"])
        legend = [segment.style for segment in picture.render_line(0) if segment.text[:2] in ("A ", "B ")]
        assert len({style.color for style in legend if style}) == 2
        assert {"a", "b", "+"} & set("".join(rows(picture)[1:-2]))
        assert comparison.region.right <= picture.region.x
        assert comparison.region.y == picture.region.y
        for size in ((80, 24), (200, 24), (60, 20)):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            assert "score against KL" in rows(picture)[0], f"the picture is seen at {size}"
            assert app.text("#run-differences") == "No shared setting differs"
            assert table.region.bottom <= comparison.region.y
            assert max(comparison.region.bottom, picture.region.bottom) <= pane.content_region.bottom


def facts(tmp_path: Path, **plan: Any) -> HomeFacts:
    store = tmp_path / "preferences.db"
    values: dict[str, Any] = {"name": "q", "config": load_config("quickstart"), "problems": 0, "training": ""}
    return home_facts(NextRun(**values | plan, runs_dir=RUNS, store=store), read())


def label(path: Path, count: int) -> None:
    with PreferenceStore(path / "preferences.db") as store:
        for number in range(count):
            add_label(store, preference(f"{number} of {time.time()}"))


def write_reward_model(name: str, began: float, **results: float) -> None:
    events = events_of_kind(REWARD_MODEL)
    events = [replace(event, **results) if isinstance(event, RewardModelEvaluation) else event for event in events]
    folder = write_run(name, 0, began=began, end=None, events=[*events, ended("done", 5)])
    (folder / "config.toml").write_text('kind = "reward-model"\n[model]\npath = "starter"\n')


def test_the_loop_leads_from_the_first_policy_round_to_the_one_that_is_trained_on_labels(tmp_path: Path) -> None:
    assert facts(tmp_path).following == 1
    assert [station.state for station in facts(tmp_path).stations] == [
        "490",
        "not yet",
        "none yet",
        "not yet",
        "not yet",
    ]
    write_run("first", 40, began=NOW - 9000, end=ended("done", 40))
    found = facts(tmp_path)
    assert (found.following, found.stations[1][1:3]) == (2, ("0.95, KL 2.9", "first"))
    label(tmp_path, 100)
    assert facts(tmp_path).following == 3
    assert facts(tmp_path).stations[3].what == "model"
    write_reward_model(
        "weak", time.time() + 1, pairs=8, accuracy=0.6, accuracy_low=0.4, accuracy_high=0.8, length_accuracy=0.5
    )
    found = facts(tmp_path)
    assert (found.following, found.stations[3].detail) == (2, "too few to tell")
    assert found.stations[3].what == "reward-model"
    write_reward_model(
        "good", time.time() + 2, pairs=90, accuracy=0.8, accuracy_low=0.7, accuracy_high=0.9, length_accuracy=0.5
    )
    found = facts(tmp_path)
    assert (found.following, found.stations[4].what) == (4, "use")
    sources = [{"kind": "model", "path": "runs/good"}]
    config = Config.model_validate({"reward": {"sources": sources}})
    assert facts(tmp_path, config=config).stations[4].what == "train"
    folder = write_run("second", 40, began=time.time() + 60, end=ended("done", 40))
    save_config(config, folder / "config.toml")
    found = facts(tmp_path)
    assert (found.following, found.stations[4].detail) == (2, "second"), "and its responses are labelled"
    assert found.stations[1].detail == "first"
    assert facts(tmp_path, training="second").following == 4


@pytest.mark.parametrize("width", [58, 78, 118, 198])
def test_the_loop_is_a_row_that_fits_with_each_key_and_the_way_to_what_comes_next(tmp_path: Path, width: int) -> None:
    stations = [one._replace(key=str(place)) for place, one in enumerate(facts(tmp_path).stations, 1)]
    lines = loop_lines(stations, 1, 4, width, focused=True)
    assert all(cell_len(plain(line)) <= width for line in lines)
    for name in ("1 Prompts", "2 Policy", "3 Labels", "4 Reward model", "5 Policy on it"):
        assert name in plain(lines[0])
    if width > 60:
        assert "1 Prompts ━" in plain(lines[0])
        assert "▶ 3 Labels ─" in plain(lines[0])
    assert ("5 Policy on it", "cursor") in lines[0]
    assert ("Policy", "lit") in lines[0]


async def test_a_station_without_its_material_leads_to_where_it_is_made(tmp_path: Path) -> None:
    async with workbench(Script(scripted_run.wait), size=(80, 24), pane=HOME) as (screen, pilot):
        await until(pilot, lambda: has_choice(screen, "Train the quickstart"))
        await pilot.press("5")
        await until(pilot, lambda: shown(screen) == {"reward-model"})
        await pilot.press("f9", "4")
        await until(pilot, lambda: "no labels to train on yet" in screen_text(screen))
