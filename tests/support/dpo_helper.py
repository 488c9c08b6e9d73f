"""Configurations of DPO runs on the tiny model."""

from __future__ import annotations

from pathlib import Path

from tiny import make_checkpoint

from trainer.config.loading import parse_overrides
from trainer.config.pairs import DPOConfig
from trainer.config.problems import validate_as

REWARD = """\
def likes(completions, **_):
    return [text.count("a") / max(len(text), 1) for text in completions]
"""


def dpo_config(folder: Path, *overrides: str) -> DPOConfig:
    """Return a DPO configuration for `folder`/runs on the tiny model, which is made if missing."""
    if not (folder / "model").exists():
        make_checkpoint(folder / "model")
        (folder / "rewards.py").write_text(REWARD)
    settings = [f"model.path={folder / 'model'}", f"run.dir={folder / 'runs'}", "rollout.max_new_tokens=8"]
    settings += ["train.batch_size=8", "optim.lr=0.01", "model.lora_scale=4"]
    return validate_as(DPOConfig, parse_overrides([*settings, *overrides], DPOConfig))
