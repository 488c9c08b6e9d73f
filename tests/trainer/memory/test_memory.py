"""Memory: what can be counted is exact, the rest is near what MLX allocates, and the cheapest setting makes it fit."""

from __future__ import annotations

import gc
import itertools
import json
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import qwen3_moe
from runs_helper import record, tiny_config
from tiny import FAMILIES, load_tiny, make_checkpoint

from trainer.arrays import Purpose, key_for
from trainer.config import Config, load_config, preset_names, validate
from trainer.config.loading import PRESETS
from trainer.config.pairs import DPOConfig, RewardModelConfig
from trainer.data import load_prompts
from trainer.events import Iteration
from trainer.memory.estimate import changed, cheapest_saving, footprint_of, reward_models
from trainer.memory.footprint import (
    CHUNK,
    PREFILL_TOKENS,
    Footprint,
    RewardModels,
    RewardPass,
    adapter_parameters,
    footprint,
    held_model,
)
from trainer.memory.shape import STARTER, decoder_shape, shape_of
from trainer.models import forward
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import load_tokenizer
from trainer.rollout import generation

SHAPE = decoder_shape(STARTER)


def of(config: Config, *, prompt: int = 20, gpu: bool = False) -> Footprint:
    return footprint(config, SHAPE, prompt, gpu=gpu)


def settings(**sections: Any) -> Config:
    return validate(sections)


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_names_the_memory_that_the_estimate_has_for_a_gpu_before_its_model_is_downloaded(preset: str) -> None:
    config = load_config(preset)
    shape, why_not = shape_of(config.model.path)
    assert (shape is not None, why_not) == (True, "")
    named = re.search(r"([\d.]+) GB by the estimate", (PRESETS / f"{preset}.toml").read_text())
    if shape is not None and named is not None:
        assert footprint(config, shape, 19, gpu=True).peak == pytest.approx(float(named[1]) * 1e9, rel=0.01)
    assert named is not None or config.model.path == "starter"


def test_the_cache_is_counted_in_the_steps_by_which_it_grows() -> None:
    def cache(**rollout: int) -> int:
        return of(settings(rollout=rollout)).phases["generate"]["KV cache"]

    assert cache(batch_size=8, max_new_tokens=32) == 8 * 256 * 2 * 30 * 3 * 64 * 4
    assert cache(batch_size=8, max_new_tokens=236) == cache(batch_size=8, max_new_tokens=32)
    assert cache(batch_size=8, max_new_tokens=237) == 2 * cache(batch_size=8, max_new_tokens=32)
    assert cache(batch_size=64, slots=4, max_new_tokens=32) == cache(batch_size=4, max_new_tokens=32)


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"lora_rank": 3, "lora_targets": ["q_proj", "k_proj", "v_proj", "o_proj"]},
        {"lora_targets": ["auto", "v_proj", "gate_proj", "up_proj", "down_proj"]},
        {"lora_layers": 1},
        {"value_model": "adapter"},
    ],
)
def test_adapters_and_their_moments_are_counted_exactly(model: dict[str, Any], tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "tiny")
    config = settings(model=model | {"path": str(folder)}, optim={"ema_decay": 0.5})
    shape, _ = shape_of(str(folder))
    assert shape is not None
    actor = ActorCriticLLM(load_tiny(tmp_path / "tiny").backbone, config.model, key=key_for(0, Purpose.ADAPTER))
    count = sum(array.size for array in (actor.policy_parameters() | actor.value_parameters()).values())
    parts = footprint(config, shape, 8, gpu=False).parts
    assert parts["optimiser"] == pytest.approx(2 * 4 * count, abs=16)  # the bias of the head
    assert parts["adapters"] == pytest.approx(2 * 4 * count, abs=16), "with the moving average"


EXPERTS = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
    "intermediate_size": 64, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "tie_word_embeddings": True, "model_type": "qwen3_moe", "head_dim": 8, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
    "max_position_embeddings": 64, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
}  # fmt: skip


@pytest.mark.parametrize(
    "targets", [["experts"], ["auto", "mlp.switch_mlp.up_proj"], ["self_attn.o_proj", "experts"], ["auto"]]
)
def test_each_expert_with_an_adapter_counts(targets: list[str]) -> None:
    arguments = qwen3_moe.ModelArgs.from_dict(EXPERTS)
    config = settings(model={"lora_targets": targets})
    backbone = qwen3_moe.Model(arguments)
    actor = ActorCriticLLM(backbone, config.model, key=key_for(0, Purpose.ADAPTER))
    count = sum(array.size for array in actor.policy_parameters().values())
    assert adapter_parameters(config.model, decoder_shape(EXPERTS)) == count


def test_the_logits_of_no_more_than_a_chunk_exist_at_once() -> None:
    assert CHUNK == forward.CHUNK
    assert PREFILL_TOKENS == generation.PREFILL_TOKENS

    def logits(tokens: int) -> int:
        config = settings(rollout={"max_new_tokens": tokens, "batch_size": 8})
        return of(config).phases["update"]["logits"]

    assert logits(4) < logits(16) < logits(17) == logits(160)


def test_attention_over_long_sequences_takes_more_than_the_mlp_and_grows_with_the_square_of_the_length() -> None:
    def activations(length: int, inner: int, *, gpu: bool = False) -> int:
        shape = SHAPE._replace(inner=inner, expert_inner=inner)
        config = RewardModelConfig.model_validate({"optim": {"micro_batch_tokens": 1}})
        return footprint(config, shape, length, gpu=gpu).phases["evaluate"]["activations"]

    four = [activations(length, 1536) for length in (500, 1000, 1500, 2000)]
    steps = [after - before for before, after in itertools.pairwise(four)]
    assert steps[2] - steps[1] == steps[1] - steps[0] == 2 * 500**2 * 7 * SHAPE.heads * 4
    assert activations(1000, 1537) - four[1] == 1000 * 3 * 4, "of the MLP before it; measured on a CPU"
    assert activations(2000, 1536, gpu=True) == 2 * activations(1000, 1536, gpu=True), "fused on a GPU"


def test_packed_weights_count_with_their_bits_on_a_gpu_alone(tmp_path: Path) -> None:
    packed = settings(model={"quantize": "4-bit"})
    assert of(packed).parts["weights"] == 4 * SHAPE.parameters
    assert of(packed, gpu=True).parts["weights"] == pytest.approx(SHAPE.parameters * 4.5 / 8)
    assert of(settings(), gpu=True).parts["weights"] == 2 * SHAPE.parameters


def test_a_first_step_that_scores_has_the_logits_of_the_reference_and_there_is_no_phase_for_them() -> None:
    def found(**ppo: Any) -> Footprint:
        return of(settings(ppo={"estimator": "reinforce", "kl_estimator": "k3"} | ppo))

    before, scored, without = found(kl_in="reward"), found(kl_in="loss"), found(kl_in="loss", kl_coef=0)
    assert list(before.phases) == ["generate", "score", "update"]
    assert list(scored.phases) == list(without.phases) == ["generate", "update"]
    logits = [one.phases["update"]["logits"] for one in (before, without, scored)]
    assert logits[0] < logits[1] < logits[2]
    assert "score" in found(kl_in="loss", minibatches=2).phases
    assert "score" in found(kl_in="loss", estimator="gae").phases


def test_the_pass_of_a_reward_model_is_a_phase_and_grows_with_its_own_shape_up_to_what_it_reads() -> None:
    def rewarded(hidden: int, most: int) -> int:
        shape = SHAPE._replace(hidden=hidden)
        scorer = RewardPass(held_model(Config().model, shape, gpu=False), most)
        found = footprint(Config(), SHAPE, 200, gpu=False, reward_models=RewardModels(0, (scorer,)))
        assert list(found.phases) == ["generate", "score", "reward", "update"]
        return found.phases["reward"]["activations"]

    assert rewarded(64, 100) < rewarded(576, 100) < rewarded(576, 10**9)
    longest = 200 + Config().rollout.max_new_tokens
    alone = footprint(RewardModelConfig(), SHAPE, longest, gpu=False).phases["evaluate"]
    assert rewarded(576, 10**9) == alone["activations"]


def test_a_reward_model_is_trained_and_evaluated_without_logits() -> None:
    found = footprint(RewardModelConfig(), SHAPE, 100, gpu=False)
    assert list(found.phases) == ["update", "evaluate"]
    assert not any("logits" in parts for parts in found.phases.values())
    assert found.parts["optimiser"] == 2 * 4 * (adapter_parameters(Config().model, SHAPE) + SHAPE.hidden)
    without_best = RewardModelConfig.model_validate({"train": {"patience": 0}})
    assert found.parts["adapters"] == 2 * footprint(without_best, SHAPE, 100, gpu=False).parts["adapters"]


def test_pairs_are_not_split_and_fill_a_micro_batch() -> None:
    def activations(longest: int, tokens: int = 2048, batch: int = 16) -> int:
        config = RewardModelConfig.model_validate(
            {"optim": {"micro_batch_tokens": tokens}, "train": {"batch_size": batch}}
        )
        return footprint(config, SHAPE, longest, gpu=False).phases["update"]["activations"]

    assert activations(100, tokens=1) == activations(100, batch=1) == activations(100, tokens=399)
    assert activations(100, tokens=400) == 2 * activations(100, tokens=1)
    assert activations(64) == activations(64, tokens=10_000)


def test_dpo_samples_only_where_it_has_a_reward() -> None:
    sources = {"reward": {"sources": ["lexicon"]}, "eval": {"prompts": 32}}
    alone, rewarded = (footprint(DPOConfig.model_validate(tables), SHAPE, 100, gpu=False) for tables in ({}, sources))
    assert list(alone.phases) == list(rewarded.phases) == ["update", "evaluate"]
    assert "KV cache" in rewarded.phases["evaluate"]
    assert "KV cache" not in alone.phases["evaluate"]
    assert alone.phases["update"] == rewarded.phases["update"]


def test_a_model_without_a_readable_shape_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    assert shape_of(str(tmp_path)) == (None, "the model's config.json does not state its size")
    assert shape_of("some/name")[1] == "the model is not downloaded, so its size is unknown"


@pytest.mark.parametrize("kind", [Config, RewardModelConfig, DPOConfig])
def test_checkpointed_blocks_keep_their_inputs_and_one_of_them_its_inside(kind: Any) -> None:
    def activations(layers: int, *, on: bool) -> int:
        config = kind.model_validate({"optim": {"grad_checkpoint": on, "micro_batch_tokens": 1024}})
        return footprint(config, SHAPE._replace(layers=layers), 400, gpu=False).phases["update"]["activations"]

    rows = 1024 // 448 if kind is Config else 2
    tokens = rows * (448 if kind is Config else 400)
    assert activations(30, on=True) - activations(10, on=True) == 20 * tokens * 4 * SHAPE.hidden
    assert activations(30, on=True) < activations(30, on=False) / 3


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


LLAMA = FAMILIES["llama"]


def of_rewards(*paths: Path, **model: Any) -> Config:
    first, *others = map(str, paths)
    return validate({"reward": {"sources": [{"kind": "model", "path": first, "ensemble": others}]}, "model": model})


def trained_run(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "config.toml").write_text(text)
    return folder


def held(config: Config, *, gpu: bool) -> int:
    return reward_models(config, gpu=gpu).held


def test_a_model_on_the_policys_backbone_costs_its_adapter_and_another_one_its_weights_once(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text(json.dumps(LLAMA))
    shared = trained_run(tmp_path / "shared", "[run]\nseed = 1\n[model]\nlora_layers = 1\n")
    apart = [trained_run(tmp_path / name, f"[model]\npath = '{tmp_path / 'tiny'}'\nlora_layers = 1\n") for name in "ab"]
    starter = 2 * 4 * (8 * (576 + 576 + 576 + 192) + 576)  # rank 8 on queries and values, a head; as trained and before
    tiny = 2 * 4 * (8 * (32 + 32 + 32 + 16) + 32)
    assert held(of_rewards(shared), gpu=False) == starter
    size = 4 * decoder_shape(LLAMA).parameters
    assert held(of_rewards(*apart, shared), gpu=False) == size + 2 * tiny + starter
    assert held(of_rewards(*apart), gpu=True) == size / 2 + 2 * tiny, "bfloat16 is what auto means there"
    assert held(of_rewards(apart[0] / "checkpoints" / "step-000001"), gpu=False) == size + tiny
    elsewhere = of_rewards(shared, dtype="bfloat16")
    assert held(elsewhere, gpu=False) == 4 * decoder_shape(STARTER).parameters + starter


def test_each_reward_model_has_a_pass_over_what_it_reads(tmp_path: Path) -> None:
    short = trained_run(tmp_path / "short", "[data]\nmax_tokens = 7\n")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"max_position_embeddings": 99}))
    passes = reward_models(of_rewards(short, tmp_path), gpu=False).passes
    assert [(one.model.shape.hidden, one.most) for one in passes] == [(576, 7), (32, 99)]


def test_a_classifier_has_no_head_for_the_vocabulary_and_its_adapter_holds_its_base_model(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"tie_word_embeddings": False}))
    tied = decoder_shape(LLAMA | {"tie_word_embeddings": True}).parameters
    assert held(of_rewards(tmp_path), gpu=False) == 4 * tied
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    about = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path)}
    (adapter / "adapter_config.json").write_text(json.dumps(about))
    assert held(of_rewards(adapter), gpu=False) == 4 * decoder_shape(LLAMA).parameters
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    assert held(of_rewards(adapter), gpu=False) == 0  # the run refuses it


def test_what_cannot_be_read_counts_nothing(tmp_path: Path) -> None:
    broken = [trained_run(tmp_path / str(place), text) for place, text in enumerate(("[model", "model = 3\n", ""))]
    broken[-1].joinpath("config.toml").unlink()
    assert held(of_rewards(*broken, tmp_path / "absent"), gpu=False) == 0


def test_reward_models_are_held_in_every_phase() -> None:
    found = footprint(Config(), decoder_shape(STARTER), 20, gpu=False, reward_models=RewardModels(7))
    assert [parts["reward model"] for parts in found.phases.values()] == [7, 7, 7]
