"""Measure how well a reward model, PPO and DPO learn a hidden rule from preferences.

The rule: a story is better if it is told in the first person (I, me, my, we, ...). Only the labeller knows it. For each
seed the starter model writes four completions to each training prompt of stories.toml, and the labeller ranks those
that follow the rule above the others. A reward model learns from three quarters of the prompts. PPO learns from the
reward model alone, DPO from the same rankings. Both are evaluated on their held-out prompts by the reward model and,
with weight 0, by the rule: the share of stories that follow it.

Run: .venv/bin/python benchmarks/hidden_rule.py [--seeds 0 1 2] [--dir runs/hidden-rule]
Finished runs are only read, and interrupted ones resumed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from train_runs import STORIES, events, train, train_ppo

import trainer
from trainer.events import DPOEvaluation, Evaluation, RewardModelEvaluation
from trainer.preferences.formats import write_preferences
from trainer.preferences.records import Comparison, Judgement, Preference

COMPLETIONS = 4
PAIRS = ("data.eval_fraction=0.25", "eval.every=0", "train.batch_size=8")  # for the runs that learn from the pairs
RULE = r"\b(?:I|me|my|mine|myself|we|us|our|ours)\b"
SAMPLING = 1000  # purpose for `key_for` that no run uses, so that the pairs repeat no run's draws
AnyEvaluation = TypeVar("AnyEvaluation", bound=Evaluation | DPOEvaluation | RewardModelEvaluation)


def main() -> None:
    """Run what is missing for each seed, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--dir", type=Path, default=Path("runs/hidden-rule"))
    parser.add_argument("--iterations", type=int, default=30, help="iterations of PPO")
    parser.add_argument("--dpo-lr", type=float, default=1e-4, help="learning rate of DPO")
    options = parser.parse_args()
    for seed in options.seeds:
        learn_ppo(seed, options)
    for seed in options.seeds:
        learn_dpo(seed, options)
    print(tables([options.dir / f"seed-{seed}" for seed in options.seeds]))


def learn_ppo(seed: int, options: argparse.Namespace) -> None:
    """Write the pairs, and train the reward model and PPO on one seed; skip what exists already."""
    folder = options.dir / f"seed-{seed}"
    written, pairs = folder / "written.jsonl", folder / "pairs.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    if not written.exists():
        save(written, completions(seed))
    if not pairs.exists():
        write_preferences(label(written), pairs, format="k-way")
    settings = (*shared(folder, seed), *PAIRS, "optim.lr=5e-4", "train.epochs=3")
    train(["reward-model", "train"], folder / "reward-model", *settings, new=("--data", str(pairs)))
    ppo = (sources(folder), f"ppo.iterations={options.iterations}", "eval.every=10", "eval.prompts=48")
    train_ppo(folder / "ppo", *shared(folder, seed), *ppo)


def learn_dpo(seed: int, options: argparse.Namespace) -> None:
    """Train DPO on one seed, on the pairs that `learn_ppo` wrote."""
    folder = options.dir / f"seed-{seed}"
    dpo = (f"optim.lr={options.dpo_lr}", "data.end_token=false", "rollout.max_new_tokens=32", "eval.prompts=48")
    settings = (*shared(folder, seed), *PAIRS, sources(folder), *dpo)
    train(["dpo"], folder / "dpo", *settings, new=("--data", str(folder / "pairs.jsonl")))


def shared(folder: Path, seed: int) -> tuple[str, ...]:
    """Return the settings that all runs of a seed share."""
    return f"run.dir={folder}", f"run.seed={seed}", "checkpoint.every=10", "checkpoint.keep=1"


def sources(folder: Path) -> str:
    """Return the `reward.sources` setting: the reward model, and the rule with weight 0."""
    rule = f"{{kind = 'regex', pattern = '{RULE}', weight = 0.0}}"
    return f"reward.sources=[{{kind = 'model', path = '{folder / 'reward-model'}'}}, {rule}]"


def completions(seed: int) -> Iterator[tuple[str, list[str]]]:
    """Yield each training prompt of stories.toml with the starter model's completions."""
    from trainer.data import load_prompts
    from trainer.ppo_run.prompts import run_prompts
    from trainer.rollout.generation import generate_responses
    from trainer.seeding import key_for

    config = trainer.load_config(str(STORIES), trainer.parse_overrides([f"run.seed={seed}"]))
    model = trainer.load_backbone(config.model)
    prompts = run_prompts(config, load_prompts(config.data), model).train
    for first in range(0, len(prompts), 8):
        batch = [prompt for prompt in prompts[first : first + 8] for _ in range(COMPLETIONS)]
        key = key_for(seed, SAMPLING, first)  # type: ignore[arg-type]
        responses = generate_responses(model.backbone, model.tokenizer, batch, config.rollout, key=key)
        texts = [response.text for response in responses]
        for row in range(0, len(batch), COMPLETIONS):
            yield str(batch[row].prompt), texts[row : row + COMPLETIONS]
        print(f"prompts: {min(first + 8, len(prompts))} of {len(prompts)}", file=sys.stderr)


def save(path: Path, written: Iterator[tuple[str, list[str]]]) -> None:
    """Write prompt and completions as one JSON list per line; an interrupted call leaves no file at `path`."""
    lines = [json.dumps(row) for row in written]
    part = path.with_suffix(".part")
    part.write_text("\n".join(lines) + "\n")
    part.rename(path)


def label(written: Path) -> Iterator[Preference]:
    """Yield the hidden rule's ranking of the completions to each prompt.

    Skips a prompt if all or none of its completions follow the rule: there is nothing to learn.
    """
    for line in written.read_text().splitlines():
        prompt, texts = json.loads(line)
        follows = [re.search(RULE, text) is not None for text in texts]
        if len(set(follows)) == 2:
            groups = [tuple(place for place, fits in enumerate(follows) if fits is wanted) for wanted in (True, False)]
            comparison = Comparison(prompt=prompt, completions=tuple(texts))
            yield Preference(comparison=comparison, judgement=Judgement(ranking=tuple(groups)))


def model_score(evaluation: Evaluation) -> float:
    """Return the reward model's mean score in an evaluation."""
    return next(score for part, score in evaluation.parts.items() if part.startswith("model"))


def first_and_last(run: Path, kind: type[AnyEvaluation]) -> tuple[AnyEvaluation, AnyEvaluation]:
    """Return the first and the last evaluation of type `kind` in the journal of `run`."""
    found = [event for event in events(run) if isinstance(event, kind)]
    return found[0], found[-1]


def tables(folders: list[Path]) -> str:
    """Return two Markdown tables: accuracy on held-out pairs, and scores of each policy before and after training."""
    lines = [
        "| seed | pairs, held out | reward model | 95% interval | untrained | length alone | DPO's implicit reward |",
        "|---|---|---|---|---|---|---|",
    ]
    for folder in folders:
        untrained, model = first_and_last(folder / "reward-model", RewardModelEvaluation)
        _, dpo = first_and_last(folder / "dpo", DPOEvaluation)
        lines.append(
            f"| {folder.name.removeprefix('seed-')} | {model.pairs} | {100 * model.accuracy:.1f}% "
            f"| {100 * model.accuracy_low:.1f} to {100 * model.accuracy_high:.1f}% "
            f"| {100 * untrained.accuracy:.1f}% | {100 * model.length_accuracy:.1f}% | {100 * dpo.accuracy:.1f}% |"
        )
    lines += [
        "",
        "| seed | policy | hidden rule | reward model | KL | tokens |",
        "|---|---|---|---|---|---|",
    ]
    for folder in folders:
        for name in ("PPO", "DPO"):
            before, after = first_and_last(folder / name.lower(), Evaluation)
            cells = [
                f"{before.parts['regex']:+.2f} -> {after.parts['regex']:+.2f}",
                f"{model_score(before):+.2f} -> {model_score(after):+.2f}",
                f"{after.kl:.1f}",
                f"{before.response_length:.0f} -> {after.response_length:.0f}",
            ]
            lines.append(f"| {folder.name.removeprefix('seed-')} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
