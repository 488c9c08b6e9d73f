"""Change of a live setting that is proposed during a run and made once the user sends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from workbench.config.document import ConfigDocument
from workbench.config.fields import fields_by_key


class Draft(NamedTuple):
    """Proposed value of a live setting."""

    key: str
    value: Any
    act: Callable[[], object]  # sets the value in the document
    back: Callable[[], object]


def values_of(document: ConfigDocument) -> dict[str, Any]:
    """Return the value of every setting of the form, by key."""
    return {key: document.get(key) for key in fields_by_key()}


def moved_since(document: ConfigDocument, before: dict[str, Any]) -> list[str]:
    """Return the keys of the settings whose value differs from `before`."""
    return [key for key, value in before.items() if document.get(key) != value]


def drafted(document: ConfigDocument, act: Callable[[], bool], back: Callable[[], bool]) -> Draft | None:
    """Return the change that `act` makes; None if it is not exactly one live setting.

    Calls `act`, and `back` to undo it.
    """
    before = values_of(document)
    if not act():
        return None
    changed = {key: document.get(key) for key in moved_since(document, before)}
    back()
    live = [Draft(key, value, act, back) for key, value in changed.items() if fields_by_key()[key].live]
    return live[0] if len(live) == len(changed) == 1 else None
