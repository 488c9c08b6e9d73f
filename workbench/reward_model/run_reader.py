"""Reader of the reward-model runs of a folder, and of the one that is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from trainer.errors import StorageError
from trainer.events import Event
from trainer.reward_model.predictions import HELD_OUT, Predictions, read_predictions
from trainer.runs.folder import RunFolder
from trainer.runs.listing import RunSummary
from workbench.kit.pane import Throttled
from workbench.run.metrics import REWARD_MODEL
from workbench.run.run_listing import State, read_runs
from workbench.run.run_on_disk import RunOnDisk
from workbench.run.view import RunView

_HeldOut = tuple[tuple[int, ...], Predictions | None, str]
"""File of the newest evaluation: a stamp that differs once it was replaced, its content, or why it has none."""

PAIRS = 1000  # pairs whose texts are read: those that the model gets most wrong


class RunReader:
    """Controller that reads the reward-model run to show: the chosen one, or else the one that began last.

    Reads on threads, and calls `on_change` on the caller's when the run has changed, another one is shown, or its place
    among `runs` may be another.
    """

    def __init__(self, runs_dir: Path, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._chosen: Path | None = None  # None: the newest
        self.runs_dir = runs_dir.absolute()
        self.runs: list[RunSummary] = []  # of reward models, newest first
        self.problem = ""  # why the folder cannot be read
        self.listing = Throttled()
        self._states: Mapping[Path, State] | None = None
        self._show(None)

    def _show(self, folder: Path | None) -> None:
        self.shown = None if folder is None else RunFolder(folder)
        self.view = RunView()  # of the shown run
        self.live: bool | None = None  # whether a process trains it; None before it has been read
        self.problems: list[str] = []  # what of it cannot be read, one line each
        self.predictions: Predictions | None = None  # of the newest evaluation
        self._held_out: _HeldOut = ((), None, "")
        self._source: RunOnDisk | None = None  # from the first look on
        self._look = Throttled(rests=False)

    @property
    def place(self) -> int:
        """Index of the shown run in `runs`; -1 if it is not one of them."""
        return next((place for place, run in enumerate(self.runs) if run.folder == self.shown), -1)

    def choose(self, folder: Path) -> None:
        """Show the run in `folder`, which may be outside the folder of runs."""
        self._chosen = folder.absolute()
        self._follow()

    async def read_runs(self) -> None:
        """List the folder's runs, unless that is under way or was done a short time ago."""
        found = await self.listing.read(partial(read_runs, self.runs_dir, self._states))
        if found is None:  # nothing new
            return
        runs = [run for run in found.runs if run.kind == REWARD_MODEL]
        self.runs = sorted(runs, key=lambda run: (run.started or 0.0, run.name), reverse=True)
        self._states = found.states
        is_of_folder = self._chosen is not None and self._chosen.parent == self.runs_dir
        if is_of_folder and self._chosen not in [run.folder.root for run in self.runs]:
            self._chosen = None  # renamed, or moved to the trash
        self.problem = found.problem
        if not self._follow():
            self._on_change()

    async def read_run(self) -> None:
        """Look at the shown run, unless that is under way or it has ended and was read to its end.

        A second look must not begin earlier: it would return only what is new since the first one. The first look
        imports pyarrow, which takes about 0.3 s.
        """
        if (folder := self.shown) is None:
            return
        trained = any(run.folder == folder and run.state == "training" for run in self.runs)
        if self._source is not None and self._source.finished and not trained:
            return
        found = await self._look.read(partial(_look, folder.root, self._source, self._held_out))
        if found is None or folder is not self.shown:
            return
        self._source, events, held_out = found
        live = self._source.live
        if not events and held_out is self._held_out and live == self.live:
            return
        for event in events:
            self.view.take(event)
        self._held_out, self.live = held_out, live
        _, self.predictions, problem = held_out
        self.problems = [*self._source.problems, *([problem] if problem else [])]
        self._on_change()

    def _follow(self) -> bool:
        """Show the chosen run, or else the newest; return False if it is shown already."""
        wanted = self._chosen or (self.runs[0].folder.root if self.runs else None)
        if wanted == (self.shown.root if self.shown else None):
            return False
        self._show(wanted)
        self._on_change()
        return True


def _look(folder: Path, source: RunOnDisk | None, known: _HeldOut) -> tuple[RunOnDisk, list[Event], _HeldOut]:
    """Return what is new in a run: its source, events, and the newest predictions, or `known` if it is them."""
    source, path = source or RunOnDisk(folder), folder / HELD_OUT
    events, stamp = source.take(), tuple[int, ...]()
    with contextlib.suppress(OSError):  # no evaluation yet
        status = path.stat()
        stamp = status.st_ino, status.st_mtime_ns, status.st_size  # the file is always replaced as a whole
    if stamp == known[0]:
        return source, events, known
    try:
        return source, events, (stamp, read_predictions(path, PAIRS) if stamp else None, "")
    except StorageError as error:
        return source, events, (stamp, None, str(error))
