"""One event a line as JSON: for programs, and for a look back with jq."""

from __future__ import annotations

import json
from typing import TextIO

from trainer.events import Event
from workbench.system import output


class JsonDisplay:
    """Writes the events that the journal keeps to `stdout`, one object a line; notices go to stderr.

    The output is ASCII: in a terminal a raw control or bidi character of the model's text would be obeyed.
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
        """Nothing to do: every event is written at once."""

    def close(self) -> None:
        """Nothing to do: the last event sums the run up."""

    def restore(self) -> None:
        """Nothing to do: the terminal is as it was."""
