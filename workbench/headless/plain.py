"""Displays that write lines: one per iteration, for logs, pipes and dumb terminals, or one per event in JSON."""

from __future__ import annotations

import json
from typing import TextIO

from trainer.events import Event, Iteration, RewardModelStep
from trainer.runs.listing import PPO
from workbench.headless import Display
from workbench.headless.summary import summary
from workbench.numbers import duration, number
from workbench.run.history import kind_of, seconds
from workbench.run.metrics import Numbers, table
from workbench.run.sentences import sentences
from workbench.run.view import RunView
from workbench.system import output

_TAIL = (("speed", "tok/s", 8), ("memory", "GB", 8), ("time", "s", 9), ("left", "", 10))


class PlainDisplay(Display):
    """A display with one aligned line per iteration on `stdout`, under a heading; everything else goes to stderr."""

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
    """A display that writes the events of the journal to `stdout`, one object per line; notices go to stderr.

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


def heading(kind: str) -> str:
    """Return two lines: the columns' names and their units."""
    columns = _columns(kind)
    names = "".join(name.rjust(width) for name, _, width in columns)
    units = "".join(unit.rjust(width) for _, unit, width in columns)
    return f"{names}\n{units.rstrip()}"


def row(event: Numbers, view: RunView) -> str:
    """Return the numbers of `event`, right-aligned under `heading`, with a space before each."""
    kind = kind_of(event)
    columns = _columns(kind)
    metrics = zip(table(kind), columns[1:], strict=False)
    cells = [
        f"{event.iteration}/{view.total}",
        *(number(metric.of(event), metric.digits, width=width - 1) for metric, (_, _, width) in metrics),
        f"{event.tokens_per_second:.0f}",
        f"{event.memory_bytes / 1e9:.1f}",
        f"{seconds(event):.1f}",
        duration(view.seconds_left()),
    ]
    return "".join(f" {cell}".rjust(width) for cell, (_, _, width) in zip(cells, columns, strict=True))


def _columns(kind: str) -> list[tuple[str, str, int]]:
    """Return the name of each column, its unit, and its width with the space before it."""
    metrics = ((m.heading, m.unit, max(len(m.heading), len(m.unit), 6) + 2) for m in table(kind))
    return [("iteration", "", 9) if kind == PPO else ("step", "", 11), *metrics, *_TAIL]
