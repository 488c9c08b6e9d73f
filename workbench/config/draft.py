"""A change of a configuration that is proposed while a run goes on, and made once the user sends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from workbench.config.document import ConfigDocument
from workbench.config.fields import fields_by_key


class Draft(NamedTuple):
    """A live setting as it would be."""

    key: str
    value: Any
    act: Callable[[], object]  # gives it that value in the document
    back: Callable[[], object]


def values_of(document: ConfigDocument) -> dict[str, Any]:
    """The value of every setting of the form, by key."""
    return {key: document.get(key) for key in fields_by_key()}


def moved_since(document: ConfigDocument, before: dict[str, Any]) -> list[str]:
    """The settings of which the value is not that of `before`."""
    return [key for key, value in before.items() if document.get(key) != value]


def drafted(document: ConfigDocument, act: Callable[[], bool], back: Callable[[], bool]) -> Draft | None:
    """What `act`, which is tried and taken `back`, changes; None where that is not one live setting."""
    before = values_of(document)
    if not act():
        return None
    changed = {key: document.get(key) for key in moved_since(document, before)}
    back()
    live = [Draft(key, value, act, back) for key, value in changed.items() if fields_by_key()[key].live]
    return live[0] if len(live) == len(changed) == 1 else None
