"""Waiting for a condition in place of a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from textual.css.query import NoMatches
from textual.pilot import Pilot, WaitForScreenTimeout

LIMIT = 300.0  # seconds until what does not come about is a failure; a busy machine takes its time


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    """Let the application work until the condition holds; an assertion fails after five minutes.

    A widget that the condition looks for may not be there yet, and on a busy machine the application may have more to
    do than it does in half a minute, which is what a pilot waits.
    """
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        with suppress(NoMatches):
            if condition():
                return
        assert not pilot.app.return_code, "the application failed"  # leaving it raises what it failed with
        with suppress(WaitForScreenTimeout):
            await pilot.pause(0.05)
    raise AssertionError("the condition did not come about within five minutes")
