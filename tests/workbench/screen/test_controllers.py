"""The controllers of the main screen need no screen: a plain object stands in for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.errors import UsageError
from workbench.config.document import ConfigDocument
from workbench.kit.dialog import ConfirmScreen
from workbench.screen.dialogs import RunQuestion
from workbench.screen.host import attempt, tried
from workbench.screen.reward_models import RewardModels
from workbench.screen.steering import Steering


class PlainScreen:
    """Record of what the controllers ask of the screen. answers: given to the next dialogs."""

    def __init__(self, *answers: object) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.dialogs: list[Any] = []
        self.flow: Any = None  # the newest one
        self.workers: list[asyncio.Future[None]] = []
        self.answers = [*answers]
        self.app = SimpleNamespace(push_screen=self._push, push_screen_wait=self._ask)
        self.config = SimpleNamespace(
            document=ConfigDocument.open("quickstart"),
            show_document=lambda document: setattr(self.config, "document", document),
            focus_field=lambda key: self.calls.append(("focus_field", key)),
            save=lambda then: self.calls.append(("save",)),
        )
        self.runs_dir = Path("runs")

    def keys(self) -> dict[str, str]:
        return {"label.train": "t"}

    def ask(self, flow: Coroutine[None, None, None]) -> None:
        self.flow = flow

    def run_worker(self, work: Coroutine[None, None, None], *, group: str) -> None:
        self.workers.append(asyncio.ensure_future(work))

    def show_run(self) -> None:
        pass

    def settle(self, about: str) -> None:
        self.calls.append(("settle", about))

    def say(self, message: str, kind: str = "error", *, about: str = "") -> None:
        self.calls.append(("say", message, about))

    def action_show_pane(self, name: str) -> None:
        self.calls.append(("show_pane", name))

    def _push(self, dialog: Any, answered: Callable[[Any], None] = print) -> None:
        self.dialogs.append(dialog)
        if self.answers:
            answered(self.answers.pop(0))

    async def _ask(self, dialog: Any) -> object:
        self.dialogs.append(dialog)
        return self.answers.pop(0)


def supervisor(**more: Any) -> Any:
    """Return a stand-in for the supervisor of a run under way."""
    calls: list[str] = []
    return SimpleNamespace(
        under_way=True,
        folder=Path("runs/a-0001"),
        view=SimpleNamespace(alarms=[], started=None),
        allows=lambda request: True,
        stop=lambda: calls.append("stop"),
        start=lambda config, **how: calls.append(f"start {how['preset']}"),
        calls=calls,
        **more,
    )


@pytest.mark.parametrize(("agreed", "stopped"), [(True, ["stop"]), (False, []), (None, [])])
async def test_a_run_stops_once_the_user_agrees(agreed: bool | None, stopped: list[str]) -> None:
    screen, run = PlainScreen(agreed), supervisor()
    Steering(screen, run).request("stop")  # type: ignore[arg-type]
    await asyncio.gather(*screen.workers)
    assert [type(dialog) for dialog in screen.dialogs] == [ConfirmScreen]
    assert run.calls == stopped


async def test_a_valid_configuration_starts_if_agreed_and_an_invalid_one_shows_its_first_problem() -> None:
    screen, run = PlainScreen(None, True), supervisor()
    steering = Steering(screen, run)  # type: ignore[arg-type]
    for started in ([], ["start quickstart"]):
        steering.request("start")
        await screen.flow
        assert [type(dialog) for dialog in screen.dialogs[-1:]] == [RunQuestion]
        assert run.calls == started
    screen.config.document.set("ppo.minibatches", -1)
    steering.request("start")
    assert run.calls == ["start quickstart"]
    assert ("show_pane", "config") in screen.calls
    assert ("focus_field", "ppo.minibatches") in screen.calls
    assert screen.calls[-1][0] == "say"


async def test_unsaved_changes_are_discarded_only_if_the_user_agrees() -> None:
    screen = PlainScreen(False, True)
    steering, other = Steering(screen, supervisor()), ConfigDocument.open("quickstart")  # type: ignore[arg-type]
    screen.config.document.set("run.seed", 9)
    edited = screen.config.document
    for shown in (edited, other):
        steering.open_configuration(lambda: other)
        await screen.flow
        assert screen.config.document is shown
    assert len(screen.dialogs) == 2, "each time one question"


async def test_a_failed_attempt_is_said_and_a_later_one_settles_it() -> None:
    screen: Any = PlainScreen()

    def fail() -> None:
        raise UsageError("no such run")

    async def fail_later() -> None:
        fail()

    assert not attempt(screen, fail, about="start")
    assert await tried(screen, fail_later(), "use") is None
    assert attempt(screen, lambda: None, about="start")
    assert screen.calls == [("say", "no such run", "start"), ("say", "no such run", "use"), ("settle", "start")]


async def test_without_a_reward_model_the_user_hears_which_key_trains_one(tmp_path: Path) -> None:
    screen: Any = PlainScreen()
    screen.runs_dir = tmp_path
    await RewardModels(screen, supervisor(), tmp_path / "preferences.db").use()
    assert screen.calls[-1] == ("say", "No trained reward model yet; t in Label trains one on the labels", "use")
    assert not screen.dialogs
