"""One event a line as JSON: for programs, and for a look back with jq."""

from __future__ import annotations

import json
from typing import TextIO

from trainer.events import Event
from workbench import diagnostics


class JsonDisplay:
    """Writes every event that the journal keeps to `stdout`, one object a line, flushed; notices go to stderr.

    The output is ASCII: in a terminal a raw control or bidi character of the model's text would be obeyed.
    """

    interval: float | None = None

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout

    def show(self, event: Event) -> None:
        if not event.transient:
            print(json.dumps(event.as_dict(), allow_nan=False), file=self._stdout, flush=True)

    def notice(self, message: str) -> None:
        diagnostics.note(message)

    def refresh(self) -> None:
        """Nothing to do: every event is written at once."""

    def close(self) -> None:
        """Nothing to do: the last event sums the run up."""

    def restore(self) -> None:
        """Nothing to do: the terminal is as it was."""
