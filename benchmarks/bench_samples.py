"""Measure browsing a long run's samples: opening the newest batch, reading all, a search, a sequence of 4,096 tokens.

The trainer's own function writes the files, with different prompts, scores and sequences in each. They are in the
system's cache when they are read. The first read imports pyarrow, as on the screen.
"""

from __future__ import annotations

import argparse
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

import psutil

from trainer.runs.folder import RunFolder
from trainer.runs.sample_index import update_index
from trainer.runs.samples import kept_iterations, write_samples
from workbench.run.sample_query import Order, parse_query
from workbench.run.sample_reader import read_batch, read_channel_columns, read_token_sample, scan
from workbench.run.sample_table import SampleKey, SampleTable

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from token_samples import SETTINGS, sample_row

LONG = 4096  # tokens
POOL = 512  # sequences that batches are drawn from
REPEATS = 20
QUERY = 'joy score>0.2 -text:triumph prompt:"time"'


def main() -> None:
    """Write a run, browse it and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=2000, help="iterations of the run (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="samples per iteration (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=48, help="tokens per sample (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-samples-") as root:
        folder, long = RunFolder(Path(root) / "run"), RunFolder(Path(root) / "long")
        folder.root.mkdir()
        long.root.mkdir()
        write = partial(write_run, folder, args.iterations, args.batch, args.tokens)
        # Other processes write, so that the first read here includes the import of pyarrow.
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            list(pool.map(write, (0, 1), (2, 2)))
            pool.submit(write_run, long, 1, args.batch, LONG, 0, 1).result()
        size = sum(path.stat().st_size for path in folder.samples.iterdir())
        print(
            f"samples: {args.iterations} iterations x {args.batch} x {args.tokens} tokens, {size / 1e6:.0f} MB, "
            f"load {os.getloadavg()[0]:.1f}"
        )
        browse(folder)
        open_long(long, args.batch)


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
    memory = psutil.Process().memory_info
    began = time.perf_counter()
    newest = kept_iterations(folder)[-1]
    batch = read_batch(folder, newest)
    print(f"opening:        {time.perf_counter() - began:8.3f} s   to the newest of {newest}, {len(batch)} samples")
    report("another batch", lambda: read_batch(folder, newest // 2))

    scan_whole(folder, "from every file")
    for iteration in kept_iterations(folder):  # as the trainer does after each iteration
        update_index(folder.samples, iteration)
    before = memory().rss
    whole = scan_whole(folder, "from the index")
    import pyarrow as pa  # imported by the reader already

    rss = (memory().rss - before) / 1e6
    print(f"memory:         {pa.total_allocated_bytes() / 1e6:8.0f} MB  in Arrow, +{rss:.0f} MB resident")
    order = Order("kl", descending=True)
    chosen = whole.select(parse_query(QUERY), order)
    report("search and sort", lambda: whole.select(parse_query(QUERY), order), f"{len(chosen)} of {len(whole)} samples")
    report("sort", lambda: whole.select(parse_query(""), Order("score")))
    report("outliers", lambda: whole[:].outliers(), f"{len(whole.outliers())} samples")
    report("a screenful", lambda: list(chosen[:20]), "20 samples")


def scan_whole(folder: RunFolder, source: str) -> SampleTable:
    """Read all samples of the run as a search does, print the time and return them."""
    began = time.perf_counter()
    parts: list[SampleTable] = []
    calls = [began]
    for part in scan(folder, kept_iterations(folder)):
        assert not part.problems
        parts.append(part.table)
        calls.append(time.perf_counter())
    whole = SampleTable.joined(parts)
    took, first = calls[-1] - began, f"the first {len(parts[0])} in {calls[1] - began:.3f} s"
    print(f"whole run:      {took:8.3f} s   {len(whole)} samples, {first}, {source}")
    return whole


def open_long(folder: RunFolder, batch: int) -> None:
    """Time reading single samples of 4,096 tokens, spread over a batch, and one channel of the whole batch."""
    rows = iter(range(0, batch * REPEATS, max(batch // 4, 1)))
    length = f"{LONG} tokens, in a batch of {batch}"
    report("a long sample", lambda: read_token_sample(folder, SampleKey(1, next(rows) % batch)), length)
    report("scale of batch", lambda: read_channel_columns(folder, 1, ["advantages"]), f"of {batch * LONG} tokens")


def report(name: str, work: Callable[[], object], note: str = "") -> None:
    """Call `work` REPEATS times, and print the median and the maximum of its time."""
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    print(f"{name + ':':16}{1e3 * median(seconds):8.1f} ms p50, {1e3 * max(seconds):.1f} ms at most   {note}".rstrip())


if __name__ == "__main__":
    main()
