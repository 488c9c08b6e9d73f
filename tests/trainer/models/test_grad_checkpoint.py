"""Gradient checkpointing: the same gradients from less memory, and nothing that outlasts an update."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from batches import make_actor, moved, moved_on, random_batch, scored
from dpo_helper import dpo_config
from families import tiny_backbone
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from preference_samples import labelled, reward_config
from runs_helper import record, tiny_config
from tiny import load_tiny

from trainer.config.ppo import PPOConfig
from trainer.config.schema import ModelConfig, OptimConfig
from trainer.engine.dpo import DPO
from trainer.engine.reward_model import RewardModelTraining
from trainer.errors import ModelError
from trainer.fitting.optimisation import accumulate
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.forward import check_grad_checkpoint, checkpointed, hidden_states
from trainer.pairs.comparisons import policy_comparisons, reward_comparisons
from trainer.ppo.learner import Learner
from trainer.ppo.losses import LossSettings, LossSums, Objective

ROOT = Path(__file__).parents[3]
TOKENS = mx.array(np.random.default_rng(0).integers(0, 200, (2, 40)))  # longer than the windows of tiny models
TARGETS = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]
UNLIKE_LLAMA = {
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


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", *UNLIKE_LLAMA])
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
