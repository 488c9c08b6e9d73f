"""The view of a run from its events, and how the rich display draws it."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console

from trainer.events import Event
from workbench.headless import dashboard
from workbench.run.view import RunView


def view_of(*events: Event) -> RunView:
    view = RunView()
    for event in events:
        view.take(event)
    return view


def folded(events: Iterable[Event]) -> RunView:
    return view_of(*events)


def drawn(view: RunView, width: int = 100) -> str:
    console = Console(file=(stream := io.StringIO()), width=width, force_terminal=False, highlight=False)
    console.print(dashboard(view, width))
    return stream.getvalue()
