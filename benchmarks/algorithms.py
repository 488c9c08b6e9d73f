"""Compare what PPO, RLOO, GRPO and DPO gain on one task from the same number of sequences, at what KL, time and memory.

The task is that of stories.toml: the starter model continues stories, and the sentiment lexicon scores them. PPO, RLOO
and GRPO sample their sequences while they train. DPO gets as many sequences of the untrained model, four per prompt,
ranked by the same score. `ppo-workbench evaluate` scores the last checkpoint of each method on the same held-out
prompts, with the same draws.

Run: .venv/bin/python benchmarks/algorithms.py [--seeds 0 1 2] [--iterations 25] [--dir runs/algorithms]
Finished runs are only read, and interrupted ones resumed. Times are medians over a run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from train_runs import STORIES, events, train, train_ppo

import trainer
from trainer.data import Prompt, load_prompts
from trainer.events import DPOStep, Iteration
from trainer.ppo_run.prompts import run_prompts
from trainer.preferences.formats import write_preferences
from trainer.preferences.records import Comparison, Judgement, Preference
from trainer.rewards import RewardInput, Rewards, build_rewards
from trainer.rollout.generation import generate_responses
from trainer.seeding import key_for

COMPLETIONS = 4
SEQUENCES = 8  # per iteration
SAMPLING = 1001  # purpose for `key_for` that no run uses, so that the pairs repeat no run's draws
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
DPO = (
    "reward.sources=[{kind = 'lexicon'}]",
    'model.lora_targets=["q_proj", "k_proj", "v_proj", "o_proj"]',
    "rollout.max_new_tokens=32",
    "data.eval_fraction=0.1",
    "data.end_token=false",
    "train.batch_size=4",
    "train.epochs=2",
    "eval.every=0",
    "eval.prompts=1",
)


class Row(NamedTuple):
    """Results of one method on one seed."""

    report: dict[str, Any]  # output of `ppo-workbench evaluate --json`
    seconds: float  # for `SEQUENCES` sequences; for DPO, sampling them included
    mebibytes: float  # peak of MLX's own allocations


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=25, help="iterations of PPO, RLOO and GRPO")
    parser.add_argument("--dir", type=Path, default=Path("runs/algorithms"))
    options = parser.parse_args()
    rows: dict[str, list[Row]] = {name: [] for name in (*ONLINE, "DPO")}
    for seed in options.seeds:
        folder = options.dir.resolve() / f"seed-{seed}"
        prepare(folder, seed, options.iterations * SEQUENCES // COMPLETIONS)
        for name, settings in ONLINE.items():
            rows[name].append(learn_online(folder / name.lower(), seed, options.iterations, settings))
        rows["DPO"].append(learn_offline(folder / "dpo", seed, options.iterations))
    print(table(rows))


def learn_online(run: Path, seed: int, iterations: int, settings: tuple[str, ...]) -> Row:
    """Train PPO, RLOO or GRPO on one seed, and return the results."""
    given = (*shared(run, seed), f"ppo.iterations={iterations}", *settings)
    train_ppo(run, *given)
    steps = [event for event in events(run) if isinstance(event, Iteration)]
    seconds = median(sum(step.seconds.values()) for step in steps)
    return Row(evaluation_report(run), seconds, max(step.memory_bytes for step in steps) / 2**20)


def learn_offline(run: Path, seed: int, iterations: int) -> Row:
    """Train DPO on sequences of the untrained model, and return the results."""
    train(["dpo"], run, *shared(run, seed), *DPO, new=("--data", str(run.parent / "pairs.jsonl")))
    steps = [event for event in events(run) if isinstance(event, DPOStep)]
    sampling = sum(row["seconds"] for row in read_lines(run.parent / "written.jsonl"))
    seconds = (sampling + sum(step.seconds for step in steps)) / iterations
    return Row(evaluation_report(run), seconds, max(step.memory_bytes for step in steps) / 2**20)


def shared(run: Path, seed: int) -> tuple[str, ...]:
    """Return the settings that all runs of a seed share."""
    return f"run.dir={run.parent}", f"run.seed={seed}", "checkpoint.every=5", "checkpoint.keep=1"


def evaluation_report(run: Path) -> dict[str, Any]:
    """Return the report on the last checkpoint: the held-out prompts, two responses to each.

    The report is kept in the run's folder; a later call reads it from there.
    """
    kept = run / "judged.json"
    if not kept.exists():
        command = [sys.executable, "-m", "workbench", "evaluate", str(run), "--samples", "2", "--json", "--seed", "1"]
        command += ["--prompts", str(run.parent / "held-out.jsonl")]
        kept.write_text(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    report: dict[str, Any] = json.loads(kept.read_text())
    return report


def prepare(folder: Path, seed: int, count: int) -> None:
    """Write the held-out prompts, and DPO's pairs: the untrained model's ranked texts for `count` prompts."""
    if (folder / "pairs.jsonl").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    config = trainer.load_config(str(STORIES), trainer.parse_overrides([f"run.seed={seed}"]))
    model = trainer.load_backbone(config.model)
    prompts = run_prompts(config, load_prompts(config.data), model)
    save(folder / "held-out.jsonl", [{"prompt": prompt.prompt} for prompt in prompts.held_out])

    def generate(batch: list[Prompt], first: int) -> list[Any]:
        key = key_for(seed, SAMPLING, first)  # type: ignore[arg-type]
        return generate_responses(model.backbone, model.tokenizer, batch, config.rollout, key=key)

    save(folder / "written.jsonl", list(sample_texts(prompts.train[:count], generate, build_rewards(config.reward))))
    write_preferences(ranked(read_lines(folder / "written.jsonl")), folder / "pairs.jsonl", format="k-way")


def sample_texts(
    prompts: list[Prompt], generate: Callable[[list[Prompt], int], list[Any]], rewards: Rewards
) -> Iterator[dict[str, Any]]:
    """Yield each prompt with its texts, their scores, and the seconds it took to write and score them."""
    prompts_per_batch = SEQUENCES // COMPLETIONS
    for first in range(0, len(prompts), prompts_per_batch):
        started = time.perf_counter()
        batch = [prompt for prompt in prompts[first : first + prompts_per_batch] for _ in range(COMPLETIONS)]
        responses = generate(batch, first)
        texts = [response.text for response in responses]
        inputs = [
            RewardInput(prompt.prompt, response.text, response.tokens, prompt.columns, response.truncated)
            for prompt, response in zip(batch, responses, strict=True)
        ]
        scores = rewards(inputs).scores
        seconds = (time.perf_counter() - started) * COMPLETIONS / len(batch)
        for row in range(0, len(batch), COMPLETIONS):
            group = slice(row, row + COMPLETIONS)
            yield {"prompt": batch[row].prompt, "texts": texts[group], "scores": scores[group], "seconds": seconds}


def ranked(rows: list[dict[str, Any]]) -> Iterator[Preference]:
    """Yield each prompt's completions ranked by score. Skip a prompt whose scores are all equal: it teaches nothing."""
    for row in rows:
        scores = row["scores"]
        if len(set(scores)) > 1:
            order = sorted(set(scores), reverse=True)
            groups = tuple(tuple(place for place, s in enumerate(scores) if s == score) for score in order)
            comparison = Comparison(prompt=row["prompt"], completions=tuple(row["texts"]))
            yield Preference(comparison=comparison, judgement=Judgement(ranking=groups))


def save(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write `rows` to `path`, one JSON object per line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows that `save` wrote."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(rows: dict[str, list[Row]]) -> str:
    """Return a Markdown table with one row per method and the numbers of all seeds."""
    lines = [
        "| method | gain in held-out score | mean | win rate | KL | seconds for 8 sequences | peak MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in rows.items():
        gains = [row.report["gain"]["value"] for row in found]
        cells = [
            ", ".join(f"{gain:+.2f}" for gain in gains),
            f"{fmean(gains):+.2f}",
            ", ".join(f"{100 * row.report['win_rate']['value']:.0f}%" for row in found),
            ", ".join(f"{row.report['policy']['kl']['value']:.1f}" for row in found),
            ", ".join(f"{row.seconds:.1f}" for row in found),
            f"{max(row.mebibytes for row in found):,.0f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
