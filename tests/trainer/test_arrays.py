"""Buffers that MLX keeps: when they are given back."""

from __future__ import annotations

import mlx.core as mx
import pytest

from trainer.arrays import clear_cache


@pytest.mark.parametrize(
    ("device", "cached", "cleared"),
    [("cpu", 1, 1), ("gpu", 20, 0), ("gpu", 21, 1)],
    ids=["a CPU", "a GPU with room", "a full GPU"],
)
def test_freed_buffers_stay_where_memory_is_slow_to_get_and_not_short(
    device: str, cached: int, cleared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(getattr(mx, device)))
    monkeypatch.setattr(mx, "get_active_memory", lambda: 30)
    monkeypatch.setattr(mx, "get_cache_memory", lambda: cached)
    monkeypatch.setattr(mx, "get_memory_limit", lambda: 100)
    monkeypatch.setattr(mx, "clear_cache", lambda: calls.append(None))
    clear_cache()
    assert len(calls) == cleared
