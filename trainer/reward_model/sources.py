"""Sources of a run's preferences: a store, a file, or a dataset."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import NamedTuple

from trainer.config.reward_model import PreferenceDataConfig
from trainer.preferences.formats_in import read_preferences
from trainer.preferences.records import Preference
from trainer.preferences.store import PreferenceStore

_STORES = (".db", ".sqlite", ".sqlite3")


class ReadPreferences(NamedTuple):
    """Preferences in the order of their source, and warnings for the user, one line each."""

    preferences: list[Preference]
    warnings: list[str]


def load_preferences(config: PreferenceDataConfig) -> ReadPreferences:
    """Read the first `config.limit` preferences (0: all) of `config.preferences`, including skips.

    Raises UsageError, DataError or StorageError if the source is missing or cannot be read.
    """
    source, limit = config.preferences, config.limit or None
    if Path(source).suffix.lower() in _STORES:
        with PreferenceStore(Path(source).expanduser(), create=False) as store:
            return ReadPreferences(list(islice(store.preferences(with_skips=True), limit)), [])
    reading = read_preferences(source, format=config.format, split=config.split, skip_broken=config.skip_broken)
    found, warnings = list(islice(reading, limit)), list(reading.problems)
    if reading.broken:
        warnings.insert(0, f"{reading.broken} of {reading.rows} rows of '{source}' are broken and were left out")
    return ReadPreferences(found, warnings)
