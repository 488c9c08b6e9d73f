"""Measure a preference store of 100,000 pairs: the time to fill, read, count and check it, and to add one label."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

from trainer.preferences.store import Added, PreferenceStore

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from preferences_helper import preference, preferences

Result = TypeVar("Result")
LABELS = 200  # added one at a time, each on disk before the next


def main() -> None:
    """Fill a store, use it and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100_000, help="pairs in the store (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="folder for the store (default: the system's temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-preferences-", dir=args.folder) as folder:
        bench_store(Path(folder) / "preferences.db", args.pairs)


def bench_store(path: Path, pairs: int) -> None:
    """Fill the store at `path` with `pairs` pairs, read it and add labels to it."""
    given = list(preferences(pairs))
    print(f"preferences: {pairs} pairs of about {len(given[0].comparison.completions[0])} characters each, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}")
    with PreferenceStore(path) as store:
        assert timed("add_many", lambda: store.add_many(given, source="file")) == Added(pairs, 0)
        print(f"{'':16}{path.stat().st_size / 1e6:8.0f} MB")
        assert timed("duplicates", lambda: store.add_many(given, source="file")) == Added(0, pairs)
        read = timed("preferences", lambda: sum(1 for _ in store.preferences(with_skips=True)))
        assert read == pairs == timed("counts", store.counts).labels
        assert timed("check", store.check) == []
        seconds = []
        for number in range(LABELS):
            began = time.perf_counter()
            store.add(preference(f"one more {number}"))
            seconds.append(time.perf_counter() - began)
        print(f"{'one label:':16}{1e3 * median(seconds):8.1f} ms p50, {1e3 * max(seconds):.1f} ms at most   on disk")


def timed(name: str, work: Callable[[], Result]) -> Result:
    """Call `work`, print how long it takes, and return its result."""
    began = time.perf_counter()
    result = work()
    print(f"{name + ':':16}{time.perf_counter() - began:8.2f} s")
    return result


if __name__ == "__main__":
    main()
