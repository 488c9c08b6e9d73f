"""What is not to be asked again: what the session has, and what its labeller has judged."""

from __future__ import annotations

from collections.abc import Iterator, Set
from pathlib import Path

from trainer.preferences.records import Comparison, Preference
from trainer.preferences.store import PreferenceStore


class Known:
    """The keys that the session has, and the store's judgements, looked up one by one: a store may hold 100,000.

    For one thread, from the first look into the store on. Every look raises StorageError.
    """

    def __init__(self, labeller: str, path: Path, served: Set[str]) -> None:
        self.labeller = labeller
        self.path = path
        self.served = set(served)
        self._store: PreferenceStore | None = None

    def is_new(self, comparison: Comparison) -> bool:
        """Whether neither the session has it nor its labeller has judged or skipped it."""
        key = comparison.key
        return key not in self.served and not self.own_labels(key)

    def own_labels(self, key: str) -> list[Preference]:
        """The labeller's labels of a comparison that stand, oldest first."""
        return [one for one in self.labels_of(key) if one.judgement.labeller == self.labeller]

    def labels_of(self, key: str) -> list[Preference]:
        """Anybody's labels of a comparison that stand, oldest first."""
        store = self._opened()
        return store.labels_of(key) if store is not None else []

    def comparisons(self) -> Iterator[Comparison]:
        """All that are in the store."""
        store = self._opened()
        yield from store.comparisons() if store is not None else ()

    def close(self) -> None:
        """Close the store; called by the thread that looked into it."""
        if self._store is not None:
            self._store.close()
        self._store = None

    def _opened(self) -> PreferenceStore | None:
        if self._store is None and self.path.exists():  # until the first label there is none
            self._store = PreferenceStore(self.path, create=False)
        return self._store
