"""Listing of the reward-model runs of a folder, which may hold thousands of runs of other kinds."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from trainer.errors import StorageError
from trainer.files import open_regular, read_toml
from trainer.runs.folder import RunFolder, run_folders

KIND = "reward-model"
_HEADER_BYTES = 4096

Stamp = tuple[int, int]  # time of the last change, and size


class RewardRun(NamedTuple):
    """A run of a reward model."""

    folder: RunFolder
    began: float  # unix seconds
    live: bool  # a process trains it now


class Listing(NamedTuple):
    """The reward-model runs of a folder at one time."""

    runs: list[RewardRun]  # newest first
    problem: str  # why the folder cannot be read; empty if it can
    seconds: float  # of processor time, which the trainer did not get


class RewardRunLister:
    """Lister of the reward-model runs in `runs_dir`, cheap enough to call again and again.

    A run whose configuration has not changed is not read again: it costs two file-system calls if it is a reward
    model, else one.
    """

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir.resolve()
        self._kinds: dict[Path, tuple[Stamp, bool]] = {}
        self._begins: dict[Path, float] = {}

    def list(self) -> Listing:
        """List the reward-model runs as they are now. For one thread at a time."""
        began = time.thread_time()
        try:
            folders = run_folders(self.runs_dir)
        except StorageError as error:
            return Listing([], str(error), time.thread_time() - began)
        found = [folder for folder in folders if self._is_reward_model(folder)]
        runs = [RewardRun(folder, self._began(folder), folder.is_live()) for folder in found]
        runs.sort(key=lambda run: (run.began, run.folder.name), reverse=True)
        return Listing(runs, "", time.thread_time() - began)

    def _is_reward_model(self, folder: RunFolder) -> bool:
        try:
            status = folder.config.stat()
            stamp = status.st_mtime_ns, status.st_size
            known = self._kinds.get(folder.root)
            if known is None or known[0] != stamp:
                known = stamp, read_toml(folder.config).get("kind") == KIND
                self._kinds[folder.root] = known
        except (OSError, ValueError, RecursionError):  # the runs pane reports what is damaged
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
