"""PPO runs for a benchmark, each by the command-line program in its own process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from trainer.events import RunEnded
from trainer.runs.journal import read_journal

STORIES = Path(__file__).resolve().with_name("stories.toml")


def train_ppo(run: Path, *settings: str, config: str = str(STORIES)) -> list[Any]:
    """Train `run` from a file or preset, KEY=VALUE each in `settings`, and return the events in its journal.

    A run that was interrupted is resumed, and one that is done only read. Raises CalledProcessError if it fails.
    """
    if not (run.exists() and any(isinstance(event, RunEnded) and event.state == "done" for event in events(run))):
        started = ["--resume", str(run)] if run.exists() else ["--name", run.name, "--config", config]
        for setting in () if run.exists() else settings:
            started += ["--set", setting]
        command = [sys.executable, "-m", "workbench", "--no-ui", "--display", "plain", *started]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return events(run)


def events(run: Path) -> list[Any]:
    """Return the events in the journal of `run`."""
    return list(read_journal(run / "events.jsonl").events)
