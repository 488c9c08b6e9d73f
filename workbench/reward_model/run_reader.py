"""Reading of reward-model runs in the background: those of a folder, and the one that is shown."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from trainer.errors import StorageError
from trainer.events import Event
from trainer.files import open_regular
from trainer.reward_model.predictions import HELD_OUT, Predictions, read_predictions
from trainer.runs.folder import RunFolder, read_config, run_folders
from workbench.kit.throttled import Throttled
from workbench.run.journal_source import JournalSource
from workbench.run.metrics import REWARD_MODEL
from workbench.run.view import RunView

PAIRS = 1000  # pairs whose texts are read: those that the model gets most wrong
_HEADER_BYTES = 4096

Stamp = tuple[int, int]  # time of the last change, and size


class RewardRun(NamedTuple):
    """A run of a reward model."""

    folder: RunFolder
    began: float  # unix seconds
    live: bool  # a process trains it now


class RewardRunListing(NamedTuple):
    """The reward-model runs of a folder at one time."""

    runs: list[RewardRun]  # newest first
    problem: str  # why the folder cannot be read; empty if it can


class RewardRunLister:
    """Lister of the reward-model runs in `runs_dir`, which may hold thousands of runs of other kinds.

    A run whose configuration has not changed is not read again: it costs two file-system calls if it is a reward
    model, else one.
    """

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir.absolute()
        self._kinds: dict[Path, tuple[Stamp, bool]] = {}
        self._begins: dict[Path, float] = {}

    def list(self) -> RewardRunListing:
        """List the reward-model runs as they are now. For one thread at a time."""
        try:
            folders = run_folders(self.runs_dir)
        except StorageError as error:
            return RewardRunListing([], str(error))
        found = [folder for folder in folders if self._is_reward_model(folder)]
        runs = [RewardRun(folder, self._began(folder), folder.is_live()) for folder in found]
        runs.sort(key=lambda run: (run.began, run.folder.name), reverse=True)
        return RewardRunListing(runs, "")

    def _is_reward_model(self, folder: RunFolder) -> bool:
        try:
            status = folder.config.stat()
            stamp = status.st_mtime_ns, status.st_size
            known = self._kinds.get(folder.root)
            if known is None or known[0] != stamp:
                known = stamp, read_config(folder).get("kind") == REWARD_MODEL
                self._kinds[folder.root] = known
        except (OSError, StorageError):  # the runs pane reports what is damaged
            return False
        return known[1]

    def _began(self, folder: RunFolder) -> float:
        """Return when the journal was created, or the configuration was written if there is no journal yet."""
        if folder.root not in self._begins:
            try:
                with open_regular(folder.events) as file:
                    header = json.loads(file.readline(_HEADER_BYTES))
                self._begins[folder.root] = datetime.fromisoformat(header["created"]).timestamp()
            except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
                return self._kinds[folder.root][0][0] / 1e9
        return self._begins[folder.root]


class Look(NamedTuple):
    """New events and the state of a run at one time."""

    events: list[Event]  # new since the last look
    predictions: Predictions | None  # None before the first evaluation
    live: bool
    problems: list[str]  # what cannot be read, one line each


class RunFollower:
    """Reader of one run; each `look` reads only what is new. For one thread at a time."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._source: JournalSource | None = None  # from the first look on
        self._predictions: Predictions | None = None
        self._stamp: tuple[int, ...] | None = None
        self._problem = ""
        self._live: bool | None = None

    @property
    def finished(self) -> bool:
        """Return whether no process trains the run and the last look found nothing new."""
        return self._source is not None and self._source.finished

    def look(self) -> Look | None:
        """Return what is new in the run; None if nothing has changed since the last look.

        Imports pyarrow, which takes about 0.3 s the first time.
        """
        source = self._source = self._source or JournalSource(self.folder.root)
        events = source.take()
        was, self._live = self._live, source.live
        if not (self._read_predictions() or events or self._live != was):
            return None
        problems = [*source.problems, *([self._problem] if self._problem else [])]
        return Look(events, self._predictions, self._live, problems)

    def _read_predictions(self) -> bool:
        """Read the file of the newest evaluation if it was replaced, and return whether it was."""
        path = self.folder.root / HELD_OUT
        stamp: tuple[int, ...] | None = None  # there is no file
        with contextlib.suppress(OSError):
            status = path.stat()
            stamp = status.st_ino, status.st_mtime_ns, status.st_size  # the file is always replaced as a whole
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self._predictions, self._problem = None, ""
        if stamp is not None:
            try:
                self._predictions = read_predictions(path, PAIRS)
            except StorageError as error:
                self._problem = str(error)
        return True


class RunReader:
    """Controller that reads the reward-model run to show: the chosen one, or else the one that began last.

    Reads on threads, and calls back on the caller's: `on_run` when the run has changed, or there is another one;
    `on_listing` when only its place among `runs` may have.
    """

    def __init__(self, runs_dir: Path, on_run: Callable[[], None], on_listing: Callable[[], None]) -> None:
        self.runs: list[RewardRun] = []  # newest first
        self.problem = ""  # why the folder cannot be read
        self.view = RunView()  # of the shown run
        self.seen: Look | None = None  # newest look at the shown run; None before it has been read
        self._on_run, self._on_listing = on_run, on_listing
        self._lister = RewardRunLister(runs_dir)
        self._listing, self._look = Throttled(), Throttled(rests=False)
        self._chosen: Path | None = None  # None: the newest
        self._follower: RunFollower | None = None

    @property
    def runs_dir(self) -> Path:
        """Folder whose reward models are shown."""
        return self._lister.runs_dir

    @property
    def shown(self) -> RunFolder | None:
        """Folder of the shown run; None without one."""
        return self._follower.folder if self._follower else None

    @property
    def predictions(self) -> Predictions | None:
        """Predictions of the shown run's newest evaluation, as far as they were read."""
        return self.seen.predictions if self.seen else None

    @property
    def place(self) -> int:
        """Index of the shown run in `runs`; -1 if it is not one of them."""
        return next((place for place, run in enumerate(self.runs) if run.folder == self.shown), -1)

    def set_runs_dir(self, path: Path) -> None:
        """Show the reward models of another folder."""
        if path.absolute() != self.runs_dir:
            self._lister, self._listing = RewardRunLister(path), Throttled()
            self.runs, self.problem, self._chosen = [], "", None
            self._follow()

    def choose(self, folder: Path) -> None:
        """Show the run in `folder`, which may be outside the folder of runs."""
        self._chosen = folder.absolute()
        self._follow()

    async def read_runs(self) -> None:
        """List the folder's runs, unless that is under way or was done a short time ago."""
        lister = self._lister
        listing = await self._listing.read(lister.list)
        if listing is not None and lister is self._lister:  # no other folder was requested since
            self._take(listing)

    async def read_run(self) -> None:
        """Look at the shown run, unless that is under way or it has ended and was read to its end.

        A second look must not begin earlier: it would return only what is new since the first one.
        """
        follower = self._follower
        if follower is None:
            return
        live = any(run.live for run in self.runs if run.folder == follower.folder)
        if follower.finished and not live:
            return
        look = await self._look.read(follower.look)
        if look is not None and follower is self._follower:
            for event in look.events:
                self.view.take(event)
            self.seen = look
            self._on_run()

    def _take(self, listing: RewardRunListing) -> None:
        self.runs = listing.runs
        is_of_folder = self._chosen is not None and self._chosen.parent == self.runs_dir
        if is_of_folder and self._chosen not in [run.folder.root for run in self.runs]:
            self._chosen = None  # renamed, or moved to the trash
        before, self.problem = self.problem, listing.problem
        if not self._follow() and self.problem != before:
            self._on_run()
        self._on_listing()

    def _follow(self) -> bool:
        """Show the chosen run, or else the newest; return False if it is shown already."""
        wanted = self._chosen or (self.runs[0].folder.root if self.runs else None)
        if wanted == (self.shown.root if self.shown else None):
            return False
        self._follower = RunFollower(RunFolder(wanted)) if wanted is not None else None
        self._look = Throttled(rests=False)
        self.view, self.seen = RunView(), None
        self._on_run()
        return True
