"""Memory by part and phase: parts that can be counted are exact, and the others move as the work does."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models import qwen3_moe
from tiny import load_tiny, make_checkpoint

from trainer.arrays import Purpose, key_for
from trainer.config import Config, load_config, preset_names, validate
from trainer.config.loading import PRESETS
from trainer.config.pairs import DPOConfig, RewardModelConfig
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
from trainer.rollout import generation

SHAPE = decoder_shape(STARTER)


def of(config: Config, *, prompt: int = 20, gpu: bool = False) -> Footprint:
    return footprint(config, SHAPE, prompt, gpu=gpu)


def settings(**sections: Any) -> Config:
    return validate(sections)


def test_the_peak_is_that_of_the_largest_phase_and_its_parts_add_up() -> None:
    found = of(load_config("quickstart"))
    assert list(found.phases) == ["generate", "score", "update"]
    assert found.phase == "update"
    assert found.peak == sum(found.parts.values()) == max(sum(parts.values()) for parts in found.phases.values())
    assert all(size > 0 for parts in found.phases.values() for size in parts.values())


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_names_the_memory_that_the_estimate_has_for_a_gpu_before_its_model_is_downloaded(preset: str) -> None:
    config = load_config(preset)
    shape, why_not = shape_of(config.model.path)
    assert (shape is not None, why_not) == (True, "")
    named = re.search(r"([\d.]+) GB by the estimate", (PRESETS / f"{preset}.toml").read_text())
    if shape is not None and named is not None:
        assert footprint(config, shape, 19, gpu=True).peak == pytest.approx(float(named[1]) * 1e9, rel=0.01)
    assert named is not None or preset == "quickstart"


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


def test_memory_grows_with_the_micro_batch_until_the_minibatch_fits() -> None:
    sizes = [of(settings(optim={"micro_batch_tokens": tokens})).peak for tokens in (68, 136, 272, 544, 10_000)]
    assert sizes[0] < sizes[1] < sizes[2] < sizes[3] == sizes[4]
    halves = settings(ppo={"minibatches": 2}, optim={"micro_batch_tokens": 10_000})
    assert of(halves).peak == pytest.approx(sizes[2], rel=1e-9)


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


def test_without_a_critic_of_its_own_no_second_adapter_is_counted() -> None:
    apart = {"value_model": "adapter"}
    two = of(settings(model=apart)).parts["adapters"]
    assert of(settings(model=apart, ppo={"estimator": "reinforce"})).parts["adapters"] < two


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


def test_an_evaluation_is_a_phase_where_there_is_one_and_takes_more_with_more_prompts() -> None:
    def evaluated(**evaluation: int) -> Footprint:
        return of(settings(eval=evaluation, rollout={"batch_size": 2, "max_new_tokens": 32}))

    assert "evaluate" not in evaluated().phases
    few, many, most = (evaluated(every=1, prompts=prompts) for prompts in (2, 16, 32))
    assert few.phases["evaluate"] == few.phases["score"]
    few_bytes, many_bytes, most_bytes = (sum(one.phases["evaluate"].values()) for one in (few, many, most))
    assert few_bytes < many_bytes < most_bytes
    assert evaluated(every=1, prompts=64).phases == most.phases, "not more than rollout.slots at a time"


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
