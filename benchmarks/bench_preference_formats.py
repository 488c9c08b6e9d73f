"""Measure import and export of pairs: 100,000 of about 1,200 characters each must take under 30 s either way.

The pairs are random words with lengths like those of HH-RLHF, and have the provenance that the store keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from trainer.preferences.formats import FORMATS_OUT, read_preferences, write_preferences
from trainer.preferences.store import PreferenceStore

LIMIT = 30.0  # seconds
WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "you",
    "that",
    "it",
    "he",
    "was",
    "for",
    "on",
    "are",
    "as",
    "with",
    "his",
)


def main() -> None:
    """Make the pairs, time every import and export, and print the seconds; exit with 1 if one takes too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100_000, help="number of pairs (default: %(default)s)")
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory(prefix="bench-preference-formats-") as folder:
        slow = bench(Path(folder), pairs)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)
    print(f"peak memory {memory:.1f} GB, load {os.getloadavg()[0]:.1f}")
    sys.exit(1 if slow else 0)


def bench(folder: Path, pairs: int) -> list[str]:
    """Print the seconds of every import and export; return the names of those that take longer than LIMIT."""
    source = folder / "pairs.jsonl"
    with source.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in transcripts(pairs))
    print(f"{pairs} pairs, {source.stat().st_size / 1e6:.0f} MB")
    slow = []

    def report(name: str, began: float) -> None:
        seconds = time.perf_counter() - began
        print(f"{name:<38}{seconds:8.2f} s")
        if seconds > LIMIT:
            slow.append(name)

    with PreferenceStore(folder / "preferences.db") as store:
        began = time.perf_counter()
        store.add_many(list(read_preferences(str(source))), source=source.name)
        report("import of hh into the store", began)
        for name, format in FORMATS_OUT.items():
            for suffix in format.suffixes:
                target = folder / f"{name}{suffix}"
                began = time.perf_counter()
                write_preferences(store.preferences(), target, format=name, provenance=True)
                report(f"export of {name} to {suffix}", began)
                if not name.startswith("kto"):
                    began = time.perf_counter()
                    assert sum(1 for _ in read_preferences(str(target))) == pairs
                    report(f"reading {name} from {suffix}", began)
                target.unlink()
    return slow


def transcripts(count: int) -> Iterator[dict[str, str]]:
    """Yield `count` pairs of transcripts with two turns each."""
    draw = random.Random(0)

    def words(least: int, most: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))

    for number in range(count):
        prompt = (
            f"\n\nHuman: {number} {words(5, 40)}\n\nAssistant: {words(10, 60)}\n\nHuman: {words(5, 40)}\n\nAssistant: "
        )
        yield {"chosen": prompt + words(10, 80), "rejected": prompt + words(10, 80) + "."}


if __name__ == "__main__":
    main()
