"""Preferences by a hidden rule, and configurations of small reward model runs on a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tiny import make_checkpoint

from trainer.config.loading import parse_overrides
from trainer.config.pairs import RewardModelConfig
from trainer.config.problems import validate_as
from trainer.preferences.records import Comparison, Judgement, Origin, Preference

LETTERS = "abcdefgh"
_QUICK = ("train.batch_size=8", "optim.lr=0.01", "model.lora_scale=4")


def hidden_rule(completion: str) -> float:
    """Return how much the labeller likes a completion: its share of letters a."""
    return completion.count("a") / len(completion)


def labelled(count: int, *, seed: int = 0, length: int = 8, prompts: int = 0) -> list[Preference]:
    """Return pairs of random words of `length` letters (give or take two); the one with more letters a is chosen.

    prompts: how many different prompts there are; 0 for one per pair.
    """
    rng = np.random.default_rng(seed)
    found: list[Preference] = []
    while len(found) < count:
        texts = ["".join(rng.choice(list(LETTERS), length + rng.integers(-2, 3))) for _ in range(2)]
        likes = [hidden_rule(text) for text in texts]
        if abs(likes[0] - likes[1]) < 0.1:
            continue
        number = len(found) % prompts if prompts else len(found)
        found.append(preference(f"say {number}: ", texts, "a" if likes[0] > likes[1] else "b"))
    return found


def preference(prompt: Any, completions: Any, choice: Any = "a", *, source: str = "test", **more: Any) -> Preference:
    """Return a judged pair, or (choice: groups of places) a ranking."""
    judgement = Judgement.chosen(choice, **more) if isinstance(choice, str) else Judgement(ranking=choice, **more)
    origins = tuple(Origin(source=source) for _ in completions)
    return Preference(
        comparison=Comparison(prompt=prompt, completions=tuple(completions), origins=origins), judgement=judgement
    )


def reward_config(folder: Path, *overrides: str) -> RewardModelConfig:
    """Return a reward model configuration for `folder`/runs on the tiny model, which is made if missing."""
    if not (folder / "model").exists():
        make_checkpoint(folder / "model", scale=0.3)  # larger weights give hidden states that are hard to read
    settings = [f"model.path={folder / 'model'}", f"run.dir={folder / 'runs'}", *_QUICK]
    return validate_as(RewardModelConfig, parse_overrides([*settings, *overrides], RewardModelConfig))
