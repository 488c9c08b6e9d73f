"""Application with the Config pane alone, and its tests' hand on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from styles_helper import styles_path
from textual.app import ComposeResult
from textual.message import Message
from textual.pilot import Pilot
from textual.widgets import Input, Static

from workbench.config.document import ConfigDocument
from workbench.config.pane import ConfigPane
from workbench.kit.theming import ThemedApp
from workbench.run.view import RunView


class PaneApp(ThemedApp[None]):
    """The pane alone, with every message that it posts."""

    CSS_PATH = styles_path("config.tcss")

    def __init__(self, document: ConfigDocument) -> None:
        super().__init__()
        self.document = document
        self.heard: list[Message] = []

    def compose(self) -> ComposeResult:
        yield ConfigPane(self.document)

    def on_config_form_live_setting_changed(self, message: Message) -> None:
        self.heard.append(message)

    on_config_form_changed = on_config_pane_open_requested = on_config_form_live_setting_changed


class Session:
    """The app as the pilot drives it."""

    def __init__(self, app: PaneApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot
        self.pane = app.query_one(ConfigPane)

    @property
    def document(self) -> ConfigDocument:
        return self.pane.document

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def write(self, text: str) -> None:
        """Replace the content of the focused line."""
        line = cast("Input", self.app.focused)
        line.value = ""
        for character in text:
            line.insert_text_at_cursor(character)
        await self.pilot.pause()

    async def go_to(self, key: str) -> None:
        self.pane.focus_field(key)
        await self.pilot.pause()

    def text(self) -> str:
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())

    def row(self, name: str) -> str:
        """Return the screen line that shows the setting `name`."""
        return next(line for line in self.text().split("\n") if f" {name} " in line[:26])

    def help(self) -> str:
        """Return the help on the setting under the cursor, with the note above it, on one line."""
        return " ".join(str(self.app.query_one("#config-help", Static).render()).split())

    def notices(self) -> list[str]:
        return [notification.message for notification in self.app._notifications]

    def messages(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.app.heard if isinstance(message, kind)]


@asynccontextmanager
async def opened(
    document: ConfigDocument | str, size: tuple[int, int] = (80, 40), *, shows_all: bool = True
) -> AsyncIterator[Session]:
    """Open the pane. shows_all: it shows all settings, not only the basic ones."""
    document = ConfigDocument.open(document) if isinstance(document, str) else document
    app = PaneApp(document)
    async with app.run_test(size=size) as pilot:
        pane = app.query_one(ConfigPane)
        pane.form.view = "all" if shows_all else "basic"
        pane.refresh_view()
        await pilot.pause()
        yield Session(app, pilot)


def settings(*changes: tuple[str, Any]) -> RunView:
    """Return the state of a run in which these settings were changed."""
    view = RunView()
    view.settings.extend(cast("Any", SimpleNamespace(key=key, value=value)) for key, value in changes)
    return view
