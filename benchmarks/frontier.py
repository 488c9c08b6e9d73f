"""Compare what PPO, RLOO and GRPO of ppo-workbench and of TRL gain on one task, at what KL, over several seeds.

The task: the starter model continues 16 openings of stories, as chat prompts, and the sentiment lexicon scores its
responses; 240 sequences of up to 32 tokens, 8 in an iteration, LoRA of rank 8 on the attention. Both sides have the
same prompts in the same order, different for each seed. Draws differ, because MLX and torch have different generators.
TRL runs at two learning rates, which fall to 0 as they do by default, and at the lower one with a constant rate, as
ours is. Our PPO has the settings that were best on other seeds
(ablations.py, commit b9e8a6a).

Each run leaves a journal in benchmarks/frontier/, so that the tables can be made again without it. What is compared is
the best mean score of five iterations in a row whose mean KL is at most a level, paired by seed.

Run: .venv/bin/python benchmarks/frontier.py [--methods ppo] [--sides ours trl] [--seeds 0 1 2 3 4] [--jobs 2]
     .venv/bin/python benchmarks/frontier.py --table
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from quickstart_seeds import train_ppo
from workload import HERE, STORY_OPENINGS, Workload, peer_command, read_prompts, resolve_model, trl_python

from trainer.confidence import mean_interval
from trainer.events import Iteration
from workbench.system.children import with_share_of_cores

JOURNALS = HERE / "frontier"
METHODS = ("ppo", "rloo", "grpo")
TRL_SIDES = {"trl": (3e-4, "linear"), "trl-slower": (1e-4, "linear"), "trl-constant": (1e-4, "constant")}
SIDES = ("ours", *TRL_SIDES)
LEVELS = (2, 4, 8, 16)  # nats a sequence
STRETCH = 5  # iterations of a mean
ITERATIONS, BATCH, OPENINGS = 30, 8, 16
SAMPLES = {"ppo": 1, "rloo": 4, "grpo": 4}  # per prompt

TASK = (
    "data.chat=auto",
    "data.eval_fraction=0",
    "data.shuffle=false",
    f"rollout.batch_size={BATCH}",
    "rollout.max_new_tokens=32",
    f"ppo.iterations={ITERATIONS}",
    "ppo.epochs=2",
    "optim.policy_lr=3e-4",
    "optim.value_lr=3e-4",
    'model.lora_targets=["q_proj", "k_proj", "v_proj", "o_proj"]',
    "model.lora_rank=8",
    "checkpoint.every=5",
    "checkpoint.keep=1",
    "eval.every=0",
)
OURS = {
    "ppo": ("ppo.kl_coef=0.02", "optim.policy_lr=1e-4", "ppo.prefix_scores=1", "ppo.lam=0.7"),
    "rloo": ("ppo.kl_coef=0.02", "optim.policy_lr=1e-4", "ppo.estimator=rloo", "ppo.whiten_advantages=false"),
    "grpo": (
        "ppo.kl_coef=0.02",
        "optim.policy_lr=1e-4",
        "ppo.estimator=grpo",
        "ppo.kl_in=loss",
        "ppo.kl_estimator=k3",
        "ppo.whiten_advantages=false",
    ),
}

LORA_SCALE = 20.0  # ours by default. With PEFT's usual 2, TRL's policy was 0.3 nats away after 12 iterations of seed 10

Rows = list[dict[str, float]]  # iterations: score, kl, seconds, and ours explained_variance


def workload(method: str, seed: int, rate: float = 3e-4) -> Workload:
    """Return the task of a method on a seed: its prompts pass after pass, each pass in another order.

    rate: learning rate, of TRL alone.
    """
    openings, order = read_prompts(STORY_OPENINGS, OPENINGS), random.Random(seed)
    count = ITERATIONS * BATCH // SAMPLES[method]
    prompts: list[str] = []
    while len(prompts) < count:
        prompts += order.sample(openings, len(openings))
    return Workload(
        model=resolve_model("starter"),
        prompts=prompts[:count],
        batch_size=BATCH,
        max_new_tokens=32,
        epochs=2,
        samples_per_prompt=SAMPLES[method],
        lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"),
        lora_scale=LORA_SCALE,
        learning_rate=rate,
        kl_coef=0.02,
        seed=seed,
    )


def train_ours(method: str, seed: int, run: Path, settings: Sequence[str]) -> tuple[dict[str, Any], Rows]:
    """Train our side, or read the run if it is done; return its settings, and its iterations."""
    work, folder = workload(method, seed), run.parent
    prompts = folder / f"prompts-{method}-{seed}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": [{"role": "user", "content": prompt}]} for prompt in work.prompts]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    given = [*TASK, f"rollout.samples_per_prompt={SAMPLES[method]}", *settings, f"data.prompts={prompts}"]
    iterations = []
    for event in train_ppo(run, *given, f"run.dir={folder}", f"run.seed={seed}"):
        if isinstance(event, Iteration):
            row = {"score": event.score_mean, "kl": event.kl, "seconds": sum(event.seconds.values())}
            if not math.isnan(event.explained_variance):
                row["explained_variance"] = event.explained_variance
            iterations.append(row)
    return {"settings": settings}, iterations


def train_trl(side: str, method: str, seed: int, folder: Path, python: Path) -> tuple[dict[str, Any], Rows]:
    """Train a side of TRL; return its versions and its iterations. Raises CalledProcessError if it fails."""
    rate, schedule = TRL_SIDES[side]
    work = workload(method, seed, rate)
    place = folder / f"{side}-{method}-{seed}"
    place.mkdir(parents=True, exist_ok=True)
    command = [*peer_command(work, place, python, "trl_frontier.py"), method, schedule]
    quiet = os.environ | {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    with (place / "log").open("w", encoding="utf-8") as log:
        done = subprocess.run(command, env=quiet, stdout=subprocess.PIPE, stderr=log, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    head = {
        "versions": found[0]["versions"],
        "lora_scale": work.lora_scale,
        "learning_rate": rate,
        "schedule": schedule,
    }
    return head, [{key: row[key] for key in ("score", "kl", "seconds")} for row in found if row["event"] == "iteration"]


def journal(side: str, method: str, seed: int, where: Path = JOURNALS) -> Path:
    """Return the place of a run's journal."""
    return where / f"{side}-{method}-{seed}.jsonl"


def write_journal(path: Path, head: Mapping[str, Any], rows: Rows) -> None:
    """Write what the tables need: a line about the run, then one for each iteration, with four digits."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {_processor()}"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"machine": machine, **head}, *({key: float(f"{n:.4g}") for key, n in row.items()} for row in rows)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def read_journal(path: Path) -> Rows:
    """Return the iterations of a run."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]


def best_within(rows: Rows, level: float) -> float:
    """Return the best mean score of `STRETCH` iterations in a row whose mean KL is at most `level`; NaN without one."""
    stretches = [rows[start : start + STRETCH] for start in range(len(rows) - STRETCH + 1)]
    reached = [s for s in stretches if fmean(row["kl"] for row in s) <= level]
    return max((fmean(row["score"] for row in s) for s in reached), default=math.nan)


def interval_text(values: Sequence[float]) -> str:
    """Return the mean over seeds and its 95% interval, by Student's t."""
    found = mean_interval(np.array(values, dtype=np.float64))
    return f"{found.value:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def table(sides: Mapping[str, Mapping[int, Rows]]) -> str:
    """Return a Markdown table of two sides: best scores within each level by seed, and their paired difference.

    A side without five iterations in a row within a level has none there: a dash, and no pair.
    """
    (first, ours), (second, theirs) = sides.items()
    seeds = sorted(ours.keys() & theirs.keys())
    lines = [f"| KL at most | {first}, by seed | {second}, by seed | difference, 95% interval | {first} ahead |"]
    lines += ["|---|---|---|---|---|"]
    for level in LEVELS:
        best = [[best_within(runs[seed], level) for seed in seeds] for runs in (ours, theirs)]
        pairs = [mine - other for mine, other in zip(*best, strict=True) if not math.isnan(mine - other)]
        cells = [", ".join("-" if math.isnan(score) else f"{score:.2f}" for score in scores) for scores in best]
        ahead = f"{sum(difference > 0 for difference in pairs)} of {len(pairs)}"
        lines.append(f"| {level} | {cells[0]} | {cells[1]} | {interval_text(pairs)} | {ahead} |")
    return "\n".join(lines)


def ends(runs: Mapping[int, Rows]) -> str:
    """Return where each seed's run ended: mean score and KL of the last five, explained variance of the second half."""
    parts = []
    for seed, rows in sorted(runs.items()):
        last, half = rows[-STRETCH:], rows[len(rows) // 2 :]
        text = f"{seed}: {fmean(row['score'] for row in last):.2f} at {fmean(row['kl'] for row in last):.1f}"
        if all("explained_variance" in row for row in half):
            text += f" ({fmean(row['explained_variance'] for row in half):.2f})"
        parts.append(text)
    return "; ".join(parts)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def main() -> None:
    """Run what has no journal yet, then print a table for each method and side of TRL that have journals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, each with its share of the cores")
    parser.add_argument("--dir", type=Path, default=Path("runs/frontier"), help="folder of the runs")
    parser.add_argument("--table", action="store_true", help="only print the tables of the journals")
    parser.add_argument("--trl-python", type=Path, help="interpreter of an environment with TRL")
    options = parser.parse_args()

    def run(side: str, method: str, seed: int) -> None:
        path = journal(side, method, seed)
        if path.exists():
            return
        if side == "ours":
            found = train_ours(method, seed, options.dir.resolve() / f"{method}-{seed}", OURS[method])
        else:
            found = train_trl(side, method, seed, options.dir.resolve(), options.trl_python or trl_python())
        write_journal(path, *found)

    if not options.table:
        os.environ.update(with_share_of_cores(options.jobs))
        with ThreadPoolExecutor(options.jobs) as pool:
            asked = [(side, m, seed) for m in options.methods for side in options.sides for seed in options.seeds]
            for done in [pool.submit(run, *one) for one in asked]:
                done.result()
    for method in options.methods:
        paths = {side: {seed: journal(side, method, seed) for seed in options.seeds} for side in SIDES}
        runs = {
            side: {seed: read_journal(path) for seed, path in found.items() if path.exists()}
            for side, found in paths.items()
        }
        for other in TRL_SIDES:
            if runs["ours"] and runs[other]:
                print(f"\n{method}\n\n{table({side: runs[side] for side in ('ours', other)})}\n")
        for side, found in runs.items():
            if found:
                print(f"{method}, {side}, last five of {ITERATIONS}: {ends(found)}")


if __name__ == "__main__":
    main()
