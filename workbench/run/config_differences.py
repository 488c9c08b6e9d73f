"""What differs between the configurations of runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from trainer.errors import StorageError
from trainer.files import read_toml
from trainer.runs.folder import RunFolder

_TELLS_RUNS_APART = "run.name"  # differs always


class Difference(NamedTuple):
    """A setting that is not the same everywhere."""

    key: str  # dotted, such as ppo.kl_coef
    values: dict[str, Any]  # by run; None where the run does not have it, which TOML has no value for


class Comparison(NamedTuple):
    """Runs side by side: `names` are those that could be read, `problems` tells of the others."""

    names: list[str]
    differences: list[Difference]
    problems: list[str]


def config_differences(configs: Mapping[str, Mapping[str, Any]]) -> list[Difference]:
    """The settings that are not the same in all of `configs` (run -> its config.toml), in the order of the files.

    Lists count as a whole; 1 and 1.0 are the same, 1 and true are not. The runs' names are left out.
    """
    settings = {name: dict(_settings(config)) for name, config in configs.items()}
    keys = dict.fromkeys(key for values in settings.values() for key in values)
    differences = []
    for key in keys:
        values = {name: of_run.get(key) for name, of_run in settings.items()}
        first, *others = [_comparable(value) for value in values.values()]
        if key != _TELLS_RUNS_APART and any(other != first for other in others):
            differences.append(Difference(key, values))
    return differences


def compare_runs(folders: Sequence[RunFolder]) -> Comparison:
    """What differs in the config.toml of the runs; those that cannot be read are told and left out."""
    configs: dict[str, Mapping[str, Any]] = {}
    problems: list[str] = []
    for folder in folders:
        try:
            configs[folder.name] = read_config(folder)
        except StorageError as error:
            problems.append(str(error))
    try:
        return Comparison(list(configs), config_differences(configs) if configs else [], problems)
    except RecursionError:
        return Comparison(list(configs), [], [*problems, "the configurations are nested too deeply to compare"])


def read_config(folder: RunFolder) -> dict[str, Any]:
    """The config.toml of a run as it stands, whether it is valid or not. StorageError when it is no TOML."""
    try:
        return read_toml(folder.config)
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError as error:
        reason = str(error)
    raise StorageError(f"cannot read '{folder.config}': {reason}; mend the file, or compare other runs")


def value_text(value: Any) -> str:
    """A setting as it stands in the file, nearly; - for None."""
    return "-" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values, in order; without recursion, which a hostile file could exhaust."""
    waiting: list[Iterator[tuple[str, Any]]] = [iter([("", config)])]
    while waiting:
        for key, value in waiting[-1]:
            if isinstance(value, Mapping):
                waiting.append(iter([(f"{key}.{name}" if key else name, item) for name, item in value.items()]))
                break
            yield key, value
        else:
            waiting.pop()


def _comparable(value: Any) -> Any:
    """`value` so that == tells whether TOML means the same: true is not 1, and nan is nan."""
    if isinstance(value, bool) or value != value:
        return type(value), str(value)
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    return value
