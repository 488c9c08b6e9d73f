"""Make all pictures of README and docs, from nothing: sessions with the starter model, driven key by key.

Run: .venv/bin/python docs/screenshots.py [FOLDER]. It takes about a quarter of an hour on two cores. FOLDER, if named,
keeps the runs, and what it has is not made again. The labeller is a rule: stories told in the first person are better.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import combinations, groupby
from pathlib import Path

from recording import Frame, Recorder, animation

from trainer.runs.samples import read_samples
from workbench.app import WorkbenchApp
from workbench.kit.dialog import ConfirmScreen
from workbench.labelling.pane import LabelPane
from workbench.opening import Opening
from workbench.screen.main_screen import MainScreen
from workbench.training.alarms import AlarmScreen

PICTURES = Path(__file__).resolve().parent / "screenshots"
RUNS = Path("runs")
FIRST, MODEL, POLICY = RUNS / "quickstart-0001", RUNS / "first-person", RUNS / "storyteller"
GROUPS, KEPT = 12, 10  # iterations of the first run, and those whose responses are labelled before the recording
ITERATIONS, LABELS, SIZE = 20, 4, (104, 30)  # of the recording


def better(one: object, other: object) -> str:
    """Return the key of the better one of two completions, or = for a tie."""
    first, second = (len(re.findall(r"\b(?:I|me|my|we|us|our)\b", str(text))) for text in (one, other))
    return "1" if first > second else "2" if first < second else "="


def program(*arguments: str) -> None:
    """Run ppo-workbench without its screen."""
    subprocess.run([sys.executable, "-m", "workbench", *arguments], check=True)


@asynccontextmanager
async def opened(opening: Opening, columns: int, rows: int) -> AsyncIterator[tuple[WorkbenchApp, MainScreen, Recorder]]:
    """Open the application, and wait until it shows everything."""
    app = WorkbenchApp(opening)
    async with app.run_test(size=(columns, rows)) as pilot:
        recorder = Recorder(app, pilot)
        await recorder.until(lambda: app.main is not None and app.main.is_attached and app.main.ready)
        await pilot.pause(2.0)  # samples and runs are read beside the screen
        assert app.main is not None
        yield app, app.main, recorder


def draw(name: str, frames: list[Frame], columns: int) -> None:
    """Write docs/screenshots/NAME.svg."""
    (PICTURES / f"{name}.svg").write_text(animation(frames, columns), encoding="utf-8")


async def picture(name: str, columns: int, rows: int, run: Path, *keys: str) -> None:
    """Draw a run that has ended, after some keys."""
    async with opened(Opening(watch=run), columns, rows) as (_, _, recorder):
        await recorder.press(*keys)
        await recorder.press(seconds=1, wait=1.0)
        draw(name, recorder.frames, columns)


def prepare() -> None:
    """Train a first policy, label what it wrote, and train a reward model on that."""
    groups = ["rollout.batch_size=16", "rollout.samples_per_prompt=4", f"ppo.iterations={GROUPS}"]
    if not FIRST.exists():
        program("--no-ui", "--name", FIRST.name, *(part for one in groups for part in ("--set", one)))
    with Path("pairs.jsonl").open("w", encoding="utf-8") as pairs:
        for iteration in range(1, KEPT + 1):
            path = FIRST / "samples" / f"step-{iteration:06}.parquet"
            rows = read_samples(path, ["prompt", "completion"]).to_pylist()
            for prompt, group in groupby(rows, key=lambda row: row["prompt"]):
                for one, other in combinations(group, 2):
                    choice = {"1": "a", "2": "b", "=": "tie"}[better(one["completion"], other["completion"])]
                    pair = {"prompt": prompt, "a": one["completion"], "b": other["completion"], "choice": choice}
                    pairs.write(json.dumps(pair) + "\n")
    program("preferences", "import", "pairs.jsonl", "--labeller", "anna", "--skip-broken")
    settings = ["train.head=fitted", "train.states=last+mean", "train.batch_size=4"]
    settings += ["optim.lr=2e-4", "data.eval_fraction=0.3"]
    program("reward-model", "train", "--name", MODEL.name, *(part for one in settings for part in ("--set", one)))


async def ask(app: WorkbenchApp, recorder: Recorder, *keys: str) -> None:
    """Press keys that end in a question, and wait for it."""
    await recorder.press(*keys)
    await recorder.until(lambda: isinstance(app.screen, ConfirmScreen))
    await recorder.press()


async def alarm() -> None:
    """Draw the alarm that a far too high learning rate raises."""
    opening = Opening(overrides=("optim.policy_lr=0.02", "run.name=too-fast"))
    async with opened(opening, 120, 36) as (app, main, recorder):
        run = main.supervisor
        await ask(app, recorder, "space")
        await recorder.press("enter", "f3")
        await recorder.until(lambda: run.view.alarms)
        await recorder.press("space")
        await recorder.until(lambda: run.view.state == "paused")
        await recorder.press("exclamation_mark")
        await recorder.until(lambda: isinstance(app.screen, AlarmScreen))
        await recorder.press(seconds=1)
        draw("alarm", recorder.frames, 120)
        await recorder.press("escape")
        await ask(app, recorder, "X")
        await recorder.press("y")
        await recorder.until(lambda: not run.trains_here)


async def record() -> None:
    """Record label, train and look: pairs of the first policy, a policy that learns from the labels, its tokens."""
    overrides = (f"ppo.iterations={ITERATIONS}", f"run.name={POLICY.name}", "optim.policy_lr=4e-4")
    async with opened(Opening(overrides=overrides), *SIZE) as (app, main, recorder):
        run, pane, press = main.supervisor, main.query_one(LabelPane), recorder.press
        await press("f9", seconds=3.5, wait=1.0)
        await press("3", seconds=2.5, wait=1.0)
        await press("enter")
        for position in range(LABELS + 1):
            await recorder.until(lambda at: pane.item is not None and pane.item.position == at, position)
            await press(seconds=3.0, wait=1.5)
            assert pane.item is not None
            item = pane.item.item
            if position < LABELS:
                key = better(*(item.comparison.completions[place] for place in item.order))
                await press(key, seconds=0.7, wait=0)
        draw("label", recorder.frames[-1:], SIZE[0])
        await press("f6", seconds=3.5, wait=2.0)
        await ask(app, recorder, "f9", "5")
        recorder.take(3.0)
        await press("y", seconds=2.0, wait=1.0)
        await ask(app, recorder, "space")
        recorder.take(2.5)
        await press("enter", "f3")
        for iteration in range(1, ITERATIONS + 1):
            await recorder.until(lambda at: run.view.iteration >= at or not run.trains_here, iteration)
            recorder.take(0.8)
            if iteration == ITERATIONS * 3 // 4:
                draw("training", recorder.frames[-1:], SIZE[0])
        await recorder.until(lambda: not run.trains_here)
        await press(seconds=2.5, wait=1.0)
        await press("f4", seconds=2.5, wait=2.0)
        await press("o", "home", "enter", seconds=2.5, wait=1.0)
        for _ in range(5):
            await press("right", seconds=0.7, wait=0)
        await press(seconds=4.0)
        draw("recording", recorder.frames, SIZE[0])


async def main() -> None:
    """Make all pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="st-") as temporary:
        folder = Path(sys.argv[1] if sys.argv[1:] else temporary).absolute()
        folder.mkdir(exist_ok=True)
        os.environ |= {"PPO_WORKBENCH_CONFIG_DIR": str(folder / "settings"), "LOGNAME": "anna"}
        os.chdir(folder)
        if not MODEL.exists():
            prepare()
        if not POLICY.exists():
            await record()
        await picture("home", 104, 22, POLICY, "f9")
        await picture("tokens", 120, 36, POLICY, "f4", "z", "o", "home", "enter", "a", "g", *["right"] * 5)
        await picture("reward-model", 120, 40, POLICY, "f6")
        if not (RUNS / "too-fast").exists():
            await alarm()


if __name__ == "__main__":
    asyncio.run(main())
