"""JSON display: one event a line, for programs and for jq."""

from __future__ import annotations

import json
from typing import TextIO

from trainer.events import Event
from workbench.system import output


class JsonDisplay:
    """A display that writes the events of the journal to `stdout`, one object a line; notices go to stderr.

    The output is ASCII: a terminal would obey raw control or bidi characters in the model's text.
    """

    interval: float | None = None

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout

    def show(self, event: Event) -> None:
        if not event.transient:
            self._stdout.write(json.dumps(event.as_dict(), allow_nan=False) + "\n")
            self._stdout.flush()

    def notice(self, message: str) -> None:
        output.note(message)

    def refresh(self) -> None:
        """Do nothing: every event is written at once."""

    def close(self) -> None:
        """Do nothing: the last event summarises the run."""

    def restore(self) -> None:
        """Do nothing: the terminal is unchanged."""
