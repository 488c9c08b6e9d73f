"""`ppo-workbench dpo`: a policy from preferences, from the configuration to the exit code."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.config.dpo import DPOConfig
from trainer.control.control import Control
from trainer.events import RunEnded
from trainer.runs.sinks import Sink
from workbench.cli.configuration import configuration, resumed
from workbench.cli.parser import add_preference_training, add_trust_code
from workbench.cli.train import headless
from workbench.headless import choose
from workbench.run.session import Session
from workbench.system.code_trust import is_given, require_trust, trusted_code


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.set_defaults(execute=run)
    add_preference_training(parser, "dpo")
    add_trust_code(parser)


def run(args: argparse.Namespace) -> int:
    """Train as the command line says and return the exit code. Raises TrainerError for what a user can fix."""
    resume, preset = None, "dpo"
    if args.resume is not None:
        config, folder = resumed(args, DPOConfig)
        resume = folder.root
    else:
        config = configuration(args, DPOConfig)
        if args.config_given:
            preset = Path(args.config_given).stem
    require_trust(config.reward, given=is_given(args, DPOConfig))
    untyped: Any = config  # a session passes it on unchanged
    return headless(Session(untyped, resume=resume, preset=preset, train=_train), choose(args.display))


def _train(config: Any, *, resume: Path | None, preset: str, sinks: Sequence[Sink], control: Control) -> RunEnded:
    # Imported here, because this imports mlx, which only the training thread may use.
    from trainer.dpo.dpo_run import train_dpo
    from trainer.session.training import release_thread

    try:
        trust = trusted_code().check
        return train_dpo(config, resume=resume, preset=preset, sinks=sinks, control=control, trust=trust)
    finally:
        release_thread()
