"""The configuration schema, read from and written to TOML. Imports no tensor library."""

import secrets
from typing import TypeVar

from trainer.config.loading import PRESETS, load_config, parse_overrides, preset_names, resolve_paths
from trainer.config.pairs import DPOConfig, RewardModelConfig
from trainer.config.problems import config_warnings, validate
from trainer.config.schema import Config

AnyConfig = Config | RewardModelConfig | DPOConfig
SCHEMAS: dict[str, type[AnyConfig]] = {"ppo": Config, "reward-model": RewardModelConfig, "dpo": DPOConfig}
"""Schema of each kind of run."""

_SEEDS = 2**32
_Kind = TypeVar("_Kind", Config, RewardModelConfig, DPOConfig)


def with_seed(config: _Kind) -> _Kind:
    """Return `config` with a seed: its own, or a random one if `run.seed` is negative."""
    seed = config.run.seed if config.run.seed >= 0 else secrets.randbelow(_SEEDS)
    return config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})


def split_seed(config: Config) -> int:
    """Return the seed of the split into prompts to train on and held-out prompts."""
    return config.data.eval_seed if config.data.eval_seed >= 0 else config.run.seed


def with_later_seed(config: Config, number: int) -> Config:
    """Return `config` with the seed that comes `number` after its own, and with the same held-out prompts.

    data.eval_seed names the seed of that choice, so that such configurations differ by run.seed alone.
    """
    tables = {
        "run": config.run.model_copy(update={"seed": (config.run.seed + number) % _SEEDS}),
        "data": config.data.model_copy(update={"eval_seed": split_seed(config)}),
    }
    return config.model_copy(update=tables)


__all__ = [
    "PRESETS",
    "SCHEMAS",
    "AnyConfig",
    "Config",
    "config_warnings",
    "load_config",
    "parse_overrides",
    "preset_names",
    "resolve_paths",
    "split_seed",
    "validate",
    "with_later_seed",
    "with_seed",
]
