"""Settings that may change during a run, and a configuration with one of them changed."""

from __future__ import annotations

import difflib
import functools
from typing import Any

from trainer.config import AnyConfig, Config, validate
from trainer.config.reference import reference_rows
from trainer.config.reward_sources import SOURCES
from trainer.errors import UsageError
from trainer.events import SettingChanged


@functools.cache
def live_keys() -> tuple[str, ...]:
    """Return the dotted keys that may change during a run, in the order of the schema."""
    return tuple(row.key for row in reference_rows() if row.live)


def with_setting(config: Config, key: str, value: Any) -> Config:
    """Return `config` with the live setting `key` set to `value`.

    Raises UsageError for a key that is not live, ConfigError with every rule that the value would break.
    """
    live = live_keys()
    if key not in live:
        table = key.partition(".")[0]
        near = difflib.get_close_matches(key, live, cutoff=0.75) or [
            other for other in live if other.startswith(f"{table}.")
        ]
        tables: dict[str, list[str]] = {}
        for other in () if near else live:
            tables.setdefault(other.partition(".")[0], []).append(other.partition(".")[2])
        what_can = ", ".join(near) or "; ".join(f"{of}: {', '.join(names)}" for of, names in tables.items())
        raise UsageError(f"{key[:80]!r} cannot change during a run; what can: {what_can}")
    raw = config.model_dump()
    table, _, name = key.partition(".")
    raw[table][name] = value
    return validate(raw)


def changes(old: AnyConfig, new: AnyConfig, iteration: int) -> list[SettingChanged]:
    """Return the live settings, as far as their kind of run has them, in which `new` differs from `old`.

    iteration: from which `new` applies.
    """
    before, after = old.model_dump(), new.model_dump()
    found = []
    for key in live_keys():
        table, _, name = key.partition(".")
        was, now = (tables.get(table, {}).get(name) for tables in (before, after))
        if was != now:
            found.append(SettingChanged(iteration=iteration, key=key, old=was, value=now))
    return found


def in_words(value: Any) -> str:
    """Format the value of a live setting for a sentence; reward sources become their names, options and weights."""
    return " + ".join(map(_source, value)) if isinstance(value, list) else str(value)


def _source(source: Any) -> str:
    if not isinstance(source, dict):
        return str(source)
    fields = SOURCES[kind].model_fields if (kind := source.get("kind")) in SOURCES else {}
    words = [str(kind or "?")]
    for name, setting in source.items():
        field = fields.get(name)
        if name not in ("kind", "weight") and setting and (field is None or setting != field.default):
            words.append(str(setting) if field is not None and field.is_required() else f"{name}={setting}")
    weight = source.get("weight", 1)
    return " ".join(words) if weight == 1 else f"{weight} x {' '.join(words)}"
