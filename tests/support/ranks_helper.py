"""Runs on several ranks of this machine: their processes, started as mlx.launch starts them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_HURT = """
import sys
from unittest.mock import patch
{patch}
from workbench.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
PATIENCE = 300.0  # seconds; a test that waits longer has failed


class Ended(NamedTuple):
    """How a rank's process ended."""

    code: int
    out: str
    err: str


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody listens on, and that the system does not give to other connections."""
    ports: set[int] = set()
    draw = random.SystemRandom()
    while len(ports) < count:
        port = draw.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            ports.add(port)
    return list(ports)


@contextmanager
def started(folder: Path, commands: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a rank for each of `commands`, which are arguments of Python; end those that still run after the block."""
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(len(commands))]))
    processes = []
    for rank, command in enumerate(commands):
        environment = {**os.environ, "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)}
        out, err = (folder / f"{name}-{rank}" for name in ("out", "err"))
        with out.open("w") as stdout, err.open("w") as stderr:
            processes.append(
                subprocess.Popen([sys.executable, *command], env=environment, stdout=stdout, stderr=stderr, text=True)
            )
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def ended(folder: Path, processes: Sequence[subprocess.Popen[str]], patience: float = PATIENCE) -> list[Ended]:
    """Wait until every rank has ended by itself."""
    return [
        Ended(process.wait(patience), (folder / f"out-{rank}").read_text(), (folder / f"err-{rank}").read_text())
        for rank, process in enumerate(processes)
    ]


def run_ranks(folder: Path, count: int, *arguments: str) -> list[Ended]:
    """Run `ppo-workbench --no-ui` on some ranks to the end."""
    command = ["-m", "workbench", "--no-ui", "--display", "json", "--trust-code", *arguments]
    with started(folder, [command] * count) as processes:
        return ended(folder, processes)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds. It polls, because another process's files announce no change."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def hurt(folder: Path, patch: str) -> str:
    """Write `ppo-workbench` with `patch` applied, as a program in `folder`; return its path."""
    program = folder / "hurt.py"
    program.write_text(_HURT.format(patch=patch))
    return str(program)


ROUNDING = 1e-4
"""Largest difference between a few iterations of PPO whose sums were added in another order.

In float32, log-probs of about -10 nats then differ in their seventh digit; a KL is a sum of their differences, and Adam
enlarges what gradients near its epsilon differ by: up to 4e-5 on some processors and 1e-5 on others. A mistake stands
out: with the gradients of one rank 0.1% too large, the third iteration draws other tokens and differs by more than 1.
"""


def largest_difference(one: Any, other: Any) -> float:
    """Return the largest difference of two trees' floats, relative where they are above 1; inf where others differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return float("inf") if one.keys() != other.keys() else largest_difference([*one.values()], [*other.values()])
    if isinstance(one, list) and isinstance(other, list):
        pairs = zip(one, other, strict=False)
        return float("inf") if len(one) != len(other) else max((largest_difference(*p) for p in pairs), default=0.0)
    if isinstance(one, float) and isinstance(other, float):
        return 0.0 if np.isnan(one) and np.isnan(other) else abs(one - other) / max(1.0, abs(one))
    return 0.0 if one == other else float("inf")
