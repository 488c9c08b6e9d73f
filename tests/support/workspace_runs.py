"""A workspace with runs that ended, failed and train, as the trainer leaves them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from config_files import save_config
from scripted_run import ended, iteration, started

from trainer.config import Config
from trainer.events import Event, RunEnded
from trainer.runs import journal
from trainer.runs.journal import Journal

LONG_NAME = "a-run-with-quite-a-long-name-0001"


def write_run(name: str, count: int, *, began: float, end: RunEnded | None, events: Sequence[Event] = ()) -> Path:
    """Write a run of `count` iterations, ten seconds each, whose score rises and whose KL is 3 times that."""
    folder = Path("runs", name)
    folder.mkdir(parents=True)
    save_config(Config.model_validate({"ppo": {"iterations": 40}}), folder / "config.toml")
    with pytest.MonkeyPatch.context() as patch:
        now = [began]
        patch.setattr(journal.time, "time", lambda: now[0])
        out = Journal(folder / "events.jsonl")
        out.emit(started(name=name, folder=str(folder), iterations=40))
        for number in range(1, count + 1):
            now[0] += 10
            score = number / 40
            seconds = {"generate": 4.0, "update": 6.0}
            out.emit(iteration(number, score_mean=score, kl=3 * score, seconds=seconds))
        for event in (*events, *([end] if end else [])):
            out.emit(event)
        out.close()
    return folder


def write_workspace(now: float) -> None:
    """Write four runs into runs/: done, done with an alarm, failed, and one that looks interrupted, the newest."""
    write_run("old", 40, began=now - 90_000, end=ended("done", 40))
    write_run("absurd", 40, began=now - 9000, end=ended("done", 40, alarms={"kl_high": "error"}))
    write_run("broken", 3, began=now - 4000, end=ended("failed", 3, reason="loss was NaN"), events=[_no_number()])
    write_run(LONG_NAME, 14, began=now - 600, end=None)


def _no_number() -> Event:
    return iteration(4, score_mean=math.nan, kl=math.nan)
