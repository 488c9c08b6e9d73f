"""One pass in any family of mlx-lm: which families train, log-probs in chunks of positions, and checkpointing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import reference
import tiny
from batches import make_actor, moved, moved_on, random_batch, scored
from dpo_helper import dpo_config
from families import check_family, tiny_backbone
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.utils import MODEL_REMAPPING
from preference_samples import labelled, reward_config
from reference import float64
from runs_helper import record, tiny_config
from tiny import load_tiny

from benchmarks.family_values import MUST_TRAIN
from trainer import maths
from trainer.config.pairs import RewardModelConfig
from trainer.config.ppo import PPOConfig
from trainer.config.schema import ModelConfig, OptimConfig
from trainer.engine.dpo import DPO
from trainer.engine.reward_model import RewardModelTraining
from trainer.errors import ModelError
from trainer.fitting.optimisation import accumulate
from trainer.models import backbone as backbone_module
from trainer.models import forward as forward_pass
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import linear_places, new_adapter
from trainer.models.backbone import cast_backbone, quantize_backbone
from trainer.models.forward import (
    Forward,
    Head,
    check_grad_checkpoint,
    checkpointed,
    entropy,
    hidden_states,
    likeliest_tokens,
    logprobs_of,
    token_logprobs,
)
from trainer.pairs.comparisons import policy_comparisons, reward_comparisons
from trainer.ppo.learner import Learner
from trainer.ppo.losses import LossSettings, LossSums, Objective
from trainer.reward_model.network import RewardModel
from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples

ROOT = Path(__file__).parents[3]
UNLIKE_LLAMA = ["gemma2", "mamba2", "nanochat", "phi", "lfm2", "ministral3", "nemotron_h"]


def check(family: str, dtype: str = "float32", **options: Any) -> dict[str, Any]:
    return check_family(family, dtype, 0, **options)


@pytest.mark.parametrize(
    ("family", "iterations"),
    [
        *((family, 2) for family in UNLIKE_LLAMA),
        *((family, 1) for family in sorted(set(MUST_TRAIN) - set(UNLIKE_LLAMA))),
        ("falcon_mamba", 1),  # another name of mlx-lm's mamba, which is prefilled without padding
    ],
)
def test_a_family_that_must_train_does_and_its_sampler_agrees_with_scoring(family: str, iterations: int) -> None:
    """Cover attention over five axes, no attention, a renamed trunk, one that needs a cache, hybrids and windows."""
    report = check(family, iterations=iterations)
    assert (report["outcome"], report.get("error")) == ("trains", None)
    assert report["gap_mean"] < 1e-4


def test_the_documentation_names_each_family_that_must_train_and_every_alias() -> None:
    page = " ".join((ROOT / "docs" / "families.md").read_text(encoding="utf-8").split())
    _, _, listed = page.partition("**These need nothing**")
    trains, _, refused = listed.partition("| refused, because |")
    for family in MUST_TRAIN:
        assert re.search(rf"[ ,|]{family}[ ,.]", trains), family
        assert not re.search(rf"[ ,]{family}[ ,]", refused), family
    for alias, family in MODEL_REMAPPING.items():
        assert re.search(rf"\b{alias}\b[^;|]* as {family}\b", page), alias


def test_rows_of_a_cache_that_cannot_be_joined_are_decoded_one_by_one() -> None:
    report = check("llama4")
    assert (report["outcome"], report["joins"]) == ("trains", False)


@pytest.mark.parametrize(
    ("family", "options", "reason"),
    [
        ("phi3small", {}, "its block mask depends on the input's length"),
        ("lille-130m", {}, "the trunk returns logits"),
        ("deepseek_v41_text", {}, "no gradient for the choice"),  # mlx-lm's deepseek_v41
        ("llama", {"targets": ["experts"]}, "names experts, but the model's blocks have"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_reason(family: str, options: dict[str, Any], reason: str) -> None:
    report = check(family, **options)
    assert report["outcome"] == "refused"
    assert reason in report["error"]


@pytest.mark.parametrize(("family", "reason"), [("lille-130m", "returns logits"), ("deepseek_v41", "no gradient")])
def test_a_reward_model_refuses_the_same_families_as_a_policy(family: str, reason: str) -> None:
    with pytest.raises(ModelError, match=f"{family} cannot be trained here .*{reason}"):
        RewardModel(tiny_backbone(family, mx.float32), RewardModelConfig(), key=mx.random.key(0))


def test_layers_that_a_family_keeps_from_rounding_stay_whole() -> None:
    backbone = tiny_backbone("kimi_k3", mx.float32)  # it multiplies the weights of res_proj itself
    quantize_backbone(backbone, 4)
    layers = {name: module for name, module in backbone.named_modules() if hasattr(module, "weight")}
    assert {type(layer) for name, layer in layers.items() if name.endswith("res_proj")} == {nn.Linear}
    bits = {name.rpartition(".")[2]: layer.bits for name, layer in layers.items() if hasattr(layer, "bits")}
    assert (bits["q_b_proj"], bits["gate"]) == (4, 8)  # the gate chooses experts
    assert mx.isfinite(backbone(mx.array([[0, 1]]))).all()


@pytest.mark.parametrize(
    ("family", "names"), [("qwen3_5", {"A_log"}), ("nemotron_h", {"A_log", "e_score_correction_bias"})]
)
def test_half_precision_spares_the_parameters_that_a_family_computes_in_float32(
    family: str, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backbone_module, "precision", lambda *_: mx.bfloat16)  # as on a GPU, experts or not
    backbone = tiny_backbone(family, mx.float32)
    before = dict(tree_flatten(backbone.parameters()))
    cast_backbone(backbone, "bfloat16")
    kept = {name: x for name, x in tree_flatten(backbone.parameters()) if x.dtype != mx.bfloat16}
    assert {name.rpartition(".")[2] for name in kept} == names
    assert all(mx.array_equal(x, before[name]) for name, x in kept.items())


@pytest.mark.parametrize(
    ("family", "layers"),
    {
        "llama": "self_attn.q_proj self_attn.v_proj",
        "nanochat": "attn.c_q attn.c_v",
        "phi3": "self_attn.qkv_proj",
        "internlm2": "attention.wqkv",
        "qwen3_5": "linear_attn.in_proj_qkv self_attn.q_proj self_attn.v_proj",
        "nemotron_h": "mixer.in_proj mixer.q_proj mixer.v_proj",
        "mamba2": "mixer.in_proj",
        "deepseek_v3": "self_attn.kv_a_proj_with_mqa self_attn.q_b_proj",
        "deepseek_v32": "self_attn.kv_a_proj_with_mqa self_attn.q_b_proj",
        "lfm2": "conv.in_proj self_attn.q_proj self_attn.v_proj",
    }.items(),
)
def test_auto_adapts_the_layers_that_read_the_text_in_every_block(family: str, layers: str) -> None:
    backbone = tiny_backbone(family, mx.float32)
    adapted, about = new_adapter(backbone, ModelConfig(), mx.random.key(0))
    assert about["lora_parameters"]["keys"] == layers.split()
    linears = {id(layer.linear) for layer in adapted.values()}
    for block in backbone.layers:
        mixes = getattr(block, "block_type", "*") in "*M"  # the other blocks of nemotron_h are feed-forward layers
        assert mixes == any(id(place.linear) in linears for place in linear_places(block).values())


def test_experts_are_adapted_on_request_and_train() -> None:
    report = check("qwen3_moe", targets=["auto", "experts"])
    assert (report["outcome"], report.get("error"), report["gap_mean"] < 1e-4) == ("trains", None, True)
    assert report["targets"] == ["down_proj", "gate_proj", "q_proj", "up_proj", "v_proj"]


VOCABULARIES = [1, 2, 5, 63, 64, 65, 128, 264, 1000]
TOP = ["top_tokens", "top_texts", "top_logprobs", "top_ref_logprobs"]


def drawn(seed: int, vocabulary: int, *shape: int, levels: int = 0) -> mx.array:
    """Return logits [*shape, V] on only so many levels, the lowest -inf, so that there are ties."""
    draws = np.random.default_rng(seed)
    logits = draws.normal(0, 4, (*shape, vocabulary))
    if levels:
        logits = draws.integers(0, levels, (*shape, vocabulary)).astype(float)
        logits[logits == 0] = -np.inf
    return mx.array(logits.astype(np.float32))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 5, 50, 500]),
    st.sampled_from([(), (3,), (2, 3)]),
    st.integers(0, 4),
)
def test_the_likeliest_tokens_are_distinct_and_the_largest_in_order_whatever_the_ties(
    vocabulary: int, seed: int, count: int, shape: Any, levels: int
) -> None:
    logits = drawn(seed, vocabulary, *shape, levels=levels)
    ids = np.array(likeliest_tokens(logits, count))
    assert ids.shape == (*shape, min(count, vocabulary))
    assert all(len(set(row)) == len(row) for row in ids.reshape(-1, ids.shape[-1]).tolist())
    found = np.take_along_axis(np.array(logits), ids, axis=-1)
    np.testing.assert_array_equal(found, -np.sort(-np.array(logits), axis=-1)[..., :count])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_still_give_ids_of_the_vocabulary(bad: float) -> None:
    logits = drawn(0, 200, 2)
    logits[0, 70], logits[1] = bad, bad
    ids = np.array(likeliest_tokens(logits, 5))
    assert ids.shape == (2, 5)
    assert ((ids >= 0) & (ids < 200)).all()


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
@given(st.integers(0, 2**32 - 1))
def test_their_log_probs_follow_from_one_tokens_log_prob(temperature: float, seed: int) -> None:
    logits = drawn(seed, 300, 2, 3)
    tokens = mx.array(np.random.default_rng(seed).integers(0, 300, (2, 3)))
    ids = likeliest_tokens(logits, 7)
    logprobs = token_logprobs(logits, tokens, temperature)
    every = reference.log_softmax(float64(logits) / temperature)
    expected = np.take_along_axis(every, np.array(ids), axis=-1)
    found = logprobs_of(logits, ids, tokens, logprobs, temperature)
    np.testing.assert_allclose(float64(found), expected, atol=1e-4)
    mine = logprobs_of(logits, tokens[..., None], tokens, logprobs, temperature)
    assert mine.squeeze(-1).tolist() == logprobs.tolist()


def test_an_impossible_token_has_a_log_prob_of_minus_infinity() -> None:
    logits, tokens = mx.array([[0.0, -mx.inf, 1.0]]), mx.array([2])
    ids = likeliest_tokens(logits, 3)
    logprobs = logprobs_of(logits, ids, tokens, token_logprobs(logits, tokens))
    assert ids.tolist() == [[2, 0, 1]]
    assert logprobs.tolist()[0][2] == -mx.inf


# In a run


@pytest.mark.parametrize(
    ("settings", "kept"),
    [([], 5), (["run.alternatives=2"], 2), (["run.alternatives=0"], None)],
    ids=["the default", "two", "none"],
)
def test_a_run_keeps_as_many_alternatives_as_configured(settings: list[str], kept: int | None, tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1", *settings))
    rows = read_samples(RunFolder(tmp_path / "runs/a").samples_file(1), TOP).to_pylist()
    for row in rows:
        assert all(row[name] is None for name in TOP) if kept is None else True
        for name in TOP if kept else []:
            assert {len(place) for place in row[name]} == {kept}, name


# Chunks of positions

WORDS, SIZE = 300, 12
MASK = mx.array([[1.0] * 7, [1.0] + [0.0] * 6, [0.0] * 7, [1.0] * 5 + [0.0] * 2])  # 13 positions, an empty row
CHUNKS = [1, 4, 13, 100]


def head(kind: str) -> Head:
    """Return a head: "plain", "capped" (as Gemma 2's) or "half" (in bfloat16)."""
    weights = mx.random.normal((WORDS, SIZE), key=mx.random.key(0))
    if kind == "half":
        return lambda states: states.astype(mx.bfloat16) @ weights.T.astype(mx.bfloat16)
    return lambda states: 4 * mx.tanh(states @ weights.T / 4) if kind == "capped" else states @ weights.T


def material() -> tuple[mx.array, mx.array]:
    """Return states [B, T, D], NaN where nothing may be read, and tokens [B, T]."""
    states = mx.random.normal((*MASK.shape, SIZE), key=mx.random.key(1))
    tokens = mx.random.randint(0, WORDS, MASK.shape, key=mx.random.key(2))
    return mx.where(MASK[..., None] > 0, states, float("nan")), tokens


def compute(temperature: float, bonus: float) -> Callable[[mx.array, mx.array], tuple[mx.array, ...]]:
    def losses(logits: mx.array, tokens: mx.array) -> tuple[mx.array, ...]:
        logprobs = token_logprobs(logits, tokens, temperature)
        return logprobs + bonus * entropy(logits, temperature) if bonus else logprobs, logprobs

    return losses


@pytest.mark.parametrize("kind", ["plain", "capped", "half"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("bonus", [0.0, 0.3])
def test_results_and_gradients_are_those_of_all_logits_at_once_whatever_the_chunk(
    kind: str, temperature: float, bonus: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, tokens = material()
    shape = mx.random.normal(MASK.shape, key=mx.random.key(3))  # a cotangent that differs by position
    clean = mx.where(MASK[..., None] > 0, given, 0.0)

    def at_once(states: mx.array) -> tuple[mx.array, mx.array]:
        logits = head(kind)(states).astype(mx.float32) / temperature
        logprobs = maths.token_logprobs(logits, tokens)
        result = mx.where(MASK > 0, logprobs + bonus * maths.entropy(logits), 0.0)
        return (result * shape).sum(), result

    def in_chunks(states: mx.array) -> tuple[mx.array, mx.array]:
        forward = Forward(states, None, head(kind))
        result, logprobs = forward.at_positions(MASK, compute(temperature, bonus), {"tokens": tokens}, gradient=True)
        return (result * shape).sum() + logprobs.sum(), result  # the second result is a constant

    (_, expected), slope = mx.value_and_grad(at_once)(clean)
    tolerance = (2e-2 if kind == "half" else 5e-6) * abs(float64(slope)).max()  # bfloat16 has eight bits
    for size in CHUNKS:
        monkeypatch.setattr(forward_pass, "CHUNK", size)
        (_, found), gradient = mx.value_and_grad(in_chunks)(given)
        np.testing.assert_allclose(float64(found), float64(expected), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(float64(gradient), float64(slope), atol=tolerance)
        evaluated = Forward(given, None, head(kind)).at_positions(MASK, compute(temperature, bonus), {"tokens": tokens})
        np.testing.assert_allclose(float64(evaluated[0]), float64(found), atol=1e-5)
        assert found.dtype == mx.float32


def test_a_batch_without_real_positions_gives_zeros_and_no_gradient() -> None:
    given, tokens = material()

    def total(states: mx.array) -> mx.array:
        empty = mx.zeros_like(MASK)
        found = Forward(states, None, head("plain")).at_positions(
            empty, compute(1.0, 0.3), {"tokens": tokens}, gradient=True
        )
        assert [x.shape for x in found] == [MASK.shape] * 2
        return found[0].sum()

    value, gradient = mx.value_and_grad(total)(given)
    assert value.item() == 0
    assert not float64(gradient).any()


def test_a_nan_at_a_real_position_stays_at_that_position() -> None:
    given, tokens = material()
    states = mx.where(MASK[..., None] > 0, given, 0.0)
    states[0, 3] = float("nan")
    found, gradient = mx.value_and_grad(
        lambda x: (
            Forward(x, None, head("plain"))
            .at_positions(MASK, compute(1.0, 0.0), {"tokens": tokens}, gradient=True)[0]
            .sum()
        )
    )(states)
    assert np.isnan(found.item())
    assert np.isnan(float64(gradient)).any(axis=-1).nonzero()[0].tolist() == [0]


def test_an_update_and_a_scoring_pass_never_hold_the_logits_of_all_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = 20_000
    monkeypatch.setattr(forward_pass, "CHUNK", 16)
    monkeypatch.setitem(tiny.FAMILIES, "llama", tiny.FAMILIES["llama"] | {"vocab_size": words})
    actor = make_actor(tmp_path / "llama")
    learner = Learner(actor, OptimConfig(micro_batch_tokens=10_000), total_steps=1)

    def peaks(rows: int) -> tuple[int, int]:
        """Return the peaks of both, in bytes above what was there before."""
        batch = random_batch([(2, 60)] * rows)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        batch = scored(actor, batch)
        mx.eval(batch.advantages)
        scoring = mx.get_peak_memory() - before
        mx.reset_peak_memory()
        learner.gradients(batch, LossSettings(PPOConfig(entropy_coef=0.1), 1.0), "joint")
        return scoring, mx.get_peak_memory() - before

    peaks(1)  # compiles
    (few, few_of_update), (many, many_of_update) = peaks(4), peaks(16)
    added = 12 * 60 * words * 4  # bytes of the logits of the other 12 rows
    assert many - few < added / 10
    assert many_of_update - few_of_update < added / 4  # with the trunk's own arrays


def test_the_head_cannot_have_an_adapter_which_would_get_no_gradient(tmp_path: Path) -> None:
    path = tiny.make_checkpoint(tmp_path / "model", "qwen3")
    loaded = tiny.load_tiny(path).backbone
    with pytest.raises(ModelError, match="lm_head"):
        ActorCriticLLM(loaded, ModelConfig(path=str(path), lora_targets=["lm_head"]), key=mx.random.key(0))


TOKENS = mx.array(np.random.default_rng(0).integers(0, 200, (2, 40)))  # longer than the windows of tiny models
TARGETS = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]
OTHER_BLOCKS = {
    "gemma4_text": "inputs of each block, keys that blocks share",
    "rwkv7": "blocks that return a tuple",
    "nemotron_h": "three kinds of blocks",
    "qwen3_next": "a recurrence with a state, experts",
    "falcon_h1": "attention and recurrence in one block",
    "glm_moe_dsa": "indices among the results",
    "gpt_oss": "masks as arrays",
}


def close(found: Any, expected: Any) -> None:
    """Check that both have the same arrays, none of them 0, to five digits of the largest number of each."""
    arrays = dict(tree_flatten(expected))
    assert arrays.keys() == dict(tree_flatten(found)).keys()
    for name, array in tree_flatten(found):
        most = float(mx.abs(arrays[name]).max())
        assert most > 0, name
        np.testing.assert_allclose(np.array(array), np.array(arrays[name]), atol=1e-5 * most, err_msg=name)


def tiny_actor(family: str, **settings: Any) -> ActorCriticLLM:
    """Return an actor of any family in mlx-lm, with an adapter as in mid-training."""
    actor = ActorCriticLLM(tiny_backbone(family, mx.float32), ModelConfig(**settings), key=mx.random.key(1))
    actor.update_policy(moved(actor.policy_parameters(), seed=4, scale=0.05))
    return actor


def trunk_gradient(actor: ActorCriticLLM, *, grad_checkpoint: bool, tokens: mx.array = TOKENS) -> dict[str, mx.array]:
    """Return the gradient of a sum over the hidden states of `tokens`, with random weights."""
    weights = mx.random.normal(hidden_states(actor.backbone, tokens).shape, key=mx.random.key(3))

    def loss(tokens: mx.array) -> tuple[mx.array, LossSums]:
        states = hidden_states(actor.backbone, tokens)
        return (states * weights).mean(), LossSums(*[mx.array(0.0)] * len(LossSums._fields))

    gradient, _ = accumulate(
        loss,
        actor.policy_parameters(),
        [tokens],
        put=actor.update_policy,
        backbone=actor.backbone,
        grad_checkpoint=grad_checkpoint,
    )
    return gradient


# The gradient


@pytest.mark.parametrize("objective", ["joint", "policy", "value"])
@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_the_gradient_of_each_objective_of_ppo_is_the_same(
    objective: Objective, value_model: Any, tmp_path: Path
) -> None:
    actor = make_actor(tmp_path / "llama", value_model=value_model)
    batch = moved_on(scored(actor, random_batch()))
    ppo = PPOConfig(entropy_coef=0.1)
    kept, again = (
        Learner(actor, OptimConfig(micro_batch_tokens=30, grad_checkpoint=on), total_steps=1).gradients(
            batch, LossSettings(ppo, 0.7), objective
        )
        for on in (False, True)
    )
    close(again[0], kept[0])
    np.testing.assert_allclose(np.array(again[1]), np.array(kept[1]), rtol=1e-5)


def reward_model_gradient(folder: Path, *settings: str) -> dict[str, mx.array]:
    config, loaded = reward_config(folder, *settings), load_tiny(folder / "model")
    data = reward_comparisons(labelled(8), loaded, config)
    fit = RewardModelTraining(config).build_on(config, loaded.backbone, data)
    fit.scorer.update(moved(fit.scorer.parameters(), seed=4, scale=0.05))
    gradient, _ = fit.learner.gradients(fit.data.train)
    del gradient["head.bias"]  # 0: it cancels in a difference of rewards
    return gradient


def dpo_gradient(folder: Path, *settings: str) -> dict[str, mx.array]:
    config, loaded = dpo_config(folder, *settings), load_tiny(folder / "model")
    fit = DPO(config).build_on(config, loaded, policy_comparisons(labelled(8), loaded, config))
    fit.actor.update_policy(moved(fit.actor.policy_parameters(), seed=4, scale=0.05))
    return fit.learner.gradients(fit.data.train)[0]


@pytest.mark.parametrize("gradient", [reward_model_gradient, dpo_gradient])
def test_the_gradient_of_other_trainings_is_the_same(gradient: Any, tmp_path: Path) -> None:
    kept, again = (
        gradient(tmp_path, f"optim.grad_checkpoint={on}", "optim.micro_batch_tokens=60") for on in ("false", "true")
    )
    close(again, kept)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", *OTHER_BLOCKS])
def test_the_gradient_of_other_families_is_the_same(family: str) -> None:
    actor = tiny_actor(family)
    check_grad_checkpoint(actor.backbone)
    close(trunk_gradient(actor, grad_checkpoint=True), trunk_gradient(actor, grad_checkpoint=False))


# Memory


def test_each_block_is_computed_twice_and_keeps_little_more_than_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[bool] = Counter()
    original = llama.TransformerBlock.__call__

    def counted(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls[on] += 1
        return original(self, *args, **kwargs)

    growth = {}
    for on in (False, True):
        peaks = []
        for layers in (3, 15):
            actor = small_llama(layers)
            trunk_gradient(actor, grad_checkpoint=on, tokens=mx.tile(TOKENS, (1, 10)))
            with monkeypatch.context() as patched:
                patched.setattr(llama.TransformerBlock, "__call__", counted)
                trunk_gradient(actor, grad_checkpoint=on)
            before = mx.get_active_memory()
            mx.reset_peak_memory()
            trunk_gradient(actor, grad_checkpoint=on, tokens=mx.tile(TOKENS, (1, 10)))
            peaks.append(mx.get_peak_memory() - before)
        growth[on] = (peaks[1] - peaks[0]) / 12
    assert calls[True] - calls[False] == 3 + 15
    states = 2 * 400 * 64 * 4  # bytes of a block's input
    assert growth[False] > 5 * states
    assert growth[True] < 1.5 * states


def small_llama(layers: int) -> ActorCriticLLM:
    sizes: Any = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 4}
    arguments = llama.ModelArgs("llama", num_hidden_layers=layers, rms_norm_eps=1e-5, vocab_size=256, **sizes)
    return ActorCriticLLM(llama.Model(arguments), ModelConfig(lora_rank=16, lora_targets=TARGETS), key=mx.random.key(0))


# What is left behind


def modules(backbone: nn.Module) -> list[tuple[str, int, type]]:
    return [(name, id(module), type(module)) for name, module in backbone.named_modules()]


def test_only_the_blocks_of_this_model_change_and_only_meanwhile(tmp_path: Path) -> None:
    mine, other = (make_actor(tmp_path / name).backbone for name in ("mine", "other"))
    call = llama.TransformerBlock.__call__
    before, others, names = modules(mine), modules(other), dict(tree_flatten(mine.parameters())).keys()
    with checkpointed(mine):
        assert modules(other) == others
        assert llama.TransformerBlock.__call__ is call
        assert all(isinstance(block, llama.TransformerBlock) for block in mine.layers)
        assert all(type(block) is not llama.TransformerBlock for block in mine.layers)
        assert dict(tree_flatten(mine.parameters())).keys() == names
    assert modules(mine) == before


@pytest.mark.parametrize("moment", ["forward", "backward"])
def test_an_error_within_the_update_leaves_the_model_as_it_was(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = make_actor(tmp_path / "llama")
    batch = moved_on(scored(actor, random_batch()))
    parameters, before = actor.policy_parameters(), modules(actor.backbone)
    expected = np.array(actor.backbone(TOKENS))
    original, calls = llama.TransformerBlock.__call__, Counter[str]()

    def failing(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        calls["blocks"] += 1
        if calls["blocks"] == {"forward": 2, "backward": 3}[moment]:
            raise RuntimeError("no memory")
        return result

    learner = Learner(actor, OptimConfig(grad_checkpoint=True), total_steps=1)
    with monkeypatch.context() as patched:
        patched.setattr(llama.TransformerBlock, "__call__", failing)
        with pytest.raises(RuntimeError, match="no memory"):
            learner.gradients(batch, LossSettings(PPOConfig(), 1.0), "joint")
    assert modules(actor.backbone) == before
    after = actor.policy_parameters()
    assert all(after[name] is array for name, array in parameters.items())
    assert np.array_equal(np.array(actor.backbone(TOKENS)), expected)
    assert not actor.backbone.training


# Families for which it cannot work


@pytest.mark.parametrize(
    ("family", "reason"),
    [("dbrx", "saves nothing"), ("iquestloopcoder", "saves nothing"), ("kimi_k3", "has another gradient")],
)
def test_a_family_for_which_it_cannot_work_is_refused(family: str, reason: str) -> None:
    with pytest.raises(ModelError, match=rf"optim\.grad_checkpoint = true: the family {family} {reason}"):
        check_grad_checkpoint(tiny_actor(family).backbone)


def test_a_run_of_such_a_family_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.models.forward.family_of", lambda backbone: "dbrx")
    with pytest.raises(ModelError, match=r"optim\.grad_checkpoint"):
        record(tiny_config(tmp_path, "optim.grad_checkpoint=true"))
    assert not list((tmp_path / "runs").glob("*"))
