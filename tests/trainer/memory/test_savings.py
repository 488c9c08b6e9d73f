"""Changes that make a configuration fit."""

from __future__ import annotations

import pytest

from trainer.config import Config, load_config
from trainer.memory.footprint import footprint
from trainer.memory.savings import Savings, changed, savings
from trainer.memory.shape import STARTER, decoder_shape

SHAPE = decoder_shape(STARTER)


def peak(config: Config) -> int:
    return footprint(config, SHAPE, 20, gpu=False).peak


def on_a_gpu(config: Config) -> int:
    return footprint(config, SHAPE, 20, gpu=True).peak


@pytest.mark.parametrize("share", [0.9, 0.7, 0.6])
def test_each_change_alone_fits_and_goes_no_further_than_it_must(share: float) -> None:
    config = load_config("quickstart")
    room = round(share * peak(config))
    found = savings(config, peak, room, gpu=False)
    assert found.alone
    assert not found.together
    for one in found.alone:
        assert one.peak == peak(changed(config, one.key, one.value)) <= room
        if type(one.value) is int:
            assert peak(changed(config, one.key, 2 * one.value)) > room


def test_the_change_that_keeps_the_numbers_comes_first() -> None:
    config = load_config("quickstart")
    found = savings(config, peak, round(0.9 * peak(config)), gpu=False)
    assert found.alone[0].key == "optim.micro_batch_tokens"


def test_where_no_change_is_enough_several_are_together() -> None:
    config = changed(load_config("quickstart"), "rollout.max_new_tokens", 400)
    room = 700_000_000
    found = savings(config, peak, room, gpu=False)
    assert not found.alone
    assert len(found.together) > 1
    sizes = [peak(config)]
    for one in found.together:
        config = changed(config, one.key, one.value)
        sizes.append(peak(config))
        assert one.peak == sizes[-1]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= room < sizes[-2]


def test_nothing_is_proposed_where_nothing_helps() -> None:
    assert savings(load_config("quickstart"), peak, 1000, gpu=False) == Savings([], [])


def test_packing_the_weights_is_proposed_on_a_gpu_alone() -> None:
    config = load_config("quickstart")
    small = changed(changed(config, "optim.micro_batch_tokens", 64), "rollout.max_new_tokens", 8)
    room = round(0.75 * on_a_gpu(small))
    assert "model.quantize" in {one.key for one in savings(small, on_a_gpu, room, gpu=True).alone}
    keys = {one.key for found in savings(small, peak, round(0.75 * peak(small)), gpu=False) for one in found}
    assert "model.quantize" not in keys


def test_checkpointing_is_proposed_where_smaller_micro_batches_are_not_enough_unless_it_is_on() -> None:
    long = changed(changed(load_config("quickstart"), "rollout.max_new_tokens", 1000), "rollout.batch_size", 1)
    found = savings(long, peak, round(0.7 * peak(long)), gpu=False)
    assert found.alone[0].key == "optim.grad_checkpoint"
    assert found.alone[0].value is True
    on = changed(long, "optim.grad_checkpoint", True)
    found = savings(on, peak, round(0.9 * peak(on)), gpu=False)
    assert "optim.grad_checkpoint" not in {one.key for one in found.alone + found.together}
