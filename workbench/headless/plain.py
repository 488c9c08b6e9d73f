"""Displays that write lines: one an iteration, for logs, pipes and dumb terminals, or one an event in JSON."""

from __future__ import annotations

import json
from typing import TextIO

from trainer.events import Event, Iteration, RewardModelStep
from trainer.runs.listing import PPO
from workbench.headless import Display
from workbench.numbers import duration
from workbench.run.history import kind_of
from workbench.run.metrics import Numbers, table
from workbench.run.sentences import sentences, summary
from workbench.run.view import RunView, seconds
from workbench.system import output

_COUNTS = {PPO: ("iteration", 9)}  # heading and width of the first column
_STEPS = ("step", 11)
_TAIL = (("speed", "tok/s", 6), ("memory", "GB", 6), ("time", "s", 7), ("left", "", 8))


class PlainDisplay(Display):
    """A display with one aligned line an iteration on `stdout`, under a heading with units; all else goes to stderr."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout
        self._view = RunView()
        self._headed = False

    def show(self, event: Event) -> None:
        self._view.take(event)
        for sentence in sentences(event):
            output.note(sentence)
        if isinstance(event, Iteration | RewardModelStep):
            if not self._headed:
                self._headed = True
                self._write(heading(kind_of(event)))
            self._write(row(event, self._view))

    def notice(self, message: str) -> None:
        output.note(message)

    def close(self) -> None:
        for label, text in summary(self._view):
            output.note(f"{label:<10} {text}")

    def _write(self, text: str) -> None:
        self._stdout.write(f"{text}\n")
        self._stdout.flush()


class JsonDisplay(Display):
    """A display that writes the events of the journal to `stdout`, one object a line; notices go to stderr.

    The output is ASCII: a terminal would obey raw control or bidi characters in the model's text.
    """

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout

    def show(self, event: Event) -> None:
        if not event.transient:
            self._stdout.write(json.dumps(event.as_dict(), allow_nan=False) + "\n")
            self._stdout.flush()

    def notice(self, message: str) -> None:
        output.note(message)


def heading(kind: str = PPO) -> str:
    """Return two lines: the columns' names and their units."""
    name, width = _COUNTS.get(kind, _STEPS)
    names, units = name.rjust(width), " " * width
    for metric in table(kind):
        names += metric.heading.rjust(_width(metric.heading, metric.unit) + 2)
        units += metric.unit.rjust(_width(metric.heading, metric.unit) + 2)
    for name, unit, width in _TAIL:
        names += name.rjust(width + 2)
        units += unit.rjust(width + 2)
    return f"{names}\n{units.rstrip()}"


def row(event: Numbers, view: RunView) -> str:
    """Return the numbers of `event`, right-aligned under `heading`."""
    kind = kind_of(event)
    _, width = _COUNTS.get(kind, _STEPS)
    cells = f"{event.iteration}/{view.total}".rjust(width)
    for metric in table(kind):
        cells += metric.text(metric.of(event)).rjust(_width(metric.heading, metric.unit) + 2)
    tail = (
        f"{event.tokens_per_second:.0f}",
        f"{event.memory_bytes / 1e9:.1f}",
        f"{seconds(event):.1f}",
        duration(view.seconds_left()),
    )
    for text, (_, _, width) in zip(tail, _TAIL, strict=True):
        cells += text.rjust(width + 2)
    return cells


def _width(heading: str, unit: str) -> int:
    return max(len(heading), len(unit), 6)
