"""Displays of a headless run: a line per iteration, or JSON lines."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TextIO

from trainer.errors import counted
from trainer.events import DPOEvaluation, Event, Iteration, PhaseProgress, RewardModelStep
from trainer.runs.listing import PPO
from workbench.run.history import kind_of, seconds
from workbench.run.metrics import Numbers, table, training_command
from workbench.run.run_on_disk import whole_run
from workbench.run.sentences import in_brief, rank_texts, sentences, short_path, title
from workbench.run.view import RunView
from workbench.system import output
from workbench.text import duration, number, visible

_TAIL = (("speed", "tok/s", 8), ("memory", "GB", 8), ("time", "s", 9), ("left", "", 10))
_PROGRESS = 24  # columns of the progress of a phase


class PlainDisplay:
    """A display with one aligned line per iteration on `stdout`, under a heading; everything else goes to stderr."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout
        self._view = RunView()
        self._headed = False

    def show(self, event: Event) -> None:
        """Print an event of the run."""
        self._view.take(event)
        if isinstance(event, PhaseProgress) and sys.stderr.isatty():
            # In place, and shorter than any line that may come after it.
            sys.stderr.write(f"\r{visible(event.phase)[:8]:>10} {event.done}/{event.total}".ljust(_PROGRESS) + "\r")
            sys.stderr.flush()
        for sentence in sentences(event):
            output.note(sentence)
        if isinstance(event, Iteration | RewardModelStep):
            lines = [] if self._headed else [heading(kind_of(event))]
            self._headed = True
            self._stdout.write("\n".join([*lines, row(event, self._view), ""]))
            self._stdout.flush()

    def close(self) -> None:
        """Print a summary of the run."""
        for label, text in summary(self._view):
            output.note(f"{label:<10} {text}")


class JsonDisplay:
    """A display that writes the events of the journal to `stdout`, one object per line.

    The output is ASCII: a terminal would obey raw control or bidi characters in the model's text.
    """

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout

    def show(self, event: Event) -> None:
        """Print an event of the run."""
        if not event.transient:
            self._stdout.write(json.dumps(event.as_dict(), allow_nan=False) + "\n")
            self._stdout.flush()

    def close(self) -> None:
        """Print nothing: the last event is the summary."""


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


def summary(view: RunView) -> list[tuple[str, str]]:
    """Return labels and texts: how the run went, where it is, how to continue. Empty when no run started.

    For a resumed run, `view` has only the last part, so the journal is read for the rest.
    """
    if view.started is not None and view.started.resumed_at is not None:
        whole = whole_run(Path(view.started.folder))
        if whole.started is not None and whole.ended == view.ended:  # else the journal is gone, or damaged
            view = whole
    if view.started is None:
        return []
    outcome, ended = f"interrupted after iteration {view.iteration} of {view.total}", view.ended
    if ended is not None:
        outcome = f"{ended.state} after iteration {ended.iteration} of {view.total}"
        outcome += f", {duration(ended.seconds)}" if ended.seconds else ""
        outcome += f": {ended.reason}" if ended.reason and ended.state != "done" else ""
    lines = [("run", f"{view.started.name}: {outcome}")]
    lines += _learnt(view)
    lines += [("ranks", text) for text in rank_texts(view.last)]
    if view.active_alarms:
        lines.append(("alarms", ", ".join(f"{title(code)} ({level})" for code, level in view.active_alarms.items())))
    folder = short_path(view.started.folder)
    lines.append(("folder", folder))
    if checkpoint := (ended and ended.checkpoint) or (view.checkpoints and view.checkpoints[-1].path):
        lines.append(("checkpoint", checkpoint))
        if view.state != "done" or view.started.run_kind == PPO:  # other kinds cannot be extended once done
            kind = view.started.run_kind
            command = f"{training_command(kind) or output.PROGRAM} --resume {shlex.quote(folder)}"
            more = f" --set ppo.iterations={2 * view.total}" if kind == PPO and view.state == "done" else ""
            lines.append(("resume", command + more))
    lines.append(("inspect", f"{output.PROGRAM} runs --dir {shlex.quote(str(Path(folder).parent))}"))
    return lines


def _learnt(view: RunView) -> list[tuple[str, str]]:
    """Return labels and texts: the progress of the main numbers of the run."""
    lines = []
    if view.history and view.history.kind == PPO:
        score, kl = view.first_and_last("score_mean"), view.first_and_last("kl")
        lines.append(
            ("score", f"{_course(score)} ({number(score[1] - score[0], signed=True)}), first and last five iterations")
        )
        lines.append(("KL", f"{_course(kl)} nats a sequence"))
    elif view.history:
        lines.append(("loss", f"{_course(view.first_and_last('loss'))}, first and last five iterations"))
    if view.held_out:
        last = view.held_out[-1]
        lines.append(
            (
                "held out",
                f"accuracy {_course((last.untrained_accuracy, last.accuracy))} "
                f"({number(last.accuracy_low)} to {number(last.accuracy_high)}) of {counted(last.pairs, 'pair')}, "
                f"by length alone {number(last.length_accuracy)}",
            )
        )
        if isinstance(last, DPOEvaluation):
            lines.append(("KL", f"{number(last.kl)} nats a token"))
    if view.evaluations:
        lines.append(("evaluation", in_brief(view.evaluations[-1])))
    if view.judged:
        lines.append(("people", in_brief(view.judged)))
    return lines


def _course(ends: tuple[float, float]) -> str:
    return f"{number(ends[0])} -> {number(ends[1])}"
