"""The README's screenshots: a session with the starter model, driven key by key. Takes some minutes.

Run: .venv/bin/python docs/screenshots.py [NAME ...]
The reward model on them is that of benchmarks/hidden_rule.py (commit b9e8a6a); without one that picture stays as it is.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from textual.pilot import Pilot

from workbench.app import WorkbenchApp
from workbench.kit.dialog import ConfirmScreen
from workbench.labelling.pane import LabelPane
from workbench.labelling.plans import SessionOptions, planned
from workbench.opening import Opening
from workbench.reward_model.pane import RewardModelPane
from workbench.samples.ask_screen import AnswerList
from workbench.screen.main_screen import MainScreen
from workbench.training.alarms import AlarmScreen

FOLDER = Path(__file__).resolve().parent / "screenshots"
RUN = Path("runs/quickstart-0001")
REWARD_MODEL = FOLDER.parents[1] / "runs" / "hidden-rule" / "seed-0" / "reward-model"


async def until(pilot: Pilot[str], condition: Callable[[], bool]) -> None:
    """Let the application work until the condition holds."""
    while not condition():
        await pilot.pause(0.1)


def shoot(app: WorkbenchApp, name: str) -> None:
    """Write what is on the screen as docs/screenshots/NAME.svg, with the reader's own fonts and another folder."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", app.export_screenshot(), flags=re.DOTALL)
    svg = svg.replace(str(Path.cwd()), "/home/anna/study")  # as long as the temporary folder: a text has a fixed length
    svg = "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
    (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")


async def opened(app: WorkbenchApp, pilot: Pilot[str]) -> MainScreen:
    """Return the main screen, once it shows everything."""
    await until(pilot, lambda: app.main is not None and app.main.is_attached and app.main.ready)
    assert app.main is not None
    return app.main


async def start(app: WorkbenchApp, pilot: Pilot[str]) -> None:
    """Start the configuration on the screen, and agree to the plan."""
    await pilot.press("f3", "space")
    await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
    await pilot.pause(0.5)
    await pilot.press("enter")


async def stop(app: WorkbenchApp, pilot: Pilot[str]) -> None:
    """Stop the run, and wait for its checkpoint."""
    assert app.main is not None
    supervisor = app.main.supervisor
    await pilot.press("X")
    await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
    await pilot.pause(0.5)
    await pilot.press("y")
    await until(pilot, lambda: not supervisor.trains_here)


async def train() -> None:
    """Start, let it learn, pause, change kl_coef, look at a chart, go on, stop."""
    app = WorkbenchApp(Opening())
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await opened(app, pilot)
        view = screen.supervisor
        await start(app, pilot)
        await until(pilot, lambda: view.view.iteration >= 12 and view.view.phase is not None)
        await pilot.pause(1.0)
        shoot(app, "training")
        await pilot.press("space")
        await until(pilot, lambda: view.view.state == "paused")
        await pilot.press("f2", "slash", *"kl_coef", "enter")
        await pilot.pause(0.5)
        shoot(app, "search")
        await pilot.press("enter", "end", "ctrl+u", *"0.1", "enter")
        await pilot.pause(0.5)
        await pilot.press("f3", "down", "enter", "e")
        await pilot.pause(0.5)
        shoot(app, "chart")
        await pilot.press("escape", "space")
        await until(pilot, lambda: view.view.iteration >= 14)
        await stop(app, pilot)


async def alarm() -> None:
    """Draw the alarm that a far too high learning rate raises."""
    settings = ("optim.policy_lr=0.02", "run.name=too-fast")
    app = WorkbenchApp(Opening(overrides=settings))
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await opened(app, pilot)
        view = screen.supervisor
        await start(app, pilot)
        await until(pilot, lambda: bool(view.view.alarms))
        await pilot.press("space")
        await until(pilot, lambda: view.view.state == "paused")
        await pilot.press("exclamation_mark")
        await until(pilot, lambda: isinstance(app.screen, AlarmScreen))
        await pilot.pause(0.5)
        shoot(app, "alarm")
        await pilot.press("escape")
        await stop(app, pilot)


def answered(app: WorkbenchApp) -> bool:
    """Whether the model has written what it was asked for."""
    listed = app.screen.query_one(AnswerList)
    text = "".join(listed.render_line(y).text for y in range(listed.size.height))
    return "score" in text and "waiting" not in text


async def watch(
    name: str, size: tuple[int, int], *keys: str, done: Callable[[WorkbenchApp], bool] = lambda _: True
) -> None:
    """Open the run that has ended at another size, press keys, wait until it is done."""
    app = WorkbenchApp(Opening(watch=RUN))
    async with app.run_test(size=size) as pilot:
        await opened(app, pilot)
        await pilot.pause(2.0)  # samples and runs are read beside the screen
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.5)
        await until(pilot, lambda: done(app))
        await pilot.pause(1.0)
        shoot(app, name)


async def label() -> None:
    """Judge pairs that the policy of the run writes."""
    wanted = SessionOptions(labeller="anna", run=RUN, repeats=0)
    opening = planned(wanted)
    app = WorkbenchApp(Opening(watch=RUN, label=opening))
    async with app.run_test(size=(120, 30)) as pilot:
        pane = (await opened(app, pilot)).query_one(LabelPane)
        for position, key in enumerate("12=211"):
            await until(pilot, partial(is_at, pane, position))
            await pilot.pause(2.0)
            await pilot.press(key)
        await until(pilot, partial(is_at, pane, 6))
        await pilot.press("d")
        await pilot.pause(0.5)
        shoot(app, "label")


def is_at(pane: LabelPane, position: int) -> bool:
    """Whether the item at `position` is to be judged."""
    return pane.item is not None and pane.item.position == position


async def reward_model() -> None:
    """Draw the reward model that learnt the hidden rule."""
    app = WorkbenchApp(Opening(watch=REWARD_MODEL))
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("f6")
        pane = screen.query_one(RewardModelPane)
        await until(pilot, lambda: pane.selected is not None)
        await pilot.pause(0.5)
        shoot(app, "reward-model")


async def main() -> None:
    """Make those that are named, or all."""
    made: dict[str, tuple[tuple[int, int], tuple[str, ...]]] = {
        "samples": ((80, 24), ("f4", "o", "home", "enter", *["right"] * 6)),
        "tokens": ((120, 36), ("f4", "z", "o", "home", "enter", "k", "underscore", "a", "g", *["right"] * 6)),
        "advantage": ((120, 36), ("f4", "o", "home", "enter", *["right"] * 6, "enter")),
        "ask": ((120, 36), ("f4", "o", "home", "enter", *["right"] * 4, "f", "ctrl+r")),
        "large": ((200, 60), ("f3",)),
        "home": ((120, 30), ("f9",)),
    }
    named = set(sys.argv[1:]) or {*made, "alarm", "label", "reward-model"}
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PPO_WORKBENCH_CONFIG_DIR"] = folder
        os.chdir(folder)
        if "alarm" in named:
            await alarm()
        if named - {"alarm", "reward-model"}:
            await train()
        for name, (size, keys) in made.items():
            if name in named:
                await watch(name, size, *keys, done=answered if name == "ask" else lambda _: True)
        if "label" in named:
            await label()
        if "reward-model" in named and REWARD_MODEL.exists():
            await reward_model()


if __name__ == "__main__":
    asyncio.run(main())
