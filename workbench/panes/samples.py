"""The samples pane: what the policy wrote in one iteration."""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import ClassVar, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Static
from textual.worker import Worker, WorkerState

from trainer.errors import StorageError
from trainer.events import SamplesWritten
from trainer.runs import RunFolder
from workbench.panes import Pane
from workbench.run_view import RunView
from workbench.samples_reader import Sample, kept_iterations, preview_samples, read_iteration
from workbench.text import visible
from workbench.widgets.sample_list import SampleList
from workbench.widgets.sample_text import SampleText

_REST = 30  # times what a reading cost: following takes at most 3 % of a core
_NONE_YET = "no samples yet: they come with the first iteration"


class _Reading(NamedTuple):
    """What a thread found."""

    folder: RunFolder
    iteration: int
    samples: list[Sample]
    problem: str  # why there are none; empty when there are
    kept: list[int]
    seconds: float  # of processor time


class SamplesPane(Pane):
    """The sequences of one iteration: the newest, as long as none is asked for."""

    TITLE = "Samples"
    HELP = (
        "What the policy wrote in one iteration, with the score and the KL of each sequence. The newest iteration is "
        "followed until you go to an earlier one."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "read", id="samples.open", tooltip="Show the whole of the selected sample"),
        Binding("escape", "close", "back", id="samples.close", tooltip="Back to the list"),
        Binding(
            "left,left_square_bracket", "go(-1)", "earlier", id="samples.earlier", tooltip="Samples of the one before"
        ),
        Binding("right,right_square_bracket", "go(1)", "later", id="samples.later", tooltip="Samples of the one after"),
        Binding("end", "follow", "newest", id="samples.follow", tooltip="Follow the newest iteration again"),
    ]

    class ScoresRead(Message):
        """The scores of a whole batch, read from the samples file of `iteration`."""

        def __init__(self, iteration: int, scores: list[float]) -> None:
            super().__init__()
            self.iteration = iteration
            self.scores = scores

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._folder: RunFolder | None = None
        self._newest: SamplesWritten | None = None
        self._wanted: int | None = None  # the iteration asked for; None to follow the newest
        self._shown: int | None = None
        self._count = ""  # how many samples are shown, and of how many
        self._kept: list[int] = []
        self._reading: Worker[_Reading] | None = None
        self._rest_until = 0.0  # on the monotonic clock
        self._timer: Timer | None = None
        self._resume_following = False  # when the sample that is being read is put away
        self._heading = ""

    def compose(self) -> ComposeResult:
        yield Static(id="samples-heading", markup=False)
        yield SampleList()
        yield SampleText()

    def on_mount(self) -> None:
        self.query_one(SampleText).display = False
        self.query_one(SampleList).show([], message=_NONE_YET)

    def show_run(self, view: RunView) -> None:
        folder = RunFolder(Path(view.started.folder)) if view.started else None
        if folder != self._folder:
            self._forget()
            self._folder = folder
        if view.samples is not None and view.samples is not self._newest:
            self._newest = view.samples
            if self._shown == view.samples.iteration:
                self._shown = None  # a resumed run did it anew
            if self._wanted is None:
                self._show_wanted(patiently=True)
        self._show_heading()

    def show_iteration(self, iteration: int | None) -> None:
        """Show the samples of `iteration`; None follows the newest again."""
        self._wanted = iteration
        self._resume_following = False
        self._show_wanted()

    def take_focus(self) -> None:
        (self.query_one(SampleText) if self._reads_one else self.query_one(SampleList)).focus()

    # Which iteration is shown

    @property
    def _target(self) -> int | None:
        if self._wanted is not None:
            return self._wanted
        return self._newest.iteration if self._newest else None

    def _show_wanted(self, *, patiently: bool = False) -> None:
        """Show the wanted iteration: at once from previews, else when its file was read.

        patiently: nobody waits for it, so the last reading may first be made up for.
        """
        newest, target = self._newest, self._target
        self._show_heading()
        if self._folder is None or target is None or target == self._shown:
            return
        if newest is not None and target == newest.iteration and not newest.path:
            samples = preview_samples(newest)
            self._put(target, samples, f"the first {len(samples)} of {newest.rows} samples; no files are kept")
        elif self._reading is None or self._reading.is_finished:
            rest = self._rest_until - time.monotonic()
            if not patiently or rest <= 0:
                self._reading = self._read(self._folder, target)
            elif self._timer is None:
                self._timer = self.set_timer(rest, self._stop_resting)

    def _stop_resting(self) -> None:
        self._timer = None
        self._show_wanted()

    @work(thread=True, exclusive=True, group="samples")
    def _read(self, folder: RunFolder, iteration: int) -> _Reading:
        began = time.thread_time()
        samples, problem = list[Sample](), ""
        try:
            samples = read_iteration(folder, iteration)
        except StorageError as error:
            problem = str(error)
        kept = kept_iterations(folder)
        return _Reading(folder, iteration, samples, problem, kept, time.thread_time() - began)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Show what a thread read, unless something else is wanted by now."""
        reading = event.worker.result
        if event.state is not WorkerState.SUCCESS or not isinstance(reading, _Reading):
            return
        self._rest_until = time.monotonic() + _REST * reading.seconds
        if reading.folder == self._folder:
            self._kept = reading.kept
            if reading.samples:
                self.post_message(self.ScoresRead(reading.iteration, [sample.score for sample in reading.samples]))
            if self._wanted in (None, reading.iteration):
                self._put(reading.iteration, reading.samples, _summary(reading.samples), reading.problem)
        self._show_wanted(patiently=self._wanted is None)

    def _put(self, iteration: int, samples: Sequence[Sample], count: str, problem: str = "") -> None:
        self._shown, self._count = iteration, count
        listed, text = self.query_one(SampleList), self.query_one(SampleText)
        listed.show(samples, message=visible(problem) or "no samples in this iteration")
        if self._reads_one:
            if listed.selected is not None:
                text.show(listed.cursor + 1, listed.selected)
            else:
                self._close()
        self._show_heading()
        self.refresh_keys()

    def _show_heading(self) -> None:
        newest, heading = self._newest, ""
        iteration = self._shown if self._wanted is None and self._shown is not None else self._target
        if newest is not None and iteration is not None:
            place = "newest" if iteration == newest.iteration else f"newest is {newest.iteration}"
            heading = f"iteration {iteration} · {place}"
            if iteration == self._shown:
                heading += f"   {self._count}"
        if heading != self._heading:
            self._heading = heading
            self.query_one("#samples-heading", Static).update(heading)

    def _forget(self) -> None:
        """Another run: nothing of the one before is shown or wanted."""
        self._newest = self._wanted = self._shown = None
        self._kept = []
        self._close()
        self.query_one(SampleList).show([], message=_NONE_YET)

    # What is done

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        match action:
            case "open":
                return not self._reads_one and self.query_one(SampleList).selected is not None
            case "close":
                return self._reads_one
            case "go":
                return self._newest is not None
            case "follow":
                return self._wanted is not None
        return True

    @on(SampleList.Opened)
    def action_open(self) -> None:
        listed, text = self.query_one(SampleList), self.query_one(SampleText)
        if listed.selected is None:
            return
        if self._wanted is None:  # what is being read stays
            self._wanted, self._resume_following = self._shown, True
        listed.display, text.display = False, True
        text.show(listed.cursor + 1, listed.selected)
        text.focus()
        self._show_heading()
        self.refresh_keys()

    def action_close(self) -> None:
        self._close()
        self._show_wanted()

    def action_go(self, by: int) -> None:
        newest, target = self._newest, self._target
        if newest is None or target is None:
            return
        kept = sorted({newest.iteration, *(number for number in self._kept if number < newest.iteration)})
        place = bisect_left(kept, target) - 1 if by < 0 else bisect_right(kept, target)
        if 0 <= place < len(kept):
            self.show_iteration(None if kept[place] == newest.iteration else kept[place])

    def action_follow(self) -> None:
        self.show_iteration(None)

    @property
    def _reads_one(self) -> bool:
        return bool(self.query_one(SampleText).display)

    def _close(self) -> None:
        listed, text = self.query_one(SampleList), self.query_one(SampleText)
        if self._resume_following:
            self._wanted, self._resume_following = None, False
        had_focus = text.has_focus
        listed.display, text.display = True, False
        if had_focus:
            listed.focus()
        self.refresh_keys()


def _summary(samples: Sequence[Sample]) -> str:
    """How many samples there are, and the mean and the range of their scores."""
    scores = [sample.score for sample in samples if math.isfinite(sample.score)]
    count = f"{len(samples)} sample{'' if len(samples) == 1 else 's'}"
    if not scores:
        return count
    return f"{count}   score {fmean(scores):.2f}, {min(scores):.2f} to {max(scores):.2f}"
