"""What keeping the samples costs a training run: the likeliest tokens at each place, and writing the file.

Trains the quickstart on the starter model. Both parts are timed where they happen, the arrays evaluated on the spot, so
the figures are rather too high; the first iteration, which imports pyarrow, is told apart.
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
from trainer.session import artifacts
from trainer.session.training import train


class Clock:
    """Seconds spent in some functions, by iteration."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.iterations: list[tuple[float, float]] = []  # seconds of keeping, seconds of the iteration itself

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, its result evaluated and its time added up."""
        import mlx.core as mx

        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            mx.eval([arg for arg in args if isinstance(arg, mx.array)])  # what it is given is not its own work
            began = time.perf_counter()
            result = function(*args, **kwargs)
            if isinstance(result, mx.array):
                mx.eval(result)
            self.spent += time.perf_counter() - began
            return result

        return wrapped

    def emit(self, event: Event) -> None:
        """Close the account of an iteration."""
        if isinstance(event, Iteration):  # comes after the samples were written
            self.iterations.append((self.spent, sum(event.seconds.values())))
            self.spent = 0.0

    def close(self) -> None:
        """Nothing to release."""


def main() -> None:
    """Train, print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=6, help="of the run (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the configuration")
    arguments = parser.parse_args()
    clock = Clock()
    for module, name in ((steps, "likeliest_tokens"), (steps, "logprobs_of"), (artifacts, "write_samples")):
        setattr(module, name, clock.timed(getattr(module, name)))
    artifacts.sample_rows = clock.timed(artifacts.sample_rows)
    with tempfile.TemporaryDirectory(prefix="bench-saving-") as folder:
        given = [f"run.dir={folder}", f"ppo.iterations={arguments.iterations}", "checkpoint.every=0", *arguments.set]
        train(load_config("quickstart", parse_overrides(given)), sinks=[clock])
        sizes = [path.stat().st_size for path in Path(folder).rglob("*.parquet")]
    for number, (keeping, iteration) in enumerate(clock.iterations, start=1):
        print(f"iteration {number}: {1000 * keeping:6.0f} ms of {iteration:5.2f} s   {keeping / iteration:.2%}")
    later = clock.iterations[1:] or clock.iterations
    share = median(keeping / iteration for keeping, iteration in later)
    print(f"median after the first: {share:.2%} (mark: 1 %), {median(sizes) / 1000:.0f} kB a file")


if __name__ == "__main__":
    main()
