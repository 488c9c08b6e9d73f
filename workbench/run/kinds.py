"""The kinds of run, by the names that `RunStarted.run_kind` and config.toml give them."""

from __future__ import annotations

from trainer.runs.listing import PPO
from workbench.system.output import PROGRAM

REWARD_MODEL = "reward-model"
DPO = "dpo"

_COMMANDS = {REWARD_MODEL: "reward-model train", DPO: "dpo"}


def training_command(kind: str) -> str:
    """Return the command that trains a run of `kind`, without options; empty for a kind of a newer version."""
    if kind == PPO:
        return f"{PROGRAM} --no-ui"
    return f"{PROGRAM} {_COMMANDS[kind]}" if kind in _COMMANDS else ""
