"""The part of the main screen that its controllers use, and how they report errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from textual.app import App

from trainer.errors import TrainerError
from workbench.config.pane import ConfigPane
from workbench.kit.banner import Kind
from workbench.labelling.pane import LabelPane

T = TypeVar("T")


class Host(Protocol):
    """The main screen, in which controllers show what they do."""

    @property
    def app(self) -> App[Any]: ...
    @property
    def is_active(self) -> bool: ...
    @property
    def config(self) -> ConfigPane: ...
    @property
    def label(self) -> LabelPane: ...
    @property
    def runs_dir(self) -> Path: ...
    def keys(self) -> Mapping[str, str]: ...
    def show_run(self) -> None: ...
    def action_show_pane(self, name: str) -> None: ...
    def say(self, message: str, kind: Kind = "error", *, about: str = "") -> None: ...
    def say_once(self, problem: str, *, about: str) -> None: ...
    def settle(self, about: str) -> None: ...
    def notify(self, message: str, *, title: str = "", timeout: float | None = None, markup: bool = True) -> None: ...
    def ask(self, flow: Coroutine[None, None, None]) -> None: ...
    def run_worker(self, work: Coroutine[None, None, None], *, group: str) -> object: ...


def attempt(host: Host, action: Callable[[], None], *, about: str) -> bool:
    """Call `action` and settle errors about it; return False if it fails: the banner shows why."""
    try:
        action()
    except TrainerError as error:
        host.show_run()
        host.say(str(error), about=about)
        return False
    host.show_run()
    host.settle(about)
    return True


async def tried(host: Host, work: Awaitable[T], about: str) -> T | None:
    """Return the result of `work` and settle errors about it; None if it fails: the banner shows why."""
    try:
        result = await work
    except TrainerError as error:
        host.say(str(error), about=about)
        return None
    host.settle(about)
    return result
