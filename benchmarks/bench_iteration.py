"""Compare one PPO iteration with TRL's PPOTrainer: same machine, model, prompts, lengths, epochs and adapter.

Each side runs in its own process, one after the other, and prints one JSON event per iteration. Seconds are the time
between two such events on this process's clock; the first iteration is warm-up. Memory is the kernel's high-water mark
of the whole process, not an allocator's count.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from workload import (
    ROOT,
    STORY_OPENINGS,
    Workload,
    last_line,
    our_command,
    peer_command,
    read_prompts,
    resolve_model,
    trl_python,
)

SIDES = ("ours", "trl")

# The model is a folder, so nothing needs a download. Both are read when the libraries are imported.
_QUIET = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}


@dataclass(frozen=True)
class Run:
    """Measurements of one process of one side, in seconds and bytes."""

    first: float  # from the start of the process to the end of its first iteration
    seconds: list[float]  # of each later iteration
    phases: list[dict[str, float]]  # of the same iterations, by the side's own clock
    versions: dict[str, str]
    peak_bytes: int


def run_side(command: Sequence[str], workload: Workload, log: Path) -> Run:
    """Run one side to its end and time its iterations by the arrival of their events.

    Raises SystemExit if the process fails or generates another number of tokens than the workload asks for.
    """
    ends, iterations, versions = [time.perf_counter()], [], {}
    with log.open("w", encoding="utf-8") as stderr:
        child = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | _QUIET, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
        try:
            for event in _events(child):
                if event["event"] == "run":
                    versions = event["versions"]
                if event["event"] == "iteration":
                    ends.append(time.perf_counter())
                    iterations.append(event)
        except BaseException:  # also on Ctrl+C: a process left running would slow down whatever runs next
            os.kill(child.pid, signal.SIGKILL)  # Popen.kill would reap a child that has ended, before wait4
            raise
        finally:
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
    name = " ".join(command[:3])
    if child.returncode:
        reason = last_line(log.read_text(encoding="utf-8"))
        raise SystemExit(f"{name} ended with code {child.returncode}: {reason}")
    wanted = [workload.new_tokens * number for number in range(1, workload.iterations + 1)]
    if (tokens := [event["tokens"] for event in iterations]) != wanted:
        raise SystemExit(f"{name} generated {tokens} tokens, not {wanted}: the sides would not be comparable")
    first, *seconds = [end - begin for begin, end in pairwise(ends)]
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): bytes on macOS, KiB on Linux
    phases = [event["seconds"] for event in iterations[1:]]
    return Run(first, seconds, phases, versions, usage.ru_maxrss * unit)


def compare(runs: Mapping[str, Sequence[Run]], workload: Workload) -> Table:
    """Return a table with one column per side, and the ratio of each other side to the first."""
    figures = {side: _figures(side_runs, workload) for side, side_runs in runs.items()}
    first, *others = figures
    tokens, epochs = workload.max_new_tokens, workload.epochs
    table = Table(title=f"One iteration: {workload.batch_size} x {tokens} new tokens, epochs: {epochs}")
    table.add_column("median of the iterations after the first")
    for side in figures:
        table.add_column(side, justify="right")
    for side in others:
        table.add_column(f"{side} / {first}", justify="right")
    for row, ours in figures[first].items():
        values = [side_figures[row] for side_figures in figures.values()]
        table.add_row(row, *(f"{value:.1f}" for value in values), *(f"{value / ours:.2f}" for value in values[1:]))
    return table


def _figures(runs: list[Run], workload: Workload) -> dict[str, float]:
    seconds = [s for run in runs for s in run.seconds]
    phases = [p for run in runs for p in run.phases]
    generate = median(p["generate"] for p in phases)
    return {
        "iteration (s)": median(seconds),
        "  generate (s)": generate,
        "  score and the rest (s)": median(
            s - p["generate"] - p["update"] for s, p in zip(seconds, phases, strict=True)
        ),
        "  update (s)": median(p["update"] for p in phases),
        "tokens/s, generation": workload.new_tokens / generate,
        "tokens/s, whole iteration": workload.new_tokens / median(seconds),
        "start and first iteration (s)": median(run.first for run in runs),
        "peak resident memory (GiB)": max(run.peak_bytes for run in runs) / 2**30,
    }


def _events(child: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert child.stdout is not None  # opened with a pipe
    with child.stdout as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                problem = "is not an event: a side must print one JSON object per line"
                raise SystemExit(f"{line.strip()!r} {problem}") from None


def measure(commands: Mapping[str, Sequence[str]], workload: Workload, folder: Path, *, rounds: int) -> None:
    """Run the sides by turns, and print the table."""
    runs: dict[str, list[Run]] = {side: [] for side in commands}
    for number in range(rounds):
        for side, command in commands.items():
            print(f"round {number + 1} of {rounds}: {side}", file=sys.stderr)
            runs[side].append(run_side(command, workload, folder / f"{side}.log"))
    console = Console()
    console.print(compare(runs, workload))
    console.print(f"{os.cpu_count()} cores", highlight=False)
    for side, side_runs in runs.items():
        versions = ", ".join(f"{package} {number}" for package, number in side_runs[0].versions.items())
        console.print(f"{side}: {versions}", highlight=False, soft_wrap=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    add = parser.add_argument
    add("--model", default="starter", help="'starter', or a folder with weights and tokenizer")
    add("--prompts", type=Path, default=STORY_OPENINGS, help=".jsonl file with a 'prompt' in each line")
    add("--iterations", type=int, default=3, help="timed iterations per round, after one warm-up iteration")
    add("--rounds", type=int, default=1, help="runs of each side, alternating")
    add("--batch-size", type=int, default=8, help="sequences per iteration")
    add("--max-new-tokens", type=int, default=48, help="tokens of every response")
    add("--epochs", type=int, default=4, help="passes over each batch (default: %(default)s)")
    add("--sides", nargs="+", choices=SIDES, default=SIDES, help="sides to run")
    critics = ("fitted", "head", "adapter")
    add("--value-model", choices=critics, default="fitted", help="critic of our side (model.value_model)")
    add("--trl-reward-model", action="store_true", help="score TRL's responses with a model instead of the lexicon")
    add("--trl-python", type=Path, help="interpreter of an environment with TRL (default: create one)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the sides by turns, and print the table."""
    options = _options(arguments)
    workload = Workload(
        model=resolve_model(options.model),
        prompts=read_prompts(options.prompts, options.batch_size * (options.iterations + 1)),
        batch_size=options.batch_size,
        max_new_tokens=options.max_new_tokens,
        epochs=options.epochs,
    )
    with tempfile.TemporaryDirectory(prefix="comparison-") as name:
        folder = Path(name)
        commands = {}
        if "ours" in options.sides:
            commands["ours"] = our_command(
                workload, folder, {"model": {"value_model": options.value_model}, "ppo": {"prefix_scores": 0}}
            )
        if "trl" in options.sides:
            flags = ["--reward-model"] if options.trl_reward_model else []
            commands["trl"] = peer_command(workload, folder, options.trl_python or trl_python(), "trl_ppo.py", flags)
        measure(commands, workload, folder, rounds=options.rounds)


if __name__ == "__main__":
    main()
