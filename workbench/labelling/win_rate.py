"""How often people prefer a run's policy to its reference, told to the run as its labels change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from trainer.errors import TrainerError
from trainer.evaluation.human import human_evaluation, tell_run
from trainer.events import HumanEvaluation
from trainer.preferences.store import PreferenceStore
from trainer.runs.folder import RunFolder

_PAUSE = 2.0  # seconds at least between two counts
_SHARE = 20  # a count is followed by a pause of so many times its own length: the screen shares the interpreter


class WinRate:
    """Counts the labels in `store` on a thread of its own, and tells the run in `folder` what has changed.

    told: what the run knows already. tell: takes what it is to know, on that thread; by default it is left to
    `tell_run`, whoever trains the run. problem: why the run could not be told, empty where it was.
    """

    def __init__(
        self,
        store: Path,
        folder: Path,
        *,
        told: HumanEvaluation | None = None,
        tell: Callable[[HumanEvaluation], None] | None = None,
    ) -> None:
        self.told = told
        self.problem = ""
        self._store = store
        self._run = RunFolder(folder.resolve())
        self._tell = tell or partial(tell_run, self._run.root)
        self._changed = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="win rate", daemon=True)
        self._thread.start()

    def labelled(self) -> None:
        """Labels were made, changed or undone; returns at once."""
        self._changed = True
        self._wake.set()

    def close(self) -> None:
        """Tell what is not told yet, and end; returns at once."""
        self._closing.set()
        self._wake.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, after `close`."""
        self._thread.join(timeout)

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            began = time.perf_counter()
            if self._changed:
                self._changed = False  # before the count: what is labelled from here on is counted again
                self._count()
            if self._closing.is_set():
                return
            self._closing.wait(max(_PAUSE, _SHARE * (time.perf_counter() - began)))

    def _count(self) -> None:
        try:
            with PreferenceStore(self._store, create=False) as store:
                found = human_evaluation(store.preferences(), self._run.name)
            if found is not None and found != self.told:
                self._tell(found)
                self.told = found
            self.problem = ""
        except TrainerError as error:
            self.problem = " ".join(str(error).split())
