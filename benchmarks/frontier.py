"""Compare what PPO of ppo-workbench and of TRL gain on four tasks, at what KL, and what is left of it on new prompts.

The starter model learns from 240 sequences, 8 in an iteration, with LoRA of rank 8 on the attention. The tasks:

    openings  16 openings of stories, 32 tokens, scored by the sentiment lexicon; settings were chosen here, on seeds 10
              to 12
    stories   openings 100 to 249, and the same score
    sums      sums of two digits, 24 tokens: 1 if the last number is right, which no beginning of an answer tells
    people    prompts of pairs of Anthropic's hh-rlhf, 32 tokens, scored by a reward model that learnt from them

Both sides have the same prompts in the same order, different for each seed, the same clip of the gradient and epsilon
of Adam, and the better of two rates on `openings`. TRL's critic begins with a head of zeros: a random one costs it more
than anything else here. Draws differ, because MLX and torch have different generators.

`ours-prefix` is another algorithm: it asks the reward for a score at each token. RLOO and GRPO are on `openings` alone.

Each run leaves a journal in benchmarks/frontier/. What is compared is the best mean score of five iterations in a row
whose mean KL is at most a level, and the score of the policy after them on 32 prompts of the task that nobody trained
on: both sides are sampled by our engine, with the same draws.

Run: .venv/bin/python benchmarks/frontier.py --task stories [--sides ours trl] [--seeds 0 1 2 3 4] [--jobs 2]
     .venv/bin/python benchmarks/frontier.py --task people --pairs harmless-base.jsonl.gz
     .venv/bin/python benchmarks/frontier.py --task openings --seeds 10 11 12 --rates 5e-5 1e-4
     .venv/bin/python benchmarks/frontier.py --table
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import platform
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, product
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from quickstart_seeds import train_ppo
from workload import HERE, STORY_OPENINGS, Workload, peer_command, read_prompts, resolve_model, trl_python

from trainer.confidence import mean_interval
from trainer.events import Iteration
from workbench.system.children import with_share_of_cores

JOURNALS = HERE / "frontier"
TASKS = ("openings", "stories", "sums", "people")
METHODS = ("ppo", "rloo", "grpo")
SIDES = ("ours", "ours-prefix", "trl")
LEVELS = (2, 4, 8, 16)  # nats a sequence
STRETCH = 5  # iterations of a mean
ITERATIONS, BATCH = 30, 8
SAMPLES = {"ppo": 1, "rloo": 4, "grpo": 4}  # per prompt
HELD_OUT = 32  # prompts
LEVEL_DRAWS, DRAWS = 2, 4  # responses to each, of the best policy within a level and of the last one
PROMPT_TOKENS = 128  # at most, of the prompts of `people`

COMMON = (
    "ppo.prefix_scores=0",
    "data.chat=always",
    "data.eval_fraction=0",
    "data.shuffle=false",
    f"rollout.batch_size={BATCH}",
    f"ppo.iterations={ITERATIONS}",
    "ppo.epochs=2",
    'model.lora_targets=["q_proj", "k_proj", "v_proj", "o_proj"]',
    "model.lora_rank=8",
    "checkpoint.every=1",
    f"checkpoint.keep={ITERATIONS}",
    "eval.every=0",
)
"""What the task says to our side."""
OURS = {
    "ppo": ("ppo.kl_coef=0.02",),
    "rloo": ("ppo.kl_coef=0.02", "ppo.estimator=rloo", "ppo.whiten_advantages=false"),
    "grpo": (
        "ppo.kl_coef=0.02",
        "ppo.estimator=grpo",
        "ppo.kl_in=loss",
        "ppo.kl_estimator=k3",
        "ppo.whiten_advantages=false",
    ),
}
PREFIX_SCORES = ("ppo.prefix_scores=1", "ppo.lam=0.7")
LORA_SCALE = 20.0  # ours by default. With PEFT's usual 2, TRL's policy was 0.3 nats away after 12 iterations of seed 10

Row = dict[str, Any]  # an iteration: score, kl, seconds, and ours explained_variance


class Task(NamedTuple):
    """What is asked, and how answers are scored."""

    prompts: list[str]  # to train on
    held_out: list[str]
    new_tokens: int
    reward: str  # of our side, as `reward.sources` takes it
    trl_reward: str  # "lexicon", "sums", or the folder of a sequence classifier
    trl_offset: float = 0.0  # to add to the scores of that classifier


def load_task(name: str, folder: Path, pairs: Path | None = None) -> Task:
    """Return a task. folder: of its reward model, if it has one. Raises SystemExit if `people` has no pairs."""
    if name in ("openings", "stories"):
        openings = read_prompts(STORY_OPENINGS, 300 + HELD_OUT)
        own = openings[:16] if name == "openings" else openings[100:250]
        return Task(own, openings[300:], 32, '["lexicon"]', "lexicon")
    if name == "sums":
        sums = [f"What is {a} + {b}?" for a in range(1, 10) for b in range(1, 10)]
        random.Random(0).shuffle(sums)
        source = json.dumps([f"{HERE / 'frontier_rewards.py'}:right_sums"])
        return Task(sums[HELD_OUT:], sums[:HELD_OUT], 24, source, "sums")
    if pairs is None:
        raise SystemExit("--task people needs --pairs: a file of pairs of Anthropic's hh-rlhf (harmless-base)")
    run, classifier = train_reward_model(pairs, folder)
    prompts = first_turns(pairs)
    model = f'[{{kind = "model", path = "{run}"}}]'
    offset = -json.loads((classifier / "config.json").read_text(encoding="utf-8"))["mean"]
    return Task(prompts[HELD_OUT:], prompts[:HELD_OUT], 32, model, str(classifier), offset)


def first_turns(pairs: Path) -> list[str]:
    """Return the first human turns of the conversations in a file of hh-rlhf, without repetitions, shuffled."""
    with gzip.open(pairs, "rt", encoding="utf-8") as file:
        chosen = [json.loads(line)["chosen"] for line in file]
    turns = dict.fromkeys(text.split("\n\nHuman:")[1].split("\n\nAssistant:")[0].strip() for text in chosen)
    prompts = [turn for turn in turns if 0 < len(turn) < 4 * PROMPT_TOKENS]
    random.Random(0).shuffle(prompts)
    return prompts


def train_reward_model(pairs: Path, folder: Path) -> tuple[Path, Path]:
    """Train the reward model of `people` unless it is there; return its run, and a classifier of the same scores.

    Its head reads the last state alone, as classifiers of transformers do.
    """
    run, exported = folder / "people", folder / "people-exported"
    command = [sys.executable, "-m", "workbench"]
    if not run.exists():
        settings = ["train.head=fitted", "train.states=last", "train.epochs=1", "data.max_tokens=256"]
        settings += ["data.skip_broken=true", "run.seed=0"]
        given = [part for one in (*settings, f"run.dir={folder}") for part in ("--set", one)]
        own = [*command, "reward-model", "train", "--data", str(pairs), "--name", run.name, *given]
        subprocess.run(own, check=True, stdout=sys.stderr)
    if not exported.exists():
        subprocess.run([*command, "export", str(run), "--output", str(exported)], check=True, stdout=sys.stderr)
    return run, exported / "reward-model"


def rate_of(side: str, method: str) -> float:
    """Return the learning rate that was best on `openings`, within 4, 8 and 16 nats together.

    PPO: 5e-5, 7e-5 and 1e-4 were tried for ours, 5e-5, 1e-4 and 3e-4 for TRL. That of TRL's RLOO and GRPO falls to 0.
    """
    if method == "ppo":
        return 1e-4 if side == "trl" else 7e-5
    return 3e-4 if side == "trl" else 1e-4


def workload(task: Task, method: str, seed: int, rate: float) -> Workload:
    """Return a method's work on a task and a seed: its prompts pass after pass, each pass in another order."""
    order = random.Random(seed)
    count = ITERATIONS * BATCH // SAMPLES[method]
    prompts: list[str] = []
    while len(prompts) < count:
        prompts += order.sample(task.prompts, len(task.prompts))
    return Workload(
        model=resolve_model("starter"),
        prompts=prompts[:count],
        batch_size=BATCH,
        max_new_tokens=task.new_tokens,
        epochs=2,
        samples_per_prompt=SAMPLES[method],
        lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"),
        lora_scale=LORA_SCALE,
        learning_rate=rate,
        kl_coef=0.02,
        seed=seed,
        reward=task.trl_reward,
    )


def write_prompts(path: Path, prompts: Sequence[str]) -> Path:
    """Write prompts as conversations, and return the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": [{"role": "user", "content": prompt}]} for prompt in prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def our_settings(task: Task, method: str, rate: float) -> list[str]:
    """Return the settings of our side, but for its prompts."""
    own = (f"rollout.max_new_tokens={task.new_tokens}", f"rollout.samples_per_prompt={SAMPLES[method]}")
    return [*COMMON, *OURS[method], *own, f"reward.sources={task.reward}", f"optim.policy_lr={rate:g}"]


def train_ours(
    task: Task, method: str, seed: int, run: Path, settings: Sequence[str]
) -> tuple[dict[str, Any], list[Row], list[Path]]:
    """Train our side, or read the run if it is done; return its settings, iterations, and adapters after each."""
    prompts = write_prompts(run.with_name(f"{run.name}.jsonl"), workload(task, method, seed, 0.0).prompts)
    iterations = []
    for event in train_ppo(run, *settings, f"data.prompts={prompts}", f"run.dir={run.parent}", f"run.seed={seed}"):
        if isinstance(event, Iteration):
            row = {"score": event.score_mean, "kl": event.kl, "seconds": sum(event.seconds.values())}
            if not math.isnan(event.explained_variance):
                row["explained_variance"] = event.explained_variance
            iterations.append(row)
    adapters = [run / "checkpoints" / f"step-{number:06d}" / "policy" for number in range(1, ITERATIONS + 1)]
    return {"settings": [*settings]}, iterations, adapters


def train_trl(
    task: Task, method: str, seed: int, run: Path, python: Path, rate: float
) -> tuple[dict[str, Any], list[Row], list[Path]]:
    """Train TRL's side; return its versions, iterations and adapters. Raises CalledProcessError if it fails."""
    work = workload(task, method, seed, rate)
    run.mkdir(parents=True, exist_ok=True)
    command = [*peer_command(work, run, python, "trl_frontier.py"), method, "constant" if method == "ppo" else "linear"]
    quiet = os.environ | {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    with (run / "log").open("w", encoding="utf-8") as log:
        done = subprocess.run(command, env=quiet, stdout=subprocess.PIPE, stderr=log, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    head = {"versions": found[0]["versions"], "lora_scale": work.lora_scale, "learning_rate": rate}
    rows = [{key: row[key] for key in ("score", "kl", "seconds")} for row in found if row["event"] == "iteration"]
    for row in rows:
        row["score"] += task.trl_offset
    return head, rows, [run / "adapters" / str(number) for number in range(1, ITERATIONS + 1)]


def held_out_scores(task: Task, run: Path, rows: Sequence[Row], adapters: Sequence[Path]) -> list[Row]:
    """Score the policy in the middle of the best iterations within each level, and the last one, on new prompts."""
    prompts = write_prompts(run.with_name(f"{run.name}-held-out.jsonl"), task.held_out)
    settings = [*our_settings(task, "ppo", 1e-4), f"data.prompts={prompts}", "run.seed=1000", "rollout.batch_size=32"]
    command = [sys.executable, str(HERE / "frontier_policies.py")]
    command += [part for one in settings for part in ("--set", one)]

    def scored(wanted: Mapping[str, int], draws: int) -> list[Row]:
        numbers = sorted(set(wanted.values()))
        names = [str(adapters[number - 1]) for number in numbers]
        given = [*command, "--draws", str(draws), *names]
        done = subprocess.run(given, stdout=subprocess.PIPE, text=True, check=True)
        found = dict(zip(numbers, map(json.loads, done.stdout.splitlines()), strict=True))
        return [{"held_out": name, "iteration": number, **found[number]} for name, number in wanted.items()]

    chosen = {str(level): best_stretch(rows, level) for level in LEVELS[1:]}
    middles = {level: start + STRETCH // 2 for level, start in chosen.items() if start is not None}
    return [*(scored(middles, LEVEL_DRAWS) if middles else []), *scored({"end": len(adapters)}, DRAWS)]


def best_stretch(rows: Sequence[Row], level: float) -> int | None:
    """Return where the best `STRETCH` iterations in a row begin whose mean KL is at most `level`; None without any."""
    starts = [
        start
        for start in range(len(rows) - STRETCH + 1)
        if fmean(row["kl"] for row in rows[start : start + STRETCH]) <= level
    ]
    return max(starts, key=lambda start: fmean(row["score"] for row in rows[start : start + STRETCH]), default=None)


def best_within(rows: Sequence[Row], level: float) -> float:
    """Return the mean score of `best_stretch`; NaN without one."""
    start = best_stretch(rows, level)
    return math.nan if start is None else fmean(row["score"] for row in rows[start : start + STRETCH])


class Journal(NamedTuple):
    """What is kept of a run: its iterations, and the scores of its policies on new prompts by level and at the end."""

    rows: list[Row]
    held_out: dict[str, Row]

    def on_new_prompts(self, level: float) -> float:
        """Return the score on new prompts of the policy that was best within `level`; NaN without one."""
        return float(self.held_out.get(str(level), {}).get("score", math.nan))


def journal(task: str, side: str, method: str, seed: int, rate: float, where: Path = JOURNALS) -> Path:
    """Return the place of a run's journal."""
    return where / task / f"{side}-{method}-{rate:g}-{seed}.jsonl"


def write_journal(path: Path, head: Mapping[str, Any], rows: Sequence[Row], held_out: Sequence[Row] = ()) -> None:
    """Write what the tables need: a line about the run, one for each iteration, and one for each policy that was tried.

    Numbers have four digits.
    """
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {_processor()}"
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [{k: n if isinstance(n, str) else float(f"{n:.4g}") for k, n in row.items()} for row in (*rows, *held_out)]
    path.write_text("".join(json.dumps(line) + "\n" for line in ({"machine": machine, **head}, *kept)), "utf-8")


def read_journal(path: Path) -> Journal:
    """Return what is kept of a run."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    held_out = {line["held_out"]: line for line in lines if "held_out" in line}
    return Journal([line for line in lines if "held_out" not in line], held_out)


def interval_text(values: Sequence[float]) -> str:
    """Return the mean over seeds and its 95% interval, by Student's t."""
    found = mean_interval(np.array(values, dtype=np.float64))
    return f"{found.value:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def table(sides: Mapping[str, Mapping[int, Journal]]) -> str:
    """Return a Markdown table of two sides: best scores within each level by seed, and their paired difference.

    Then the same of the policies on new prompts. A side without five iterations in a row within a level has none there:
    a dash, and no pair.
    """
    (first, ours), (second, theirs) = sides.items()
    seeds = sorted(ours.keys() & theirs.keys())
    lines = [
        f"| prompts | KL at most | {first}, by seed | {second}, by seed | difference, 95% interval | {first} ahead |"
    ]
    lines += ["|---|---|---|---|---|---|"]
    for which in ("training", "new"):
        for level in LEVELS:
            best = [
                [
                    best_within(runs[seed].rows, level) if which == "training" else runs[seed].on_new_prompts(level)
                    for seed in seeds
                ]
                for runs in (ours, theirs)
            ]
            pairs = [mine - other for mine, other in zip(*best, strict=True) if not math.isnan(mine - other)]
            cells = [", ".join("-" if math.isnan(score) else f"{score:.2f}" for score in scores) for scores in best]
            ahead = f"{sum(difference > 0 for difference in pairs)} of {len(pairs)}"
            if pairs:
                lines.append(f"| {which} | {level} | {cells[0]} | {cells[1]} | {interval_text(pairs)} | {ahead} |")
    return "\n".join(lines)


def ends(runs: Mapping[int, Journal]) -> str:
    """Return where each seed's run ended: mean score and KL of the last five, median explained variance of its half."""
    parts = []
    for seed, (rows, _) in sorted(runs.items()):
        last, half = rows[-STRETCH:], rows[len(rows) // 2 :]
        text = f"{seed}: {fmean(row['score'] for row in last):.2f} at {fmean(row['kl'] for row in last):.1f}"
        if all("explained_variance" in row for row in half):
            text += f" ({median(row['explained_variance'] for row in half):.2f})"
        parts.append(text)
    return "; ".join(parts)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def main() -> None:
    """Run what has no journal yet, then print a table for each task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["ppo"])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--rates", nargs="+", type=float, help="instead of the rate chosen for each side")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of ours")
    parser.add_argument("--variant", default="", help="name of that change, in the names of the journals")
    parser.add_argument("--pairs", type=Path, help="pairs of hh-rlhf (harmless-base, .jsonl.gz), for the task people")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, each with its share of the cores")
    parser.add_argument("--dir", type=Path, default=Path("runs/frontier"), help="folder of the runs")
    parser.add_argument("--table", action="store_true", help="only print the tables of the journals")
    parser.add_argument("--trl-python", type=Path, help="interpreter of an environment with TRL")
    options = parser.parse_args()
    folder = options.dir.resolve()

    def run(name: str, task: Task, side: str, method: str, seed: int, rate: float) -> None:
        path = journal(name, side + options.variant, method, seed, rate)
        if path.exists():
            return
        place = folder / name / path.stem
        if side == "trl":
            found = train_trl(task, method, seed, place, options.trl_python or trl_python(), rate)
        else:
            settings = our_settings(task, method, rate) + list(PREFIX_SCORES if side == "ours-prefix" else ())
            settings += options.set
            found = train_ours(task, method, seed, place, settings)
        head, rows, adapters = found
        tried = held_out_scores(task, place, rows, adapters) if method == "ppo" else []
        write_journal(path, head, rows, tried)

    if not options.table:
        os.environ.update(with_share_of_cores(options.jobs))
        with ThreadPoolExecutor(options.jobs) as pool:
            waiting = []
            for name in options.task:
                task = load_task(name, folder, options.pairs)
                for method, seed, side in product(options.methods, options.seeds, options.sides):
                    rates = options.rates or [rate_of(side, method)]
                    waiting += [pool.submit(run, name, task, side, method, seed, rate) for rate in rates]
            for done in waiting:
                done.result()
    for name, method in product(options.task, options.methods):
        runs: dict[str, dict[int, Journal]] = {}
        for side in SIDES:
            for rate in options.rates or [rate_of(side, method)]:
                paths = {seed: journal(name, side + options.variant, method, seed, rate) for seed in options.seeds}
                found = {seed: read_journal(path) for seed, path in paths.items() if path.exists()}
                if found:
                    runs[f"{side} {rate:g}" if options.rates else side] = found
        for side, found in runs.items():
            print(f"{name}, {method}, {side}, last five of {ITERATIONS}: {ends(found)}")
        for first, second in combinations(runs, 2):
            print(f"\n{name}, {method}\n\n{table({first: runs[first], second: runs[second]})}\n")


if __name__ == "__main__":
    main()
