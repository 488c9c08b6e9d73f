"""Check that training is right on this machine's device, and measure its speed against the device's own limits.

Correctness first: sampling against the exact distribution, gradients against float32 on the CPU, the memory that
training takes and returns, and PPO iterations of tiny models of many families. Then tokens per second of generation,
scoring and update for models of 0.6B, 1.7B and 8B parameters with random weights, with their shares of the limits. 4
bits come after all of bfloat16.

Each part runs in a worker process, for a third of `--seconds` at most. What hangs, crashes or comes too late is a
failed check or a row with the reason, and the table of speeds is printed at the end in any case.

Run: .venv/bin/python benchmarks/device_check.py [--only PART ...] [--seconds 480] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
from device_correctness import (
    GRADIENTS,
    family_checks,
    family_gradient_checks,
    gradient_checks,
    memory_checks,
    sampling_checks,
)
from device_models import TRY
from device_speed import SPEED_COLUMNS, Check, Limits, measure_limits, speed, speed_line
from family_values import MUST_TRAIN
from workers import Worker, WorkerError

SHAPES = {  # of Qwen3, in the order in which they are measured: the middle one tells the least
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "8B": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
}
VOCABULARY = 151_936
PARTS = ("limits", "sampling", "gradients", "memory", "families", "speed")


class Job(NamedTuple):
    """Generator of checks and rows that runs in the worker."""

    part: str
    title: str
    function: Callable[..., Iterable[Any]]
    arguments: tuple[Any, ...] = ()


def main() -> None:
    """Run the chosen parts and print their tables; exit with 1 if a check failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--sizes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--types", nargs="+", choices=["float32", "bfloat16", "4-bit"], default=["bfloat16", "4-bit"])
    parser.add_argument(
        "--try",
        dest="small",
        action="store_true",
        help="measure one small model instead of all sizes, to try the script",
    )
    parser.add_argument("--seconds", type=float, default=480, help="time for everything; the rest is not measured")
    parser.add_argument("--json", type=Path, help="file to write all results to")
    options = parser.parse_args()
    started = time.monotonic()
    worker = Worker()
    checks: list[Check] = []
    rows: dict[str, dict[str, Any]] = {}  # of the table of speeds, by title
    found: dict[str, Any] = {}

    def results(job: Job) -> Iterator[Any]:
        left = started + options.seconds - time.monotonic()
        try:
            yield from worker.results(job.function, *job.arguments, seconds=min(left, options.seconds / 3))
        except WorkerError as error:
            if time.monotonic() < started + options.seconds:
                raise
            raise WorkerError(f"the {options.seconds:.0f} s of --seconds are over") from error

    def note(check: Check) -> None:
        checks.append(check)
        verdict = "" if check.holds else "  FAILED"
        print(f"  {check.name:76} {check.value:10.2g} {check.bound:9.2g}{verdict}", flush=True)

    limits = Limits(math.nan, math.nan)
    try:
        found["device"], limits = results(Job("limits", "limits", device_and_limits))
    except WorkerError as error:
        note(Check(f"limits: {error}", math.nan, 0))
    print(f"device: {found.get('device')}\n{platform.platform()}, mlx {mx.__version__}")
    print(f"matrix product {limits.flops / 1e12:.2f} TFLOP/s, copy {limits.bandwidth / 1e9:.0f} GB/s\n", flush=True)
    found["limits"] = limits._asdict()

    shapes = {size: SHAPES[size] for size in SHAPES if size in options.sizes}
    todo = (
        jobs({"try": TRY}, options.types, 8192, limits)
        if options.small
        else jobs(shapes, options.types, VOCABULARY, limits)
    )
    part = ""
    for job in todo:
        if job.part not in options.only:
            continue
        if job.part != part:
            print(f"{job.part:78} {'measured':>10} {'at most':>9}   {time.monotonic() - started:.0f} s", flush=True)
            part = job.part
        try:
            for result in results(job):
                if isinstance(result, Check):
                    note(result)
                else:
                    rows[job.title] = result
        except WorkerError as error:
            if part == "speed":
                size, kind = job.title.split(", ")
                rows[job.title] = rows.get(job.title, {"size": size, "weights": kind}) | {"error": str(error)}
            else:
                note(Check(f"{job.title}: {error}", math.nan, 0))
        found |= {"checks": [check._asdict() for check in checks], "speed": list(rows.values())}
        save(options.json, found)

    if rows:
        print(f"\n| {' | '.join(SPEED_COLUMNS)} |\n|{'---|' * len(SPEED_COLUMNS)}")
        print(*map(speed_line, rows.values()), sep="\n")
    failed = sum(not check.holds for check in checks)
    found["seconds"] = time.monotonic() - started
    print(f"\n{failed} checks failed, {found['seconds']:.0f} s")
    save(options.json, found)
    raise SystemExit(1 if failed else 0)


def jobs(shapes: dict[str, dict[str, int]], types: list[str], vocabulary: int, limits: Limits) -> Iterator[Job]:
    """Yield all jobs, the most important first: what the deadline cuts is at the end."""
    yield Job("sampling", "sampling", sampling_checks)
    yield Job("gradients", "qwen3", gradient_checks)
    for family in GRADIENTS:
        yield Job("gradients", family, family_gradient_checks, (family,))
    yield Job("memory", "memory", memory_checks, (next(iter(shapes.values())), types[0], vocabulary))
    # Kernels for 4 bits may take minutes to compile.
    for kind, families in (("float32", ()), ("bfloat16", MUST_TRAIN), ("4-bit", ("llama", "qwen3_moe"))):
        if kind in types:
            for family in families:
                yield Job("families", f"{family}, {kind}", family_checks, (family, kind))
            for size, shape in shapes.items():
                yield Job("speed", f"{size}, {kind}", speed, (size, shape, kind, vocabulary, limits))


def device_and_limits() -> Iterator[Any]:
    """Yield a description of the device, then its measured limits."""
    on_gpu = mx.default_device() == mx.Device(mx.gpu)
    device = dict(mx.device_info()) if on_gpu else {"device_name": platform.processor()}
    yield {key: str(value) for key, value in device.items()}
    yield measure_limits()


def save(file: Path | None, found: dict[str, Any]) -> None:
    """Write the results so far to `file`, if there is one."""
    if file:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
