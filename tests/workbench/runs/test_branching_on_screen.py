"""A branch begins in the Config pane, with the configuration of its checkpoint, and is made when that is started."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import scripted_run
from config_files import save_config
from scripted_run import Script, iteration, make_run, started
from scripted_run import write_events as write
from textual.pilot import Pilot
from textual.widgets import Input
from waiting import until
from workbench_app import press_when_asked, settle, start_run, status, workbench

from trainer.config import Config
from trainer.engine.branching import BranchRequest, branch_points, plan_branches
from trainer.errors import UsageError
from trainer.events import BranchedFrom, SettingChanged
from trainer.runs.branch_folder import start_of
from trainer.runs.checkpoint_files import write_state
from trainer.runs.folder import RunFolder, trash_run
from trainer.runs.listing import summary_of
from workbench.kit.banner import Banner
from workbench.kit.dialog import TextPromptScreen
from workbench.runs.details import detail_content, read_detail
from workbench.runs.pane import RunsPane
from workbench.screen.dialogs import TrustScreen
from workbench.screen.main_screen import MainScreen


def checkpoint(folder: Path, number: int) -> Path:
    """Save a whole checkpoint, as far as a branch reads it."""
    path = RunFolder(folder).checkpoint(number)
    path.mkdir(parents=True)
    write_state(path, {"version": 1, "iteration": number})
    return path


def branchable(name: str = "past", **reward: Any) -> Path:
    """Make a run that stopped after iteration 2 of 100, with a checkpoint of each."""
    folder = make_run(name)
    save_config(Config.model_validate({"reward": reward} if reward else {}), folder / "config.toml")
    checkpoint(folder, 1)
    checkpoint(folder, 2)
    return folder


def branch(folder: Path, *overrides: str, at: int = 1) -> RunFolder:
    plan = plan_branches(RunFolder(folder.resolve()), BranchRequest(at=at, overrides=overrides))
    return plan.create(plan.branches[0])


def test_the_newest_checkpoint_with_iterations_left_is_offered_first() -> None:
    folder = branchable()
    (checkpoint(folder, 9) / "state.json").unlink()
    assert branch_points(RunFolder(folder)) == [2, 1]
    save_config(Config.model_validate({"ppo": {"iterations": 2}}), folder / "config.toml")
    assert branch_points(RunFolder(folder)) == [1, 2]


@pytest.mark.parametrize(
    ("problem", "notice"),
    [
        ("damage", "'step-000001' ignored: state.json cannot be read"),
        ("live", "is being trained by another process"),
        ("new", "no checkpoint yet"),
        ("trash", "in the trash: restore it"),
    ],
)
def test_a_run_that_cannot_be_branched_says_why(problem: str, notice: str) -> None:
    run = RunFolder(make_run("new") if problem == "new" else branchable())
    with ExitStack() as stack:
        match problem:
            case "damage":
                for number in (1, 2):
                    (run.checkpoint(number) / "state.json").write_text("{")
            case "live":
                stack.enter_context(run.lock())
            case "trash":
                run = RunFolder(trash_run(run))
        with pytest.raises(UsageError, match=notice):
            branch_points(run)


# Details of a branch


def test_details_say_where_a_run_was_branched_and_what_was_changed() -> None:
    folder = branchable()
    made = branch(folder, "ppo.kl_coef=0.1", "ppo.clip=0.3")
    lines = [detail_content(summary_of(run), None, []).plain for run in (made, branch(folder), RunFolder(folder))]
    assert "\nbranched from past after iteration 1, ppo.kl_coef = 0.1, ppo.clip = 0.3\n" in lines[0]
    assert "\nbranched from past after iteration 1, without changes\n" in lines[1]
    assert "branched" not in lines[2]


def test_the_origin_of_a_branch_is_text_whatever_it_holds() -> None:
    folder = make_run("odd")
    (folder / "events.jsonl").unlink()
    changes = {"\x1b[31m.[x]": "\u202e" + "y" * 10_000}
    write(folder, started(branched_from=BranchedFrom(run="[/b]\x1b[2J", iteration=7, changes=changes)))
    detail = read_detail(RunFolder(folder))
    shown = detail_content(summary_of(RunFolder(folder)), detail, []).plain
    assert "branched from [/b]␛[2J after iteration 7, ␛[31m.[x] = " in shown
    assert not {"\x1b", "\u202e"} & {*shown}
    assert len(shown) < 2000


# In the application


async def opened(pilot: Pilot[Any], screen: MainScreen, at: str = "") -> None:
    """Open the configuration of a branch of the selected run. at: the iteration; as offered without one."""
    pane = screen.query_one(RunsPane)
    await until(pilot, lambda: pane.selected is not None)
    await pilot.press("b")
    await until(pilot, lambda: isinstance(screen.app.screen, TextPromptScreen))
    if at:
        screen.app.screen.query_one(Input).value = at
    await pilot.press("enter")
    await until(pilot, lambda: "branch of past" in screen.config.document.name and screen.app.screen is screen)


async def test_a_branch_is_edited_in_the_config_pane_made_beside_its_run_and_trained() -> None:
    folder = branchable()
    write(folder, SettingChanged(iteration=3, key="ppo.clip", old=0.3, value=0.2))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}
    script = Script(scripted_run.done)
    async with workbench(script, pane="home") as (screen, pilot):
        await opened(pilot, screen, "1")
        document = screen.config.document
        assert document.name == "branch of past after iteration 1"
        assert document.get("ppo.clip") == 0.3, "a later change of the run is undone"
        document.set("ppo.kl_coef", 0.1)
        await start_run(pilot)
        await until(pilot, lambda: "✓ done" in status(screen))
        assert script.received["resume"] == Path("runs/past-branch-1").resolve()
        assert script.received["config"].ppo.kl_coef == 0.1
        assert screen.config.document.get("ppo.kl_coef") == 0.1
    start = start_of(RunFolder(Path("runs/past-branch-1")))
    assert start is not None
    assert (made := start.branched_from) is not None
    assert (made.run, made.iteration, made.changes) == ("past", 1, {"ppo.kl_coef": 0.1})
    assert {path: path.read_bytes() for path in before} == before


async def test_a_branch_may_begin_with_one_iteration() -> None:
    branchable()
    async with workbench(Script(scripted_run.steered), pane="home") as (screen, pilot):
        await opened(pilot, screen, "1")
        await start_run(pilot, "s")
        await until(pilot, lambda: screen.supervisor.view.state == "paused")


async def test_what_the_branch_cannot_change_is_refused_and_what_was_typed_stays() -> None:
    branchable()
    async with workbench(scripted_run.done, pane="home") as (screen, pilot):
        await opened(pilot, screen)
        screen.config.document.set("model.lora_rank", 3)
        await pilot.press("space")
        refused = "model.lora_rank cannot change in a branch"
        await until(pilot, lambda: refused in str(screen.query_one(Banner).render()))
        assert screen.config.document.get("model.lora_rank") == 3
        assert sorted(path.name for path in Path("runs").iterdir()) == ["past"]


async def test_no_branch_is_made_of_code_that_is_not_trusted() -> None:
    Path("rewards.py").write_text("def score(completions, **_):\n    return [0.0 for _ in completions]\n")
    branchable(sources=["rewards.py:score"])
    script = Script(scripted_run.done)
    async with workbench(script, pane="home") as (screen, pilot):
        await opened(pilot, screen)
        for answer, names in (("n", ["past"]), ("y", ["past", "past-branch-1"])):
            await start_run(pilot)
            await until(pilot, lambda: isinstance(screen.app.screen, TrustScreen))
            await press_when_asked(pilot, answer)
            await until(pilot, lambda: screen.app.screen is screen)
            await settle(pilot)
            assert sorted(path.name for path in Path("runs").iterdir()) == names
        await until(pilot, lambda: "✓ done" in status(screen))


async def test_a_branch_that_is_done_is_shown_and_not_trained_again() -> None:
    made = branch(branchable(), "ppo.kl_coef=0.1")
    write(made.root, iteration(100), scripted_run.ended("done", 100))
    script = Script(scripted_run.done)
    async with workbench(script, pane="home") as (screen, pilot):
        pane = screen.query_one(RunsPane)
        while pane.selected is None or pane.selected.name != "past":
            await pilot.press("down")
        await opened(pilot, screen, "1")
        screen.config.document.set("ppo.kl_coef", 0.1)
        await start_run(pilot)
        await until(pilot, lambda: screen.supervisor.folder == made.root)
        assert script.received == {}


async def test_no_run_is_branched_while_another_trains_here_nor_one_that_cannot_be() -> None:
    branchable()
    async with workbench(scripted_run.wait, pane="home") as (screen, pilot):
        pane = screen.query_one(RunsPane)
        await until(pilot, lambda: pane.selected is not None)
        with RunFolder(Path("runs/past")).lock():
            await pilot.press("b")
            await until(pilot, lambda: "trained by another process" in str(screen.query_one(Banner).render()))
        screen.action_show_pane("training")
        await start_run(pilot)
        await until(pilot, lambda: screen.supervisor.trains_here)
        screen.action_show_pane("home")
        await pilot.press("b")
        await until(pilot, lambda: "is training here: stop it" in str(screen.query_one(Banner).render()))
        assert screen.app.screen is screen
