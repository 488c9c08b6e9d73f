"""Every key of the key reference does in its pane what it is bound to, or nothing while that is not allowed."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import scripted_run
from label_session import FakeSession, item
from reward_pane_app import Run as RewardRun
from scripted_run import make_run
from snapshots import written_run
from textual import actions
from textual.binding import Binding
from textual.dom import DOMNode
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input, TextArea
from waiting import until
from workbench_app import can_answer, start_run, workbench

from trainer.events import Iteration
from trainer.runs.folder import RunFolder
from workbench.app import WorkbenchApp
from workbench.config.form import FieldEditor
from workbench.config.pane import ConfigPane
from workbench.config.rows import ConfigRows
from workbench.config.views import SearchLine, TomlView
from workbench.home.home_list import HomeList
from workbench.home.pane import HomePane
from workbench.kit.dialog import Dialog
from workbench.kit.keys import own_bindings
from workbench.labelling.item_view import LabelView
from workbench.labelling.pane import LabelPane
from workbench.log.lines import LogList
from workbench.log.pane import LogPane
from workbench.reward_model.pairs import RewardPairList, RewardPairText
from workbench.reward_model.pane import RewardModelPane
from workbench.run.sample_table import SampleKey
from workbench.runs.pane import RunsPane
from workbench.runs.table import RunTable
from workbench.samples.pane import SamplesPane
from workbench.samples.sample_list import SampleFilter, SampleList
from workbench.samples.token_text import TokenText
from workbench.screen.main_screen import MainScreen
from workbench.training.pane import TrainingPane
from workbench.training.timeline import Timeline

Prepare = Callable[[], Awaitable[object]]
Ran = tuple[DOMNode, str, tuple[object, ...]]

LAYERED = {"escape", "up", "down", "left", "right", "pageup", "pagedown", "home", "end", "enter"}
"""Keys of which the innermost widget that can use them takes one: what they do is seen where the cursor is."""
HIDDEN = {"alarm.open"}
"""Bindings whose only key means something else in a pane: see EXCEPTIONS of the key reference."""


ELSEWHERE = {"home.watch", "home.training"}  # on the row of a run that trains: see test_home_pane.py
IN_DIALOGS = {"advantage", "ask", "diff", "label-start"}  # areas of the ids of widgets that only dialogs have


class Keyboard:
    """Presses keys on the main screen and records which actions run."""

    def __init__(self, screen: MainScreen, pilot: Pilot[str], ran: list[Ran]) -> None:
        self.screen, self.pilot, self._ran = screen, pilot, ran
        self.used: set[str] = set()  # ids of bindings whose action has run

    async def press_all(
        self, pane: str, *kinds: type[DOMNode], prepare: Prepare | None = None, only: Sequence[str] = ()
    ) -> None:
        """Press each key of what has these classes, in a pane, with the focus on it, or else on the last of them.

        prepare: puts the pane into the state to press the next key in. only: these keys of theirs, all for none.
        """
        for kind in kinds:
            where = kind if issubclass(kind, Widget) and kind.can_focus else kinds[-1]
            await self._go(pane, where, prepare)
            for key, binding in [(key, binding) for key, binding in self._one(kind)._bindings if binding.id]:
                if not only or key in only:
                    await self._go(pane, where, prepare)
                    await self._press(key, binding)

    async def _go(self, pane: str, kind: type[DOMNode], prepare: Prepare | None) -> None:
        """Go to a pane, prepare it, and focus what has this class."""
        if prepare is None and isinstance(focused := self.screen.focused, kind) and focused.region.area:
            return
        self.screen.action_show_pane(pane)
        if prepare is not None:
            await prepare()
        await self.settle()
        node = self._one(kind)
        if isinstance(node, Widget) and node.focusable and not node.has_focus:
            node.focus()
            await self.settle()

    def _one(self, kind: type[DOMNode]) -> DOMNode:
        return next((node for node in (self.screen, self.screen.app) if isinstance(node, kind)), None) or (
            self.screen.query_one(kind)  # type: ignore[type-var]
        )

    async def _press(self, key: str, binding: Binding) -> None:
        focused = self.screen.focused
        allowed = [*self._allowed(key)]
        hidden = [found for _, found in allowed[1:] if key not in LAYERED and not isinstance(focused, Input | TextArea)]
        assert all(self._reachable(found) for found in hidden), f"{key} in {focused}: {[one.id for _, one in allowed]}"
        text = focused is not None and focused.check_consume_key(key, key if len(key) == 1 else None)
        self._ran.clear()
        await self.pilot.press(key)
        await self.settle()
        acted = self._ran[:1]
        if text or not allowed:
            name = actions.parse(binding.action)[1]
            assert name not in [ran for _, ran, _ in self._ran], f"{key} ({binding.id}) does not apply at {focused}"
            return
        node, first = allowed[0]  # a run may have been paused meanwhile, so that an alternative of it applies
        found = next((one for one in node._bindings.get_bindings_for_key(key) if self._is(acted, one, node)), None)
        assert found is not None, f"{key} ({first.id}) at {focused}: {acted}"
        self.used.add(str(found.id))

    def _is(self, acted: list[Ran], binding: Binding, node: DOMNode) -> bool:
        target, name, parameters = self.screen.app._parse_action(binding.action, node)
        return acted == [(target, name, parameters)]

    def _reachable(self, hidden: Binding) -> bool:
        """Return whether another key does what `hidden` does, or an exception has its reason."""
        bindings = [found for node, _ in self.screen._modal_binding_chain for found in node._bindings]
        others = [key for key, one in bindings if one.id == hidden.id]
        return hidden.id in HIDDEN or any(next(self._allowed(key))[1].id == hidden.id for key in others)

    def _allowed(self, key: str) -> Iterator[tuple[DOMNode, Binding]]:
        """Yield our bindings of `key` that can act now, from the focus outwards."""
        for node, bindings in self.screen._modal_binding_chain:
            for binding in bindings.key_to_bindings.get(key, ()):
                _, name, parameters = actions.parse(binding.action)
                if binding.id and node.check_action(name, parameters):
                    yield node, binding

    async def settle(self) -> None:
        """Wait until what the key began has ended, and close the dialogs that it opened."""
        app = self.screen.app
        for _ in range(10_000):
            await self.pilot._wait_for_screen()
            await asyncio.sleep(0.001)
            if app._handled is not None or app._ahead:
                continue
            if app.screen is not self.screen:
                if app.is_painted(app.screen):
                    app.screen.dismiss(None)
            elif all(worker.is_finished for worker in app.workers):
                return
        raise AssertionError(f"{app.screen} or a worker stays: {[*app.workers]}")


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurried: None) -> list[Ran]:
    """Return the actions that have been run, in order, in a workspace with runs of both kinds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PPO_WORKBENCH_CONFIG_DIR", str(tmp_path / "config"))
    written_run(Path("runs/past"))
    for name in ("first", "second", "third"):
        make_run(name)
    for day in (1, 2):
        RewardRun(f"reward-{day}", day).train()
    recorded: list[Ran] = []
    dispatch = WorkbenchApp._dispatch_action

    async def record(app: WorkbenchApp, node: DOMNode, name: str, parameters: Any) -> bool:
        if any(callable(getattr(node, f"{prefix}action_{name}", None)) for prefix in ("", "_")):
            recorded.append((node, name, parameters))
        return await dispatch(app, node, name, parameters)

    monkeypatch.setattr(WorkbenchApp, "_dispatch_action", record)
    return recorded


def ids(*rooms: str) -> set[str]:
    """Return the ids of all bindings of these rooms outside dialogs."""
    found = set()
    for owner, binding in own_bindings():
        module, _, name = owner.rpartition(".")
        kind = getattr(importlib.import_module(module), name)
        inside = str(binding.id).partition(".")[0] in IN_DIALOGS
        if module.split(".")[1] in rooms and not issubclass(kind, Dialog) and not inside:
            found.add(str(binding.id))
    return found


def alarmed(emit: Callable[..., None], control: Any) -> Any:
    """Play `steered` with an alarm in each iteration."""

    def with_alarm(event: Any) -> None:
        emit(event)
        if isinstance(event, Iteration):
            emit(scripted_run.alarm(event.iteration))

    return scripted_run.steered(with_alarm, control)


@asynccontextmanager
async def every_key(ran: list[Ran], *rooms: str, play: Any = None, **opening: Any) -> AsyncIterator[Keyboard]:
    """Open the application with a keyboard; at the end each binding of these rooms has acted."""
    async with workbench(play, size=(120, 40), **opening) as (screen, pilot):
        keyboard = Keyboard(screen, pilot, ran)
        yield keyboard
        missing = ids(*rooms) - keyboard.used - ELSEWHERE
        assert not missing, " ".join(sorted(missing))
        assert screen.app.is_running


async def run(node: DOMNode, action: str) -> None:
    await node.app.run_action(action, node)


async def go_to(config: ConfigPane, key: str) -> None:
    config.focus_field(key)


async def edit(config: ConfigPane, key: str) -> None:
    config.focus_field(key)
    config.query_one(ConfigRows).action_choose()


async def test_the_keys_of_config(ran: list[Ran]) -> None:
    async with every_key(ran, "config", play=scripted_run.wait, pane="config") as keyboard:
        config, press_all = keyboard.screen.config, keyboard.press_all
        config.shows_all = True

        async def open_toml() -> None:
            if not config.query_one(TomlView).display:
                config.action_toggle_toml()

        async def on_a_section() -> None:
            config.query_one(ConfigRows).action_first()

        async def proposed() -> None:
            config.focus_field("ppo.kl_coef")
            config.query_one(ConfigRows).action_step(1)

        for key in ("ppo.estimator", "ppo.whiten_advantages"):
            await press_all("config", ConfigRows, prepare=partial(go_to, config, key), only=["enter"])
        await press_all("config", ConfigRows, prepare=on_a_section, only=["enter"])
        await press_all("config", FieldEditor, prepare=partial(edit, config, "ppo.kl_coef"), only=["escape"])
        await press_all("config", FieldEditor, prepare=partial(edit, config, "model.path"))
        await press_all("config", SearchLine, prepare=partial(run, config, "search"))
        await start_run(keyboard.pilot)
        await press_all("config", ConfigRows, prepare=partial(go_to, config, "ppo.estimator"), only=["enter"])
        await press_all("config", ConfigRows, prepare=proposed, only=["enter"])
        keyboard.screen.supervisor.stop("done")
        await until(keyboard.pilot, lambda: not keyboard.screen.supervisor.under_way)
        await press_all("config", ConfigRows)
        config.document.set("ppo.minibatches", 7)
        await press_all("config", ConfigPane, ConfigRows)
        await press_all("config", TomlView, prepare=open_toml)
        await press_all("config", ConfigPane, TomlView, prepare=open_toml, only=["escape"])


async def test_the_keys_of_the_run_home_and_training(ran: list[Ran]) -> None:
    async with every_key(ran, "screen", "app", "home", "training", play=alarmed, pane="home") as keyboard:
        screen, press_all = keyboard.screen, keyboard.press_all

        async def on_a_run() -> None:
            screen.query_one(HomeList).action_last()

        async def paused() -> None:
            if screen.supervisor.view.state != "paused":
                await run(screen, "ask('pause')")
                await until(keyboard.pilot, lambda: screen.supervisor.view.state == "paused")

        await press_all("home", HomePane, HomeList)
        await press_all("home", HomePane, HomeList, prepare=on_a_run, only=["enter", "y"])
        await press_all("training", MainScreen, TrainingPane, only=["space"])
        await start_run(keyboard.pilot)
        await until(keyboard.pilot, lambda: bool(screen.supervisor.view.alarms))
        await press_all("training", MainScreen, WorkbenchApp, TrainingPane)
        await press_all("training", MainScreen, TrainingPane, prepare=paused, only=["space"])
        await press_all("training", Timeline)


async def test_the_keys_of_runs_and_log(ran: list[Ran]) -> None:
    async with every_key(ran, "runs", "log", watch=Path("runs/past"), pane="runs") as keyboard:
        screen, press_all = keyboard.screen, keyboard.press_all
        pane, table = screen.query_one(RunsPane), screen.query_one(RunTable)
        await until(keyboard.pilot, lambda: pane.selected is not None)

        async def marked() -> None:
            await run(pane, "mark")
            table.action_move(1)

        async def two_marked() -> None:
            table.action_first()
            while not pane.check_action("export", ()):
                await marked()

        async def trashed() -> None:
            if not pane.check_action("undo", ()):
                while pane.check_action("back", ()):  # out of the filter, then out of the trash
                    await run(pane, "back")
                await until(keyboard.pilot, lambda: pane.check_action("trash", ()) is True)
                await run(pane, "trash")
                await until(keyboard.pilot, lambda: can_answer(keyboard.pilot) and screen.app.screen is not screen)
                screen.app.screen.dismiss(True)
                await until(keyboard.pilot, lambda: pane.check_action("undo", ()) is True)

        async def in_trash() -> None:
            if not pane.check_action("restore", ()):
                await trashed()
                await run(pane, "show_trash")
                await until(keyboard.pilot, lambda: pane.check_action("restore", ()) is True)

        await press_all("runs", RunTable)
        await press_all("runs", RunsPane, RunTable, prepare=two_marked, only=["x"])
        await press_all("runs", RunsPane, RunTable, prepare=marked)
        await press_all("runs", RunsPane, RunTable, prepare=trashed, only=["u", "y"])
        await press_all("runs", RunsPane, RunTable, prepare=in_trash, only=["R", "escape"])
        log = screen.query_one(LogPane)

        async def line_shown() -> None:
            await until(keyboard.pilot, lambda: log.check_action("export", ()) is True)

        log.write("a line")
        await press_all("log", LogPane, LogList, prepare=line_shown, only=["x", "y"])  # before v hides the line
        await press_all("log", LogPane, LogList)


async def test_the_keys_of_label(ran: list[Ran]) -> None:
    async with every_key(ran, "labelling", pane="label") as keyboard:
        label = keyboard.screen.query_one(LabelPane)

        async def begin(completions: int = 9) -> None:
            if label.worker is None or label.count != completions:
                session = FakeSession([item(*"abcdefghi"[:completions]) for _ in range(20)])
                label.begin(session, session.now())

        async def labelled() -> None:
            await begin(2)
            await label.action_tie()
            await label.action_undo()
            await label.action_tie()
            await label.go_to(0)

        await keyboard.press_all("label", LabelPane, LabelView, only=["enter", "t", "T", "i", "x"])
        await keyboard.press_all("label", LabelPane, LabelView, prepare=begin)
        await keyboard.press_all("label", LabelPane, LabelView, prepare=partial(begin, 2), only=["d"])
        await keyboard.press_all("label", LabelPane, LabelView, prepare=labelled, only=["enter"])


async def test_the_keys_of_samples(ran: list[Ran]) -> None:
    async with every_key(ran, "samples", watch=Path("runs/past"), pane="samples") as keyboard:
        pilot, samples, press_all = keyboard.pilot, keyboard.screen.query_one(SamplesPane), keyboard.press_all
        await until(pilot, lambda: samples.check_action("bookmark", ()) is True)

        async def opened() -> None:
            if samples.opened is None:
                samples.open_sample(SampleKey(12, 0))
                await until(pilot, lambda: samples.opened is not None)

        async def older() -> None:
            await run(samples, "close")
            await run(samples, "go(-1)")

        async def listed() -> None:
            if samples.opened is not None:
                await run(samples, "close")

        await press_all("samples", SamplesPane, SampleList, prepare=listed)
        await press_all("samples", SamplesPane, SampleList, prepare=older, only=["end"])
        await press_all("samples", SampleFilter, prepare=partial(run, samples, "filter"))
        await press_all("samples", SamplesPane, TokenText, prepare=opened)


async def test_the_keys_of_the_reward_model(ran: list[Ran]) -> None:
    async with every_key(ran, "reward_model", pane="reward-model") as keyboard:
        reward, press_all = keyboard.screen.query_one(RewardModelPane), keyboard.press_all
        await until(keyboard.pilot, lambda: reward.selected is not None)
        await press_all("reward-model", RewardModelPane, RewardPairList)
        await press_all("reward-model", RewardModelPane, RewardPairText, prepare=partial(run, reward, "open"))
        with RunFolder(Path("runs/reward-2").resolve()).lock():
            await until(keyboard.pilot, lambda: reward.check_action("stop", ()) is True)
            await press_all("reward-model", RewardModelPane, only=["X"])
        await keyboard.pilot.resize_terminal(100, 24)
        await press_all(
            "reward-model", RewardModelPane, RewardPairList, prepare=partial(run, reward, "close"), only=["v"]
        )
