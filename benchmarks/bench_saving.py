"""Measure what saving samples costs a training run: the likeliest tokens at each position, and writing the file.

Trains the quickstart on the starter model. Both parts are timed during the run, with their arrays evaluated at once, so
the figures are slightly too high. The first iteration, which imports pyarrow, is reported separately.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx
from trainer.config import load_config, parse_overrides
from trainer.events import Event, Iteration
from trainer.ppo import steps
from trainer.ppo_run import artifacts
from trainer.ppo_run.training import train


class Clock:
    """Sink that sums the seconds spent in the timed functions, per iteration."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.iterations: list[tuple[float, float]] = []  # seconds of saving, seconds of the iteration

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` wrapped: its result is evaluated at once and its time added to `spent`."""
        import mlx.core as mx

        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            mx.eval([arg for arg in args if isinstance(arg, mx.array)])  # computing the arguments is not its work
            began = time.perf_counter()
            result = function(*args, **kwargs)
            if isinstance(result, mx.array):
                mx.eval(result)
            self.spent += time.perf_counter() - began
            return result

        return wrapped

    def emit(self, event: Event) -> None:
        """Record the times of an iteration when it ends."""
        if isinstance(event, Iteration):  # emitted after the samples are written
            self.iterations.append((self.spent, sum(event.seconds.values())))
            self.spent = 0.0

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def main() -> None:
    """Train, then print the share of each iteration spent on saving."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=6, help="iterations of the run (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="setting of the configuration")
    arguments = parser.parse_args()
    clock = Clock()
    for module, name in ((steps, "likeliest_tokens"), (steps, "logprobs_of"), (artifacts, "write_samples")):
        setattr(module, name, clock.timed(getattr(module, name)))
    artifacts.sample_rows = clock.timed(artifacts.sample_rows)
    with tempfile.TemporaryDirectory(prefix="bench-saving-") as folder:
        given = [f"run.dir={folder}", f"ppo.iterations={arguments.iterations}", "checkpoint.every=0", *arguments.set]
        train(load_config("quickstart", parse_overrides(given)), sinks=[clock])
        sizes = [path.stat().st_size for path in Path(folder).rglob("*.parquet")]
    for number, (saving, iteration) in enumerate(clock.iterations, start=1):
        print(f"iteration {number}: {1000 * saving:6.0f} ms of {iteration:5.2f} s   {saving / iteration:.2%}")
    later = clock.iterations[1:] or clock.iterations
    share = median(saving / iteration for saving, iteration in later)
    print(f"median after the first: {share:.2%} (target: 1%), {median(sizes) / 1000:.0f} kB per file")


if __name__ == "__main__":
    main()
