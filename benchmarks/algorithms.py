"""PPO, RLOO, GRPO and DPO on one task: what each reaches with as many sequences, at what KL, time and memory.

The task is the quickstart's: the starter model continues stories, the sentiment lexicon scores them. All see the same
number of sequences and the same prompts. PPO, RLOO and GRPO write theirs as they learn; DPO gets as many that the
untrained model wrote, four to a prompt, ranked by the same score. Each is judged before and after on prompts that it
has not seen, with the same draws.

Run: .venv/bin/python benchmarks/algorithms.py [--seeds 0 1 2] [--iterations 25] [--dir runs/algorithms]
What is there already is only read; a run that was broken off goes on. Times are medians, so compare them within a seed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import trainer
from trainer.events import DPOStep, Evaluation, Iteration, RunEnded
from trainer.journal import read_journal
from trainer.preferences.formats_out import write_preferences
from trainer.preferences.records import Comparison, Judgement, Preference

COMPLETIONS = 4
SEQUENCES = 8  # an iteration
SAMPLING = 1001  # a seed's purpose of our own: the pairs must not be the draws of any run
GROUPS = (f"rollout.samples_per_prompt={COMPLETIONS}",)
ONLINE: dict[str, tuple[str, ...]] = {
    "PPO": (),
    "RLOO": ("ppo.estimator=rloo", *GROUPS),
    "GRPO": (
        "ppo.estimator=grpo",
        "ppo.kl_in=loss",
        "ppo.kl_estimator=k3",
        "ppo.whiten_advantages=false",
        *GROUPS,
    ),
}


class Row(NamedTuple):
    """What came of one method on one seed."""

    before: Evaluation
    after: Evaluation
    seconds: float  # an iteration of `SEQUENCES` sequences, or as many of DPO's, its share of sampling counted
    mebibytes: float  # peak of MLX's own allocations


def main() -> None:
    """Do what is left, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=25, help="of the methods that write as they learn")
    parser.add_argument("--dir", type=Path, default=Path("runs/algorithms"))
    options = parser.parse_args()
    rows: dict[str, list[Row]] = {name: [] for name in (*ONLINE, "DPO")}
    for seed in options.seeds:
        folder = options.dir / f"seed-{seed}"
        for name, settings in ONLINE.items():
            rows[name].append(learn_online(folder / name.lower(), seed, options.iterations, settings))
        rows["DPO"].append(learn_offline(folder, seed, options.iterations))
    print(table(rows))


def learn_online(run: Path, seed: int, iterations: int, settings: tuple[str, ...]) -> Row:
    """Train by a method that writes as it learns."""
    given = (*shared(run, seed), f"ppo.iterations={iterations}", f"eval.every={iterations}", *settings)
    train(["--no-ui", "--display", "plain"], run, *given, new=("--config", "quickstart"))
    told = events(run)
    steps = [event for event in told if isinstance(event, Iteration)]
    seconds = median(sum(step.seconds.values()) for step in steps)
    return Row(*evaluations(told), seconds, max(step.memory_bytes for step in steps) / 2**20)


def learn_offline(folder: Path, seed: int, iterations: int) -> Row:
    """DPO on as many sequences of the untrained model."""
    written, pairs = folder / "written.jsonl", folder / "pairs.jsonl"
    if not written.exists():
        folder.mkdir(parents=True, exist_ok=True)
        save(written, write(seed, iterations * SEQUENCES // COMPLETIONS))
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    if not pairs.exists():
        write_preferences(ranked(rows), pairs, format="k-way")
    settings = (
        *shared(folder / "dpo", seed),
        "reward.sources=[{kind = 'lexicon'}]",
        'model.lora_targets=["q_proj", "k_proj", "v_proj", "o_proj"]',
        "data.eval_fraction=0.1",
        "data.end_token=false",
        "rollout.max_new_tokens=32",
        "train.batch_size=4",
        "train.epochs=2",
        "eval.every=0",
    )
    train(["dpo"], folder / "dpo", *settings, new=("--data", str(pairs)))
    told = events(folder / "dpo")
    steps = [event for event in told if isinstance(event, DPOStep)]
    sampling = sum(row["seconds"] for row in rows)
    seconds = (sampling + sum(step.seconds for step in steps)) / iterations
    return Row(*evaluations(told), seconds, max(step.memory_bytes for step in steps) / 2**20)


def shared(run: Path, seed: int) -> tuple[str, ...]:
    """Settings of all runs of a seed."""
    return f"run.dir={run.parent}", f"run.seed={seed}", "checkpoint.every=5", "checkpoint.keep=1", "eval.prompts=48"


def train(command: list[str], run: Path, *settings: str, new: tuple[str, ...] = ()) -> None:
    """Train `run` to its end, from where it is. new: options of a run that is not there yet, besides `settings`."""
    if run.exists() and any(isinstance(event, RunEnded) and event.state == "done" for event in events(run)):
        return
    given = ["--resume", str(run)] if run.exists() else ["--name", run.name, *new]
    for setting in () if run.exists() else settings:
        given += ["--set", setting]
    subprocess.run([sys.executable, "-m", "workbench", *command, *given], check=True, stdout=sys.stderr)


def write(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """`count` of the quickstart's training prompts, what the untrained model writes, its scores, and the seconds."""
    import time

    from trainer.data import load_prompts
    from trainer.rewards import RewardInput, build_rewards
    from trainer.rollouts import generate_responses
    from trainer.run_prompts import run_prompts
    from trainer.seeding import key_for

    config = trainer.load_config("quickstart", trainer.parse_overrides([f"run.seed={seed}"]))
    model = trainer.load_backbone(config.model)
    rewards = build_rewards(config.reward)
    prompts = run_prompts(config, load_prompts(config.data), model).train[:count]
    for first in range(0, len(prompts), SEQUENCES // COMPLETIONS):
        started = time.perf_counter()
        batch = [prompt for prompt in prompts[first : first + SEQUENCES // COMPLETIONS] for _ in range(COMPLETIONS)]
        key = key_for(seed, SAMPLING, first)  # type: ignore[arg-type]
        responses = generate_responses(model.backbone, model.tokenizer, batch, config.rollout, key=key)
        scored = rewards(
            [
                RewardInput(prompt.prompt, response.text, response.tokens, prompt.columns, response.truncated)
                for prompt, response in zip(batch, responses, strict=True)
            ]
        )
        seconds = (time.perf_counter() - started) * COMPLETIONS / len(batch)
        for row in range(0, len(batch), COMPLETIONS):
            texts = [response.text for response in responses[row : row + COMPLETIONS]]
            scores = scored.scores[row : row + COMPLETIONS]
            yield {"prompt": str(batch[row].prompt), "texts": texts, "scores": scores, "seconds": seconds}
        print(f"prompts: {min(first + len(batch) // COMPLETIONS, len(prompts))} of {len(prompts)}", file=sys.stderr)


def save(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    """A JSON object a line; whole or not at all."""
    lines = [json.dumps(row) for row in rows]
    part = path.with_suffix(".part")
    part.write_text("\n".join(lines) + "\n")
    part.rename(path)


def ranked(rows: list[dict[str, Any]]) -> Iterator[Preference]:
    """The completions to each prompt from the best score to the worst; those that are all equal teach nothing."""
    for row in rows:
        scores = row["scores"]
        if len(set(scores)) > 1:
            order = sorted(set(scores), reverse=True)
            groups = tuple(tuple(place for place, s in enumerate(scores) if s == score) for score in order)
            comparison = Comparison(prompt=row["prompt"], completions=tuple(row["texts"]))
            yield Preference(comparison=comparison, judgement=Judgement(ranking=groups))


def events(run: Path) -> list[Any]:
    """What stands in the journal of `run`."""
    return list(read_journal(run / "events.jsonl").events)


def evaluations(told: list[Any]) -> tuple[Evaluation, Evaluation]:
    """The first and the last one."""
    found = [event for event in told if isinstance(event, Evaluation)]
    return found[0], found[-1]


def table(rows: dict[str, list[Row]]) -> str:
    """Markdown, a line a method: each number of every seed, and the mean of the gains."""
    lines = [
        "| method | held-out score, before -> after | gain | KL | seconds an iteration | peak MiB |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in rows.items():
        gains = [row.after.score_mean - row.before.score_mean for row in found]
        cells = [
            ", ".join(f"{row.before.score_mean:+.2f} -> {row.after.score_mean:+.2f}" for row in found),
            f"{fmean(gains):+.2f}",
            ", ".join(f"{row.after.kl:.1f}" for row in found),
            ", ".join(f"{row.seconds:.1f}" for row in found),
            f"{max(row.mebibytes for row in found):,.0f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
