"""A workspace for PPO against a reward model: a tiny model, prompts, and a trained run of a reward model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from preference_samples import labelled, reward_config
from runs_helper import tiny_config
from tiny import make_checkpoint
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trainer.engine.training import train
from trainer.rewards import RewardInput


def reward_workspace(folder: Path) -> Path:
    """Make what `tiny_config` makes and a reward model on its model in `folder`/runs/rm; return that run."""
    tiny_config(folder)
    return train_tiny(folder, "rm")


def train_tiny(folder: Path, name: str, *overrides: str, **how: Any) -> Path:
    """Train a reward model for three steps in `folder`/runs/`name`, on the model in `folder`."""
    train(reward_config(folder, f"run.name={name}", *overrides), preferences=labelled(24), **how)
    return folder / "runs" / name


def two_reward_models(folder: Path) -> Path:
    """Make what `reward_workspace` makes, and `folder`/runs/second with another rank and seed; return `folder`."""
    reward_workspace(folder)
    train_tiny(folder, "second", "run.seed=5", "model.lora_rank=2")
    return folder


def copy_workspace(made: Path, folder: Path) -> Path:
    """Copy `made` to `folder` for runs of its own; the models stay in `made`. Return `folder`."""
    shutil.copytree(made, folder, dirs_exist_ok=True)
    settings = (made / "tiny.toml").read_text().replace(f"{made}/", f"{folder}/")
    (folder / "tiny.toml").write_text(settings.replace(f"{folder}/model", f"{made}/model"))
    return folder


def foreign_model(folder: Path) -> Path:
    """Make a tiny model with a tokenizer of its own: the same bytes by other numbers, and pairs of small letters."""
    make_checkpoint(folder, "qwen3", seed=4, scale=0.3)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    merges = [("e", "e"), ("o", "n")]
    vocabulary |= {"".join(pair): len(alphabet) + number for number, pair in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])  # 258
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 258}))
    return folder


def inputs(*texts: str, prompt: Any = "one ") -> list[RewardInput]:
    """Return completions of `prompt` with the ids of a byte tokenizer with an end token."""
    return [RewardInput(prompt, text, [*text.encode(), 256], {}, False) for text in texts]
