"""Train the tasks of the learning tests with different roundings, and print the scores as a Markdown table.

If a product is rounded differently, another token is drawn sooner or later, and from there on two runs differ like two
seeds. So the level that a test asks for must be far below what any of these runs reaches.

Run: .venv/bin/python benchmarks/learning_levels.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path += [str(TESTS / "support"), str(TESTS / "trainer" / "session")]

_CHANGE = 1e-6  # relative change of a weight


class Rounding(NamedTuple):
    """Environment that selects a matrix product; with `changed`, the random weights change in their last bits too."""

    environment: dict[str, str]
    changed: bool = False


ROUNDINGS = {
    "MKL": Rounding({}),
    "MKL, changed weights": Rounding({}, changed=True),
    "MKL's compatible branch": Rounding({"MKL_CBWR": "COMPATIBLE"}),
    "MLX's own product": Rounding({"PPO_WORKBENCH_BLAS": "none"}),
    "MLX's own product, changed weights": Rounding({"PPO_WORKBENCH_BLAS": "none"}, changed=True),
}


def levels(changed: bool) -> Iterator[tuple[str, float]]:
    """Train every task in this process; yield the name and the value of each measure."""
    import test_learning as tasks

    def train(reward: str, *overrides: str) -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            config = tasks.task(Path(folder), reward, *tasks.WIDE, *overrides)
            if changed:
                change_weights(Path(folder) / "model" / "model.safetensors")
            return tasks.scores(config)

    for seed in range(5):
        scores = train("digits", f"run.seed={seed}", "ppo.iterations=24")
        yield "digits: the first score", scores[0]
        yield "digits: mean of the last ten scores", fmean(scores[-10:])
        yield "digits: lowest score after the fifth", min(scores[5:])
    yield "gain by the reward `low`", gain(train("low", "ppo.iterations=16"))
    yield "gain by its negative, `high`", gain(train("high", "ppo.iterations=16"))
    for settings in tasks.ESTIMATORS.values():
        yield "gain by every estimator", gain(train("low", "ppo.iterations=16", *settings))


def gain(scores: list[float]) -> float:
    """Return how far the mean of the last four scores is above that of the first two."""
    return fmean(scores[-4:]) - fmean(scores[:2])


def change_weights(file: Path) -> None:
    """Change every weight in `file` by a relative 1e-6, up or down at random."""
    import mlx.core as mx

    mx.random.seed(0)
    weights = {
        name: array * (1 + _CHANGE * (2 * mx.random.bernoulli(shape=array.shape) - 1))
        for name, array in mx.load(str(file)).items()
    }
    mx.eval(weights)
    mx.save_safetensors(str(file), weights)


def main() -> None:
    """Train in one process per rounding, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", choices=ROUNDINGS, help="train with this rounding only, and print JSON")
    if one := parser.parse_args().one:
        print(json.dumps(list(levels(ROUNDINGS[one].changed))))
        return
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, rounding in ROUNDINGS.items():
        print(f"{name} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as home:
            answer = subprocess.run(
                [sys.executable, __file__, "--one", name],
                env=os.environ | rounding.environment | {"HOME": home, "XDG_STATE_HOME": home},
                stdout=subprocess.PIPE,
                check=True,
            ).stdout
        for measure, value in json.loads(answer.splitlines()[-1]):
            found[measure][name].append(value)
    print(f"| | {' | '.join(ROUNDINGS)} |")
    print("|---|" + "---|" * len(ROUNDINGS))
    for measure, by_rounding in found.items():
        print(f"| {measure} | {' | '.join(spread(by_rounding[name]) for name in ROUNDINGS)} |")


def spread(values: list[float]) -> str:
    """Return the lowest and the highest value as text."""
    return f"{min(values):.2f}" if len(values) == 1 else f"{min(values):.2f} to {max(values):.2f}"


if __name__ == "__main__":
    main()
