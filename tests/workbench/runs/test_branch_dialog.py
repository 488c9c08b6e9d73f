"""The branch dialog offers the whole checkpoints of a run, understands what is typed, and loses none of it."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import scripted_run
from config_files import save_config
from hypothesis import given
from hypothesis import strategies as st
from scripted_run import Script, iteration, make_run, started
from styles_helper import styles_path
from textual.pilot import Pilot
from textual.widgets import Input, Static
from themed_app import ThemedApp
from waiting import until
from workbench_app import press_when_asked, screen_text, settle, start_run, status, workbench

from trainer.config import Config
from trainer.errors import TrainerError, UsageError
from trainer.events import BranchedFrom, SettingChanged
from trainer.ppo_run.branching import Wanted, can_change, plan_branches
from trainer.runs.branch_folder import branch_changes, origin
from trainer.runs.checkpoint_index import Best, write_best
from trainer.runs.folder import RunFolder, trash_run
from trainer.runs.journal import Journal
from trainer.runs.listing import summary_of
from workbench.cli.main import parser
from workbench.kit.banner import Banner
from workbench.runs import branch_form
from workbench.runs.branch_form import (
    Parent,
    about,
    assignments,
    branch_command,
    completions,
    outlook,
    read_parent,
    value_at,
)
from workbench.runs.branch_screen import BranchScreen
from workbench.runs.details import detail_content, read_detail
from workbench.runs.pane import RunsPane
from workbench.screen.dialogs import TrustScreen
from workbench.screen.main_screen import MainScreen


def checkpoint(folder: Path, number: int) -> Path:
    """Save a whole checkpoint, as far as a branch reads it."""
    path = RunFolder(folder).checkpoint(number)
    path.mkdir(parents=True)
    (path / "state.json").write_text(json.dumps({"version": 1, "files": {}, "iteration": number}))
    return path


def branchable(name: str = "past", **reward: Any) -> Path:
    """Make a run that stopped after iteration 2 of 100, with a checkpoint of each."""
    folder = make_run(name)
    save_config(Config.model_validate({"reward": reward} if reward else {}), folder / "config.toml")
    checkpoint(folder, 1)
    checkpoint(folder, 2)
    return folder


def write(folder: Path, *events: Any) -> None:
    journal = Journal(folder / "events.jsonl")
    for event in events:
        journal.emit(event)
    journal.close()


def branch(folder: Path, *overrides: str, at: int = 1) -> RunFolder:
    plan = plan_branches(RunFolder(folder.resolve()), Wanted(at=at, overrides=overrides))
    return plan.create(plan.branches[0])


# What is typed

VALUES = st.one_of(
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=8),
    st.lists(st.text("ab c'=[],{", max_size=4), max_size=3),
).map(json.dumps)


@given(st.lists(st.tuples(st.sampled_from(completions(".")), VALUES), max_size=4), st.sampled_from(["=", " = ", "= "]))
def test_settings_are_read_as_they_were_typed_whatever_is_quoted(typed: list[tuple[str, str]], equals: str) -> None:
    text = "  ".join(f"{key}{equals}{value}" for key, value in typed)
    assert assignments(text) == [f"{key}={value}" for key, value in typed]


@given(st.text(max_size=40))
def test_any_text_is_split_without_losing_a_character(text: str) -> None:
    assert "".join("".join(assignments(text)).split()) == "".join(text.split())


def test_names_are_completed_from_their_beginning_or_a_part_and_only_those_that_a_branch_can_change() -> None:
    assert completions("ppo.kl_c")[0] == "ppo.kl_coef"
    assert completions("kl_c")[0] == "ppo.kl_coef"
    assert "optim.policy_lr" in completions("policy_l")
    assert completions("") == completions("ppo.kl_coef=") == completions("nothing_like_it") == []
    assert {*completions(".")} < {f"{table}.{name}" for table, values in Config() for name in type(values).model_fields}
    assert all(map(can_change, completions(".")))
    assert not {"run.seed", "model.lora_rank", "data.eval_seed"} & {*completions(".")}


def test_the_command_for_several_seeds_is_the_request_as_the_command_line_reads_it() -> None:
    folder = RunFolder(branchable().resolve())
    wanted = Wanted(at=2, overrides=["ppo.kl_coef=0.1", 'rollout.stop=["a b", "\'"]'], iterations=7)
    program, *words = shlex.split(branch_command(folder, wanted))
    args = parser().parse_args(words)
    assert program == "ppo-workbench"
    assert (args.run, args.at, args.overrides_after, args.iterations) == ("past", 2, [*wanted.overrides], 7)
    assert (args.seeds, args.control) == (3, True)
    elsewhere = shlex.split(branch_command(RunFolder(Path("/far off/-past")), Wanted(at=1)))
    assert elsewhere[2] == "/far off/-past"
    assert "--control" not in elsewhere, "there is nothing that a control would leave out"


# The run


def test_the_whole_checkpoints_are_listed_newest_first_with_what_is_known_of_each() -> None:
    folder = branchable()
    write(folder, *(iteration(number) for number in range(3, 9)))
    checkpoint(folder, 8)
    (checkpoint(folder, 9) / "state.json").unlink()
    write_best(RunFolder(folder), Best(2, "score", 0.2))
    parent = read_parent(folder)
    assert [(point.iteration, point.is_best) for point in parent.points] == [(8, False), (2, True), (1, False)]
    assert parent.points[0].score == pytest.approx(0.1 * (4 + 5 + 6 + 7 + 8) / 5)
    assert parent.points[1].kl == pytest.approx(0.5 * (1 + 2) / 2)
    assert parent.first == 0


def test_the_first_choice_leaves_iterations_to_train() -> None:
    folder = branchable()
    save_config(Config.model_validate({"ppo": {"iterations": 2}}), folder / "config.toml")
    parent = read_parent(folder)
    assert parent.points[parent.first].iteration == 1


@contextmanager
def live(folder: Path) -> Iterator[None]:
    with RunFolder(folder).lock():
        yield


def of_another_kind(folder: Path) -> None:
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(f'kind = "reward-model"\n{text}')


def damaged(folder: Path) -> None:
    for number in (1, 2):
        (RunFolder(folder).checkpoint(number) / "state.json").write_text("{")


@pytest.mark.parametrize(
    ("make", "during", "notice"),
    [
        (of_another_kind, nullcontext, "of kind 'reward-model': only PPO runs"),
        (damaged, nullcontext, "'step-000001' ignored: state.json cannot be read"),
        (lambda _: None, live, "is being trained by another process"),
    ],
)
def test_a_run_that_cannot_be_branched_says_why(
    make: Callable[[Path], object], during: Callable[[Path], AbstractContextManager[None]], notice: str
) -> None:
    folder = branchable()
    make(folder)
    with during(folder), pytest.raises(UsageError, match=notice):
        read_parent(folder)


def test_neither_a_run_without_checkpoints_nor_one_in_the_trash_is_branched() -> None:
    with pytest.raises(UsageError, match="no checkpoint yet"):
        read_parent(make_run("new"))
    with pytest.raises(UsageError, match="in the trash: restore it"):
        read_parent(trash_run(RunFolder(branchable())))


def test_the_outlook_names_the_branch_its_iterations_and_the_changes() -> None:
    parent = read_parent(branchable())
    found = outlook(parent, Wanted(at=1, overrides=["ppo.kl_coef=0.1"], iterations=4))
    assert found.what == "past-branch-1 trains iterations 2 to 5 with the run's seed, 0."
    assert found.changes == "ppo.kl_coef 0.05 → 0.1"
    assert "No setting is changed" in outlook(parent, Wanted(at=1)).changes
    branch(parent.folder.root, "ppo.kl_coef=0.1")
    again = outlook(parent, Wanted(at=1, overrides=["ppo.kl_coef=0.1"]))
    assert again.what.startswith("past-branch-1 is this branch already"), "nothing is trained twice"
    with pytest.raises(TrainerError, match=r"ppo\.kl_coef"):
        outlook(parent, Wanted(at=1, overrides=["ppo.kl_coeff=1"]))


def test_a_setting_is_explained_with_its_value_after_that_iteration() -> None:
    folder = branchable()
    write(folder, SettingChanged(iteration=2, key="ppo.kl_coef", old=0.03, value=0.05))
    write(folder, SettingChanged(iteration=3, key="ppo.clip", old=0.3, value=0.2))
    parent = read_parent(folder)
    assert [value_at(parent, at, "ppo.kl_coef") for at in (0, 1, 2)] == ["0.03", "0.05", "0.05"]
    assert "ppo.clip was 0.3 after iteration 1" in about(parent, 1, "ppo.clip")
    assert value_at(parent, 1, "ppo.nothing") == about(parent, 1, "ppo.nothing") == ""


# Details of a branch


def test_details_say_where_a_run_was_branched_and_what_was_changed(tmp_path: Path) -> None:
    folder = branchable()
    write(folder, SettingChanged(iteration=2, key="ppo.clip", old=0.4, value=0.2))  # the run's own, from 2 on
    made = branch(folder, "ppo.kl_coef=0.1", "ppo.clip=0.3")
    write(made.root, SettingChanged(iteration=2, key="ppo.kl_coef", old=0.9, value=0.1))  # later, by hand
    assert read_detail(made).origin == ("branched from past at iteration 1: ppo.kl_coef 0.05 → 0.1, ppo.clip 0.2 → 0.3")
    assert read_detail(branch(folder)).origin == "branched from past at iteration 1: no setting changed"
    assert read_detail(RunFolder(folder)).origin == ""


def test_an_old_value_that_the_journal_lost_is_left_out() -> None:
    made = branch(branchable(), "ppo.kl_coef=0.1")
    lines = made.events.read_bytes().splitlines(keepends=True)
    made.events.write_bytes(b"".join(line for line in lines if b'"setting"' not in line))
    found = origin(made)
    assert found is not None
    assert branch_changes(made, found) == {"ppo.kl_coef": (None, 0.1)}
    assert read_detail(made).origin.endswith(": ppo.kl_coef = 0.1")


def test_the_origin_of_a_branch_is_text_whatever_it_holds() -> None:
    folder = make_run("odd")
    (folder / "events.jsonl").unlink()
    changes = {"\x1b[31m.[x]": "\u202e" + "y" * 10_000}
    write(folder, started(branched_from=BranchedFrom(run="[/b]\x1b[2J", iteration=7, changes=changes)))
    detail = read_detail(RunFolder(folder))
    shown = detail_content(summary_of(RunFolder(folder)), detail, []).plain
    assert "branched from [/b]␛[2J at iteration 7: ␛[31m.[x] = \\u202eyyy" in shown
    assert not {"\x1b", "\u202e"} & {*shown}
    assert len(shown) < 2000


async def test_the_pane_shows_the_origin_at_80_columns() -> None:
    branch(branchable("a-run-with-a-rather-long-name"), "ppo.kl_coef=0.1")
    async with workbench(size=(80, 24), pane="runs") as (screen, pilot):
        pane = screen.query_one(RunsPane)
        await until(pilot, lambda: pane.selected is not None)
        await settle(pilot)
        assert "branched from a-run-with-a-rather-long-name at iteration 1: ppo.kl_coef 0.05 →" in screen_text(screen)


# The dialog


class Asking(ThemedApp[None]):
    CSS_PATH = styles_path("runs.tcss", "dialogs.tcss")

    def __init__(self, parent: Parent, problem: str = "") -> None:
        super().__init__()
        self.dialog = BranchScreen(parent, self.create)
        self.problem = problem
        self.wanted: list[Wanted] = []
        self.results: list[RunFolder | None] = []

    async def create(self, wanted: Wanted) -> RunFolder:
        self.wanted.append(wanted)
        if self.problem:
            raise UsageError(self.problem)
        return RunFolder(Path("runs/made"))

    def on_mount(self) -> None:
        self.push_screen(self.dialog, self.results.append)

    def text(self, selector: str) -> str:
        return str(self.dialog.query_one(selector, Static).render())

    def value(self, selector: str) -> str:
        return self.dialog.query_one(selector, Input).value


async def test_enter_starts_what_was_chosen_and_typed() -> None:
    app = Asking(read_parent(branchable()))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "No setting is changed" in app.text("#branch-note"))
        await pilot.press("down", *"kl_c", "tab", *"0.1 ", *"optim.policy_lr=1e-5", "tab", "3")
        await until(pilot, lambda: "past-branch-1 trains iterations 2 to 4" in app.text("#branch-note"))
        assert "--at 1 --set ppo.kl_coef=0.1 --set" in " ".join(app.text("#branch-command").split())
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [RunFolder(Path("runs/made"))])
        assert app.wanted == [Wanted(at=1, overrides=["ppo.kl_coef=0.1", "optim.policy_lr=1e-5"], iterations=3)]


async def test_escape_leaves_without_a_branch() -> None:
    app = Asking(read_parent(branchable()))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.dialog.is_mounted)
        await pilot.press(*"ppo.clip=0.1", "escape")
        await until(pilot, lambda: app.results == [None])
        assert app.wanted == []


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("ppo.kl_coeff=1", "did you mean 'ppo.kl_coef'?"),
        ("ppo.kl_coef=-1", "must be at least 0"),
        ("ppo.kl_coef", "must be table.key=value"),
        ("model.lora_rank=4", "cannot change in a branch"),
        ("run.seed=4", "cannot change in a branch"),
    ],
)
async def test_mistakes_are_shown_in_the_dialog_in_the_words_of_the_command(typed: str, problem: str) -> None:
    parent = read_parent(branchable())

    class Planning(Asking):
        async def create(self, wanted: Wanted) -> RunFolder:
            plan_branches(parent.folder, wanted)
            return await super().create(wanted)

    app = Planning(parent)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.dialog.is_mounted)
        app.dialog.query_one("#branch-settings", Input).value = typed
        await pilot.press("enter")
        await until(pilot, lambda: problem in " ".join(app.text("#branch-note").split()))
        assert (app.value("#branch-settings"), app.results, app.wanted) == (typed, [], [])


async def test_what_was_typed_survives_a_branch_that_cannot_be_made() -> None:
    app = Asking(read_parent(branchable()), "no space left on the device")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.dialog.is_mounted)
        await pilot.press("down", *"ppo.clip=0.1", "tab", *"12", "enter")
        await until(pilot, lambda: "no space left" in app.text("#branch-note"))
        assert (app.value("#branch-settings"), app.value("#branch-iterations")) == ("ppo.clip=0.1", "12")
        app.problem = ""
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [RunFolder(Path("runs/made"))])
        assert app.wanted[0] == app.wanted[1] == Wanted(at=1, overrides=["ppo.clip=0.1"], iterations=12)


async def test_no_iterations_are_refused_before_anything_is_planned() -> None:
    app = Asking(read_parent(branchable()))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.dialog.is_mounted)
        await pilot.press("tab", *"x0", "enter")
        await until(pilot, lambda: "0 iterations: enter 1 or more" in app.text("#branch-note"))
        assert (app.value("#branch-iterations"), app.wanted) == ("0", [])


async def test_the_dialog_fits_into_80_by_24_with_many_checkpoints() -> None:
    folder = branchable()
    for number in range(3, 40):
        checkpoint(folder, number)
    app = Asking(read_parent(folder))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "No setting" in app.text("#branch-note"))
        await pilot.press("pagedown", "pagedown")
        screen = "\n".join("".join(s.text for s in strip) for strip in app.dialog._compositor.render_strips())
        at = app.dialog._at
        for part in (f"iteration {at} ", "settings", "iterations", "trains iterations", f"--at {at} --seeds 3", "╰"):
            assert part in screen


# In the application


async def asked(pilot: Pilot[Any], screen: MainScreen) -> BranchScreen:
    """Open the dialog of the selected run, and wait until it can be read."""
    pane = screen.query_one(RunsPane)
    await until(pilot, lambda: pane.selected is not None)
    await pilot.press("b")
    await until(pilot, lambda: isinstance(screen.app.screen, BranchScreen))
    dialog = screen.app.screen
    assert isinstance(dialog, BranchScreen)
    await until(pilot, lambda: "past" in str(dialog.query_one("#branch-note", Static).render()))
    return dialog


def names() -> list[str]:
    return sorted(path.name for path in Path("runs").iterdir())


async def test_a_branch_is_made_beside_its_run_and_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, threads = branchable(), set[int]()

    def recorded(*asked: Any) -> Any:
        threads.add(threading.get_ident())
        return plan_branches(*asked)

    monkeypatch.setattr(branch_form, "plan_branches", recorded)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}
    script = Script(scripted_run.done)
    async with workbench(script, pane="runs") as (screen, pilot):
        dialog = await asked(pilot, screen)
        dialog.query_one("#branch-settings", Input).value = "ppo.kl_coef=0.1"
        await pilot.press("down", "enter")
        await until(pilot, lambda: "✓ done" in status(screen))
        assert script.received["resume"] == Path("runs/past-branch-1").resolve()
        assert script.received["config"].ppo.kl_coef == 0.1
        assert screen.config.document.get("ppo.kl_coef") == 0.1
    assert threading.get_ident() not in threads, "the screen does not wait for files"
    made = origin(RunFolder(Path("runs/past-branch-1")))
    assert made is not None
    assert (made.run, made.iteration, made.changes) == ("past", 1, {"ppo.kl_coef": 0.1})
    assert {path: path.read_bytes() for path in before} == before


async def test_no_branch_is_made_of_code_that_is_not_trusted() -> None:
    Path("rewards.py").write_text("def score(completions, **_):\n    return [0.0 for _ in completions]\n")
    branchable(sources=["rewards.py:score"])
    script = Script(scripted_run.done)
    async with workbench(script, pane="runs") as (screen, pilot):
        dialog = await asked(pilot, screen)
        dialog.query_one("#branch-settings", Input).value = "ppo.kl_coef=0.1"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(screen.app.screen, TrustScreen))
        await press_when_asked(pilot, "n")
        note = dialog.query_one("#branch-note", Static)
        await until(pilot, lambda: "not trusted: no branch was made" in str(note.render()))
        assert names() == ["past"]
        assert dialog.query_one("#branch-settings", Input).value == "ppo.kl_coef=0.1"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(screen.app.screen, TrustScreen))
        await press_when_asked(pilot, "y")
        await until(pilot, lambda: "✓ done" in status(screen))
        assert script.received["config"].ppo.kl_coef == 0.1


async def test_a_branch_that_is_done_is_shown_and_not_trained_again() -> None:
    made = branch(branchable(), "ppo.kl_coef=0.1")
    write(made.root, iteration(100), scripted_run.ended("done", 100))
    script = Script(scripted_run.done)
    async with workbench(script, pane="runs") as (screen, pilot):
        pane = screen.query_one(RunsPane)
        while pane.selected is None or pane.selected.name != "past":
            await pilot.press("down")
        dialog = await asked(pilot, screen)
        dialog.query_one("#branch-settings", Input).value = "ppo.kl_coef=0.1"
        await pilot.press("down", "enter")
        await until(pilot, lambda: screen.supervisor.folder == made.root)
        assert script.received == {}
        assert names() == ["past", "past-branch-1"]


async def test_no_run_is_branched_while_another_trains_here_nor_one_that_cannot_be() -> None:
    branchable()
    async with workbench(scripted_run.wait, pane="runs") as (screen, pilot):
        pane = screen.query_one(RunsPane)
        await until(pilot, lambda: pane.selected is not None)
        with RunFolder(Path("runs/past")).lock():
            await pilot.press("b")
            await until(pilot, lambda: "trained by another process" in str(screen.query_one(Banner).render()))
        screen.action_show_pane("training")
        await start_run(pilot)
        await until(pilot, lambda: screen.supervisor.trains_here)
        screen.action_show_pane("runs")
        await pilot.press("b")
        await until(pilot, lambda: "is training here: stop it" in str(screen.query_one(Banner).render()))
        assert screen.app.screen is screen
