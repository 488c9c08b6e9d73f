"""Measure browsing samples: opening and searching a long run, and drawing a sequence of 4,096 tokens.

The trainer's own function writes the files, with different prompts, scores and sequences in each. They are in the
system's cache when they are read. The first read imports pyarrow, as on the screen. A sequence is drawn on 120 x 36
with its legend; a frame is painted once its characters are there, at most 60 times a second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import ClassVar

import psutil
from rich.console import RenderableType
from textual.app import App, ComposeResult
from textual.screen import Screen

from trainer.runs.folder import RunFolder
from trainer.runs.samples import kept_iterations, write_samples
from workbench.kit.theming import ALL_STYLES, EXTRA_VARIABLES, apply_themes, shipped_themes
from workbench.run.sample_query import Order, parse_query
from workbench.run.sample_reader import read_batch, read_channel_columns, read_token_sample, scan
from workbench.run.sample_table import SampleKey, SampleTable
from workbench.samples.sample_view import TokenLegend
from workbench.samples.token_text import TokenText

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from token_samples import SETTINGS, sample_row, token_sample

LONG, LENGTH = 4096, "4096 tokens"
POOL = 512  # sequences that batches are drawn from
REPEATS = 20
QUERY = 'joy score>0.2 -text:triumph prompt:"time"'


def main() -> None:
    """Write a run, browse it and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("iterations", 2000), ("batch", 64), ("tokens", 48)):
        parser.add_argument(f"--{name}", type=int, default=default, help="of the run (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-samples-") as root:
        folder, long = RunFolder(Path(root) / "run"), RunFolder(Path(root) / "long")
        for run in (folder, long):
            run.root.mkdir()
        write = partial(write_run, folder, args.iterations, args.batch, args.tokens)
        # Other processes write, so that the first read here includes the import of pyarrow.
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            list(pool.map(write, (0, 1), (2, 2)))
            pool.submit(write_run, long, 1, args.batch, LONG, 0, 1).result()
        size = sum(path.stat().st_size for path in folder.samples.iterdir())
        print(f"{args.iterations} iterations x {args.batch} x {args.tokens} tokens, {size / 1e6:.0f} MB")
        print(f"load {os.getloadavg()[0]:.1f}")
        browse(folder)
        rows = iter(range(0, args.batch * REPEATS, max(args.batch // 4, 1)))
        report("a long sample", lambda: read_token_sample(long, SampleKey(1, next(rows) % args.batch)), LENGTH)
        report("scale of batch", lambda: read_channel_columns(long, 1, ["advantages"]), f"{args.batch} x {LENGTH}")
    asyncio.run(draw_long())


def write_run(folder: RunFolder, iterations: int, batch: int, tokens: int, first: int, step: int) -> None:
    """Write every `step`-th iteration of the run, from number `first` + 1 on."""
    pool = [sample_row(number, tokens) for number in range(min(POOL, iterations * batch))]
    for iteration in range(1 + first, 1 + iterations, step):
        rng = random.Random(iteration)
        rows = [
            rng.choice(pool)
            | {
                "row": row,
                "prompt_index": (prompt := rng.randrange(1000)),
                "prompt": f"Prompt {prompt}: {'once upon a time ' * rng.randrange(1, 5)}",
                "score": rng.gauss(iteration / iterations, 0.5),
                "kl_sum": rng.gauss(5.0, 2.0),
            }
            for row in range(batch)
        ]
        write_samples(folder.samples_file(iteration), rows, iteration, SETTINGS)


def browse(folder: RunFolder) -> None:
    """Open the run in `folder` as the Samples pane does, read all of it and search it."""
    memory, began, newest = psutil.Process().memory_info, time.perf_counter(), kept_iterations(folder)[-1]
    batch = read_batch(folder, newest)
    print(f"opening:        {time.perf_counter() - began:8.3f} s   to the newest of {newest}, {len(batch)} samples")
    report("another batch", lambda: read_batch(folder, newest // 2))

    before = memory().rss
    whole = scan_whole(folder)
    print(f"memory:         {(memory().rss - before) / 1e6:8.0f} MB  resident, more than before")
    order = Order("kl", descending=True)
    chosen = whole.select(parse_query(QUERY), order)
    report("search and sort", lambda: whole.select(parse_query(QUERY), order), f"{len(chosen)} of {len(whole)} samples")
    report("outliers", lambda: whole[:].outliers(), f"{len(whole.outliers())} samples")
    report("a screenful", lambda: list(chosen[:20]), "20 samples")


def scan_whole(folder: RunFolder) -> SampleTable:
    """Read all samples of the run as a search does, and print the time."""
    began, first, parts = time.perf_counter(), 0.0, list[SampleTable]()
    for part in scan(folder, kept_iterations(folder)):
        assert not part.problems
        parts.append(part.table)
        first = first or time.perf_counter() - began
    whole = SampleTable.joined(parts)
    print(f"whole run:      {time.perf_counter() - began:8.3f} s   {len(whole)} samples")
    print(f"first part:     {first:8.3f} s   {len(parts[0])} samples")
    return whole


def report(name: str, work: Callable[[], object], note: str = "") -> None:
    """Call `work` REPEATS times, and print the median and the maximum of its time."""
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    print(f"{name + ':':16}{1e3 * median(seconds):8.1f} ms p50, {1e3 * max(seconds):.1f} ms at most   {note}".rstrip())


class Probe(App[None]):
    """Application with only the token view and its legend."""

    CSS_PATH: ClassVar = ALL_STYLES
    painted = asyncio.Event()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return the variables that the stylesheets use."""
        return EXTRA_VARIABLES

    def compose(self) -> ComposeResult:
        """Yield the text and, below it, its legend."""
        yield (text := TokenText())
        yield TokenLegend(text)

    def on_token_text_channel_changed(self) -> None:
        """Update the legend, as the Samples pane does."""
        self.query_one(TokenLegend).refresh(layout=True)

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        super()._display(screen, renderable)
        self.painted.set()


async def draw_long() -> None:
    """Print how long it takes until the frame of a key is painted: by the clock, and of CPU time."""
    app, taken = Probe(), dict[str, list[tuple[float, float]]]()

    async def painted(name: str, act: Callable[[], object]) -> None:
        await pilot.pause()
        app.painted.clear()
        began, worked = time.perf_counter(), time.process_time()
        act()
        await app.painted.wait()
        taken.setdefault(name, []).append((time.perf_counter() - began, time.process_time() - worked))

    async with app.run_test(size=(120, 36)) as pilot:
        apply_themes(app, shipped_themes())
        app.theme = "workbench"
        text = app.query_one(TokenText)
        text.focus()
        for row in range(REPEATS):
            await painted("show", partial(text.show, token_sample(row=row, length=LONG)))
            for name in ("kl", "entropy", "advantage"):
                await painted("channel", partial(text.action_channel, name))
            for _ in range(5):
                await painted("page", partial(text.action_page, 1))
    for action, times in taken.items():
        clock, cpu = (median(column) for column in zip(*times[len(times) // REPEATS :], strict=True))
        print(f"{action + ':':16}{1e3 * clock:8.1f} ms p50, {1e3 * cpu:.1f} ms of CPU   {LENGTH}")


if __name__ == "__main__":
    main()
