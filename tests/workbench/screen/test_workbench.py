"""The application as a user drives it, over a scripted trainer: every key, every size, every way to leave."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import scripted_run
from scripted_run import Script, complete_run, make_run
from textual.widgets import Input
from waiting import until
from workbench_app import press_when_asked, screen_text, start_run, status, workbench

from trainer.config import Config, load_config
from trainer.engine.control import Control
from trainer.errors import ChangedPromptsError
from trainer.events import Alert, RunEnded
from trainer.runs.checkpoint_files import write_state
from trainer.runs.folder import RunFolder, rename_run
from workbench.config.form import ConfigForm
from workbench.config.pane import ConfigPane
from workbench.kit.banner import Banner
from workbench.kit.dialog import ConfirmScreen, TextPromptScreen
from workbench.kit.pane import Pane
from workbench.kit.theming import SHIPPED_THEMES
from workbench.runs.pane import RunsPane
from workbench.runs.table import RunTable
from workbench.screen.dialogs import QuitScreen, RunQuestion, resume_plan, start_plan
from workbench.screen.main_screen import MainScreen
from workbench.screen.panes import READING
from workbench.system.environment import config_dir
from workbench.training.pane import TrainingPane


def shown(screen: Any) -> set[str]:
    return {pane.id for pane in screen.query(Pane) if pane.display and pane.region.area}


def banner(screen: Any) -> str:
    widget = screen.query_one(Banner)
    return str(widget.render()) if widget.display else ""


async def begin(screen: Any, pilot: Any) -> None:
    """Start the run, and wait for its first iteration."""
    await start_run(pilot)
    await until(pilot, lambda: screen.supervisor.view.last is not None and "iteration" in status(screen))


async def test_keys_pause_and_resume_and_save_and_the_footer_shows_only_what_applies() -> None:
    async with workbench(scripted_run.steered, size=(160, 40)) as (screen, pilot):

        def footer() -> str:
            return screen_text(screen).splitlines()[-1]

        await until(pilot, lambda: "start" in footer())
        assert not any(word in footer() for word in ("pause", "checkpoint"))
        await begin(screen, pilot)
        await until(pilot, lambda: "pause" in footer())
        assert "start" not in footer()
        assert "checkpoint" in footer()
        await pilot.press("space")
        await until(pilot, lambda: "‖ paused" in status(screen))
        await pilot.press("space")
        await until(pilot, lambda: "● training" in status(screen))
        await pilot.press("c")
        screen.query_one(ConfigPane).post_message(ConfigForm.LiveSettingChanged("ppo.kl_coef", 0.2))
        await until(pilot, lambda: [one.value for one in screen.supervisor.view.settings] == [0.2])
        await until(pilot, lambda: len(screen.supervisor.view.checkpoints) == 1)


async def test_a_pane_is_enlarged_and_back_and_a_terminal_that_is_too_small_says_so_while_the_run_continues() -> None:
    async with workbench(scripted_run.wait) as (screen, pilot):
        await begin(screen, pilot)
        for key, panes in (("f4", {*READING}), ("z", {"samples"}), ("z", {*READING})):
            await pilot.press(key)
            await pilot.pause()
            assert shown(screen) == panes
            assert [pane.id for pane in screen.query("Pane.-current")] == ["samples"]
        await pilot.resize_terminal(50, 15)
        await pilot.pause()
        assert "50 x 15 is too small" in screen_text(screen)
        assert screen.supervisor.trains_here
        await pilot.resize_terminal(120, 36)
        await pilot.pause()
        assert shown(screen) == set(READING)


async def test_a_broken_configuration_opens_with_its_problems_and_starts_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[ppo]\nkl_coef = -1\nepoks = 2\n")
    script = Script(scripted_run.done)
    async with workbench(script, source=str(broken)) as (screen, pilot):
        await pilot.press("space")
        await until(pilot, lambda: "2 problems" in banner(screen))
        assert "ppo.kl_coef = -1: must be at least 0" in banner(screen)
        assert screen.query_one(ConfigPane).has_focus_within
        assert script.received == {}
        await pilot.press("escape", "escape")
        await until(pilot, lambda: banner(screen) == "")


@pytest.mark.parametrize(
    ("downs", "state", "message"),
    [(0, "stopped", ""), (1, "stopped", "continues headless; show it with ppo-workbench watch"), (2, "stopped", "")],
)
async def test_leaving_a_run_asks_what_should_happen_to_it(
    downs: int, state: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    detached: list[Path] = []
    monkeypatch.setattr("workbench.run.supervisor.continue_headless", detached.append)
    async with workbench(scripted_run.wait) as (screen, pilot):
        await begin(screen, pilot)
        await pilot.press("q")
        await until(pilot, lambda: isinstance(screen.app.screen, QuitScreen))
        await pilot.press("escape")
        await until(pilot, lambda: screen.app.screen is screen)
        assert screen.supervisor.trains_here
        await pilot.press("q")
        await press_when_asked(pilot, *["down"] * downs, "enter")
        await until(pilot, lambda: not screen.app.is_running)
        assert not screen.supervisor.trains_here
        assert screen.supervisor.view.state == state
        assert detached == ([Path("runs/quickstart-0001")] if message else [])
        assert message in (screen.app.return_value or "")


@pytest.mark.parametrize(
    ("change", "state", "problem"),
    [
        (lambda text: text, "■ stopped", ""),
        (
            lambda text: f'{text}{{"time": 1.0, "event": "of the future"}}\n{{"time": 2.0, "ev',
            "■ stopped",
            "of the future",
        ),
        (lambda text: text.replace('{"journal":1', '{"journal":2', 1), "■ stopped", "version 2"),
        (lambda text: text.replace('"state":"stopped"', '"state":"quantum"'), "● quantum", ""),
    ],
    ids=["whole", "damaged", "of a newer version", "in a state of a newer version"],
)
async def test_a_run_that_has_ended_is_watched_with_its_configuration_and_what_is_wrong_with_its_journal(
    change: Callable[[str], str], state: str, problem: str
) -> None:
    folder = make_run("past")
    journal = folder / "events.jsonl"
    journal.write_text(change(journal.read_text()))
    async with workbench(watch=folder) as (screen, pilot):
        await until(pilot, lambda: state in status(screen) and problem in banner(screen))
        assert "iteration 2/12" in status(screen)
        assert banner(screen) if problem else not banner(screen)
        iterations = load_config(folder / "config.toml").ppo.iterations
        assert screen.config.document.get("ppo.iterations") == iterations
        await pilot.press("f7")
        await until(pilot, lambda: screen_text(screen).count(state) == 2)  # on top, and in the list


async def test_a_run_of_another_kind_is_watched_in_every_pane() -> None:
    async with workbench(watch=make_run("liked", run_kind="reward-model")) as (screen, pilot):
        await until(pilot, lambda: "liked" in status(screen))
        assert banner(screen) == ""
        await pilot.press("f2", "f3", "f4", "f5", "f6", "f7", "f8")
        assert screen.app.is_running


HOSTILE = ["[/x]", "[@click=app.quit]a[/]", "\x1b[2J\x1b]0;gone\x07", "‮right to left‬", "👩‍🔬", "x" * 1_000_000]


@pytest.mark.parametrize("text", HOSTILE, ids=["markup", "action", "escape", "bidi", "emoji", "megabyte"])
async def test_hostile_text_is_shown_as_text(text: str) -> None:
    def play(emit: Any, control: Control) -> RunEnded:
        emit(scripted_run.started(name=f"n{text[:50]}", model=text[:500]))
        emit(scripted_run.samples(1, (text, text)))
        emit(scripted_run.iteration(1))
        emit(Alert(iteration=1, level="warning", code="x", message=text))
        emit(end := scripted_run.ended(reason=text))
        return end

    async with workbench(play) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: "done" in status(screen))
        for key in ("f4", "f3", "f2"):
            await pilot.press(key)
        content = screen_text(screen)
        assert "\x1b" not in content
        assert "\u202e" not in content
        if text.startswith("["):
            assert text[:12] in content
        assert screen.app.is_running


async def test_an_alarm_is_in_the_log_with_its_time_though_another_pane_was_on_the_screen() -> None:
    goes_on = threading.Event()

    def play(emit: Any, control: Control) -> RunEnded:
        emit(scripted_run.started())
        emit(scripted_run.iteration(1))
        goes_on.wait(60)
        emit(scripted_run.alarm(1, level="error"))
        emit(end := scripted_run.ended())
        return end

    async with workbench(play) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: " 1/" in status(screen))
        goes_on.set()
        await until(pilot, lambda: "Log·✖1" in status(screen))
        await pilot.press("f8")
        await pilot.pause()
        assert re.search(r"\d\d:\d\d:\d\d ✖  quickstart-0001, iteration 1: error: ", screen_text(screen))
        assert "Log·" not in status(screen), "they are read"


async def test_leaving_with_unsaved_changes_can_save_them_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with workbench() as (screen, pilot):
        app = screen.app
        screen.config.document.set("ppo.kl_coef", 0.5)
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "w Save" in screen_text(app.screen)  # type: ignore[arg-type]
        await press_when_asked(pilot, "w")
        await until(pilot, lambda: isinstance(app.screen, TextPromptScreen))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
        assert app.is_running, "nothing was saved, so nothing may be lost"
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await press_when_asked(pilot, "w")
        await until(pilot, lambda: isinstance(app.screen, TextPromptScreen))
        await pilot.press("enter")
        await until(pilot, lambda: not app.is_running)
    assert load_config("my-quickstart.toml").ppo.kl_coef == 0.5


async def test_the_footer_follows_a_key_whose_action_has_a_parameter() -> None:
    async with workbench(size=(200, 60)) as (screen, pilot):
        await pilot.press("f2")
        pane = screen.query_one(ConfigPane)
        assert "problem" not in screen_text(screen).splitlines()[-1]
        pane.document.set("ppo.kl_coef", -1)
        pane.refresh_view()
        await until(pilot, lambda: "e problem" in screen_text(screen).splitlines()[-1])


async def test_a_lost_terminal_ends_the_screen_and_not_the_run() -> None:
    async with workbench(scripted_run.wait) as (screen, pilot):
        await begin(screen, pilot)
        assert not screen.app.handle_signal(signal.SIGHUP)  # type: ignore[attr-defined]
        await until(pilot, lambda: not screen.app.is_running)
        assert screen.supervisor.trains_here
        assert screen.app.terminal_gone  # type: ignore[attr-defined]
        screen.supervisor.abort()
        screen.supervisor.wait()


async def test_a_run_resumes_under_its_own_name_and_a_new_one_gets_a_new_name() -> None:
    folder = make_run("past")
    script = Script(scripted_run.done)
    async with workbench(script, resume=folder, overrides=("ppo.iterations=24",)) as (screen, pilot):
        await until(pilot, lambda: "✓ done" in status(screen) and not screen.supervisor.trains_here)
        assert script.received["resume"] == folder
        assert script.received["config"].ppo.iterations == 24
        await start_run(pilot)
        await until(pilot, lambda: script.received["resume"] is None)
        assert script.received["config"].run.name == ""


async def test_prompts_that_have_changed_are_named_and_accepted_in_a_dialog() -> None:
    def play(emit: Callable[..., None], control: Control) -> RunEnded:
        if not script.accepts_data:
            raise ChangedPromptsError("3 prompts replaced")
        return scripted_run.done(emit, control)

    script = Script(play)
    async with workbench(script, resume=make_run("past")) as (screen, pilot):
        await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmScreen))
        await until(pilot, lambda: "3 prompts replaced" in screen_text(pilot.app.screen))
        await pilot.press("y")
        await until(pilot, lambda: "✓ done" in status(screen) and not screen.supervisor.trains_here)
        assert script.accepts_data


async def test_resume_and_duplicate_do_not_open_the_run_as_well() -> None:
    make_run("past")
    async with workbench(scripted_run.wait) as (screen, pilot):
        await pilot.press("f7")
        await until(pilot, lambda: "past" in screen_text(screen))
        await pilot.press("d")
        await until(pilot, lambda: "copy of past" in screen_text(screen))
        assert "no run yet" in status(screen)
        await pilot.press("f7", "r")
        await press_when_asked(pilot, "enter")
        await until(pilot, lambda: " 1/12" in status(screen))
        assert screen.supervisor.trains_here
        assert banner(screen) == ""
        document = screen.config.document
        await pilot.press("f7")
        table = screen.query_one(RunTable)
        while table.selected is None or table.selected.name != "past":
            await pilot.press("down")
        await pilot.press("d")
        await until(pilot, lambda: "duplicate once it has ended" in banner(screen))
        assert screen.config.document is document, "the run is controlled through it"


async def test_a_complete_run_continues_for_as_many_iterations_as_requested() -> None:
    complete_run("past")
    script = Script(scripted_run.done)
    async with workbench(script) as (screen, pilot):
        await pilot.press("f7")
        await until(pilot, lambda: "past" in screen_text(screen))
        await pilot.press("r")
        await until(pilot, lambda: isinstance(screen.app.screen, TextPromptScreen))
        await until(pilot, lambda: "past is complete after 12 iterations" in screen_text(screen.app.screen))  # type: ignore[arg-type]
        await pilot.press("0", "enter", "s", "X")
        assert script.received == {}, "nothing is loaded, and nothing typed reaches the run"
        line = screen.app.screen.query_one(Input)
        line.value = "5"
        await pilot.press("enter")
        await until(pilot, lambda: "✓ done" in status(screen))
        assert script.received["resume"] == Path("runs/past")
        assert script.received["config"].ppo.iterations == 17
        assert screen.query_one(ConfigPane).document.get("ppo.iterations") == 17


async def test_a_run_that_trains_is_not_controlled_through_unsaved_changes() -> None:
    folder, script = make_run("past"), Script(scripted_run.done)
    async with workbench(script) as (screen, pilot):
        pane = screen.query_one(ConfigPane)
        mine = pane.document
        mine.set("ppo.kl_coef", 0.3)
        await pilot.press("f7")
        await until(pilot, lambda: "past" in screen_text(screen))
        await pilot.press("r")
        await until(pilot, lambda: screen.app.screen is not screen)
        await press_when_asked(pilot, "n")
        await until(pilot, lambda: screen.app.screen is screen)
        assert script.received == {}, "not resumed"
        with RunFolder(folder).lock():
            await pilot.press("enter")
            await until(pilot, lambda: screen.app.screen is not screen)
            await press_when_asked(pilot, "n")
            await until(pilot, lambda: screen.app.screen is screen)
            assert pane.document is mine
            assert screen.supervisor.folder is None, "not opened"
            await pilot.press("enter")
            await until(pilot, lambda: screen.app.screen is not screen)
            await press_when_asked(pilot, "y")
            await until(pilot, lambda: screen.supervisor.folder == folder)
            assert pane.document.get("ppo.kl_coef") != 0.3


async def test_a_run_is_stopped_only_when_the_user_agrees() -> None:
    async with workbench(scripted_run.wait) as (screen, pilot):
        await begin(screen, pilot)
        for keys in (["X", "enter"], ["n"], ["escape"]):
            await pilot.press("X")
            await press_when_asked(pilot, *keys)
            await until(pilot, lambda: screen.app.screen is screen)
            assert screen.supervisor.note == ""
        await pilot.press("X")
        question = "Stop run quickstart-0001 after a checkpoint?"
        await until(pilot, lambda: question in screen_text(screen.app.screen))  # type: ignore[arg-type]
        await press_when_asked(pilot, "y")
        await until(pilot, lambda: not screen.supervisor.trains_here and "■ stopped" in status(screen))


async def test_a_broken_theme_or_key_file_is_reported_and_the_theme_is_back_once_it_is_fixed(
    tmp_path: Path,
) -> None:
    (themes := config_dir() / "themes").mkdir(parents=True)
    mine = (SHIPPED_THEMES / "paper.toml").read_text().replace("paper", "mine")
    (themes / "mine.toml").write_text(mine)
    async with workbench() as (screen, _):
        screen.app.theme = "mine"
    (themes / "mine.toml").write_text(f"{mine}[")
    (config_dir() / "keys.toml").write_text('preset = "vim"\n[keys]\n"run.pauze" = "p"\n')
    async with workbench() as (screen, pilot):
        assert screen.app.theme != "mine"
        await until(pilot, lambda: "mine.toml" in banner(screen))
        assert "run.pauze is not a binding: did you mean run.pause?" in banner(screen)
        (themes / "mine.toml").write_text(mine)
        await until(pilot, lambda: screen.app.theme == "mine")


async def test_marked_runs_are_overlaid_in_the_chart(tmp_path: Path) -> None:
    make_run("first")
    make_run("second")
    async with workbench(watch=Path("runs/first")) as (screen, pilot):
        await pilot.press("f7")
        await until(pilot, lambda: "second" in screen_text(screen))
        await pilot.press("m", "down", "m")
        await pilot.press("f3", "enter")
        await until(pilot, lambda: "─ this run  a second" in chart_text(screen))
        assert "first" not in chart_text(screen), "the open run has its line already"


def chart_text(screen: Any) -> str:
    """Return the lines of the Training pane, cut out of the screen."""
    region = screen.query_one(TrainingPane).region
    return "\n".join(line[region.x : region.right] for line in screen_text(screen).splitlines())


async def test_a_signal_to_a_watching_workbench_leaves_the_run_alone() -> None:
    run = RunFolder(make_run("past").resolve())
    with run.lock():  # as the process that trains it holds it
        async with workbench(watch=run.root) as (screen, pilot):
            await until(pilot, lambda: screen.supervisor.under_way)
            assert screen.app.handle_signal(signal.SIGTERM)  # type: ignore[attr-defined]
            await until(pilot, lambda: not screen.app.is_running)
        assert not any(run.control.glob("*.json"))


async def test_a_run_that_was_trained_here_is_followed_to_its_new_name_without_its_configuration() -> None:
    run = make_run("past")
    async with workbench(watch=run.resolve()) as (screen, pilot):
        screen.config.document.set("ppo.iterations", 7)
        screen.query_one(RunsPane).post_message(RunsPane.Moved(run, rename_run(RunFolder(run), "later").root))
        await until(pilot, lambda: screen.supervisor.folder is not None and screen.supervisor.folder.name == "later")
        await pilot.pause()
        assert screen.app.screen is screen, "no question about the unsaved changes: they stay"
        assert screen.config.document.config.ppo.iterations == 7


def shown_on_top(screen: MainScreen) -> str:
    return screen_text(screen.app.screen)  # type: ignore[arg-type]


def checkpoint(folder: Path, iteration: int) -> None:
    """Make a whole checkpoint, as far as it is listed."""
    saved = RunFolder(folder).checkpoint(iteration)
    saved.mkdir(parents=True)
    write_state(saved, {"version": 1})


def test_a_plan_says_what_a_new_run_does_and_where() -> None:
    make_run("mine-0007")
    changed = [f"ppo.setting_{number}" for number in range(6)]
    plan = start_plan(Config(), "mine.toml", changed, one_iteration=False)
    facts = dict(plan.facts)
    assert facts["model"] == "starter, LoRA rank 8"
    assert facts["prompts"] == "story-openings"
    assert facts["reward"] == "lexicon"
    assert facts["iterations"] == "100; 8 responses of up to 48 tokens each"
    assert facts["run folder"] == "runs/mine-0008"
    assert facts["memory"].startswith("about 1.")
    assert facts["changed"].endswith("ppo.setting_3 and 2 more")
    assert plan.warnings == []
    once = dict(start_plan(Config(), "mine", [], one_iteration=True).facts)
    assert once["iterations"] == "one iteration, then pause"
    assert "changed" not in once


def test_a_plan_warns_of_too_little_memory_and_of_what_is_likely_to_disappoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=10**9, available=10**9))
    plan = start_plan(Config.model_validate({"rollout": {"top_k": 5}}), "mine", [], one_iteration=False)
    assert dict(plan.facts)["memory"].endswith("of 1.0 GB: does not fit")
    assert any("top_k" in warning for warning in plan.warnings)
    unknown = Config.model_validate({"model": {"path": "nobody/nothing"}})
    assert "not downloaded" in dict(start_plan(unknown, "mine", [], one_iteration=False).facts)["memory"]


def test_a_plan_to_resume_names_the_checkpoint_that_it_continues_from() -> None:
    folder = make_run("past")
    assert "begins again" in dict(resume_plan(folder, Config()).facts)["checkpoint"]
    checkpoint(folder, 2)
    plan = resume_plan(folder, Config())
    assert plan.question == "Resume past?"
    assert dict(plan.facts)["checkpoint"] == "step-000002, iteration 2 of 100"


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (200, 60)])
async def test_a_run_starts_only_by_enter_typed_at_its_question(size: tuple[int, int]) -> None:
    script = Script(scripted_run.wait)
    async with workbench(script, size=size) as (screen, pilot):
        await pilot.press("f2")
        focused = screen.focused
        await pilot.press("space")
        await until(pilot, lambda: "enter train" in shown_on_top(screen))
        text = shown_on_top(screen)
        for words in ("Start this run?", "story-openings", "quickstart-0001", "enter Start run", "esc Cancel"):
            assert words in text
        footer = text.splitlines()[-1]
        assert footer.endswith("▏esc cancel  ? help  q quit")
        assert " y " not in footer
        assert " n " not in footer
        await press_when_asked(pilot, "space", "s")
        assert isinstance(screen.app.screen, RunQuestion)
        await pilot.press("escape")
        await until(pilot, lambda: screen.app.screen is screen)
        assert script.received == {}
        assert screen.focused is focused, "the user is where they were"
        assert screen.query_one(ConfigPane).display
        await pilot.press("s")
        await until(pilot, lambda: "one iteration, then pause" in shown_on_top(screen))
        await press_when_asked(pilot, "enter")
        await until(pilot, lambda: screen.supervisor.view.started is not None)


async def test_a_run_resumes_only_by_enter_and_unless_cancelled() -> None:
    checkpoint(make_run("past"), 2)
    script = Script(scripted_run.done)
    async with workbench(script) as (screen, pilot):
        before = screen.query_one(ConfigPane).document
        await pilot.press("f7")
        await until(pilot, lambda: "past" in screen_text(screen))
        await pilot.press("r")
        await until(pilot, lambda: "step-000002, iteration 2 of 100" in shown_on_top(screen))
        assert "Resume past?" in shown_on_top(screen)
        await press_when_asked(pilot, "escape")
        await until(pilot, lambda: screen.app.screen is screen)
        assert screen.query_one(ConfigPane).document is before
        assert screen.query_one("#home").has_focus_within
        assert script.received == {}
        await pilot.press("r")
        await press_when_asked(pilot, "enter")
        await until(pilot, lambda: "✓ done" in status(screen))
        assert script.received["resume"] == Path("runs/past")
