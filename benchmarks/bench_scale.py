"""Measure what large data cost before the first step: prompts, preferences for a reward model, runs in the list.

Each size runs in a process of its own, so that peaks of memory do not mix. The texts are random words. Prompts are
timed on their first start and on the next, which finds their tokens in the cache.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))

WORDS = ("time", "once", "the", "a", "river", "joyful", "of", "and", "gloomy", "house", "went", "she", "into", "is")
SIZES = {
    "prompts": [1_000, 10_000, 100_000],
    "preferences": [10_000, 100_000, 1_000_000],
    "runs": [10, 100, 1_000],
}
COLUMNS = {
    "prompts": ("read", "first start", "next start"),
    "preferences": ("read and encode", "fingerprint", "one batch"),
    "runs": ("list", "list again"),
}


def main() -> None:
    """Print one table for each kind of data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="what to measure (default: all)")
    parser.add_argument("--largest", type=int, default=10**9, help="leave out larger sizes")
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    for kind in args.kinds or SIZES:
        print(f"\n{kind:>12}" + "".join(f"{name + ' s':>18}" for name in COLUMNS[kind]) + f"{'peak MB':>12}")
        for size in SIZES[kind]:
            if size <= args.largest:
                with tempfile.TemporaryDirectory(prefix="bench-scale-") as folder, spawn.Pool(1) as pool:
                    seconds, peak = pool.apply(measure, (kind, size, folder))
                print(f"{size:>12,}" + "".join(f"{value:>18.2f}" for value in seconds) + f"{peak:>12,.0f}", flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")


def measure(kind: str, size: int, folder: str) -> tuple[list[float], float]:
    """Return the seconds of each column of `kind`, and the peak of resident memory, MB."""
    seconds = [timed(step) for step in STEPS[kind](size, Path(folder))]
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def timed(step: Callable[[], object]) -> float:
    """Return the seconds that `step` takes."""
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def prompts(size: int, folder: Path) -> Iterator[Callable[[], object]]:
    """Yield: reading the file, encoding and splitting the prompts, and the same once more."""
    from trainer.config import load_config
    from trainer.data import load_prompts
    from trainer.ppo_run.prompts import run_prompts

    write(folder / "prompts.jsonl", ({"prompt": words(number, 12)} for number in range(size)))
    config = load_config("quickstart", {"data": {"prompts": str(folder / "prompts.jsonl"), "limit": 0}})
    model, rows = starter(), []
    os.environ["PPO_WORKBENCH_CACHE"] = str(folder / "cache")
    yield lambda: rows.extend(load_prompts(config.data))
    yield lambda: run_prompts(config, rows, model)
    yield lambda: run_prompts(config, rows, model)


def preferences(size: int, folder: Path) -> Iterator[Callable[[], object]]:
    """Yield: reading, encoding and grouping all, their fingerprint, and the arrays of one batch of a step."""
    from trainer.config.reward_model import RewardModelConfig
    from trainer.preference_data.comparisons import load_preferences, reward_comparisons
    from trainer.preference_data.groups import fingerprint
    from trainer.reward_model.reward_learner import to_batch

    path = folder / "pairs.jsonl"
    write(path, (pair(number) for number in range(size)))
    config = RewardModelConfig.model_validate({"data": {"preferences": str(path)}})
    model, found = starter(), []
    yield lambda: found.append(reward_comparisons(load_preferences(config.data)[0], model, config))
    yield lambda: fingerprint([*found[0].train, *found[0].held_out])
    yield lambda: to_batch(found[0].train[:32], config.train)


def runs(size: int, folder: Path) -> Iterator[Callable[[], object]]:
    """Yield: listing runs of 50 iterations each, twice."""
    from long_journal import write_long_journal

    from trainer.config.loading import config_text, load_config
    from trainer.runs.listing import list_runs

    first = folder / "run"
    first.mkdir()
    write_long_journal(first / "events.jsonl", 50)
    (first / "config.toml").write_text(config_text(load_config("quickstart", {})))
    for number in range(size):
        run = folder / "runs" / f"run-{number:04}"
        run.mkdir(parents=True)
        for file in first.iterdir():
            (run / file.name).write_bytes(file.read_bytes())
    yield lambda: list_runs(folder / "runs")
    yield lambda: list_runs(folder / "runs")


STEPS: dict[str, Callable[[int, Path], Iterator[Callable[[], object]]]] = {
    "prompts": prompts,
    "preferences": preferences,
    "runs": runs,
}


def starter() -> Any:
    """Return what is needed of a loaded model: the tokenizer of the starter model, without its weights."""
    from mlx_lm.utils import load_tokenizer

    from trainer.models.starter import starter_model

    folder = starter_model()
    return SimpleNamespace(tokenizer=load_tokenizer(folder), context=8192)


def pair(number: int) -> dict[str, str]:
    """Return a row with a prompt of its own and two completions."""
    return {"prompt": words(number, 12), "chosen": words(number, 24, "chosen"), "rejected": words(number, 24, "other")}


def words(number: int, count: int, *more: object) -> str:
    """Return random words, the same for the same arguments, with the number in front."""
    return " ".join([str(number), *random.Random(f"{number} {count} {more}").choices(WORDS, k=count)])


def write(path: Path, rows: Iterator[dict[str, str]]) -> None:
    """Write `rows` as JSON lines."""
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
