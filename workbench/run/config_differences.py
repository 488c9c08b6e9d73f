"""Differences between the configurations of runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from trainer.engine.live_settings import in_words
from trainer.errors import StorageError
from trainer.runs.folder import RunFolder, read_config
from workbench.text import visible

MOST = 100  # differences that are shown; configurations have fewer settings
_NAME = "run.name"  # differs between any two runs


class Difference(NamedTuple):
    """A setting that differs between runs."""

    key: str  # dotted, such as ppo.kl_coef
    values: dict[str, Any]  # by run; None if the run does not have it, since TOML has no null


class RunComparison(NamedTuple):
    """Runs side by side: `names` lists those that could be read, `problems` describes the others."""

    names: list[str]
    differences: list[Difference]
    problems: list[str]


def config_differences(configs: Mapping[str, Mapping[str, Any]]) -> list[Difference]:
    """Return the settings that differ between `configs` (run -> its config.toml), in the order of the files.

    Lists are compared as a whole; 1 and 1.0 are the same, 1 and true are not. The runs' names are left out.
    """
    settings = {name: dict(_settings(config)) for name, config in configs.items()}
    keys = dict.fromkeys(key for values in settings.values() for key in values)
    differences = []
    for key in keys:
        values = {name: of_run.get(key) for name, of_run in settings.items()}
        first, *others = [comparable(value) for value in values.values()]
        if key != _NAME and any(other != first for other in others):
            differences.append(Difference(key, values))
    return differences


def compare_runs(folders: Sequence[RunFolder]) -> RunComparison:
    """Compare the config.toml of the runs. Those that cannot be read are left out and reported in `problems`."""
    configs: dict[str, Mapping[str, Any]] = {}
    problems: list[str] = []
    for folder in folders:
        try:
            configs[folder.name] = read_config(folder)
        except StorageError as error:
            problems.append(str(error))
    return RunComparison(list(configs), config_differences(configs), problems)


def difference_rows(differences: Sequence[Difference], longest: int) -> list[tuple[str, list[str]]]:
    """Return key and values of the first `MOST` differences, made safe to print and cut to `longest` characters."""
    return [
        (visible(key[:longest]), [visible(_cell(value)[:longest]) for value in values.values()])
        for key, values in differences[:MOST]
    ]


def value_text(value: Any) -> str:
    """Format a setting almost as in the file; - for None."""
    return "-" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _cell(value: Any) -> str:
    """Format a setting, or the tuple of those of a group; reward sources in words."""
    if isinstance(value, tuple):
        return " | ".join(map(_cell, value))
    is_sources = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    return in_words(value) if is_sources else value_text(value)


def _settings(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values, in order. Files that are nested deeply cannot be read in the first place."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def comparable(value: Any) -> Any:
    """Convert `value` so that == compares it as TOML means it: true is not 1, and nan is nan."""
    if isinstance(value, bool) or value != value:
        return type(value), str(value)
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    return value
