"""The question before a run starts or resumes: what it says, and that nothing answers it but a key typed for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import scripted_run
from scripted_run import Script, make_run
from waiting import until
from workbench_app import press_when_asked, screen_text, status, workbench

from trainer.config import Config
from trainer.runs.checkpoint_files import write_state
from trainer.runs.folder import RunFolder
from workbench.config.pane import ConfigPane
from workbench.screen.dialogs import RunQuestion, resume_plan, start_plan
from workbench.screen.main_screen import MainScreen


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
