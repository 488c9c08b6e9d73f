"""Measure what the starter model learns from people: two reward models, and PPO on one of them.

The data are pairs of conversations, of which a person preferred one, as in Anthropic's hh-rlhf. Reward model A learns
from five sevenths of them and is evaluated once on the others. PPO learns from A alone, on the prompts of A's pairs.
Then the policy and the untrained model answer 64 held-out prompts, and two reward models score the answers: A, and B,
which has learnt from the other held-out pairs alone. B knows nothing of what A was trained on, and PPO nothing of B.

Run: .venv/bin/python benchmarks/human_preferences.py --data harmless-base.jsonl.gz [--seeds 0] [--dir runs/people]
Finished runs are only read, and interrupted ones resumed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from train_runs import events, train, train_ppo

from trainer.confidence import Interval
from trainer.config.reward_model import RewardModelConfig
from trainer.events import Alert, RewardModelEvaluation
from trainer.models.backbone import load_tokenizer
from trainer.preference_data.comparisons import load_preferences, reward_comparisons
from trainer.preference_data.groups import Group
from trainer.preferences.formats import read_preferences, write_preferences
from trainer.reward_model.predictions import HELD_OUT, read_predictions

A, B = "reward-model", "other-reward-model"  # names of their runs
HELD_OUT_SHARE = 0.2857  # of 1,400 pairs: 400
MAX_TOKENS = 256  # of prompt and answer together
PROMPT, ANSWER = 128, 48  # tokens of a prompt of the policy, and of its answer
PROMPTS = 64  # to evaluate the policy on
SAMPLES = 2  # answers to each of them
PAIRS_FOR_B = 200  # pairs of A's that B is evaluated on
REWARD_MODEL = (
    f"data.max_tokens={MAX_TOKENS}",
    "train.head=fitted",
    "train.states=last+mean",
    "model.lora_layers=8",
    "eval.every=0",
)
PPO = (
    "data.eval_fraction=0",
    f"data.max_prompt_tokens={PROMPT}",
    f"rollout.max_new_tokens={ANSWER}",
    'rollout.stop=["\\n\\nHuman:"]',
    "rollout.batch_size=8",
    "ppo.iterations=40",
    "ppo.epochs=2",
    "ppo.kl_coef=0.02",
    "ppo.prefix_scores=1",
    "ppo.lam=0.7",
    "optim.policy_lr=1e-4",
    "optim.value_lr=3e-4",
    "eval.every=0",
)


class Places(NamedTuple):
    """Files that are written once from the data."""

    prompts: Path  # of A's pairs, for PPO
    held_out: Path  # prompts to evaluate the policy on
    others: Path  # pairs that B learns from
    known: Path  # some pairs of A's, to evaluate B on


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="pairs of conversations: a file, or the name of a dataset")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds of PPO; the reward models have seed 0")
    parser.add_argument("--dir", type=Path, default=Path("runs/people"))
    options = parser.parse_args()
    folder = options.dir.resolve()
    places = prepare(options.data, folder)
    shared = (f"run.dir={folder}", "checkpoint.every=10")
    learn = ["reward-model", "train"]
    settings = (*REWARD_MODEL, *shared, "run.seed=0")
    train(learn, folder / A, *settings, f"data.eval_fraction={HELD_OUT_SHARE}", new=("--data", options.data))
    train(learn, folder / B, *settings, "data.eval_fraction=0", new=("--data", str(places.others)))
    print(reward_models(folder, places))
    print(POLICY_HEAD)
    for seed in options.seeds:
        run = folder / f"ppo-{seed}"
        given = (*PPO, *shared, f"run.seed={seed}", f"data.prompts={places.prompts}", sources(folder / A))
        train_ppo(run, *given)
        for letter, name in (("A", A), ("B", B)):
            print(policy_row(seed, letter, report_of(run, folder / name, places.held_out)))


def prepare(data: str, folder: Path) -> Places:
    """Split the data as A's run does, and write the files of the other parts."""
    places = Places(*(folder / f"{name}.jsonl" for name in Places._fields))
    if all(path.exists() for path in places):
        return places
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"preferences": data, "eval_fraction": HELD_OUT_SHARE, "max_tokens": MAX_TOKENS}
    config = RewardModelConfig.model_validate({"data": parts, "eval": {"comparisons": 0}})
    found = reward_comparisons(load_preferences(config.data), load_tokenizer(config.model), config)
    everything = list(read_preferences(data))

    def fits(group: Group) -> bool:
        return len(group.sequences[0]) - group.completions[0] <= PROMPT

    chosen = [group.number for group in found.held_out if fits(group)][:PROMPTS]
    others = [group.number for group in found.held_out if group.number not in set(chosen)]
    numbers = [group.number for group in found.train]
    for path, rows in ((places.prompts, numbers), (places.held_out, chosen)):
        lines = [json.dumps({"prompt": everything[row].comparison.prompt}) for row in rows]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    for path, rows in ((places.others, others), (places.known, numbers[:PAIRS_FOR_B])):
        write_preferences((everything[row] for row in rows), path, format="k-way")
    return places


def sources(model: Path) -> str:
    """Return the setting of a reward model as the only source of the score."""
    return f"reward.sources=[{{kind = 'model', path = '{model}'}}]"


def reward_models(folder: Path, places: Places) -> str:
    """Return a Markdown table of both reward models on pairs that they have not seen."""
    lines = [
        "| reward model | pairs | accuracy | 95% interval | length alone | ahead of it by | head alone | untrained |"
    ]
    lines.append("|---" * 8 + "|")
    evaluations = [event for event in events(folder / A) if isinstance(event, RewardModelEvaluation)]
    first, last = evaluations[0], evaluations[-1]
    ahead = read_predictions(folder / A / HELD_OUT).report.over_length
    assert ahead is not None
    accuracy = Interval(last.accuracy, last.accuracy_low, last.accuracy_high)
    head = f"{100 * first.accuracy:.1f}%"
    lines.append(model_row("A", last.pairs, accuracy, last.length_accuracy, ahead, head, last.untrained_accuracy))
    kept = folder / B / "judged.json"
    if not kept.exists():
        command = ["reward-model", "eval", str(folder / B), "--data", str(places.known), "--json"]
        kept.write_text(output_of(command), encoding="utf-8")
    found = json.loads(kept.read_text(encoding="utf-8"))
    accuracy, ahead = (Interval(*map(found[key].get, Interval._fields)) for key in ("accuracy", "over_length"))
    length, untrained = (found[key]["accuracy"] for key in ("length", "untrained"))
    lines.append(model_row("B", found["accuracy"]["pairs"], accuracy, length, ahead, "", untrained))
    fits = [event for name in (A, B) for event in events(folder / name) if isinstance(event, Alert)]
    notes = [event.message for event in fits if event.code == "head_fitted"]
    return "\n".join([*lines, "", *notes, ""])


def model_row(
    letter: str, pairs: int, accuracy: Interval, length: float, ahead: Interval, head: str, untrained: float
) -> str:
    """Return a row of the reward models' table. The others are shares."""
    cells = [
        letter,
        str(pairs),
        f"{100 * accuracy.value:.1f}%",
        f"{100 * accuracy.low:.1f} to {100 * accuracy.high:.1f}%",
        f"{100 * length:.1f}%",
        f"{100 * ahead.value:+.1f} ({100 * ahead.low:+.1f} to {100 * ahead.high:+.1f})",
        head,
        f"{100 * untrained:.1f}%",
    ]
    return f"| {' | '.join(cells)} |"


POLICY_HEAD = "| seed | scored by | untrained | PPO | gain | wins | KL | tokens |\n" + "|---" * 8 + "|"


def report_of(run: Path, model: Path, prompts: Path) -> dict[str, Any]:
    """Return the report of `ppo-workbench evaluate` with the scores of a reward model; it is kept in the run."""
    kept = run / f"judged-by-{model.name}.json"
    if not kept.exists():
        reward = sources(model).removeprefix("reward.sources=")
        command = ["evaluate", str(run), "--prompts", str(prompts), "--samples", str(SAMPLES), "--seed", "1", "--json"]
        kept.write_text(output_of([*command, "--reward", reward]), encoding="utf-8")
    report: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    return report


def policy_row(seed: int, letter: str, report: dict[str, Any]) -> str:
    """Return a row of the policy's table."""
    policy, reference, gain, wins = (report[key] for key in ("policy", "reference", "gain", "win_rate"))
    cells = [
        letter,
        f"{reference['score']['value']:+.2f}",
        f"{policy['score']['value']:+.2f}",
        f"{gain['value']:+.2f} ({gain['low']:+.2f} to {gain['high']:+.2f})",
        f"{100 * wins['value']:.0f}%",
        f"{policy['kl']['value']:.1f}",
        f"{reference['length']['value']:.0f} -> {policy['length']['value']:.0f}",
    ]
    return f"| {seed} | {' | '.join(cells)} |"


def output_of(command: list[str]) -> str:
    """Return what a command of ppo-workbench prints. Raises CalledProcessError."""
    whole = [sys.executable, "-m", "workbench", *command]
    return subprocess.run(whole, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
