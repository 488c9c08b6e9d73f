"""Train 200 short iterations with ever new lengths and say whether memory goes on growing.

Run: .venv/bin/python benchmarks/bench_peaks.py [--iterations 200] [--grad-checkpoint]

The model is a llama of two blocks with random weights and a vocabulary of 49,152. Prompts have 1 to 60 tokens, and
about one token in 24 ends a response, so hardly two batches have the same shape. Each iteration records MLX's peak,
what MLX holds and caches after it, what malloc has given out after it (MLX's arrays and all others), and the resident
memory of the process. Exits with 1 if the median of one of these over the last quarter is above that of the quarter
before by more than 2% and 1 MB. MLX's peak does not count, as it depends on the lengths in a batch.
"""

from __future__ import annotations

import argparse
import ctypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import NamedTuple

from bench_memory import decoder
from memory_runs import FirstToken, new_backbone

# isort: split
import mlx.core as mx
import numpy as np

from trainer.config.loading import load_config, parse_overrides
from trainer.data import Prompt
from trainer.models.actor_critic import ActorCriticLLM
from trainer.ppo.loop import PPO
from trainer.rewards import Rewards, WeightedSource

MODEL = decoder("llama", 128, 256, 2, 4, 2, 49_152)
ENDS = frozenset(range(7, 49_152, 24))
LONGEST_PROMPT = 60
ROWS = 4
EVERY = 20  # iterations of a line of the table
JUDGED = ("active", "cached", "allocated", "resident")
MARGIN, LEAST = 1.02, 1e6
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory(NamedTuple):
    """Bytes of an iteration."""

    peak: float  # MLX's
    active: float  # after it
    cached: float  # after it
    allocated: float  # by malloc, after it
    resident: float  # of the process, after it


def main() -> int:
    """Train, print the curve and what it says, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--grad-checkpoint", action="store_true", help="with optim.grad_checkpoint")
    options = parser.parse_args()
    found, shapes = [], set()
    for memory, shape in iterations(options.iterations, grad_checkpoint=options.grad_checkpoint):
        found.append(memory)
        shapes.add(shape)
    print(f"{len(shapes)} shapes of a batch in {len(found)} iterations. Medians in MB:\n")
    print(f"| iterations | {' | '.join(Memory._fields)} |\n|---|{'---|' * len(Memory._fields)}")
    for start in range(0, len(found), EVERY):
        print(f"| {start + 1} to {min(start + EVERY, len(found))} | {row(found[start : start + EVERY])} |")
    quarter = len(found) // 4
    before, last = medians(found[-2 * quarter : -quarter]), medians(found[-quarter:])
    pairs = {name: (getattr(before, name), getattr(last, name)) for name in JUDGED}
    grown = [name for name, (old, new) in pairs.items() if new > max(MARGIN * old, old + LEAST)]
    print(f"\nlast {quarter} iterations against the {quarter} before:", end=" ")
    print(f"{' and '.join(grown)} grew" if grown else "nothing grew")
    return 1 if grown else 0


def iterations(count: int, *, grad_checkpoint: bool) -> Iterator[tuple[Memory, tuple[int, ...]]]:
    """Train `count` iterations; yield memory and the shape of the batch of each."""
    settings = (
        f"rollout.batch_size={ROWS}",
        "rollout.max_new_tokens=64",
        "rollout.slots=3",  # so that rows join and leave the batch
        "ppo.epochs=1",
        "ppo.minibatches=2",
        "optim.micro_batch_tokens=256",
        "model.dtype=float32",
        f"optim.grad_checkpoint={str(grad_checkpoint).lower()}",
    )
    config = load_config("quickstart", parse_overrides(settings))
    actor = ActorCriticLLM(new_backbone(MODEL, config.model), config.model, key=mx.random.key(0))
    tokenizer = SimpleNamespace(eos_token_ids=ENDS, decode=lambda ids, **_: " ".join(map(str, ids)))
    ppo = PPO(config, actor, tokenizer, prompts(ROWS * count), Rewards([WeightedSource(FirstToken())]))
    for number in range(1, count + 1):
        metrics = ppo.iteration(number)
        of_mlx = metrics.metrics.memory_bytes, mx.get_active_memory(), mx.get_cache_memory()
        yield Memory(*of_mlx, allocated(), resident()), metrics.batch.sequences.shape


def prompts(count: int) -> list[Prompt]:
    """Return random prompts of random lengths."""
    draws = np.random.default_rng(0)
    lengths = draws.integers(1, LONGEST_PROMPT + 1, count)
    return [
        Prompt(place, "", "", draws.integers(0, 49_152, length).tolist(), {}) for place, length in enumerate(lengths)
    ]


class _Mallinfo(ctypes.Structure):
    """The structure `mallinfo2` of glibc's malloc.h, which has ten sizes."""

    _fields_ = (("sizes", ctypes.c_size_t * 10),)


_HBLKHD, _UORDBLKS = 4, 7  # bytes in blocks of their own, and bytes of the heap that are in use
_mallinfo = ctypes.CDLL(None).mallinfo2
_mallinfo.restype = _Mallinfo


def allocated() -> float:
    """Return what malloc has given out and not got back, in bytes. The trainer leaves it one arena."""
    sizes = _mallinfo().sizes
    return float(sizes[_HBLKHD] + sizes[_UORDBLKS])


def resident() -> float:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE


def medians(found: Sequence[Memory]) -> Memory:
    """Return the median of each column."""
    return Memory(*map(median, zip(*found, strict=True)))


def row(found: Sequence[Memory]) -> str:
    """Return the cells of a line of the table."""
    return " | ".join(f"{size / 1e6:,.1f}" for size in medians(found))


if __name__ == "__main__":
    raise SystemExit(main())
