"""Waiting for a condition in place of a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.css.query import NoMatches
from textual.pilot import Pilot


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    """Let the application work until the condition holds; an assertion fails after 30 seconds.

    A widget that the condition looks for may not be there yet.
    """
    for _ in range(600):
        try:
            if condition():
                return
        except NoMatches:
            pass
        await pilot.pause(0.05)
    raise AssertionError("the condition did not come about within 30 s")
