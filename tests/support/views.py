"""The view of a run from its events."""

from __future__ import annotations

from collections.abc import Iterable

from trainer.events import Event
from workbench.run.view import RunView


def view_of(*events: Event) -> RunView:
    view = RunView()
    for event in events:
        view.take(event)
    return view


def folded(events: Iterable[Event]) -> RunView:
    return view_of(*events)
