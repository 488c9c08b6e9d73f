"""Train the quickstart preset on several seeds and print how it learns, as a Markdown table.

Run: .venv/bin/python benchmarks/quickstart_seeds.py [--seeds 0 1 2 3 4] [--dir runs/seeds] [--set key=value ...]
Finished runs are only read, and interrupted ones resumed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from trainer.events import Iteration, RunEnded
from trainer.runs.journal import read_journal

STORIES = Path(__file__).resolve().with_name("stories.toml")


def train_ppo(run: Path, *settings: str, config: str = str(STORIES)) -> list[Any]:
    """Train `run` from a file or preset, KEY=VALUE each in `settings`, and return the events in its journal.

    A run that was interrupted is resumed, and one that is done only read. Raises CalledProcessError if it fails.
    """
    path = run / "events.jsonl"
    known = read_journal(path).events if run.exists() else []
    if not any(isinstance(event, RunEnded) and event.state == "done" for event in known):
        started = ["--resume", str(run)] if run.exists() else ["--name", run.name, "--config", config]
        for setting in () if run.exists() else settings:
            started += ["--set", setting]
        command = [sys.executable, "-m", "workbench", "--no-ui", "--trust-code", "--display", "plain", *started]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return list(read_journal(path).events)


def main() -> None:
    """Train the quickstart on each seed, then print the table and a summary of each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--dir", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()

    runs: dict[int, list[Iteration]] = {}
    for seed in options.seeds:
        run = options.dir / f"seed-{seed}"
        given = [*options.set, f"run.seed={seed}", f"run.dir={options.dir}"]
        events = train_ppo(run, *given, config="quickstart")
        runs[seed] = [event for event in events if isinstance(event, Iteration)]
    print("| iterations | " + " | ".join(f"seed {seed}: score | KL" for seed in runs) + " |")
    print("|---|" + "---|---|" * len(runs))
    count = min(map(len, runs.values()))
    for start in range(0, count, 5):
        parts = [run[start : start + 5] for run in runs.values()]
        cells = [f"{fmean(i.score_mean for i in part):+.2f} | {fmean(i.kl for i in part):.1f}" for part in parts]
        print(f"| {start + 1} to {start + len(parts[0])} | " + " | ".join(cells) + " |")
    print()
    for seed, run in runs.items():
        first, last = fmean(i.score_mean for i in run[:5]), fmean(i.score_mean for i in run[-5:])
        kl, worst = fmean(i.kl for i in run[-5:]), max(i.kl for i in run)
        seconds = sum(sum(i.seconds.values()) for i in run) / len(run)
        print(
            f"seed {seed}: score {first:+.2f} -> {last:+.2f} (gain {last - first:+.2f}), KL of the last five {kl:.1f} "
            f"nats a sequence, at most {worst:.1f}, {seconds:.1f} s per iteration; explained variance of the last five "
            f"{fmean(i.explained_variance for i in run[-5:]):.2f}"
        )


if __name__ == "__main__":
    main()
