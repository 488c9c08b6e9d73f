"""A run on disk as a source of events, whether another process trains it now or it has ended."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path

from trainer.errors import StorageError
from trainer.events import Event, Iteration, PhaseProgress, RewardModelStep, RunStarted
from trainer.files import read_toml
from trainer.runs.folder import RunFolder
from trainer.runs.journal import JournalReader
from trainer.runs.journal_lines import TimedEvent
from trainer.runs.progress import read_progress
from workbench.run.history import History, kind_of

_NEWEST = 2000  # iterations that the first take hands over
_BLOCK_BYTES = 64 * 1024  # of what is older, read at a time: some 1 ms
_SHARE = 0.007  # seconds after which a call for older iterations begins no further block
_LOOK_AGAIN = 1.0  # seconds between two looks at whether the run is live
_WITHIN = ("generate", "score", "reward", "update")  # phases of which an iteration consists


class JournalSource:
    """The journal in `folder` and, while the run is live, how far its phase is.

    The first `take` costs what the newest 2000 iterations do, however long the journal: of what lies before
    those it tells the run's start only. `earlier` hands over the metrics from there, but no evaluations,
    checkpoints and alerts. What cannot be read is left out and told in `problems`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run = RunFolder(folder.resolve())
        self._reader = JournalReader(self._run.events, iterations=_NEWEST)
        self._opening: TimedEvent | None = None
        self._restarts = 0
        self._older_count_to = math.inf  # what was not read yet and lies above this iteration was done anew
        self._iteration = 0
        self._progress: PhaseProgress | None = None
        self._live = False
        self._looked = -math.inf
        self._failure = ""
        self._finished = False

    @property
    def live(self) -> bool:
        """Whether some process is training the run; looked up at most once a second."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_AGAIN:
            self._live, self._looked = self._run.is_live(), now
        return self._live

    @property
    def finished(self) -> bool:
        """Whether the last `take` found nobody training the run and nothing new. It may be resumed later."""
        return self._finished

    @property
    def problems(self) -> list[str]:
        """What of the run cannot be read, a line each."""
        problems = [self._failure] if self._failure else []
        problems += self._reader.problems
        if self._reader.unfinished and not self._live:
            problems.append("the last line is cut: its event is lost")
        return problems

    def take(self) -> list[Event]:
        """What is new in the journal, then the newest progress of a live run.

        Where another journal has taken the place of the first one, it is read as the first one was.
        """
        live = self.live  # asked first: what the trainer wrote before it ended can be read then
        try:
            events = self._new_events()
        except StorageError as error:
            self._failure = str(error)
            events = []
        if live and (progress := self._new_progress()) is not None:
            events.append(progress)
        self._finished = not live and not events
        return events

    def earlier(self) -> History | None:
        """Older iterations, as many as some 10 ms yield: those before what was handed over so far.

        They go in front of the history that `take` fills. None when all is there, until another journal takes
        the place of this one.
        """
        end = time.perf_counter() + _SHARE
        blocks = []
        try:
            while (block := self._reader.earlier(_BLOCK_BYTES)) is not None:
                blocks.append(self._that_count([event for _, event in block]))
                if time.perf_counter() >= end:
                    break
        except StorageError as error:
            self._failure = str(error)
        if not blocks:
            return None
        older = [iteration for iterations in reversed(blocks) for iteration in iterations]
        chunk = History(kind_of(older[0])) if older else History()
        for iteration in older:
            chunk.append(iteration)
        return chunk

    def _new_events(self) -> list[Event]:
        events = [event for _, event in self._reader.poll()]
        missing = not events and not self._run.events.exists()
        self._failure = f"no journal '{self._run.events}': open a run that was started" if missing else ""
        if self._reader.restarts != self._restarts:
            self._restarts = self._reader.restarts
            self._older_count_to, self._iteration, self._progress = math.inf, 0, None
        for event in events:
            self._note(event)
        if self._reader.opening is not self._opening:
            self._opening = self._reader.opening
            if self._opening is not None:
                events.insert(0, self._with_present_total(self._opening[1], events))
        return [self._here(event) for event in events]

    def _new_progress(self) -> PhaseProgress | None:
        progress = read_progress(self._run.progress)
        if progress == self._progress:
            return None
        self._progress = progress
        if progress is not None and progress.iteration <= self._iteration and progress.phase in _WITHIN:
            return None  # the iteration is over: the file is about to follow
        return progress

    def _note(self, event: Event) -> None:
        """Remember what `event` says of those before it."""
        match event:
            case Iteration() | RewardModelStep():
                self._iteration = event.iteration
                self._older_count_to = min(self._older_count_to, event.iteration - 1)
            case RunStarted():
                self._iteration = event.resumed_at or 0
                self._older_count_to = min(self._older_count_to, self._iteration)

    def _that_count(self, older: list[Event]) -> list[Iteration | RewardModelStep]:
        """The iterations among `older` events that nothing after them did anew."""
        counting: list[Iteration | RewardModelStep] = []
        for event in reversed(older):
            if isinstance(event, Iteration | RewardModelStep) and event.iteration <= self._older_count_to:
                counting.append(event)
            self._note(event)
        return counting[::-1]

    def _with_present_total(self, opening: Event, events: list[Event]) -> Event:
        """`opening` with the total of config.toml: a resumption that is not among `events` may have changed it."""
        if not isinstance(opening, RunStarted) or any(isinstance(event, RunStarted) for event in events):
            return opening
        try:
            total = read_toml(self._run.config)["ppo"]["iterations"]
        except (OSError, ValueError, LookupError, TypeError):
            return opening
        return dataclasses.replace(opening, iterations=total) if isinstance(total, int) else opening

    def _here(self, event: Event) -> Event:
        """`event` with the run's present place: it may have been renamed or moved since it was written down."""
        if isinstance(event, RunStarted):
            return dataclasses.replace(event, name=self._run.name, folder=str(self._run.root))
        return event
