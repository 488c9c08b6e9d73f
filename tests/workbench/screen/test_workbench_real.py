"""The application over the real trainer, on a tiny model: started, paused, changed, stopped, and started again."""

from __future__ import annotations

from pathlib import Path

from runs_helper import newest_checkpoint, workspace
from waiting import until
from workbench_app import press_when_asked, screen_text, start_run, status, workbench

from trainer.events import SettingChanged
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from workbench.config.form import ConfigForm
from workbench.config.pane import ConfigPane
from workbench.samples.ask_screen import AnswerList, AskScreen
from workbench.samples.sample_list import SampleList
from workbench.samples.sample_view import SampleView
from workbench.samples.token_facts import sentence


async def test_a_run_is_started_paused_changed_resumed_and_stopped_twice_in_one_process(tmp_path: Path) -> None:
    toml = workspace(tmp_path)
    endless = ("ppo.iterations=100000", "eval.every=0")
    async with workbench(source=str(toml), overrides=endless) as (screen, pilot):
        for name, kl_coef in (("tiny-0001", 0.2), ("tiny-0002", 0.3)):
            await start_run(pilot)
            await until(pilot, lambda: len(screen.supervisor.view.history) >= 2)
            await pilot.press("space")
            await until(pilot, lambda: "‖ paused" in status(screen))
            held = screen.supervisor.view.iteration
            screen.query_one(ConfigPane).post_message(ConfigForm.LiveSettingChanged("ppo.kl_coef", kl_coef))
            await pilot.press("s")
            await until(pilot, lambda held=held: screen.supervisor.view.iteration > held)
            await until(pilot, lambda: "‖ paused" in status(screen))
            await pilot.press("space")
            await until(pilot, lambda: bool(screen.supervisor.view.settings))
            await pilot.press("f4")
            await until(pilot, lambda: "samples" in screen_text(screen) and "score" in screen_text(screen))
            await pilot.press("X")
            await press_when_asked(pilot, "y")
            await until(pilot, lambda: not screen.supervisor.trains_here)
            assert "■ stopped" in status(screen)
            assert screen.supervisor.failure == ""
            folder = RunFolder(tmp_path / "runs" / name)
            (change,) = [event for event in read_journal(folder.events).events if isinstance(event, SettingChanged)]
            assert (change.key, change.value) == ("ppo.kl_coef", kl_coef)
            assert newest_checkpoint(folder) is not None


async def test_a_token_is_explained_and_the_model_asked_while_it_trains_and_after(tmp_path: Path) -> None:
    toml = workspace(tmp_path)
    endless = ("ppo.iterations=100000", "eval.every=0")
    async with workbench(source=str(toml), overrides=endless) as (screen, pilot):

        async def ask() -> str:
            await pilot.press("p")
            await until(pilot, lambda: isinstance(screen.app.screen, AskScreen))
            await pilot.press("ctrl+r")
            await until(pilot, lambda: drawn().count("score +") == 2)
            text = drawn()
            await pilot.press("escape")
            await until(pilot, lambda: screen.app.screen is screen)
            return text

        def drawn() -> str:
            listed = screen.app.screen.query_one(AnswerList)
            return "\n".join(listed.render_line(y).text for y in range(listed.size.height))

        await start_run(pilot)
        await until(pilot, lambda: len(screen.supervisor.view.history) >= 2)
        await pilot.press("f4", "z")
        await until(pilot, lambda: screen.query_one(SampleList).selected is not None)
        await pilot.press("enter")
        opened = screen.query_one(SampleView)
        await until(pilot, lambda: opened.facts is not None)
        facts = opened.facts
        assert facts is not None
        await until(pilot, lambda: sentence(facts)[1:20] in screen_text(screen))
        assert "policy · after" in await ask()
        await pilot.press("X")
        await press_when_asked(pilot, "y")
        await until(pilot, lambda: not screen.supervisor.trains_here)
        assert "reference" in await ask(), "by the checkpoint, now that nothing trains"
        assert screen.supervisor.failure == ""


async def test_a_missing_model_is_a_message_with_the_way_out(tmp_path: Path) -> None:
    toml = workspace(tmp_path)
    async with workbench(None, source=str(toml), overrides=(f"model.path={tmp_path}/nowhere",)) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: "nowhere" in screen_text(screen).split("╭")[0])
        assert not screen.supervisor.trains_here
        assert screen.app.is_running
        assert not (tmp_path / "runs").exists()
        await pilot.press("f8")
        await until(pilot, lambda: "nowhere" in screen_text(screen).split("╭")[-1])
