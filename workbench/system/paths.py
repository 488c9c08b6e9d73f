"""Folders of the workbench that belong to the user rather than to a run."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

VARIABLE = "PPO_WORKBENCH_CONFIG_DIR"


def config_dir() -> Path:
    """Return the folder of the user's themes/ and keys.toml, or `PPO_WORKBENCH_CONFIG_DIR`. It need not exist."""
    return Path(os.environ.get(VARIABLE) or platformdirs.user_config_path("ppo-workbench"))


def state_dir() -> Path:
    """Return the folder of the screen's logs and the list of trusted code. It need not exist."""
    return platformdirs.user_state_path("ppo-workbench")
