"""Compare the libraries that can multiply matrices for MLX on a Linux CPU, at the shapes of the starter model.

Each library runs in a process of its own, because a process has one for good; they take turns. The products are those
of a training batch (512 tokens), of the head (128 positions) and of decoding (8 and 32 sequences).

Run: .venv/bin/python benchmarks/bench_blas.py [--rounds 3] [--libraries mkl openblas none]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

SHAPES = {  # rows, inputs and outputs of a linear layer
    "attention, 512 tokens": (512, 576, 576),
    "MLP, 512 tokens": (512, 576, 1536),
    "MLP back, 512 tokens": (512, 1536, 576),
    "head, 128 positions": (128, 576, 49152),
    "LoRA, 512 tokens": (512, 576, 8),
    "MLP, 32 sequences": (32, 576, 1536),
    "MLP, 8 sequences": (8, 576, 1536),
}
CALLS = 20


def measure() -> dict[str, float]:
    """Return the fastest of CALLS products of each shape, GFLOP/s."""
    import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

    # isort: split
    import mlx.core as mx

    found = {}
    for name, (rows, inputs, outputs) in SHAPES.items():
        x, weights = mx.random.normal((rows, inputs)), mx.random.normal((outputs, inputs))
        mx.eval(x, weights, x @ weights.T)
        best = float("inf")
        for _ in range(CALLS):
            start = time.perf_counter()
            mx.eval(x @ weights.T)
            best = min(best, time.perf_counter() - start)
        found[name] = 2 * rows * inputs * outputs / best / 1e9
    return found


def main() -> None:
    """Measure the libraries in turns and print the best of each, GFLOP/s."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--libraries", nargs="+", default=["mkl", "openblas"])
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure()))
        return
    best: dict[str, dict[str, float]] = {library: {} for library in options.libraries}
    for _ in range(options.rounds):
        for library, rates in best.items():
            environment = os.environ | {"PPO_WORKBENCH_BLAS": library}
            command = [sys.executable, __file__, "--child"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            for name, rate in json.loads(done.stdout).items():
                rates[name] = max(rate, rates.get(name, 0))
    print("| product, GFLOP/s | " + " | ".join(best) + " |\n|---|" + "---|" * len(best))
    for name in SHAPES:
        print(f"| {name} | " + " | ".join(f"{rates[name]:.0f}" for rates in best.values()) + " |")


if __name__ == "__main__":
    main()
