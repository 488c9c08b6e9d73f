"""Background reading for the reward-model pane: the runs of a folder, and the run that is shown."""

from __future__ import annotations

import time
from pathlib import Path

from textual import work
from textual.worker import Worker, WorkerState

from trainer.runs.folder import RunFolder
from workbench.kit.pane import Pane
from workbench.reward_model.follower import Look, RunFollower
from workbench.reward_model.listing import KIND, Listing, RewardRun, RewardRunLister
from workbench.run.view import RunView

_INTERVAL = 1.0  # seconds between looks at the run, and at the folder if that is cheap
_REST = 20  # times the cost of a listing: it takes at most a twentieth of a core
_OVER = (WorkerState.SUCCESS, WorkerState.ERROR, WorkerState.CANCELLED)


class RewardModelReading(Pane):
    """Pane that follows the chosen run, or else the one that began last; a subclass shows it."""

    def __init__(self, runs_dir: Path, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.runs: list[RewardRun] = []  # newest first
        self.run_seen: Look | None = None  # as the newest look found it
        self.problem = ""  # why the folder cannot be read
        self._lister = RewardRunLister(runs_dir)
        self._listing: Worker[Listing] | None = None
        self._rest_until = 0.0  # on the monotonic clock
        self._chosen: Path | None = None  # None: the newest
        self._on_screen: Path | None = None  # the reward-model run that the other panes show
        self._follower: RunFollower | None = None
        self._looking: Worker[Look | None] | None = None

    def on_mount(self) -> None:
        self.show_look()
        self.set_interval(_INTERVAL, self._read)

    def on_show(self) -> None:
        self._read()

    # Defined by a subclass

    def show_look(self) -> None:
        """Show `run_seen`: a new look, or None before another run has been read."""
        raise NotImplementedError

    def show_place(self) -> None:
        """Show the place of the run among `runs`."""
        raise NotImplementedError

    def forget(self) -> None:
        """Drop what was read of the run: another one is about to be shown."""
        self.run_seen = None

    # Called by the app

    def show_run(self, view: RunView) -> None:
        started = view.started
        folder = Path(started.folder) if started is not None and started.run_kind == KIND else None
        if folder != self._on_screen:
            self._on_screen = folder
            if folder is not None:
                self.choose(folder)

    @property
    def runs_dir(self) -> Path:
        """Folder whose reward models are shown."""
        return self._lister.runs_dir

    def set_runs_dir(self, path: Path) -> None:
        """Show the reward models of another folder."""
        if path.resolve() != self.runs_dir:
            self._lister, self._listing, self._rest_until = RewardRunLister(path), None, 0.0
            self.runs, self.problem, self._chosen = [], "", None
            self._follow()
            self._read()

    def choose(self, folder: Path | None) -> None:
        """Show the run in `folder`, which may be outside the folder of runs; None: always the newest."""
        self._chosen = folder.resolve() if folder is not None else None
        self._follow()

    @property
    def shown(self) -> RunFolder | None:
        """Folder of the shown run; None without one."""
        return self._follower.folder if self._follower else None

    @property
    def place(self) -> int:
        """Index of the shown run in `runs`; -1 if it is not one of them."""
        return next((place for place, run in enumerate(self.runs) if run.folder == self.shown), -1)

    # Reading

    def _read(self) -> None:
        """Look at the folder and at the run if the pane is visible, in one thread each."""
        if not self.is_on_screen:
            return
        if self._listing is None and time.monotonic() >= self._rest_until:
            self._listing = self._list(self._lister)
        follower = self._follower
        if follower is not None and self._looking is None and not (follower.finished and not self._is_live()):
            self._looking = self._look_at(follower)

    @work(thread=True, exclusive=True, group="reward-listing")
    def _list(self, lister: RewardRunLister) -> Listing:
        return lister.list()

    @work(thread=True, exclusive=True, group="reward-run")
    def _look_at(self, follower: RunFollower) -> Look | None:
        return follower.look()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Show what a thread read, unless another folder or run was requested since; then the next read may begin.

        It must not begin earlier: a look returns only what is new, so cancelling an unfinished one loses its result.
        """
        if event.state not in _OVER or event.worker not in (self._listing, self._looking):
            return
        if event.worker is self._listing:
            self._listing = None
        else:
            self._looking = None
        if event.state is not WorkerState.SUCCESS:
            return
        match event.worker.result:
            case Listing() as listing:
                self._take(listing)
            case Look() as look if look.folder == self.shown:
                self.run_seen = look
                self.show_look()

    def _take(self, listing: Listing) -> None:
        self._rest_until = time.monotonic() + _REST * listing.seconds
        self.runs = listing.runs
        is_of_folder = self._chosen is not None and self._chosen.parent == self.runs_dir
        if is_of_folder and self._chosen not in [run.folder.root for run in self.runs]:
            self._chosen = None  # renamed, or moved to the trash
        before, self.problem = self.problem, listing.problem
        self._follow()
        if self.problem != before:
            self.show_look()
        self.show_place()

    def _follow(self) -> None:
        """Start reading the chosen run, or else the newest."""
        wanted = self._chosen or (self.runs[0].folder.root if self.runs else None)
        if wanted == (self.shown.root if self.shown else None):
            return
        self._follower = RunFollower(RunFolder(wanted)) if wanted is not None else None
        self._looking = None
        self.forget()
        if self.is_mounted:
            self.show_look()
            self._read()

    def _is_live(self) -> bool:
        return any(run.live for run in self.runs if run.folder == self.shown)
