"""When freed buffers are given back; keys: one for each purpose, the same in every release."""

from __future__ import annotations

from itertools import product

import mlx.core as mx
import pytest

from trainer.arrays import Purpose, clear_cache, key_for


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


def test_every_seed_purpose_and_number_has_a_key_of_its_own() -> None:
    keys = {tuple(key_for(seed, purpose, n).tolist()) for seed, purpose, n in product(range(5), Purpose, range(40))}
    assert len(keys) == 5 * len(Purpose) * 40
    assert key_for(1, Purpose.ROLLOUT, 2).tolist() != key_for(2, Purpose.ROLLOUT, 1).tolist()


def test_a_key_does_not_depend_on_what_was_drawn_before() -> None:
    before = key_for(7, Purpose.ROLLOUT, 3).tolist()
    mx.random.seed(1)
    mx.eval(mx.random.uniform(shape=(3,)))
    assert key_for(7, Purpose.ROLLOUT, 3).tolist() == before


def test_keys_are_those_that_saved_runs_were_made_with() -> None:
    assert key_for(0, Purpose.ADAPTER).tolist() == [1358922860, 3964924996]
    assert key_for(0, Purpose.ROLLOUT, 1).tolist() == [3354216986, 1961547765]
    assert key_for(2**32 - 1, Purpose.EVALUATION).tolist() == [1061970975, 246676199]
    numbers = {purpose.name: purpose.value for purpose in Purpose}
    assert numbers == {"ADAPTER": 1, "ROLLOUT": 2, "MINIBATCHES": 3, "EVALUATION": 4, "FOLDS": 5}
