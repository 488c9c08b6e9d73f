"""How long a labeller waits for the next item: from the key to its text in the terminal.

Run: .venv/bin/python benchmarks/bench_labelling.py [--keys 500] [--items 10000] [--training]

The label pane with its desk and a store on disk runs in a pseudo-terminal of 120 x 36. Keys are pressed at the
beginning of a session of `--items` pairs and at its end, on a machine that is idle but for this, and with a process
that spins on each core, at the same priority. The next item is there when its prompt, which has its number, is.
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

from trainer.preferences.items import Item, QueuePlan, SessionPlan
from trainer.preferences.records import Comparison, Judgement
from trainer.preferences.sessions import begin_session, open_session
from trainer.preferences.store import PreferenceStore
from workbench.app import ALL_STYLES
from workbench.kit.key_footer import KeyFooter
from workbench.kit.theming import EXTRA_VARIABLES
from workbench.labelling.pane import LabelActions, LabelPane
from workbench.labelling.session_thread import SessionThread

KEYS = "1122=0 "
F3, F5 = "\x1bOR", "\x1b[15~"
WORDS = ("the", "wind", "turned", "a", "page", "of", "her", "letter", "and", "left", "it", "open")


class Host(App[None]):
    """The pane alone, with the footer."""

    CSS_PATH = ALL_STYLES

    def __init__(self, path: Path, session: int) -> None:
        super().__init__()
        self.animation_level = "none"
        self._desk = SessionThread(path)
        self._state = self._desk.resume(session).result()
        self._desk.exhausted(no_more=True)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """The variables that stylesheets use."""
        return EXTRA_VARIABLES

    def compose(self) -> ComposeResult:
        """The pane and the footer."""
        yield LabelPane(Mock(spec=LabelActions), id="label")
        yield KeyFooter()

    def on_mount(self) -> None:
        """Show the session."""
        self.query_one(LabelPane).begin(self._desk, self._state)

    def on_unmount(self) -> None:
        """Close the store."""
        self._desk.close()


def written(path: Path, count: int) -> int:
    """A session of `count` pairs of 120 words each in a new store; its id."""
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
    """Label all that is open before `position`."""
    with PreferenceStore(path) as store:
        labels = open_session(store, session)
        with store.log.transaction():  # one wait for the disk
            while (one := labels.next_open()) is not None and one.position < position:
                labels.label(one.position, Judgement.chosen("a", order_shown=(0, 1), seconds=5.0))


def marker(number: int) -> str:
    """What tells an item's prompt from all others."""
    return f"item-{number:05}."


@contextmanager
def spinning(processes: int) -> Iterator[None]:
    """So many processes that do nothing but take a core each."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def measure(path: Path, session: int, first: int, keys: int) -> list[float]:
    """Milliseconds from each of `keys` keys to the next item, from the item at `first` on; sorted."""
    command = [sys.executable, str(Path(__file__).resolve()), "--host", str(path), str(session)]
    with terminal(command, path.parent) as screen:
        screen.wait_for(lambda shown: marker(first).encode() in shown)
        return press(screen, first, keys)


def measure_in_training(path: Path, keys: int) -> list[float]:
    """The same from the session's first item on, in the workbench that trains the quickstart."""
    with terminal(workbench("label", "--store", str(path), "--labeller", "bench"), path.parent) as screen:
        screen.wait_for(lambda shown: b"Label into" in shown)
        time.sleep(1.0)
        screen.send("\r")  # goes on with the session that is there
        screen.wait_for(lambda shown: marker(0).encode() in shown)
        screen.send(F3)
        screen.wait_for(lambda shown: b"Training F3" in shown)
        screen.send(" ")
        screen.wait_for(lambda shown: b"iteration 1/" in shown, 300)
        screen.send(F5)
        screen.wait_for(lambda shown: marker(0).encode() in shown)
        return press(screen, 0, keys)


def press(screen: Terminal, first: int, keys: int) -> list[float]:
    """Press a key for each of `keys` items, of which the one numbered `first` is shown."""
    rng = random.Random(first)
    taken = []
    for number in range(first + 1, first + keys + 1):
        time.sleep(rng.uniform(0.02, 0.15))  # at any moment of what else the machine does
        moment = screen.send(rng.choice(KEYS))
        there = screen.wait_for(lambda shown, number=number: marker(number).encode() in shown)
        taken.append(1000 * (there - moment))
    return sorted(taken)


def tell(place: str, load: str, taken: list[float]) -> None:
    """Print the median, the 95th percentile and the longest of sorted milliseconds."""
    figures = [taken[min(int(share * len(taken)), len(taken) - 1)] for share in (0.5, 0.95, 1.0)]
    told = "   ".join(f"{name} {value:5.1f}" for name, value in zip(("p50", "p95", "max"), figures, strict=True))
    print(f"  {place:10} {load:15} {told}", flush=True)


def main() -> None:
    """Measure, or be the program that is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=500, help="keys of each measurement")
    parser.add_argument("--items", type=int, default=10_000, help="pairs of the session")
    parser.add_argument("--training", action="store_true", help="in the whole workbench while it trains")
    parser.add_argument("--host", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host:
        Host(Path(options.host[0]), int(options.host[1])).run()
        return
    keys, items, cores = options.keys, options.items, os.cpu_count() or 1
    if items < 4 * keys + 1:
        parser.error(f"--items {items}: four times --keys {keys} and one more are needed")
    print(f"{keys} keys each, a session of {items:,} pairs; milliseconds from the key to the next item in the terminal")
    with tempfile.TemporaryDirectory(prefix="bench-labelling-") as folder:
        path = Path(folder) / "preferences.db"
        session = written(path, items)
        if options.training:
            tell("beginning", "training", measure_in_training(path, keys))
            return
        for place, start in (("beginning", 0), ("end", items - 2 * keys - 1)):
            label_up_to(path, session, start)
            for load, processes in (("idle", 0), (f"{cores} cores busy", cores)):
                first = start + (keys if processes else 0)
                with spinning(processes):
                    tell(place, load, measure(path, session, first, keys))


if __name__ == "__main__":
    main()
