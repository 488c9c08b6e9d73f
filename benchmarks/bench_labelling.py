"""Measure how long a labeller waits for the next item: from the key to its text in the terminal.

Run: .venv/bin/python benchmarks/bench_labelling.py [--keys 500] [--items 10000] [--training]

The Label pane runs on a store on disk, in a pseudo-terminal of 120 x 36. Keys are pressed at the beginning and at the
end of a session of `--items` pairs, first on an otherwise idle machine, then with a busy loop on each core, at the same
priority. The next item counts as shown once its prompt, which contains its number, is in the terminal.
With --training: in the whole workbench instead, while the quickstart trains in the same process on every core.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

from bench_screen import ROOT, Terminal, terminal, workbench
from textual.app import App, ComposeResult

sys.path.insert(0, str(ROOT))

from trainer.preferences.records import Comparison, Item, Judgement, QueuePlan, SessionPlan
from trainer.preferences.sessions import begin_session, open_session
from trainer.preferences.store import PreferenceStore
from workbench.kit.footer import KeyFooter
from workbench.kit.theming import ALL_STYLES, EXTRA_VARIABLES
from workbench.labelling.pane import LabelPane
from workbench.labelling.session_worker import SessionWorker

KEYS = "1122=0 "
F3, F5 = "\x1bOR", "\x1b[15~"
WORDS = ("the", "wind", "turned", "a", "page", "of", "her", "letter", "and", "left", "it", "open")


class Host(App[None]):
    """Application with only the Label pane and the footer."""

    CSS_PATH = ALL_STYLES

    def __init__(self, path: Path, session: int) -> None:
        super().__init__()
        self.animation_level = "none"
        self._worker = SessionWorker(path)
        self._state = self._worker.resume(session).result()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return the variables that the stylesheets use."""
        return EXTRA_VARIABLES

    def compose(self) -> ComposeResult:
        """Yield the pane and the footer."""
        yield LabelPane(Mock(), id="label")
        yield KeyFooter()

    def on_mount(self) -> None:
        """Show the session."""
        self.query_one(LabelPane).begin(self._worker, self._state)

    def on_unmount(self) -> None:
        """Close the store."""
        self._worker.close()


def write_session(path: Path, count: int) -> int:
    """Write a session of `count` pairs of 120-word completions to a new store, and return its id."""
    rng = random.Random(0)
    items = []
    for number in range(count):
        texts = tuple(" ".join(rng.choices(WORDS, k=120)) for _ in range(2))
        comparison = Comparison(prompt=f"{marker(number)} {' '.join(rng.choices(WORDS, k=30))}", completions=texts)
        items.append(Item(comparison=comparison, queue="dataset", order=(0, 1)))
    with PreferenceStore(path) as store:
        session = begin_session(store, "bench", SessionPlan(queues=(QueuePlan(queue="dataset"),)))
        for start in range(0, count, 500):
            session.put(items[start : start + 500])
        return session.record.id


def label_up_to(path: Path, session: int, position: int) -> None:
    """Label all open items before `position`."""
    with PreferenceStore(path) as store:
        labels = open_session(store, session)
        with store.transaction():  # one write to disk for all labels
            while (item := labels.next_open()) is not None and item.position < position:
                labels.label(item, Judgement.chosen("a", order_shown=(0, 1), seconds=5.0))


def marker(number: int) -> str:
    """Return the text that only the prompt of item `number` contains."""
    return f"item-{number:05}."


@contextmanager
def spinning(processes: int) -> Iterator[None]:
    """Run `processes` processes with a busy loop each, inside the block."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def measure(path: Path, session: int, first: int, keys: int) -> list[float]:
    """Return the milliseconds from each of `keys` keys to the next item, from item `first` on, in ascending order."""
    command = [sys.executable, str(Path(__file__).resolve()), "--host", str(path), str(session)]
    with terminal(command, path.parent) as screen:
        screen.wait_for(lambda shown: marker(first).encode() in shown)
        return press(screen, first, keys)


def measure_in_training(path: Path, keys: int) -> list[float]:
    """Return the same from the session's first item on, in a workbench that is training the quickstart."""
    with terminal(workbench("label", "--store", str(path), "--labeller", "bench"), path.parent) as screen:
        screen.wait_for(lambda shown: b"Label into" in shown)
        time.sleep(1.0)
        screen.send("\r")  # resumes the existing session
        screen.wait_for(lambda shown: marker(0).encode() in shown)
        screen.send(F3)
        screen.wait_for(lambda shown: b"Training F3" in shown)
        screen.send(" ")
        screen.wait_for(lambda shown: b"iteration 1/" in shown, 300)
        screen.send(F5)
        screen.wait_for(lambda shown: marker(0).encode() in shown)
        return press(screen, 0, keys)


def press(screen: Terminal, first: int, keys: int) -> list[float]:
    """Press a key on each of `keys` items and return the milliseconds to the next one, in ascending order.

    Item `first` must be on the screen.
    """
    rng = random.Random(first)
    taken = []
    for number in range(first + 1, first + keys + 1):
        time.sleep(rng.uniform(0.02, 0.15))  # random, to hit any stage of other work
        pressed_at = screen.send(rng.choice(KEYS))
        shown_at = screen.wait_for(lambda shown, number=number: marker(number).encode() in shown)
        taken.append(1000 * (shown_at - pressed_at))
    return sorted(taken)


def report(place: str, load: str, taken: list[float]) -> None:
    """Print the median, the 95th percentile and the maximum of sorted milliseconds."""
    figures = [taken[min(int(share * len(taken)), len(taken) - 1)] for share in (0.5, 0.95, 1.0)]
    text = "   ".join(f"{name} {value:5.1f}" for name, value in zip(("p50", "p95", "max"), figures, strict=True))
    print(f"  {place:10} {load:15} {text}", flush=True)


def main() -> None:
    """Measure and print; with --host, run the application that is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=500, help="keys per measurement")
    parser.add_argument("--items", type=int, default=10_000, help="pairs in the session")
    parser.add_argument("--training", action="store_true", help="measure in the whole workbench while it trains")
    parser.add_argument("--host", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host:
        Host(Path(options.host[0]), int(options.host[1])).run()
        return
    keys, items, cores = options.keys, options.items, os.cpu_count() or 1
    if items < 4 * keys + 1:
        parser.error(f"--items {items} must be more than four times --keys {keys}")
    print(f"{keys} keys each, a session of {items:,} pairs; milliseconds from the key to the next item in the terminal")
    with tempfile.TemporaryDirectory(prefix="bench-labelling-") as folder:
        path = Path(folder) / "preferences.db"
        session = write_session(path, items)
        if options.training:
            report("beginning", "training", measure_in_training(path, keys))
            return
        for place, start in (("beginning", 0), ("end", items - 2 * keys - 1)):
            label_up_to(path, session, start)
            for load, processes in (("idle", 0), (f"{cores} cores busy", cores)):
                first = start + (keys if processes else 0)
                with spinning(processes):
                    report(place, load, measure(path, session, first, keys))


if __name__ == "__main__":
    main()
