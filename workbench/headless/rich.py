"""Rich display: a table that stays in place, the default on a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trainer.events import Alarm, Alert, Decision, Event, RolledBack, RunStarted, SamplePreview, SettingChanged
from workbench.headless import Display
from workbench.headless.plain import summary
from workbench.kit.glyphs import sparkline
from workbench.numbers import duration, gigabytes, score_text
from workbench.run.metrics import table
from workbench.run.sentences import alert_text, in_brief, level_sign, rank_texts, sentences, urgent_first
from workbench.run.view import RunView
from workbench.text import fit_start, packed, visible

_ACCENT = "cyan"
_STYLES = {"info": "dim", "warning": "yellow", "error": "bold yellow"}
_BAR = 10  # columns of the phase's progress bar
_SAMPLES = 3
_ALERTS = 2
_ALARMS = 3
_RANKS = 8
_SHOW_CURSOR = b"\x1b[?25h\n"


class RichDisplay(Display):
    """A display that redraws status, metrics and samples in place on `stdout`; messages scroll away above.

    It respects NO_COLOR. If `stdout` is not a terminal, it writes the last state only, without cursor codes.
    """

    interval: float | None = 0.125

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout
        self._view = RunView()
        self._notice = ""
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
        if isinstance(event, RunStarted | SettingChanged | Alarm | Decision | RolledBack):
            for sentence in sentences(event):
                self._console.print(Text(visible(sentence), style="dim"))

    def notice(self, message: str) -> None:
        self._notice = message
        self._changed = True

    def refresh(self) -> None:
        if self._changed and self._live.is_started:
            self._changed = False
            self._draw()

    def close(self) -> None:
        self._notice = ""
        if self._live.is_started:
            self._draw()
        self._live.stop()
        lines = summary(self._view)
        if lines:
            self._console.print()
        for label, text in lines:
            self._console.print(Text.assemble((f"{label:<11}", "dim"), visible(text)))

    def restore(self) -> None:
        if self._live.is_started and self._console.is_terminal:
            with contextlib.suppress(OSError):
                os.write(self._stdout.fileno(), _SHOW_CURSOR)

    def _draw(self) -> None:
        self._live.update(dashboard(self._view, self._console.width, notice=self._notice), refresh=True)


def dashboard(view: RunView, width: int, *, notice: str = "") -> RenderableType:
    """Return status, alarms, metrics, newest samples and alerts of `view` for a terminal of `width` >= 60 columns."""
    gap = Text("  ", no_wrap=True, overflow="ellipsis")
    status = packed(_status(view), width, 2, lambda piece: piece.cell_len)
    parts: list[RenderableType] = [gap.join(pieces) for pieces in status]
    for alarm in urgent_first(view.alarms)[:_ALARMS]:
        parts += [_alert(alarm, width), Text(fit_start(f"  {visible(alarm.advice)}", width))]
    previews = view.samples.previews[:_SAMPLES] if view.samples is not None else []
    alerts = [alert for alert in view.alerts if not isinstance(alert, Alarm)][-_ALERTS:]
    ranks = [Text(fit_start(text, width)) for text in rank_texts(view.last)[:_RANKS]]
    sections: tuple[list[RenderableType], ...] = (
        [_metrics(view, width)] if view.history else [],
        [*ranks],
        [Text(fit_start(visible(f"◇ iteration {e.iteration}: {in_brief(e)}"), width)) for e in view.newest_evaluations],
        [line for preview in previews for line in _sample(preview, width)],
        [_alert(alert, width) for alert in alerts],
        [Text(visible(notice), style="bold")] if notice else [],
    )
    for section in filter(None, sections):
        parts += [Text(""), *section]
    return Group(*parts)


def _status(view: RunView) -> list[Text]:
    name = visible(view.started.name) if view.started else "starting"
    pieces = [Text.assemble((name, "bold"), " ", ("●", _ACCENT), f" {view.state_text}")]
    if view.total:
        pieces.append(Text(f"iteration {view.iteration}/{view.total}"))
    if view.phase is not None and not view.is_starting:
        pieces.append(_phase(visible(view.phase.phase), view.phase.done, view.phase.total))
    if (last := view.last) is not None:
        pieces.append(Text(f"{last.tokens_per_second:.0f} tok/s"))
        pieces.append(Text(gigabytes(last.memory_bytes)))
        pieces.append(Text(f"ETA {duration(view.seconds_left())}"))
    return pieces


def _phase(name: str, done: int, total: int) -> Text:
    filled = round(_BAR * min(done / total, 1)) if total > 0 else 0
    return Text.assemble(f"{name} ", ("━" * filled, _ACCENT), ("─" * (_BAR - filled), "dim"), f" {done}/{total}")


def _metrics(view: RunView, width: int) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True, style="dim")
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(no_wrap=True, style=_ACCENT)
    spark = max(min(width - 50, 48), 8)
    for metric in table(view.history.kind):
        values = [value * metric.factor for value in view.history.column(metric.field)[-spark:]]
        change = metric.text(values[-1] - values[-2], sign=True) if len(values) > 1 else ""
        grid.add_row(metric.label, metric.text(values[-1]), change, metric.unit, sparkline(values, spark))
    return grid


def _sample(preview: SamplePreview, width: int) -> Iterable[Text]:
    prompt = Text(f"{score_text(preview.score).removeprefix('score ')}  ", no_wrap=True, overflow="ellipsis")
    prompt.append(visible(preview.prompt), style="dim")
    completion = Text(visible(preview.completion))
    completion.truncate(2 * width - 4, overflow="ellipsis")
    yield prompt
    yield completion


def _alert(alert: Alert | RolledBack, width: int) -> Text:
    level = "info" if isinstance(alert, RolledBack) else alert.level
    text = Text(f"{level_sign(level)} iteration {alert.iteration}: {visible(alert_text(alert))}")
    text.stylize(_STYLES.get(level, _STYLES["warning"]))
    text.truncate(2 * width - 4, overflow="ellipsis")
    return text
