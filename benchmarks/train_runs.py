"""Training runs for a benchmark, each by the command-line program in its own process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.events import RunEnded
from trainer.runs.journal import read_journal

WORKBENCH = ("-m", "workbench")
STORIES = Path(__file__).resolve().with_name("stories.toml")


def train(
    command: list[str],
    run: Path,
    *settings: str,
    new: tuple[str, ...] = (),
    program: Sequence[str] = WORKBENCH,
) -> None:
    """Train `run` to its end: start it, resume it, or do nothing if it is done.

    settings: KEY=VALUE each; new: further options. Both are used only for a run that does not exist yet. program: what
    Python runs. Raises CalledProcessError if it fails.
    """
    if run.exists() and any(isinstance(event, RunEnded) and event.state == "done" for event in events(run)):
        return
    arguments = ["--resume", str(run)] if run.exists() else ["--name", run.name, *new]
    for setting in () if run.exists() else settings:
        arguments += ["--set", setting]
    subprocess.run([sys.executable, *program, *command, *arguments], check=True, stdout=sys.stderr)


def train_ppo(run: Path, *settings: str, config: str = str(STORIES), program: Sequence[str] = WORKBENCH) -> None:
    """Train PPO from a file or preset, with plain lines of progress on stderr."""
    train(["--no-ui", "--display", "plain"], run, *settings, new=("--config", config), program=program)


def events(run: Path) -> list[Any]:
    """Return the events in the journal of `run`."""
    return list(read_journal(run / "events.jsonl").events)
