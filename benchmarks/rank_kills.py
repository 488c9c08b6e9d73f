"""Kill one of two ranks at a random moment, ten times: how long until the other has ended, and whether the run resumes.

A random llama of two layers is trained on this machine's loopback, without a pause between iterations. In turn, the
first or the second rank is killed by SIGKILL between 0 and 4 s after the first whole iteration; the run is then resumed
with one iteration more than it has, on both ranks. Prints a Markdown table.

Run: .venv/bin/python benchmarks/rank_kills.py [--kills N] [--seed N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from alarms import configuration, make_workspace

from trainer.config.loading import config_text
from trainer.distributed.hosts import free_port
from trainer.events import Iteration, RunEnded
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal

PATIENCE = 300.0  # seconds; a rank that needs longer hangs
RANKS = 2


def start(folder: Path, arguments: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """Start the ranks as mlx.launch does, but so that each can be killed and waited for."""
    port = free_port(RANKS)
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port + rank}"] for rank in range(RANKS)]))
    command = [sys.executable, "-m", "workbench", "--no-ui", "--display", "json", "--trust-code", *arguments]
    with (folder / "log").open("ab") as log:
        return [
            subprocess.Popen(
                command, env={**os.environ, "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)}, stdout=log, stderr=log
            )
            for rank in range(RANKS)
        ]


def iterations(run: RunFolder) -> list[int]:
    """Return the numbers of the iterations in a run's journal."""
    if not run.events.exists():
        return []
    return [event.iteration for event in read_journal(run.events).events if isinstance(event, Iteration)]


def kill(folder: Path, name: str, rank: int, moment: float) -> str:
    """Start a run, kill `rank` `moment` seconds after its first iteration, resume it; return a row of the table."""
    run = RunFolder(folder / "runs" / name)
    processes = start(folder, ["--config", str(folder / "config.toml"), "--name", name])
    try:
        end = time.monotonic() + PATIENCE
        while not iterations(run):
            if time.monotonic() > end or processes[0].poll() is not None:
                raise SystemExit(f"the run did not begin:\n{(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        time.sleep(moment)
        processes[rank].kill()
        killed = time.monotonic()
        code = processes[1 - rank].wait(PATIENCE)
        seconds = time.monotonic() - killed
        done = iterations(run)[-1]
        resumed = start(folder, ["--resume", str(run.root), "--set", f"ppo.iterations={done + 1}"])
        processes += resumed
        codes = [process.wait(PATIENCE) for process in resumed]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    ended = [event for event in read_journal(run.events).events if isinstance(event, RunEnded)]
    numbers = iterations(run)
    whole = sorted(set(numbers)) == list(range(1, done + 2))
    fine = codes == [0] * RANKS and ended[-1].state == "done" and whole
    return f"| {rank} | {moment:.1f} | {done} | {seconds:.1f} | {code} | {'yes' if fine else f'no: {codes}'} |"


def main() -> None:
    """Kill a rank as often as asked, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_workspace(folder)
        settings = {"ppo.iterations": 10_000, "rollout.batch_size": 16, "checkpoint.every": 3, "eval.every": 4}
        (folder / "config.toml").write_text(config_text(configuration(folder, settings), ""))
        for number in range(options.kills):
            rows.append(kill(folder, f"kill-{number}", number % RANKS, draw.uniform(0.0, 4.0)))
            print(rows[-1], file=sys.stderr)
    print(
        "| killed rank | s after the first iteration | iterations done | s until the other ended | its exit code "
        "| resumed and finished |\n|---|---|---|---|---|---|"
    )
    print("\n".join(rows))


if __name__ == "__main__":
    main()
