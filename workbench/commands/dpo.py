"""`ppo-workbench dpo`: a policy from preferences, from the configuration to the exit code."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.config.dpo import DPOConfig
from trainer.config.loading import load_config_as, parse_overrides
from trainer.config.problems import validate_as
from trainer.config.schema import RunConfig
from trainer.control import Control
from trainer.errors import UsageError
from trainer.events import RunEnded, Sink
from trainer.runs import RunFolder, open_run
from workbench.commands.train import headless
from workbench.displays import choose
from workbench.session import Session

# May change when a run is resumed.
_RESUMABLE = ("checkpoint.every", "checkpoint.keep", "eval.every")


def run(args: argparse.Namespace) -> int:
    """Train as the command line says; returns the exit code. Raises TrainerError for what a user can mend."""
    resume, preset = None, "dpo"
    if args.resume is not None:
        config, folder = _resumed(args)
        resume = folder.root
    else:
        config = _configuration(args)
        if args.config_given:
            preset = Path(args.config_given).stem
    untyped: Any = config  # a session hands it on as it is
    return headless(Session(untyped, resume=resume, preset=preset, train=_train), choose(args.display or "plain"))


def _train(config: Any, *, resume: Path | None, preset: str, sinks: Sequence[Sink], control: Control) -> RunEnded:
    # Imported here, because that imports mlx, and only the thread that trains may use it.
    from trainer.dpo.training import train_dpo
    from trainer.training import release_thread

    try:
        return train_dpo(config, resume=resume, preset=preset, sinks=sinks, control=control)
    finally:
        release_thread()


def _configuration(args: argparse.Namespace) -> DPOConfig:
    given = [f"run.name={args.name}"] * (args.name is not None) + [f"data.preferences={args.data}"] * bool(args.data)
    overrides = parse_overrides(args.overrides + given, DPOConfig)
    if args.config_given:
        return load_config_as(DPOConfig, args.config_given, overrides)
    return validate_as(DPOConfig, overrides)


def _resumed(args: argparse.Namespace) -> tuple[DPOConfig, RunFolder]:
    for option, value in (("--config", args.config_given), ("--name", args.name), ("--data", args.data)):
        if value is not None:
            raise UsageError(f"{option} {value} does not go with --resume, which uses the run's own config.toml")
    for assignment in args.overrides:
        key = assignment.partition("=")[0].strip()
        if key not in _RESUMABLE:
            raise UsageError(f"--set {key} cannot change in a resumed run; what can: {', '.join(_RESUMABLE)}")
    folder = open_run(args.resume, Path(RunConfig().dir))
    return load_config_as(DPOConfig, folder.config, parse_overrides(args.overrides, DPOConfig)), folder
