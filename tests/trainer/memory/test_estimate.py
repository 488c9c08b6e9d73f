"""The cheapest setting that makes a configuration fit."""

from __future__ import annotations

import pytest

from trainer.config import Config, load_config
from trainer.memory.estimate import changed, cheapest_saving
from trainer.memory.footprint import footprint
from trainer.memory.shape import STARTER, decoder_shape

SHAPE = decoder_shape(STARTER)


def peak(config: Config, *, gpu: bool = False) -> int:
    return footprint(config, SHAPE, 20, gpu=gpu).peak


@pytest.mark.parametrize("share", [0.9, 0.7])
def test_the_first_saving_keeps_the_numbers_and_goes_no_further_than_it_must(share: float) -> None:
    config = load_config("quickstart")
    room = round(share * peak(config))
    found = cheapest_saving(config, peak, room, gpu=False)
    assert found is not None
    assert found.key == "optim.micro_batch_tokens"
    assert found.peak == peak(changed(config, found.key, found.value)) <= room
    assert peak(changed(config, found.key, 2 * found.value)) > room


def test_checkpointing_comes_where_smaller_micro_batches_are_not_enough_unless_it_is_on() -> None:
    long = changed(changed(load_config("quickstart"), "rollout.max_new_tokens", 1000), "rollout.batch_size", 1)
    found = cheapest_saving(long, peak, round(0.7 * peak(long)), gpu=False)
    assert found is not None
    assert (found.key, found.value) == ("optim.grad_checkpoint", True)
    on = changed(long, "optim.grad_checkpoint", True)
    other = cheapest_saving(on, peak, round(0.9 * peak(on)), gpu=False)
    assert other is None or other.key != "optim.grad_checkpoint"


def test_packing_the_weights_is_proposed_on_a_gpu_alone() -> None:
    small = changed(changed(load_config("quickstart"), "optim.micro_batch_tokens", 64), "rollout.max_new_tokens", 8)
    small = changed(small, "model.dtype", "bfloat16")
    found = cheapest_saving(small, lambda config: peak(config, gpu=True), round(0.75 * peak(small, gpu=True)), gpu=True)
    assert found is not None
    assert (found.key, found.value) == ("model.quantize", "8-bit")
    on_a_cpu = cheapest_saving(small, peak, round(0.75 * peak(small)), gpu=False)
    assert on_a_cpu is None or on_a_cpu.key != "model.quantize"


def test_nothing_is_proposed_where_nothing_helps() -> None:
    assert cheapest_saving(load_config("quickstart"), peak, 1000, gpu=False) is None
