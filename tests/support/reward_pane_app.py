"""The reward model pane alone in an application, over runs on disk as a training leaves them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripted_run import ended, started
from styles_helper import styles_path
from textual.app import ComposeResult
from textual.pilot import Pilot
from textual.widgets import Static
from workbench_app import settle

from trainer.events import RewardModelEvaluation, RewardModelStep
from trainer.preferences.records import Comparison
from trainer.reward_model.predictions import (
    HELD_OUT,
    Accuracy,
    Baseline,
    CalibrationBin,
    PairPrediction,
    RewardModelReport,
    sorted_predictions,
    write_predictions,
)
from trainer.runs.folder import RunFolder
from trainer.runs.journal import Journal
from workbench.kit.pane import Throttled
from workbench.kit.theming import ThemedApp
from workbench.reward_model.pairs import RewardPairList, RewardPairText
from workbench.reward_model.pane import RewardModelPane

BEGAN = datetime(2025, 2, 1, 12, tzinfo=UTC).timestamp()
REPORT = RewardModelReport(
    accuracy=Accuracy("all", 200, 0.63, 0.561, 0.694),
    log_loss=0.657,
    calibration_error=0.1,
    calibration=[
        CalibrationBin(0.5 + place / 20, 0.55 + place / 20, 40 - 3 * place, 0.525 + place / 20, accuracy)
        for place, accuracy in enumerate((0.5, 0.52, 0.61, 0.6, 0.66, 0.7, 0.74, 0.72, 0.81, 0.9))
    ],
    by_length=[Accuracy("shorter", 90, 0.74, 0.64, 0.82), Accuracy("longer", 110, 0.45, 0.36, 0.54)],
    by_source=[Accuracy("all.jsonl", 200, 0.63, 0.561, 0.694)],
    ties=None,
    length=Baseline(0.548, 0.679),
    untrained=Baseline(0.59, 0.691),
)


def pair(number: int, lead: float = 1.0, **changes: Any) -> PairPrediction:
    """Return a pair with a lead of `lead` logits."""
    texts = {
        "prompt": f"Question {number}: why is the sky blue?",
        "chosen": f"Answer {number}: blue light is scattered the most.",
        "rejected": f"Answer {number}: because the sea is.",
    }
    texts |= {name: changes.pop(name) for name in list(changes) if name in texts}
    comparison = Comparison(prompt=texts["prompt"], completions=(texts["chosen"], texts["rejected"]))
    values: dict[str, Any] = {
        "key": comparison.key,
        "source": "all.jsonl",
        "strength": 1,
        "is_tie": False,
        **texts,
        "chosen_reward": 0.3 + lead / 2,
        "rejected_reward": 0.3 - lead / 2,
        "lead": lead,
        "chosen_tokens": 11,
        "rejected_tokens": 8,
    }
    return PairPrediction(**values | changes)


def some_pairs(count: int = 200) -> list[PairPrediction]:
    """Return pairs with leads drawn around a half."""
    rng = random.Random(0)
    return [pair(number, round(rng.gauss(0.5, 1.2), 3)) for number in range(count)]


def step(number: int, **changes: Any) -> RewardModelStep:
    values: dict[str, Any] = {
        "iteration": number,
        "comparisons": 8,
        "loss": 0.4 + 0.35 * math.exp(-number / 30),
        "accuracy": 0.8 - 0.3 * math.exp(-number / 30),
        "lead": 0.2,
        "grad_norm": 1.0,
        "skipped": False,
        "learning_rate": 1e-4,
        "tokens": 1000 * number,
        "tokens_per_second": 150.0,
        "seconds": 6.0,
        "memory_bytes": 10**9,
    }
    return RewardModelStep(**values | changes)


def evaluation(number: int, **changes: Any) -> RewardModelEvaluation:
    values: dict[str, Any] = {
        "iteration": number,
        "pairs": 200,
        "ties": 0,
        "accuracy": 0.63,
        "accuracy_low": 0.561,
        "accuracy_high": 0.694,
        "log_loss": 0.657,
        "calibration_error": 0.1,
        "length_accuracy": 0.548,
        "untrained_accuracy": 0.59,
        "seconds": 9.0,
    }
    return RewardModelEvaluation(**values | changes)


class Run:
    """Reward model run on disk, begun on the `day`th."""

    def __init__(self, name: str, day: int = 1, steps: int = 75) -> None:
        self.folder = RunFolder(Path("runs", name).resolve())
        self.folder.root.mkdir(parents=True)
        self.folder.config.write_text('kind = "reward-model"\n[model]\npath = "starter"\n')
        start = started(
            name=name,
            folder=str(self.folder.root),
            run_kind="reward-model",
            prompts=600,
            eval_prompts=200,
            iterations=steps,
        )
        lines = [{"journal": 1}, {"time": BEGAN + 86400 * (day - 1), **start.as_dict()}]
        self.folder.events.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def report(self, *events: Any) -> None:
        """Append to the journal."""
        journal = Journal(self.folder.events)
        for event in events:
            journal.emit(event)
        journal.close()

    def keep(self, pairs: list[PairPrediction], iteration: int = 75, report: RewardModelReport = REPORT) -> None:
        """Write the file of the held-out pairs."""
        write_predictions(self.folder.root / HELD_OUT, sorted_predictions(pairs, report, iteration))

    def train(self) -> Run:
        """Write a whole training: steps, evaluations, pairs and the end."""
        self.report(evaluation(0, accuracy=0.59, log_loss=0.691))
        self.report(*(step(number) for number in range(1, 76)), evaluation(75), ended("done", 75))
        self.keep(some_pairs())
        return self


class Workbench(ThemedApp[None]):
    CSS_PATH = styles_path("reward_model.tcss")

    def __init__(self) -> None:
        super().__init__()
        self.pane = RewardModelPane(Path("runs"))
        self.asked: list[tuple[str, ...]] = []

    def compose(self) -> ComposeResult:
        yield self.pane

    def on_reward_model_pane_label_again(self, message: RewardModelPane.LabelAgain) -> None:
        self.asked.append(message.keys)

    def text(self, name: str) -> str:
        """Return the text of a line of the pane."""
        return str(self.query_one(f"#reward-{name}", Static).render())

    @property
    def listed(self) -> RewardPairList:
        return self.query_one(RewardPairList)

    @property
    def opened(self) -> str:
        """Return the open pair as drawn; empty if none is open."""
        text = self.query_one(RewardPairText)
        return "\n".join(text.render_line(y).text.rstrip() for y in range(text.size.height)) if text.display else ""

    @property
    def screen_text(self) -> str:
        """Return the text of the whole terminal."""
        strips = self.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


@asynccontextmanager
async def workbench(size: tuple[int, int] = (120, 40)) -> AsyncIterator[tuple[Workbench, Pilot[None]]]:
    """Open the pane with the focus, and wait until it has read what there is."""
    app = Workbench()
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        app.pane.reader.listing = Throttled(rests=False)
        app.pane.take_focus()
        yield app, pilot


async def look(pilot: Pilot[None]) -> None:
    """Look at the folder and the run now, as the timer does."""
    app = pilot.app
    assert isinstance(app, Workbench)
    await settle(pilot)  # a look that is under way began before now
    for _ in range(2):
        app.pane.read()
        await settle(pilot)
