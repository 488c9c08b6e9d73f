"""Comparisons that are not asked again: those in the session, and those that its labeller has judged."""

from __future__ import annotations

from collections.abc import Iterator, Set
from pathlib import Path

from trainer.preferences.records import Comparison, Preference
from trainer.preferences.store import PreferenceStore


class Known:
    """Keys of the session's comparisons, and the judgements in the store.

    Judgements are looked up one by one, because a store may hold 100,000. From the first look-up on, it is for one
    thread. Every look-up may raise StorageError.
    """

    def __init__(self, labeller: str, path: Path, served: Set[str]) -> None:
        self.labeller = labeller
        self.path = path
        self.served = set(served)
        self._store: PreferenceStore | None = None

    def is_new(self, comparison: Comparison) -> bool:
        """Return whether the comparison is not in the session, and its labeller has not judged or skipped it."""
        key = comparison.key
        return key not in self.served and not self.own_labels(key)

    def own_labels(self, key: str) -> list[Preference]:
        """Return the labeller's own labels of a comparison that are not undone, oldest first."""
        return [one for one in self.labels_of(key) if one.judgement.labeller == self.labeller]

    def labels_of(self, key: str) -> list[Preference]:
        """Return anybody's labels of a comparison that are not undone, oldest first."""
        store = self._opened()
        return store.labels_of(key) if store is not None else []

    def comparisons(self) -> Iterator[Comparison]:
        """Yield all comparisons in the store."""
        store = self._opened()
        yield from store.comparisons() if store is not None else ()

    def close(self) -> None:
        """Close the store; call this on the thread that used it."""
        if self._store is not None:
            self._store.close()
        self._store = None

    def _opened(self) -> PreferenceStore | None:
        if self._store is None and self.path.exists():  # there is no store until the first label
            self._store = PreferenceStore(self.path, create=False)
        return self._store
