"""Compare one PPO iteration with TRL's PPOTrainer: same machine, model, prompts, lengths, epochs and adapter.

Each side runs in its own process, one after the other, and prints one JSON event per iteration. Seconds are the time
between two such events on this process's clock, the same for both sides; the first iteration is warm-up. Memory is the
kernel's high-water mark of the whole process, not an allocator's count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
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
    read_prompts,
    resolve_model,
    trl_command,
    trl_python,
)

SIDES = ("ours", "trl")


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
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True)
        try:
            for event in _events(child):
                if event["event"] == "run":
                    versions = event["versions"]
                if event["event"] == "iteration":
                    ends.append(time.perf_counter())
                    iterations.append(event)
        except BaseException:  # also on Ctrl+C: a process left running would slow down whatever runs next
            child.kill()
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


def compare(runs: dict[str, list[Run]], workload: Workload) -> Table:
    """Return a table with one column per side and, if there are two, the ratio of the second to the first."""
    figures = {side: _figures(side_runs, workload) for side, side_runs in runs.items()}
    length = f"{workload.batch_size} x {workload.max_new_tokens} new tokens"
    table = Table(title=f"One iteration: {length}, {workload.epochs} epochs")
    table.add_column("median of the iterations after the first")
    for side in figures:
        table.add_column(side, justify="right")
    if len(figures) == 2:
        table.add_column(" / ".join(reversed(figures)), justify="right")
    for row in next(iter(figures.values())):
        values = [figures[side][row] for side in figures]
        ratio = [f"{values[1] / values[0]:.2f}"] if len(values) == 2 else []
        table.add_row(row, *(f"{value:.1f}" for value in values), *ratio)
    return table


def _figures(runs: list[Run], workload: Workload) -> dict[str, float]:
    seconds = [s for run in runs for s in run.seconds]
    phases = [p for run in runs for p in run.phases]
    generate = median(p["generate"] for p in phases)
    return {
        "iteration (s)": median(seconds),
        "  fastest (s)": min(seconds),
        "  slowest (s)": max(seconds),
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
    for line in child.stdout:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            raise SystemExit(f"{line.strip()!r} is not an event: a side must print one JSON object per line") from None


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count: give 1 or more")
    return int(text)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    add = parser.add_argument
    add("--model", default="starter", help="'starter', or a folder with weights and tokenizer")
    add("--prompts", type=Path, default=STORY_OPENINGS, help=".jsonl file with a 'prompt' in each line")
    add("--iterations", type=_positive, default=3, help="timed iterations per round, after one warm-up iteration")
    add("--rounds", type=_positive, default=1, help="runs of each side, alternating")
    add("--batch-size", type=_positive, default=8, help="sequences per iteration")
    add("--max-new-tokens", type=_positive, default=48, help="tokens of every response")
    add("--epochs", type=_positive, default=4, help="passes over each batch")
    add("--sides", nargs="+", choices=SIDES, default=SIDES, help="sides to run")
    add("--value-model", choices=("head", "adapter"), default="head", help="critic of our side (model.value_model)")
    add("--trl-reward-model", action="store_true", help="score TRL's responses with a model instead of the lexicon")
    add(
        "--trl-value-lora",
        action="store_true",
        help="train only an adapter and the head of TRL's value model",
    )
    add("--trl-python", type=Path, help="interpreter of an environment with TRL (default: create one)")
    add("--json", type=Path, help="file to write the workload and all measurements to")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the sides alternately and print the table."""
    options = _options(arguments)
    workload = Workload(
        model=resolve_model(options.model),
        prompts=read_prompts(options.prompts, options.batch_size * (options.iterations + 1)),
        batch_size=options.batch_size,
        max_new_tokens=options.max_new_tokens,
        epochs=options.epochs,
    )
    runs: dict[str, list[Run]] = {side: [] for side in SIDES if side in options.sides}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-iteration-") as folder:
        commands: dict[str, list[str]] = {}
        if "ours" in runs:
            commands["ours"] = our_command(workload, Path(folder), value_model=options.value_model)
        if "trl" in runs:
            commands["trl"] = trl_command(
                workload,
                Path(folder),
                python=options.trl_python or trl_python(),
                reward_model=options.trl_reward_model,
                value_lora=options.trl_value_lora,
            )
        for number in range(options.rounds):
            for side, side_runs in runs.items():
                print(f"round {number + 1} of {options.rounds}: {side}", file=sys.stderr)
                side_runs.append(run_side(commands[side], workload, Path(folder) / f"{side}.log"))
    console = Console()
    console.print(compare(runs, workload))
    console.print(f"{os.cpu_count()} cores, load average {load:.1f} before the first run", highlight=False)
    for side, side_runs in runs.items():
        versions = ", ".join(f"{package} {number}" for package, number in side_runs[0].versions.items())
        console.print(f"{side}: {versions}", highlight=False, soft_wrap=True)
    if options.json:
        figures = {side: [asdict(run) for run in side_runs] for side, side_runs in runs.items()}
        report = {"workload": asdict(workload), "load": load, "runs": figures}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
