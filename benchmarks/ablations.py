"""Train PPO with one setting changed at a time on the task of frontier.py, and print what each change is worth.

On seeds that no reported run uses. Differences are paired by seed. Most variants of PPO change one setting of "slower,
prefix scores", so that is what to compare them with (--against).
Each run leaves a journal in benchmarks/frontier/ablations/.

Run: .venv/bin/python benchmarks/ablations.py [--seeds 10 11 12] [--variants NAME ...] [--jobs 2]
     .venv/bin/python benchmarks/ablations.py --table
"""

from __future__ import annotations

import argparse
import math
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, Self

import numpy as np
from frontier import (
    ITERATIONS,
    JOURNALS,
    LEVELS,
    STRETCH,
    Rows,
    best_within,
    journal,
    read_journal,
    train_ours,
    write_journal,
)
from train_runs import WORKBENCH
from workload import HERE

from trainer.confidence import t_quantile
from workbench.system.children import with_share_of_cores

BASE = "base"
COMMON = ("ppo.kl_coef=0.02",)
EXACT = ("ppo.kl_in=loss", "ppo.kl_estimator=full", "ppo.kl_coef=0.3")  # of whitened advantages
PREFIX = ("ppo.prefix_scores=1", "ppo.lam=0.7")
GRPO = ("ppo.estimator=grpo", "ppo.kl_in=loss", "ppo.kl_estimator=k3", "ppo.whiten_advantages=false")
SLOWER = ("optim.policy_lr=1e-4",)
BEST = (*SLOWER, *PREFIX)
LINEAR = ("optim.schedule=linear",)
LARGER = ("rollout.batch_size=16", f"ppo.iterations={ITERATIONS // 2}")  # as many sequences
RAW = ("ppo.whiten_advantages=false",)
CRITICS = {  # of critic_trials.py, on top of BEST
    "four more epochs of the critic": "more_epochs",
    "replay of four batches for the critic": "replay",
    "head with a hidden layer": "deeper_head",
    "head that begins at random": "random_head",
    "head on block 20 of 30": "middle_block",
    "no gradient of the critic in the trunk": "detached_head",
}
VARIANTS: dict[str, dict[str, tuple[str, ...]]] = {
    "ppo": {
        BASE: (),
        "slower": SLOWER,
        "slower, prefix scores": BEST,
        "slower, exact KL": (*SLOWER, *EXACT),
        "all three": (*SLOWER, *PREFIX, *EXACT),
        "prefix scores, exact KL": (*PREFIX, *EXACT),
        "all three, rate 5e-5": (*PREFIX, *EXACT, "optim.policy_lr=5e-5"),
        "all three, lambda 0.4": (*SLOWER, *PREFIX, *EXACT, "ppo.lam=0.4"),
        "all three, lambda 0.95": (*SLOWER, *PREFIX, *EXACT, "ppo.lam=0.95"),
        "lambda 0.95": (*BEST, "ppo.lam=0.95"),
        "lambda 1": (*BEST, "ppo.lam=1"),
        "lambda 0.4": (*BEST, "ppo.lam=0.4"),
        "gamma 0.95": (*BEST, "ppo.gamma=0.95"),
        "critic with an adapter": (*BEST, "model.value_model=adapter"),
        "one epoch": (*BEST, "ppo.epochs=1"),
        "four epochs": (*BEST, "ppo.epochs=4"),
        "advantages not whitened": (*BEST, *RAW),
        "linear schedule": (*BEST, *LINEAR),
        "values not clipped": (*BEST, "ppo.relative_value_clip=0"),
        "critic's rate 1e-3": (*BEST, "optim.value_lr=1e-3"),
        "critic's warm-up of 3": (*BEST, "ppo.critic_warmup=3"),
        "mean of sequences": (*BEST, "ppo.loss_aggregation=sequence"),
        "k3 in the loss": (*BEST, "ppo.kl_in=loss", "ppo.kl_estimator=k3", "ppo.kl_coef=0.3"),
        "entropy bonus 0.01": (*BEST, "ppo.entropy_coef=0.01"),
        "running scores": (*BEST, "reward.normalize=running"),
        "Adam's epsilon 1e-8": (*BEST, "optim.eps=1e-8"),
        "LoRA scale 2": (*BEST, "model.lora_scale=2"),
        "batches of 16": (*BEST, *LARGER),
        "batches of 16, one epoch": (*BEST, *LARGER, "ppo.epochs=1"),
        "returns on a running scale": BEST,  # as it is now; the journals of the others are from before
        **dict.fromkeys(CRITICS, BEST),
    },
    "rloo": {
        BASE: ("ppo.estimator=rloo",),
        "linear": ("ppo.estimator=rloo", *LINEAR),
        "not whitened": ("ppo.estimator=rloo", *RAW),
        "linear, not whitened": ("ppo.estimator=rloo", *LINEAR, *RAW),
        "slower": ("ppo.estimator=rloo", *SLOWER),
        "slower, not whitened": ("ppo.estimator=rloo", *SLOWER, *RAW),
        "slower, exact KL": ("ppo.estimator=rloo", *SLOWER, *EXACT),
    },
    "grpo": {
        BASE: GRPO,
        "linear": (*GRPO, *LINEAR),
        "slower": (*GRPO, *SLOWER),
        "slower, exact KL": (*GRPO, *SLOWER, *EXACT),
    },
}


def table(runs: dict[str, dict[int, Rows]], against: str = BASE) -> str:
    """Return a Markdown table with a row for each variant: means over its seeds, and its differences from `against`.

    Differences are means over the seeds that both have. Those that noise does not explain are bold; what it explains is
    said below the table.
    """
    heads = [f"KL at most {level}" for level in LEVELS]
    lines = ["| | seeds | " + " | ".join(heads) + " | last five | explained variance |"]
    lines.append("|---" * (len(LEVELS) + 4) + "|")
    base = runs.get(against, {})
    noise = {level: Noise.of(runs, level) for level in LEVELS}
    for name, by_seed in runs.items():
        cells = []
        pairs = [] if name == against else sorted(by_seed.keys() & base.keys())
        for level in LEVELS:
            cell = f"{fmean(best_within(rows, level) for rows in by_seed.values()):.2f}"
            if pairs:
                gain = fmean(best_within(by_seed[seed], level) - best_within(base[seed], level) for seed in pairs)
                beyond = abs(gain) > noise[level].least_difference(len(pairs))
                cell += f" (**{gain:+.2f}**)" if beyond else f" ({gain:+.2f})"
            cells.append(cell)
        last = [rows[-STRETCH:] for rows in by_seed.values()]
        half = [row.get("explained_variance") for rows in by_seed.values() for row in rows[len(rows) // 2 :]]
        known = [value for value in half if value is not None]
        cells.append(
            f"{fmean(r['score'] for s in last for r in s):.2f} at {fmean(r['kl'] for s in last for r in s):.1f}"
        )
        cells.append(f"{fmean(known):.2f}" if known else "")
        seeds = ", ".join(map(str, sorted(by_seed)))
        lines.append(f"| {name} | {seeds} | {' | '.join(cells)} |")
    if any(found.freedom for found in noise.values()):
        for count in sorted({len(by_seed) for by_seed in runs.values()}):
            least = ", ".join(f"{found.least_difference(count):.2f} within {at}" for at, found in noise.items())
            on = f"{count} seed{'s' if count > 1 else ''}"
            lines += ["", f"Smallest difference on {on} that noise does not explain: {least} nats."]
    return "\n".join(lines)


class Noise(NamedTuple):
    """How much a run's score varies beyond what its variant and its seed add to it."""

    deviation: float
    freedom: int  # degrees of freedom of the estimate

    @classmethod
    def of(cls, runs: dict[str, dict[int, Rows]], level: float) -> Self:
        """Estimate it from the residuals of score = mean + variant + seed + noise.

        That is the two-way analysis of variance without replication, over the variants with several seeds and the seeds
        that all of these have. Few seeds suffice, because there are many variants. It takes all variants as equally
        noisy.
        """
        several = [by_seed for by_seed in runs.values() if len(by_seed) > 1]
        if len(several) < 2:
            return cls(math.nan, 0)
        seeds = sorted(set.intersection(*map(set, several)))
        block = np.array([[best_within(by_seed[seed], level) for seed in seeds] for by_seed in several])
        block = block[~np.isnan(block).any(axis=1)]  # one that never came within the level says nothing of the noise
        freedom = (block.shape[0] - 1) * (block.shape[1] - 1)
        if freedom < 1:
            return cls(math.nan, 0)
        residuals = block - block.mean(axis=1, keepdims=True) - block.mean(axis=0) + block.mean()
        return cls(math.sqrt(float((residuals**2).sum()) / freedom), freedom)

    def least_difference(self, seeds: int) -> float:
        """Return the least significant difference of two variants' means over so many seeds, at 95% (Fisher's)."""
        return t_quantile(self.freedom) * self.deviation * math.sqrt(2 / seeds) if self.freedom else math.inf


def main() -> None:
    """Run what has no journal yet, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[10, 11, 12])
    parser.add_argument("--variants", nargs="+", help="all by default")
    parser.add_argument("--method", choices=VARIANTS, default="ppo")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, each with its share of the cores")
    parser.add_argument("--dir", type=Path, default=Path("runs/ablations"), help="folder of the runs")
    parser.add_argument("--table", action="store_true", help="only print the table of the journals")
    parser.add_argument("--against", default=BASE, help="variant from which the others' differences are shown")
    options = parser.parse_args()
    where, variants = JOURNALS / "ablations", VARIANTS[options.method]
    asked_for = options.variants or list(variants)
    if unknown := [name for name in asked_for if name not in variants]:
        parser.error(f"--variants: {unknown[0]!r} is none of {', '.join(variants)}")
    if options.against not in variants:
        parser.error(f"--against: {options.against!r} is none of {', '.join(variants)}")

    def place(name: str, seed: int) -> Path:
        return journal("ours", slug(name) if options.method == "ppo" else f"{options.method}-{slug(name)}", seed, where)

    def run(name: str, seed: int) -> None:
        if not place(name, seed).exists():
            folder = options.dir.resolve() / place(name, seed).stem
            program = (str(HERE / "critic_trials.py"), CRITICS[name]) if name in CRITICS else WORKBENCH
            settings = (*COMMON, *variants[name])
            write_journal(place(name, seed), *train_ours(options.method, seed, folder, settings, program=program))

    if not options.table:
        os.environ.update(with_share_of_cores(options.jobs))
        with ThreadPoolExecutor(options.jobs) as pool:
            asked = [pool.submit(run, name, seed) for seed in options.seeds for name in asked_for]
            for done in asked:
                done.result()
    shown = list(dict.fromkeys([options.against, *asked_for]))
    found = {name: {seed: place(name, seed) for seed in options.seeds} for name in shown}
    runs = {
        name: {seed: rows_of(path) for seed, path in paths.items() if path.exists()} for name, paths in found.items()
    }
    print(table({name: by_seed for name, by_seed in runs.items() if by_seed}, options.against))


def rows_of(path: Path) -> Rows:
    """Return the iterations of a run, each of a larger batch twice, so that a stretch is always as many sequences."""
    rows = read_journal(path)
    return [row for row in rows for _ in range(ITERATIONS // len(rows))]


def slug(name: str) -> str:
    """Return the name of a variant as a part of file names."""
    return "-".join(re.sub("[,']", "", name).split()).lower()


if __name__ == "__main__":
    main()
