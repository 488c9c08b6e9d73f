"""The estimate against what MLX allocates, and the cheapest setting that makes a configuration fit."""

from __future__ import annotations

import gc
from pathlib import Path

import mlx.core as mx
import pytest
from runs_helper import record, tiny_config

from trainer.config import Config, load_config
from trainer.data import load_prompts
from trainer.events import Iteration
from trainer.memory.estimate import changed, cheapest_saving, footprint_of
from trainer.memory.footprint import footprint
from trainer.memory.shape import STARTER, decoder_shape, shape_of
from trainer.models.backbone import load_tokenizer

SHAPE = decoder_shape(STARTER)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("optim.grad_checkpoint=true",),
        ("ppo.estimator=grpo", "ppo.kl_in=loss", "ppo.kl_estimator=k3", "rollout.samples_per_prompt=4"),
        ("ppo.kl_in=loss", "ppo.kl_estimator=full"),
        ("model.value_model=adapter", "model.lora_rank=64", "optim.micro_batch_tokens=450"),
        ("model.lora_targets=['auto','gate_proj','up_proj','down_proj']", "ppo.minibatches=2"),
    ],
    ids=["PPO", "checkpointed", "GRPO", "exact KL", "critic apart", "adapters on the MLP"],
)
def test_the_estimate_of_an_iteration_is_within_15_percent(settings: tuple[str, ...], tmp_path: Path) -> None:
    """Of large models too, by `benchmarks/bench_memory.py`. Small arrays make the phase generate unlike theirs."""
    long = ("rollout.max_new_tokens=200", "rollout.ignore_stop=true", "rollout.batch_size=8")
    config = tiny_config(tmp_path, *long, "eval.every=0", "ppo.iterations=1", *settings)
    gc.collect()
    before = mx.get_active_memory()  # of other tests
    (iteration,) = record(config).of(Iteration)
    encode = load_tokenizer(config.model).tokenizer.encode
    longest = max(len(encode(row.prompt)) for row in load_prompts(config.data))
    shape, _ = shape_of(config.model.path)
    assert shape is not None
    found = footprint_of(config, shape, longest, gpu=False)
    assert found.peak == pytest.approx(iteration.memory_bytes - before, rel=0.15)
    for phase in found.phases.keys() - {"generate"}:
        assert sum(found.phases[phase].values()) == pytest.approx(iteration.memory[phase] - before, rel=0.15), phase


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
