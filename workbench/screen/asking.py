"""Questions of the Samples pane to the models of the run on the screen."""

from __future__ import annotations

import asyncio
from pathlib import Path

from trainer.config import load_config
from trainer.config.schema import RolloutConfig
from trainer.errors import TrainerError
from trainer.runs.folder import RunFolder
from workbench.run.supervisor import Supervisor
from workbench.samples.ask_screen import AskScreen, StartingPoint
from workbench.screen.host import Host


async def ask_about(screen: Host, supervisor: Supervisor, start: StartingPoint) -> None:
    """Show the dialog that asks the run's models: the trainer's if it is under way, else a saved one."""
    folder = supervisor.folder
    if folder is None:
        return
    rollout, checkpoints = await asyncio.gather(
        asyncio.to_thread(_rollout, folder), asyncio.to_thread(supervisor.saved_policies)
    )
    if folder != supervisor.folder:
        return
    screen.app.push_screen(
        AskScreen(
            supervisor.ask_model,
            start,
            temperature=rollout.temperature,
            max_new_tokens=rollout.max_new_tokens,
            checkpoints=checkpoints,
        )
    )


def _rollout(folder: Path) -> RolloutConfig:
    """Return how the run in `folder` samples; the defaults where its configuration cannot be read."""
    try:
        return load_config(RunFolder(folder).config).rollout
    except TrainerError:
        return RolloutConfig()
