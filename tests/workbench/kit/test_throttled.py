"""Repeated readings on threads: one at a time, and seldom if they cost much."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from workbench.kit import pane
from workbench.kit.pane import Throttled


async def test_a_second_reading_does_not_begin_while_one_is_under_way() -> None:
    go_on, limit = threading.Event(), Throttled()
    first = asyncio.create_task(limit.read(lambda: go_on.wait(60)))
    await asyncio.sleep(0)  # the first has begun
    assert await limit.read(lambda: "second") is None
    go_on.set()
    assert await first is True


@pytest.mark.parametrize(("rests", "again"), [(True, None), (False, "again")])
async def test_a_costly_reading_is_repeated_only_after_a_rest(
    rests: bool, again: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pane, "_REST", 1e6)
    limit = Throttled(rests=rests)
    assert await limit.read(_costly) == "found"
    assert await limit.read(lambda: "again") == again


async def test_a_reading_that_fails_is_repeated() -> None:
    limit = Throttled()
    with pytest.raises(ZeroDivisionError):
        await limit.read(lambda: 1 // 0)
    assert await limit.read(lambda: "found") == "found"


def _costly() -> str:
    began = time.thread_time()
    while time.thread_time() - began < 0.001:
        pass
    return "found"
