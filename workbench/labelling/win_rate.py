"""Win rate of a run's policy against its reference in the labels, reported to the run as they change."""

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

_PAUSE = 2.0  # minimum seconds between two counts
_SHARE = 20  # pause after a count, as a multiple of its duration: the screen shares the interpreter


class WinRate:
    """Thread that counts the labels in `store` and reports a changed win rate to the run in `folder`.

    told: the last evaluation that the run received. tell: called on that thread with the new one; by default
    `tell_run`, which works for any process that trains the run. problem: why the last report failed; empty if it did
    not.
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
        """Count again, because labels were made, changed or undone; returns at once."""
        self._changed = True
        self._wake.set()

    def close(self) -> None:
        """Report what is not reported yet, then end the thread; returns at once."""
        self._closing.set()
        self._wake.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread ends after `close`."""
        self._thread.join(timeout)

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            began = time.perf_counter()
            if self._changed:
                self._changed = False  # before the count, so that later labels are counted again
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
