"""The configuration schema, read from and written to TOML. Imports no tensor library."""

from trainer.config.kinds import AnyConfig
from trainer.config.loading import (
    PRESETS,
    load_config,
    parse_overrides,
    preset_names,
    resolve_paths,
    save_config,
)
from trainer.config.problems import config_problems, validate
from trainer.config.rules import config_warnings
from trainer.config.schema import Config

__all__ = [
    "PRESETS",
    "AnyConfig",
    "Config",
    "config_problems",
    "config_warnings",
    "load_config",
    "parse_overrides",
    "preset_names",
    "resolve_paths",
    "save_config",
    "validate",
]
