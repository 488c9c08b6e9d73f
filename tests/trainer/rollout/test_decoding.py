"""Decoding: the memory that is kept wired meanwhile."""

from __future__ import annotations

import mlx.core as mx
import pytest

from trainer.rollout.decoding import wired_memory


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return all wired limits of a Mac with 11 GB to use, the present one last."""
    limits = [3]

    def set_wired_limit(limit: int) -> int:
        limits.append(limit)
        return limits[-2]

    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 11 * 10**9})
    monkeypatch.setattr(mx, "set_wired_limit", set_wired_limit)
    monkeypatch.setattr(mx, "get_memory_limit", lambda: 16 * 10**9)  # MLX's own: beyond what the system recommends
    return limits


def test_memory_is_wired_on_a_mac_and_the_limit_is_as_before_afterwards(limits: list[int]) -> None:
    with wired_memory():
        assert limits == [3, 11 * 10**9]
    assert limits[-1] == 3


def test_no_more_is_wired_than_the_run_may_take(limits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "get_memory_limit", lambda: 2 * 10**9)  # as `model.memory_limit = 2` sets it
    with wired_memory():
        assert limits == [3, 2 * 10**9]
    assert limits[-1] == 3


def test_the_limit_is_as_before_after_an_error(limits: list[int]) -> None:
    with pytest.raises(KeyError), wired_memory():
        raise KeyError
    assert limits == [3, 11 * 10**9, 3]


def test_no_limit_is_set_without_metal(limits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    with wired_memory():
        assert limits == [3]
