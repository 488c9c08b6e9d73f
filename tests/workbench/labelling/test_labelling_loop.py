"""The whole loop: a labeller with a hidden rule judges a run's samples, and the run learns what they like."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest
from preference_samples import reward_config
from preferences_helper import add_label
from runs_helper import Recorder, tiny_config
from tiny import make_checkpoint

from trainer.engine.control import Control
from trainer.engine.training import train
from trainer.events import Alarm, Alert, Event, Iteration, RewardModelEvaluation, SamplesWritten, SettingChanged
from trainer.preferences.records import Comparison, Judgement, Origin, Preference
from trainer.preferences.store import PreferenceStore
from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples

LABELLED, LEARNT = 6, 20
"""Iterations whose samples are judged, and those after them."""
SETTINGS = (
    f"ppo.iterations={LABELLED + LEARNT}",
    "ppo.epochs=4",
    "ppo.kl_coef=0.002",
    "rollout.batch_size=32",
    "rollout.samples_per_prompt=4",
    "rollout.max_new_tokens=4",
    "rollout.ignore_stop=true",
    "optim.policy_lr=0.02",
    "optim.value_lr=0.01",
    "model.lora_scale=4",
    'model.lora_targets=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]',
    "checkpoint.every=0",
    "eval.every=0",
    "run.alternatives=0",
)


def liked(completion: str) -> float:
    """Return how much the labeller likes a text, by a rule that nobody else knows: its share of ASCII characters."""
    return sum(character.isascii() for character in completion) / max(len(completion), 1)


def completions(run: RunFolder, iteration: int) -> dict[str, list[str]]:
    """Return what was written in an iteration, by prompt."""
    found: dict[str, list[str]] = {}
    for row in read_samples(run.samples_file(iteration)).to_pylist():
        found.setdefault(row["prompt"], []).append(row["completion"])
    return found


def label(run: RunFolder, store: PreferenceStore, iteration: int) -> None:
    """Judge every two completions of a prompt that the rule tells apart."""
    origin = Origin(source="run", run=run.name, iteration=iteration, writer="policy")
    for prompt, texts in completions(run, iteration).items():
        for pair in combinations(texts, 2):
            lead = liked(pair[0]) - liked(pair[1])
            if abs(lead) >= 0.1:
                comparison = Comparison(prompt=prompt, completions=pair, origins=(origin, origin))
                judgement = Judgement.chosen("a" if lead > 0 else "b", labeller="script")
                add_label(store, Preference(comparison=comparison, judgement=judgement))


def learn(folder: Path, store: Path) -> tuple[float, float]:
    """Train the reward model `liked` on the labels; return its held-out accuracy before and after."""
    make_checkpoint(folder / "judge", scale=0.3)  # smaller weights give hidden states that are easier to read
    reported = Recorder()
    settings = (f"data.preferences={store}", "data.eval_fraction=0.3", "train.epochs=3", "train.batch_size=4")
    train(reward_config(folder, "run.name=liked", f"model.path={folder}/judge", *settings), sinks=[reported])
    evaluations = reported.of(RewardModelEvaluation)
    return evaluations[0].accuracy, evaluations[-1].accuracy


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_run_that_uses_a_reward_model_of_the_labels_learns_the_hidden_rule(seed: int, tmp_path: Path) -> None:
    run, store, control = RunFolder(tmp_path / "runs/a"), tmp_path / "preferences.db", Control()
    accuracy: list[float] = []

    def watch(event: Event) -> None:
        if not isinstance(event, SamplesWritten) or event.iteration > LABELLED:
            return
        with PreferenceStore(store) as labels:
            label(run, labels, event.iteration)
        if event.iteration == LABELLED:
            accuracy.extend(learn(tmp_path, store))
            control.set("reward.sources", [{"kind": "model", "path": str(tmp_path / "runs/liked")}])

    other = f'reward.sources=["{tmp_path}/rewards.py:constant"]'
    recorder = Recorder(watch)
    train(tiny_config(tmp_path, "run.name=a", f"run.seed={seed}", other, *SETTINGS), sinks=[recorder], control=control)

    assert accuracy[1] > max(accuracy[0], 0.65)
    assert [change.iteration for change in recorder.of(SettingChanged)] == [LABELLED + 1]
    assert [alert for alert in recorder.of(Alert) if not isinstance(alert, Alarm)] == []  # nothing was refused
    assert {part for iteration in recorder.of(Iteration)[LABELLED:] for part in iteration.parts} == {"model:liked"}
    scores = [
        fmean(liked(text) for texts in completions(run, number).values() for text in texts)
        for number in range(1, LABELLED + LEARNT + 1)
    ]
    assert fmean(scores[-5:]) > fmean(scores[:LABELLED]) + 0.1
