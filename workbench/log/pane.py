"""The log pane: alerts of the run, and what libraries and native code print meanwhile."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from rich.text import Text
from textual.app import ComposeResult
from textual.events import Print
from textual.widgets import RichLog

from workbench.columns import fit_start
from workbench.kit.pane import Pane
from workbench.run.sentences import sentences
from workbench.run.view import RunView
from workbench.system.output import cut_log
from workbench.text import visible

_KEPT = 2000  # lines
_LONGEST = 2000  # columns of a line that are shown
_AT_ONCE = 64 * 1024  # bytes read from the file in one go


class LogPane(Pane):
    """Pane that follows the run's alerts and the log file of native output, and captures what Python code prints."""

    TITLE = "Log"
    HELP = (
        "Alerts of the run, such as alarms with their advice, and what libraries print: downloads, warnings, native "
        "errors. The file named on the border keeps what they print."
    )

    def __init__(self, path: Path | None, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._path = path
        self._offset = self._bytes() if path else 0  # output of earlier sessions is not shown
        self._waiting: deque[str] = deque(maxlen=_KEPT)
        self._view = RunView()
        self._alerts_written = 0
        if path:
            self.border_subtitle = visible(str(path))

    def compose(self) -> ComposeResult:
        yield RichLog(max_lines=_KEPT, min_width=1, wrap=True, markup=False, highlight=False, auto_scroll=True)

    def on_mount(self) -> None:
        self.begin_capture_print()
        self.set_interval(1.0, self.read_new)

    def show_run(self, view: RunView) -> None:
        if view is not self._view or view.alerts_seen < self._alerts_written:
            self._view, self._alerts_written = view, 0
        new = view.alerts_seen - self._alerts_written
        self._alerts_written = view.alerts_seen
        name = view.started.name if view.started else ""
        for alert in view.alerts[-new:] if new else []:
            for sentence in sentences(alert):
                self.write(visible(f"{name}: {sentence}"))

    def on_print(self, event: Print) -> None:
        """Show what Python code of this process prints."""
        self.write(event.text)

    def read_new(self) -> None:
        """Show what was added to the file, at most the last 64 KiB."""
        if self._path is None or (size := self._bytes()) == self._offset:
            return
        start = self._offset if self._offset < size <= self._offset + _AT_ONCE else max(size - _AT_ONCE, 0)
        try:
            with self._path.open("rb") as file:
                file.seek(start)
                text = file.read(size - start).decode("utf-8", "replace")
        except OSError:
            return
        self._offset = self._bytes() if cut_log(self._path) else size
        self.write(text)

    def write(self, text: str) -> None:
        """Add lines; text after a carriage return replaces the line, as in progress bars."""
        for line in text.replace("\r\n", "\n").split("\n"):
            if shown := fit_start(visible(line.rpartition("\r")[2]).rstrip(), _LONGEST):
                self._waiting.append(shown)
        if self.display:
            self._show()

    def on_show(self) -> None:
        self._show()

    def _show(self) -> None:
        log = self.query_one(RichLog)
        while self._waiting:
            log.write(Text(self._waiting.popleft()))  # RichLog does not wrap Content

    def _bytes(self) -> int:
        try:
            return self._path.stat().st_size if self._path else 0
        except OSError:
            return 0
