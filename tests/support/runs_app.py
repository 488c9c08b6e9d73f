"""The runs pane in an application of its own."""

from __future__ import annotations

from pathlib import Path

from styles_helper import styles_path
from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import Static

from workbench.kit.theming import ThemedApp
from workbench.runs.pane import RunsPane
from workbench.runs.table import RunTable


class RunsApp(ThemedApp[None]):
    """Shows the pane of the runs in runs/ and keeps what the pane asks for."""

    CSS_PATH = styles_path("app.tcss", "runs.tcss", "dialogs.tcss")

    def __init__(self) -> None:
        super().__init__()
        self.pane = RunsPane(Path("runs"))
        self.heard: list[Message] = []

    def compose(self) -> ComposeResult:
        yield self.pane

    def keep(self, message: Message) -> None:
        self.heard.append(message)

    on_runs_pane_requested = keep
    on_runs_pane_compare_changed = keep
    on_runs_pane_moved = keep

    @property
    def table(self) -> RunTable:
        return self.query_one(RunTable)

    @property
    def names(self) -> list[str]:
        return [run.name for run in self.table.items]

    @property
    def requested(self) -> list[tuple[str, Path]]:
        return [(message.what, message.folder) for message in self.heard if isinstance(message, RunsPane.Requested)]

    @property
    def moved(self) -> list[RunsPane.Moved]:
        return [message for message in self.heard if isinstance(message, RunsPane.Moved)]

    def text(self, selector: str) -> str:
        return str(self.query_one(selector, Static).render())

    def drawn(self) -> list[str]:
        return [self.table.render_line(y).text for y in range(self.table.size.height)]

    @property
    def toasts(self) -> list[str]:
        return [toast.message for toast in self._notifications]
