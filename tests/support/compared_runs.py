"""Run folders to compare, of any kind: configuration, journal and samples."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from config_files import save_config
from run_kinds_helper import dpo_evaluation, dpo_step, reward_evaluation, reward_step
from scripted_run import ended, iteration, started, write_events
from token_samples import SETTINGS, sample_row

from trainer.config import AnyConfig, Config
from trainer.config.pairs import DPOConfig, RewardModelConfig
from trainer.events import Evaluation, Event, SettingChanged
from trainer.runs.folder import RunFolder
from trainer.runs.listing import PPO
from trainer.runs.samples import write_samples
from workbench.compare.compared_run import LETTERS, ComparedRun, RunGroup
from workbench.run.metrics import DPO, REWARD_MODEL
from workbench.run.sample_table import Sample, SampleKey
from workbench.run.view import RunView

HOSTILE = "[/x] \x1b[31m \x9b \u202e 日本語 🎉\n\t"
_CONFIGS: dict[str, type[AnyConfig]] = {PPO: Config, REWARD_MODEL: RewardModelConfig, DPO: DPOConfig}


def evaluation(number: int, **changes: Any) -> Evaluation:
    values = {
        "iteration": number,
        "prompts": 16,
        "score_mean": 0.05 * number,
        "score_std": 0.3,
        "kl": 0.4 * number,
        "response_length": 31.0,
        "truncated": 0.25,
        "seconds": 12.0,
    }
    return Evaluation(**values | changes)


def compared(name: str, events: Sequence[Event], **changes: Any) -> ComparedRun:
    """Return the compared run that these events describe."""
    view = RunView()
    for event in events:
        view.take(event)
    values: dict[str, Any] = {
        "name": name,
        "folder": Path("/runs", name),
        "kind": view.started.run_kind if view.started else PPO,
        "state": view.ended.state if view.ended else "interrupted",
        "view": view,
        "config": {},
    }
    return ComparedRun(**values | changes)


def singles(*runs: ComparedRun) -> list[RunGroup]:
    """Return each run as a group of one."""
    return [RunGroup(letter, run.name, [run]) for letter, run in zip(LETTERS, runs, strict=False)]


def ppo_events(count: int = 12, *, seed: int = 0, slope: float = 0.05) -> list[Event]:
    """Return a run whose score rises by `slope` an iteration and whose KL by 0.5, with noise."""
    rng = random.Random(seed)
    steps = (
        iteration(number, score_mean=slope * number + rng.gauss(0, 0.02), kl=0.5 * number + rng.gauss(0, 0.1))
        for number in range(1, count + 1)
    )
    return [started(iterations=count), *steps, ended(iteration=count)]


def events_of_kind(kind: str) -> list[Event]:
    """Return a short run of another kind."""
    start = started(run_kind=kind, iterations=8)
    if kind == DPO:
        return [start, *map(dpo_step, range(1, 9)), dpo_evaluation(8), evaluation(8), ended(iteration=8)]
    return [start, *map(reward_step, range(1, 9)), reward_evaluation(8), ended(iteration=8)]


def hostile_events() -> list[Event]:
    """Return a run whose texts and numbers are as bad as they can be."""
    numbers = {
        "score_mean": 1e308,
        "kl": 1e308,
        "entropy": -math.inf,
        "seconds": {HOSTILE: 1e300},
        "memory_bytes": 2**62,
    }
    return [
        started(model=HOSTILE * 20, versions={HOSTILE: HOSTILE}, device=HOSTILE),
        *(iteration(number, **numbers) for number in range(1, 9)),
        evaluation(8, parts={HOSTILE: 1.0, HOSTILE * 9: math.nan}),
        SettingChanged(iteration=2, key=HOSTILE, old=HOSTILE, value=[{"kind": HOSTILE * 30}]),
    ]


def sample(prompt: str, iteration: int, completion: str = " there was joy.", **changes: Any) -> Sample:
    values: dict[str, Any] = {
        "key": SampleKey(iteration, 0),
        "prompt": prompt,
        "completion": completion,
        "score": 0.5,
        "kl": 2.0,
        "length": 12,
        "truncated": False,
    }
    return Sample(**values | changes)


def make_run(
    root: Path, name: str, events: Sequence[Event], *, config: AnyConfig | None = None, kind: str = PPO
) -> RunFolder:
    """Make the folder of a run in `root`, without samples, and return it."""
    folder = RunFolder(root / name)
    folder.samples.mkdir(parents=True)
    save_config(config or _CONFIGS[kind](), folder.config)
    write_events(folder.root, *events)
    return folder


def add_samples(folder: RunFolder, iteration: int, **completions: str) -> None:
    """Write a samples file with an answer to each prompt; in a prompt _ stands for a space."""
    rows = [
        sample_row(row, prompt=prompt.replace("_", " "), completion=completion)
        for row, (prompt, completion) in enumerate(completions.items())
    ]
    write_samples(folder.samples_file(iteration), rows, iteration, SETTINGS)
