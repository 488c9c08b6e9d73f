"""The samples pane alone in an application, over a run with samples written like the trainer's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from scripted_run import started
from styles_helper import styles_path
from textual.app import ComposeResult
from textual.pilot import Pilot
from textual.widgets import Static
from token_samples import SETTINGS, sample_row
from workbench_app import settle

from trainer.events import SamplesWritten
from trainer.runs.folder import RunFolder
from trainer.runs.samples import write_samples
from workbench.kit.theming import ThemedApp
from workbench.run.sample_table import TokenSample
from workbench.run.view import RunView
from workbench.samples.pane import SamplesPane
from workbench.samples.sample_list import SampleList, SampleListView
from workbench.samples.sample_view import SampleView
from workbench.samples.token_text import TokenText


class Run:
    """Run whose samples are written like the trainer's."""

    def __init__(self, root: Path) -> None:
        self.folder = RunFolder(root)
        self.view = RunView()
        self.view.take(started(folder=str(root)))

    def write(self, number: int, *completions: str, **changes: Any) -> None:
        """Write the samples of an iteration, one per completion, with scores 0.1, 0.2..."""
        rows = [
            sample_row(
                row,
                texts=text.replace(" ", "\0 ").split("\0"),
                prompt=f"prompt {row}",
                score=(row + 1) / 10,
                kl_sum=1.5,
                truncated=False,
                **changes,
            )
            for row, text in enumerate(completions)
        ]
        self.folder.root.mkdir(parents=True, exist_ok=True)
        write_samples(self.folder.samples_file(number), rows, number, SETTINGS)
        self.announce(number, len(rows))

    def announce(self, number: int, rows: int = 1) -> None:
        path = str(self.folder.samples_file(number).relative_to(self.folder.root))
        self.view.take(SamplesWritten(iteration=number, path=path, rows=rows, previews=[]))


class Workbench(ThemedApp[None]):
    CSS_PATH = styles_path("samples.tcss", "tokens.tcss", "inspector.tcss", "history.tcss", "dialogs.tcss")

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[int, list[float]]] = []
        self.asked: list[tuple[TokenSample | None, int | None]] = []
        self.pane = SamplesPane(self._take_asked)

    def compose(self) -> ComposeResult:
        yield self.pane

    async def _take_asked(self, sample: TokenSample | None, at: int | None) -> None:
        self.asked.append((sample, at))

    def on_sample_list_view_scores_read(self, message: SampleListView.ScoresRead) -> None:
        self.heard.append((message.iteration, message.scores))

    @property
    def heading(self) -> str:
        return str(self.query_one("#samples-heading", Static).render())

    @property
    def drawn(self) -> str:
        """Return what the list or the text of the open sample shows."""
        view = self.query_one(SampleView)
        widget = view.text if view.display else self.query_one(SampleList)
        return "\n".join(widget.render_line(y).text.rstrip() for y in range(widget.size.height))

    @property
    def reported(self) -> list[str]:
        """Return the notifications on the screen."""
        return [str(notification.message) for notification in self._notifications]


async def show(pilot: Pilot[None], run: Run) -> None:
    app = pilot.app
    assert isinstance(app, Workbench)
    app.pane.show_run(run.view)
    await settle(pilot)


@asynccontextmanager
async def samples_pane(
    run: Run, *completions: str, size: tuple[int, int] = (80, 24), **changes: Any
) -> AsyncIterator[tuple[Workbench, Pilot[None]]]:
    """Show the pane with the focus; completions: those of iteration 1, with `changes` of the columns."""
    app = Workbench()
    async with app.run_test(size=size) as pilot:
        if completions:
            run.write(1, *completions, **changes)
            await show(pilot, run)
            app.pane.take_focus()
        yield app, pilot


@asynccontextmanager
async def open_sample(
    run: Run, *completions: str, size: tuple[int, int] = (80, 24), **changes: Any
) -> AsyncIterator[tuple[Workbench, Pilot[None], TokenText]]:
    """Show the first of these completions token by token."""
    async with samples_pane(run, *completions, size=size, **changes) as (app, pilot):
        yield app, pilot, await opened(pilot, run)


async def opened(pilot: Pilot[None], run: Run, *keys: str) -> TokenText:
    """Return the text of the sample that the keys lead to."""
    app = pilot.app
    assert isinstance(app, Workbench)
    await show(pilot, run)
    app.pane.take_focus()
    await pilot.press(*keys, "enter")
    await settle(pilot)
    assert app.query_one(SampleView).display
    return app.query_one(TokenText)


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Press keys, and wait until what they began is done."""
    await pilot.press(*keys)
    await settle(pilot)
