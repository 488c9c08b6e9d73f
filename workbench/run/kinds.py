"""The kinds of run that there are, by the name that `RunStarted.run_kind` and config.toml give them."""

from __future__ import annotations

from trainer.runs.listing import PPO
from workbench.system.output import PROGRAM

REWARD_MODEL = "reward-model"
DPO = "dpo"

_COMMANDS = {REWARD_MODEL: "reward-model train", DPO: "dpo"}


def training_command(kind: str) -> str:
    """The command that trains a run of `kind`, without options; empty for a kind that only a newer version has."""
    if kind == PPO:
        return f"{PROGRAM} --no-ui"
    return f"{PROGRAM} {_COMMANDS[kind]}" if kind in _COMMANDS else ""
