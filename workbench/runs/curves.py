"""Curves of runs: small ones in their table, large ones below it. A journal is read again only if it has changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from rich.cells import cell_len

from trainer.errors import StorageError
from trainer.events import Iteration
from trainer.runs.journal import JournalReader, without_superseded
from trainer.runs.listing import RunSummary
from workbench.columns import fit_start
from workbench.kit.drawing import OVERLAYS, Drawn, component_classes
from workbench.kit.lines import Line
from workbench.kit.run_curves import curves_of
from workbench.run.glance import Glance, glance_at
from workbench.text import visible

WIDTH = 16  # columns of a curve, and iterations that it shows
_ROLES = tuple(f"run-{number}" for number in range(1, OVERLAYS + 1))


class CurveReader:
    """Reader of the newest scores of runs. On several threads at once, it may read one twice."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int], list[float]]] = {}
        self._large: dict[Path, tuple[tuple[int, int], Glance]] = {}

    def read(self, runs: Sequence[RunSummary]) -> dict[str, list[float]]:
        """Return the scores of the newest iterations by the names of the runs; none for what cannot be read."""
        return {run.name: self._scores(run) for run in runs}

    def _scores(self, run: RunSummary) -> list[float]:
        events = run.folder.events
        try:
            stamp = _stamp(events)
            if (known := self._known.get(events)) is not None and known[0] == stamp:
                return known[1]
            timed = without_superseded(JournalReader(events, WIDTH).poll())
        except (OSError, StorageError):  # the listing reports it
            return []
        scores = [event.score_mean for _, event in timed if isinstance(event, Iteration)]
        self._known[events] = stamp, scores[-WIDTH:]
        return scores[-WIDTH:]

    def read_large(self, runs: Sequence[RunSummary]) -> list[Glance]:
        """Return these runs at a glance; what cannot be read is left out."""
        found = []
        for run in runs:
            events = run.folder.events
            try:
                stamp = _stamp(events)
            except OSError:  # the listing reports it
                continue
            if (known := self._large.get(events)) is None or known[0] != stamp:
                known = self._large[events] = stamp, glance_at(run)
            found.append(known[1])
        return found


def _stamp(events: Path) -> tuple[int, int]:
    """Return what changes with a journal. Raises OSError."""
    status = events.stat()
    return status.st_mtime_ns, status.st_size


class RunCurves(Drawn):
    """Score and KL of the selected run, or of the marked ones in colours of their own, as large as there is room."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes("text", "muted", "strong", "axis", "series", *_ROLES)
    _glances: Sequence[Glance] = ()

    def show(self, glances: Sequence[Glance]) -> None:
        """Show one run, or compare several."""
        if glances != self._glances:
            self._glances = glances
            self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        if len(self._glances) < 2:
            return curves_of([("series", glance) for glance in self._glances], width, height)
        runs = list(zip(_ROLES, self._glances, strict=False))
        if not (charts := curves_of(runs, width, height - 1)):
            return []
        names: Line = []
        room = width // len(runs) - 1
        for role, glance in runs:
            names += [(fit_start(f"━ {visible(glance.run.name)}", room), role), ("  ", "")]
        while sum(cell_len(text) for text, _ in names) > width:
            names.pop()
        return [names, *charts]
