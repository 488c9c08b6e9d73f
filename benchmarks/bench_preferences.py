"""What a preference store of 100,000 pairs takes: to fill, to read, to count, to check, and to keep one label more."""

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
LABELS = 200  # made one by one, each on disk before the next


def main() -> None:
    """Fill a store, use it, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100_000, help="in the store (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the store is made (default: the system's temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-preferences-", dir=args.folder) as folder:
        bench_store(Path(folder) / "preferences.db", args.pairs)


def bench_store(path: Path, pairs: int) -> None:
    """Fill the store `path` with so many pairs, read it and label on in it."""
    given = list(preferences(pairs))
    print(f"preferences: {pairs} pairs of {len(given[0].comparison.completions[0])} characters or so each, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}")
    with PreferenceStore(path) as store:
        assert tell("add_many", lambda: store.add_many(given, source="file")) == Added(pairs, 0)
        print(f"{'':16}{path.stat().st_size / 1e6:8.0f} MB")
        assert tell("the same again", lambda: store.add_many(given, source="file")) == Added(0, pairs)
        read = tell("preferences", lambda: sum(1 for _ in store.preferences(with_skips=True)))
        assert read == pairs == tell("counts", store.counts).labels
        assert tell("check", store.check) == []
        seconds = []
        for number in range(LABELS):
            began = time.perf_counter()
            store.add(preference(f"one more {number}"))
            seconds.append(time.perf_counter() - began)
        print(f"{'one label:':16}{1e3 * median(seconds):8.1f} ms p50, {1e3 * max(seconds):.1f} ms at most   on disk")


def tell(name: str, work: Callable[[], Result]) -> Result:
    """Print how long `work` takes; returns what it gives."""
    began = time.perf_counter()
    result = work()
    print(f"{name + ':':16}{time.perf_counter() - began:8.2f} s")
    return result


if __name__ == "__main__":
    main()
