"""Where the workbench keeps what belongs to its user rather than to a run."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

VARIABLE = "PPO_WORKBENCH_CONFIG_DIR"


def config_dir() -> Path:
    """The user's own themes/ and keys.toml; `PPO_WORKBENCH_CONFIG_DIR` names another folder. It need not exist."""
    return Path(os.environ.get(VARIABLE) or platformdirs.user_config_path("ppo-workbench"))


def state_dir() -> Path:
    """Logs of the screen. It need not exist."""
    return platformdirs.user_state_path("ppo-workbench")
