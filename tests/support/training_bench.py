"""The Training pane in an application of its own, and runs to show in it."""

from __future__ import annotations

import random
from typing import Any

from run_kinds_helper import dpo_step, other_run
from scripted_run import iteration, started
from styles_helper import styles_path
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.pilot import Pilot

from workbench.kit.theming import ThemedApp
from workbench.run.view import RunView
from workbench.training.pane import TrainingPane


class Bench(ThemedApp[None]):
    CSS_PATH = styles_path("app.tcss", "dialogs.tcss", "training.tcss")

    def __init__(self) -> None:
        super().__init__()
        self.chosen: list[int | None] = []

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield TrainingPane()

    def on_training_pane_iteration_chosen(self, message: TrainingPane.IterationChosen) -> None:
        self.chosen.append(message.iteration)


def view_of(iterations: int, **changes: Any) -> RunView:
    noise = random.Random(0)
    view = RunView()
    view.take(started(iterations=iterations))
    for number in range(1, iterations + 1):
        view.take(iteration(number, score_mean=number / 100 + noise.gauss(0, 0.001), **changes))
    return view


async def shown(pilot: Pilot[None]) -> str:
    await pilot.pause()
    return text(pilot.app)


def text(app: App[Any]) -> str:
    """Return the text of the widgets that draw."""
    lines = []
    for widget in app.query("Drawn, Timeline"):
        if widget.display:
            lines += [widget.render_line(y).text for y in range(widget.size.height)]
    return "\n".join(lines)


async def opened(pilot: Pilot[None], view: RunView) -> TrainingPane:
    pane = pilot.app.query_one(TrainingPane)
    pane.show_run(view)
    pane.take_focus()
    await pilot.pause()
    return pane


def dpo_view(steps: int) -> RunView:
    view = RunView()
    view.take(other_run("dpo", iterations=steps))
    for number in range(1, steps + 1):
        view.take(dpo_step(number, loss=0.7 - number / 1000))
    return view
