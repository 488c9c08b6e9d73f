"""The message above the panes: success does not look like an error, and outdated messages go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import scripted_run
from label_material import reward_model
from scripted_run import make_run
from waiting import until
from workbench_app import screen_text, start_run, status, workbench

from trainer.engine.control import Control
from trainer.events import RunEnded
from workbench.config.pane import ConfigPane
from workbench.kit.banner import Banner
from workbench.kit.dialog import ConfirmScreen
from workbench.labelling.transfer import ImportPreferencesScreen
from workbench.screen.main_screen import MainScreen
from workbench.system.environment import config_dir


def reported(screen: MainScreen) -> str:
    """Return the banner's text; empty while it is hidden."""
    banner = screen.query_one(Banner)
    return str(banner.render()) if banner.display else ""


async def test_a_success_is_not_drawn_as_an_error_and_disappears_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("pairs.jsonl").write_text(json.dumps({"prompt": "p", "chosen": "good", "rejected": "bad"}) + "\n")
    async with workbench() as (screen, pilot):
        await pilot.press("f5", "i")
        await until(pilot, lambda: isinstance(screen.app.screen, ImportPreferencesScreen))
        await pilot.press(*"pairs.jsonl", "enter")
        await until(pilot, lambda: "imports 1" in screen_text(screen.app.screen))  # type: ignore[arg-type]
        monkeypatch.setattr("workbench.kit.banner.DONE_SECONDS", 2.0)
        await pilot.press("enter")
        await until(pilot, lambda: reported(screen).startswith("✓ Imported 1 preference from pairs.jsonl"))
        assert screen.query_one(Banner).has_class("-done")
        await until(pilot, lambda: reported(screen) == "")


async def test_an_error_that_still_applies_returns_after_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.kit.banner.DONE_SECONDS", 0.2)
    async with workbench(scripted_run.diverged) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: "loss was NaN 3 times in a row" in reported(screen))
        assert "lower optim.policy_lr and resume" in reported(screen)
        assert "✖ failed" in status(screen)
        screen.panes.say("Imported 1 preference", "done")
        assert reported(screen).startswith("✓ Imported 1 preference")
        await until(pilot, lambda: "loss was NaN" in reported(screen))
        assert not screen.query_one(Banner).has_class("-done")
        screen.panes.say("Imported 2 preferences", "done")
        await pilot.press("escape")
        assert "loss was NaN" in reported(screen), "the key hides the message that is on top"
        await pilot.press("escape")
        assert reported(screen) == ""


async def test_an_error_that_is_settled_under_a_success_does_not_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.kit.banner.DONE_SECONDS", 0.2)
    async with workbench() as (screen, pilot):
        screen.panes.say("cannot write it", about="steer")
        screen.panes.say("wrote another", "done")
        screen.panes.settle("steer")
        assert reported(screen).startswith("✓ wrote another")
        await until(pilot, lambda: reported(screen) == "")


async def test_an_error_disappears_when_its_pane_is_left() -> None:
    async with workbench() as (screen, pilot):
        await pilot.press("f5", "t")
        await until(pilot, lambda: "no labels to train on" in reported(screen))
        await pilot.press("f5")
        assert "no labels to train on" in reported(screen)
        await pilot.press("f3")
        assert reported(screen) == ""


async def test_a_missing_reward_model_is_no_longer_reported_once_there_is_one() -> None:
    async with workbench() as (screen, pilot):
        await pilot.press("f5", "T")
        await until(pilot, lambda: "No trained reward model yet; t in Label" in reported(screen))
        reward_model("liked")
        await pilot.press("T")
        await until(pilot, lambda: isinstance(screen.app.screen, ConfirmScreen))
        assert reported(screen) == ""


async def test_an_obstacle_to_starting_disappears_when_it_is_fixed() -> None:
    async with workbench() as (screen, pilot):
        pane = screen.query_one(ConfigPane)
        pane.document.set("ppo.kl_coef", -1)
        await pilot.press("space")
        await until(pilot, lambda: "The configuration has a problem: " in reported(screen))
        await pilot.press("u")
        await until(pilot, lambda: not pane.document.problems)
        await until(pilot, lambda: reported(screen) == "")


async def test_another_run_clears_messages_about_the_last_one() -> None:
    fails = True

    def play(emit: Any, control: Control) -> RunEnded:
        return (scripted_run.diverged if fails else scripted_run.wait)(emit, control)

    async with workbench(play) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: "loss was NaN" in reported(screen))
        await pilot.press("f2", "f3")
        assert "loss was NaN" in reported(screen), "it is about the run, and not about a pane"
        fails = False
        await start_run(pilot)
        await until(pilot, lambda: "iteration 1/12" in status(screen))
        assert reported(screen) == ""


async def test_a_run_trained_here_is_no_obstacle_once_it_has_ended() -> None:
    make_run("past")
    async with workbench(scripted_run.wait) as (screen, pilot):
        await start_run(pilot)
        await until(pilot, lambda: "iteration 1/12" in status(screen))
        await pilot.press("f7")
        await until(pilot, lambda: "past" in screen_text(screen))
        await pilot.press("enter")
        await until(pilot, lambda: "is training here" in reported(screen))
        assert screen.query_one("#home").has_focus_within, "nothing was opened, so nothing else is shown"
        screen.supervisor.stop()
        await until(pilot, lambda: not screen.supervisor.trains_here)
        await until(pilot, lambda: reported(screen) == "")


async def test_the_key_that_hides_it_can_be_remapped(tmp_path: Path) -> None:
    config_dir().mkdir(parents=True)
    (config_dir() / "keys.toml").write_text('[keys]\n"app.put_away" = "ctrl+g"\n')
    async with workbench() as (screen, pilot):
        screen.panes.say("cannot write it")
        assert reported(screen).endswith("^g hides this")
        await pilot.press("ctrl+g")
        assert reported(screen) == ""
