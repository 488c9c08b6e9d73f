"""Displays of a headless run: a live table on a terminal, a line per iteration in a log, or JSON lines."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trainer.errors import counted
from trainer.events import (
    Alarm,
    Alert,
    Decision,
    DPOEvaluation,
    Event,
    Iteration,
    RewardModelStep,
    RolledBack,
    RunStarted,
    SettingChanged,
)
from trainer.runs.listing import PPO
from workbench.kit.glyphs import sparkline
from workbench.run.history import kind_of, seconds
from workbench.run.metrics import Numbers, table, training_command
from workbench.run.run_on_disk import whole_run
from workbench.run.sentences import (
    alert_text,
    in_brief,
    level_sign,
    rank_texts,
    sentences,
    short_path,
    state_words,
    title,
    urgent_first,
)
from workbench.run.view import RunView
from workbench.system import output
from workbench.text import duration, fit_start, gigabytes, number, packed, rate, score_text, visible

_TAIL = (("speed", "tok/s", 8), ("memory", "GB", 8), ("time", "s", 9), ("left", "", 10))
_POLICY = "magenta"
_STYLES = {"info": "dim", "warning": "yellow", "error": "bold yellow"}
_BAR = 10  # columns of the phase's progress bar
_SAMPLES = 3
_ALERTS = 2
_ALARMS = 3
_RANKS = 8


class Display:
    """A display of a run's events. This one shows nothing; the others override what they show.

    Every method is called on the main thread.
    """

    interval: float | None = None  # seconds between two `refresh` calls while nothing happens; None: not needed

    def show(self, event: Event) -> None:
        """Take the next event of the run; the next `refresh` may be the one that draws it."""

    def refresh(self) -> None:
        """Draw the changes since the last call."""

    def close(self) -> None:
        """Leave the terminal as it was, and print a summary of the run."""


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
            lines = [] if self._headed else [heading(kind_of(event))]
            self._headed = True
            self._stdout.write("\n".join([*lines, row(event, self._view), ""]))
            self._stdout.flush()

    def close(self) -> None:
        for label, text in summary(self._view):
            output.note(f"{label:<10} {text}")


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
        rate(event.tokens_per_second),
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


class RichDisplay(Display):
    """A display that redraws status, metrics and samples in place on `stdout`; messages scroll away above.

    It respects NO_COLOR. If `stdout` is not a terminal, it writes the last state only, without cursor codes.
    """

    interval: float | None = 0.125

    def __init__(self, stdout: TextIO) -> None:
        self._view = RunView()
        self._changed = True
        # Set here, because FORCE_COLOR would put cursor codes into files.
        self._console = Console(file=stdout, force_terminal=stdout.isatty(), highlight=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,  # `refresh` draws: another thread would compete with the trainer
            redirect_stderr=sys.stderr.isatty(),  # not when it goes to a log file
        )

    def show(self, event: Event) -> None:
        self._view.take(event)
        self._changed = True
        if not self._live.is_started:
            self._live.start()
            self._console.show_cursor()  # a process that is ended at once leaves the terminal as it was
        if isinstance(event, RunStarted | SettingChanged | Alarm | Decision | RolledBack):
            for sentence in sentences(event):
                self._console.print(Text(visible(sentence), style="dim"))

    def refresh(self) -> None:
        if self._changed and self._live.is_started:
            self._changed = False
            self._live.update(dashboard(self._view, self._console.width), refresh=True)

    def close(self) -> None:
        self._changed = True
        self.refresh()
        self._live.stop()
        lines = summary(self._view)
        if lines:
            self._console.print()
        for label, text in lines:
            self._console.print(Text.assemble((f"{label:<11}", "dim"), visible(text)))


def dashboard(view: RunView, width: int) -> RenderableType:
    """Return status, alarms, metrics, newest samples and alerts of `view` for a terminal of `width` >= 60 columns."""
    gap = Text("  ", no_wrap=True, overflow="ellipsis")
    status = packed(_status(view), width, 2, lambda piece: piece.cell_len)
    parts: list[RenderableType] = [gap.join(pieces) for pieces in status]
    for alarm in urgent_first(view.alarms)[:_ALARMS]:
        parts += [_alert(alarm, width), Text(fit_start(f"  {visible(alarm.advice)}", width))]
    samples = []
    for preview in view.samples.previews[:_SAMPLES] if view.samples is not None else ():
        prompt = Text(f"{score_text(preview.score).removeprefix('score ')}  ", no_wrap=True, overflow="ellipsis")
        prompt.append(visible(preview.prompt), style="dim")
        completion = Text(visible(preview.completion))
        completion.truncate(2 * width - 4, overflow="ellipsis")
        samples += [prompt, completion]
    alerts = [alert for alert in view.alerts if not isinstance(alert, Alarm)][-_ALERTS:]
    ranks = [Text(fit_start(text, width)) for text in rank_texts(view.last)[:_RANKS]]
    sections: tuple[list[RenderableType], ...] = (
        [_metrics(view, width)] if view.history else [],
        [*ranks],
        [Text(fit_start(visible(f"◇ iteration {e.iteration}: {in_brief(e)}"), width)) for e in view.newest_evaluations],
        [*samples],
        [_alert(alert, width) for alert in alerts],
    )
    for section in filter(None, sections):
        parts += [Text(""), *section]
    return Group(*parts)


def _status(view: RunView) -> list[Text]:
    name = visible(view.started.name) if view.started else "starting"
    pieces = [Text.assemble((name, "bold"), " ", ("●", _POLICY), f" {state_words(view.state)}")]
    if view.total:
        pieces.append(Text(f"iteration {view.iteration}/{view.total}"))
    if view.phase is not None and not view.is_starting:
        phase = view.phase
        filled = round(_BAR * min(phase.done / phase.total, 1)) if phase.total > 0 else 0
        bar = (("━" * filled, _POLICY), ("─" * (_BAR - filled), "dim"))
        pieces.append(Text.assemble(f"{visible(phase.phase)} ", *bar, f" {phase.done}/{phase.total}"))
    if (last := view.last) is not None:
        pieces.append(Text(f"{rate(last.tokens_per_second)} tok/s"))
        pieces.append(Text(gigabytes(last.memory_bytes)))
        pieces.append(Text(f"ETA {duration(view.seconds_left())}"))
    return pieces


def _metrics(view: RunView, width: int) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True, style="dim")
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(no_wrap=True, style=_POLICY)
    spark = max(min(width - 50, 48), 8)
    for metric in table(view.history.kind):
        values = [value * metric.factor for value in view.history.column(metric.field)[-spark:]]
        change = metric.text(values[-1] - values[-2], sign=True) if len(values) > 1 else ""
        grid.add_row(metric.label, metric.text(values[-1]), change, metric.unit, sparkline(values, spark))
    return grid


def _alert(alert: Alert | RolledBack, width: int) -> Text:
    level = "info" if isinstance(alert, RolledBack) else alert.level
    text = Text(f"{level_sign(level)} iteration {alert.iteration}: {visible(alert_text(alert))}")
    text.stylize(_STYLES.get(level, _STYLES["warning"]))
    text.truncate(2 * width - 4, overflow="ellipsis")
    return text
