"""Scores of runs for the small curves in their table, read again only if a journal has changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainer.errors import StorageError
from trainer.events import Iteration
from trainer.runs.journal import JournalReader, without_superseded
from trainer.runs.listing import RunSummary

WIDTH = 16  # columns of a curve, and iterations that it shows


class CurveReader:
    """Reader of the newest scores of runs. On several threads at once, it may read one twice."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int], list[float]]] = {}

    def read(self, runs: Sequence[RunSummary]) -> dict[str, list[float]]:
        """Return the scores of the newest iterations by the names of the runs; none for what cannot be read."""
        return {run.name: self._scores(run) for run in runs}

    def _scores(self, run: RunSummary) -> list[float]:
        events = run.folder.events
        try:
            status = events.stat()
            stamp = status.st_mtime_ns, status.st_size
            if (known := self._known.get(events)) is not None and known[0] == stamp:
                return known[1]
            timed = without_superseded(JournalReader(events, WIDTH).poll())
        except (OSError, StorageError):  # the listing reports it
            return []
        scores = [event.score_mean for _, event in timed if isinstance(event, Iteration)]
        self._known[events] = stamp, scores[-WIDTH:]
        return scores[-WIDTH:]
