"""Measure what the screen costs: its first frame, a key while training uses every core, an iteration, memory.

Run: .venv/bin/python benchmarks/bench_screen.py [first-frame] [keys] [iteration] [memory]

The workbench runs in a pseudo-terminal of 120 x 36, as for a user. `first-frame` alternates with an empty Textual
application, `iteration` with --no-ui on the same configuration; `memory` runs a scripted trainer.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import pty
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIZE = (36, 120)  # lines, columns
PARTS = ("first-frame", "keys", "iteration", "memory")
EMPTY = """
from textual.app import App
from textual.widgets import Static
class Empty(App):
    def compose(self):
        yield Static("ready")
Empty().run()
"""
CODES = re.compile(rb"\x1b(\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07]*\x07|[()][0-9A-Z]|[=>])")


class Terminal:
    """Program in a pseudo-terminal, with its keyboard and its output."""

    def __init__(self, command: list[str], folder: Path, **environment: str) -> None:
        self.master, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SSH_", "TEXTUAL"))}
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            cwd=folder,
            env=inherited | {"TERM": "xterm-256color", "COLORTERM": "truecolor"} | environment,
            start_new_session=True,
        )
        os.close(inner)
        self.shown = b""  # output since the last `send`, without colours and cursor movements

    def send(self, keys: str) -> float:
        """Press `keys`, and return the time of `time.perf_counter`."""
        self._read(0)
        self.shown = b""
        moment = time.perf_counter()
        os.write(self.master, keys.encode())
        return moment

    def wait_for(self, condition: Callable[[bytes], bool], seconds: float = 120.0) -> float:
        """Return the time of `time.perf_counter` at which `condition` is true of the output since the last `send`.

        Raises SystemExit after `seconds`.
        """
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self._read(0.5)
            if condition(self.shown):
                return time.perf_counter()
        raise SystemExit(f"timed out after {seconds:.0f} s; last output: {self.shown[-500:]!r}")

    def close(self) -> None:
        """Kill the program and all processes of its session."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.master)

    def _read(self, seconds: float) -> None:
        while select.select([self.master], [], [], seconds)[0]:
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:  # the program has ended
                return
            if b"\x1b[c" in data:  # as a terminal answers
                os.write(self.master, b"\x1b]11;rgb:0000/0000/0000\x1b\\\x1b[?62;22c")
            self.shown += CODES.sub(b"", data)
            seconds = 0
            if not data:
                return


@contextmanager
def terminal(command: list[str], folder: Path, **environment: str) -> Iterator[Terminal]:
    """Run `command` in a pseudo-terminal inside the block."""
    opened = Terminal(command, folder, **environment)
    try:
        yield opened
    finally:
        opened.close()


def workbench(*arguments: str) -> list[str]:
    """Return the command that starts the workbench with `arguments`."""
    return [sys.executable, "-m", "workbench", *arguments]


def start(screen: Terminal) -> None:
    """Start the run of the configuration, and agree to its plan once it can be read."""
    screen.send(" ")
    screen.wait_for(lambda shown: b"Start this run?" in shown)
    time.sleep(0.5)
    screen.send("\r")


def first_frame(options: argparse.Namespace, folder: Path) -> None:
    """Print the seconds from the start of the process to the first frame, alternating with an empty application."""
    taken: dict[str, list[float]] = {"empty Textual app": [], "first frame": [], "dashboard": []}
    for turn in range(options.turns + 1):
        with terminal([sys.executable, "-c", EMPTY], folder) as empty:
            first = empty.wait_for(lambda shown: b"ready" in shown) - empty.started
        with terminal(workbench(), folder) as ours:
            frame = ours.wait_for(lambda shown: b"ppo-workbench" in shown) - ours.started
            dashboard = ours.wait_for(lambda shown: b"Training F3" in shown) - ours.started
        if turn:  # the first is a warm-up
            for values, value in zip(taken.values(), (first, frame, dashboard), strict=True):
                values.append(value)
    base = statistics.median(taken["empty Textual app"])
    print(f"\nfirst frame, {options.turns} turns: median seconds (ratio to the empty application)")
    for name, values in taken.items():
        print(f"  {name:20} {statistics.median(values):6.2f} s   {statistics.median(values) / base:5.2f}")


def keys(options: argparse.Namespace, folder: Path) -> None:
    """Print the milliseconds from a key to its effect on the screen while the quickstart trains on every core.

    The keys are letters typed into the search of the Config pane; the effect is the field that shows them.
    """
    with terminal(workbench("--set", "ppo.iterations=1000"), folder) as screen:
        screen.wait_for(lambda shown: b"Training F3" in shown)
        start(screen)
        screen.wait_for(lambda shown: b"iteration 1/1000" in shown, 300)
        taken = []
        word = b"kl_coefficient"
        while len(taken) < options.keys:
            screen.send("\x1bOQ")  # F2
            time.sleep(0.5)
            screen.send("/")
            time.sleep(0.5)
            for end in range(1, len(word) + 1):
                time.sleep(0.05 + 0.25 * (end * 7 % 10) / 10)  # varied, to hit any stage of the trainer's work
                moment = screen.send(chr(word[end - 1]))
                typed = word[:end]
                taken.append(1000 * (screen.wait_for(lambda shown, typed=typed: typed in shown) - moment))
            screen.send("\x1b")
            time.sleep(0.5)
    taken.sort()
    print(f"\n{len(taken)} keys while training: milliseconds to the effect on the screen")
    for name, share in (("median", 0.5), ("p95", 0.95), ("p99", 0.99)):
        print(f"  {name:8} {taken[min(int(share * len(taken)), len(taken) - 1)]:6.0f}")
    print(f"  {'max':8} {taken[-1]:6.0f}")


def iteration(options: argparse.Namespace, folder: Path) -> None:
    """Print the seconds of an iteration with the screen and with --no-ui, alternating, from the journals."""
    count = options.iterations + 1
    taken: dict[str, list[float]] = {"--no-ui": [], "workbench": []}
    for turn in range(options.rounds):
        for side, times in taken.items():
            name = f"{side.strip('-')}-{turn}"
            settings = ["--set", f"ppo.iterations={count}", "--name", name]
            run = folder / "runs" / name
            if side == "--no-ui":
                command = workbench("--no-ui", "--display", "plain", *settings)
                subprocess.run(command, cwd=folder, check=True, capture_output=True)
            else:
                with terminal(workbench(*settings), folder) as screen:
                    screen.wait_for(lambda shown: b"Training F3" in shown)
                    start(screen)
                    screen.wait_for(lambda shown, run=run: _ended(run), 1200)
            times += _seconds(run)[1:]
    base = statistics.mean(taken["--no-ui"])
    print(f"\nan iteration of the quickstart, {options.rounds} rounds of {options.iterations}: mean seconds")
    for side, times in taken.items():
        print(f"  {side:10} {statistics.mean(times):6.2f} s   {100 * (statistics.mean(times) / base - 1):+5.1f}%")


def _events(run: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    except (OSError, ValueError):
        return []


def _ended(run: Path) -> bool:
    return any(event.get("event") == "end" for event in _events(run))


def _seconds(run: Path) -> list[float]:
    return [sum(event["seconds"].values()) for event in _events(run) if event.get("event") == "iteration"]


def memory(options: argparse.Namespace, folder: Path) -> None:
    """Print the resident memory while a scripted trainer runs 10,000 iterations."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    os.chdir(folder)
    asyncio.run(_run_scripted_trainer())


async def _run_scripted_trainer() -> None:
    import psutil
    import scripted_run
    from workbench_app import start_run, until, workbench

    process = psutil.Process()
    marks = (1000, 2500, 5000, 10_000)

    def play(emit: Callable[..., None], control: Any) -> Any:
        emit(scripted_run.started(iterations=marks[-1]))
        for number in range(1, marks[-1] + 1):
            control.check()
            emit(scripted_run.samples(number, ("Once upon a time", " there was joy.")))
            emit(scripted_run.iteration(number))
            time.sleep(0.002)
        emit(end := scripted_run.ended(iteration=marks[-1]))
        return end

    print("\nresident memory with a scripted trainer")
    async with workbench(play) as (screen, pilot):
        await start_run(pilot)
        for mark in marks:
            await until(pilot, lambda mark=mark: screen.supervisor.view.iteration >= mark)
            print(f"  {mark:6} iterations {process.memory_info().rss / 2**20:8.1f} MiB")


def main() -> None:
    """Run the requested measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="measurements to run (default: all)")
    parser.add_argument("--turns", type=int, default=7, help="starts of each side, after one warm-up")
    parser.add_argument("--keys", type=int, default=200, help="keys to press")
    parser.add_argument("--iterations", type=int, default=5, help="iterations per round, after one warm-up iteration")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each side")
    options = parser.parse_args()
    measures = {"first-frame": first_frame, "keys": keys, "iteration": iteration, "memory": memory}
    for part in options.parts or PARTS:
        with tempfile.TemporaryDirectory(prefix="bench-screen-") as folder:
            measures[part](options, Path(folder))


if __name__ == "__main__":
    main()
