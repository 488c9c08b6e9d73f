"""Runs that a benchmark trains, each by the program itself, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from trainer.events import RunEnded
from trainer.runs.journal import read_journal


def train(command: list[str], run: Path, *settings: str, new: tuple[str, ...] = ()) -> None:
    """Train `run` to its end, from where it is. new: options of a run that is not there yet, besides `settings`."""
    if run.exists() and any(isinstance(event, RunEnded) and event.state == "done" for event in events(run)):
        return
    given = ["--resume", str(run)] if run.exists() else ["--name", run.name, *new]
    for setting in () if run.exists() else settings:
        given += ["--set", setting]
    subprocess.run([sys.executable, "-m", "workbench", *command, *given], check=True, stdout=sys.stderr)


def train_ppo(run: Path, *settings: str, preset: str = "quickstart") -> None:
    """PPO from a preset, with plain lines on stderr."""
    train(["--no-ui", "--display", "plain"], run, *settings, new=("--config", preset))


def events(run: Path) -> list[Any]:
    """What stands in the journal of `run`."""
    return list(read_journal(run / "events.jsonl").events)
