"""Readings on threads, one at a time and seldom enough to leave the processor to the trainer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

_REST = 20  # times the cost of a reading: it takes at most a twentieth of a core

T = TypeVar("T")


class Throttled:
    """Limit of one repeated reading. rests: it is repeated only after a rest of 20 times what it cost."""

    def __init__(self, *, rests: bool = True) -> None:
        self._rests = rests
        self._under_way = False
        self._rest_until = 0.0  # on the monotonic clock

    async def read(self, reading: Callable[[], T]) -> T | None:
        """Return what `reading` finds, on a thread; None if one is under way or its rest has not passed."""
        if self._under_way or time.monotonic() < self._rest_until:
            return None
        self._under_way = True

        def timed() -> tuple[T, float]:
            began = time.thread_time()  # the processor time that the trainer does not get
            return reading(), time.thread_time() - began

        try:
            found, seconds = await asyncio.to_thread(timed)
        finally:
            self._under_way = False
        if self._rests:
            self._rest_until = time.monotonic() + _REST * seconds
        return found
