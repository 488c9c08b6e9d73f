"""One optimiser step: its size, what it changes, and that NaN or inf prevents it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import reference
from batches import arrays, make_actor, moved_on, random_batch, same, scored
from mlx.utils import tree_flatten
from reference import float64

from trainer.config.ppo import PPOConfig
from trainer.config.schema import OptimConfig
from trainer.models.actor_critic import ActorCriticLLM
from trainer.ppo.learner import Learner
from trainer.ppo.losses import LossSettings, Objective

SETTINGS = LossSettings(PPOConfig(), 1.0)
ALL: dict[str, Any] = {"policy_lr": 1e-2, "value_lr": 1e-2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models") / "llama"


@pytest.fixture
def actor(folder: Path) -> ActorCriticLLM:
    return make_actor(folder)


def state(learner: Learner) -> dict[str, Any]:
    """Return moments and step counts of both optimisers, as they are now."""
    return {name: np.array(x) for name, x in tree_flatten(learner.state())}


def learner_of(actor: ActorCriticLLM, **optim: Any) -> Learner:
    return Learner(actor, OptimConfig(**(ALL | optim)), total_steps=10)


# Size of a step


@pytest.mark.parametrize("max_grad_norm", [0.01, 1e6])
def test_gradients_are_clipped_by_their_global_norm_and_the_norm_before_is_reported(
    actor: ActorCriticLLM, max_grad_norm: float
) -> None:
    batch = moved_on(scored(actor, random_batch()))
    learner = learner_of(actor, max_grad_norm=max_grad_norm)
    gradients = learner.gradients(batch, SETTINGS, "joint")[0]
    norm = math.sqrt(sum((float64(x) ** 2).sum() for _, x in tree_flatten(gradients)))
    step = learner.train(batch, SETTINGS, "joint").metrics
    moments = [x for name, x in state(learner).items() if name.endswith(".m")]
    used = math.sqrt(sum((float64(x) ** 2).sum() for x in moments)) / (1 - 0.9)
    assert step.grad_norm == pytest.approx(norm, rel=1e-4)
    assert used == pytest.approx(min(norm, max_grad_norm), rel=1e-3)
    assert 0.01 < norm < 1e6


def test_two_steps_are_those_of_adam_with_bias_correction_and_decoupled_decay(actor: ActorCriticLLM) -> None:
    settings: dict[str, Any] = {"beta1": 0.8, "beta2": 0.95, "eps": 1e-5}
    learner = learner_of(actor, weight_decay=0.1, max_grad_norm=1e6, policy_lr=0.01, value_lr=0.03, **settings)
    batch, before, gradients = moved_on(scored(actor, random_batch())), arrays(actor), []
    for _ in range(2):
        both = learner.gradients(batch, SETTINGS, "joint")[0]
        gradients.append({f"{part}.{name}": float64(x) for part, tree in both.items() for name, x in tree.items()})
        learner.train(batch, SETTINGS, "joint")
    for name, after in arrays(actor).items():
        lr = 0.01 if name.startswith("policy") else 0.03
        expected = reference.adamw(float64(before[name]), [g[name] for g in gradients], lr=lr, decay=0.1, **settings)
        np.testing.assert_allclose(float64(after), expected, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("objective", ["policy", "value"])
def test_a_critic_with_its_own_adapter_and_the_policy_leave_each_other_alone(
    folder: Path, objective: Objective
) -> None:
    actor = make_actor(folder, value_model="adapter")
    frozen = arrays(actor, "backbone")
    batch, before, learner = scored(actor, random_batch()), arrays(actor), learner_of(actor)
    assert learner.train(batch, SETTINGS, objective).metrics.outcome == "taken"
    changed = {name for name, x in arrays(actor).items() if not np.array_equal(x, before[name])}
    assert changed == set(arrays(actor, objective))
    assert same(arrays(actor, "backbone"), frozen)


def test_a_joint_step_changes_adapter_and_head_and_no_weight_of_the_backbone(actor: ActorCriticLLM) -> None:
    before, frozen = arrays(actor), arrays(actor, "backbone")
    learner_of(actor).train(scored(actor, random_batch()), SETTINGS, "joint")
    assert not any(np.array_equal(x, before[name]) for name, x in arrays(actor).items())
    assert same(arrays(actor, "backbone"), frozen)


# Steps that are not taken


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("advantages", math.nan),
        ("advantages", math.inf),
        ("returns", math.nan),
        ("returns", math.inf),
        ("logprobs", math.nan),
        ("logprobs", -1e4),  # a ratio of exp(1e4)
    ],
)
def test_a_step_that_is_not_finite_is_skipped_and_changes_nothing(
    actor: ActorCriticLLM, field: str, bad: float
) -> None:
    learner, batch = learner_of(actor), moved_on(scored(actor, random_batch()))
    assert learner.train(batch, SETTINGS, "joint").metrics.outcome == "taken"  # so that there are moments to spoil
    before, moments = arrays(actor), state(learner)
    spoiled = mx.array(getattr(batch, field))
    spoiled[0, 1] = bad
    assert learner.train(batch._replace(**{field: spoiled}), SETTINGS, "joint").metrics.outcome != "taken"
    assert same(arrays(actor), before)
    assert same(state(learner), moments)


@pytest.mark.parametrize(
    ("field", "bad", "outcome"),
    [
        ("returns", math.nan, "not_finite"),  # of the critic alone
        ("advantages", math.nan, "not_finite"),  # of the actor alone
        ("logprobs", -30.0, "ratio_spike"),
    ],
)
def test_an_actor_and_a_critic_apart_take_their_step_together_or_not_at_all(
    folder: Path, field: str, bad: float, outcome: str
) -> None:
    actor = make_actor(folder, value_model="adapter")
    learner, batch = learner_of(actor), scored(actor, random_batch())
    before, moments = arrays(actor), state(learner)
    spoiled = mx.array(getattr(batch, field))
    spoiled[0, 1] = bad
    step = learner.train(batch._replace(**{field: spoiled}), SETTINGS, "policy", "value")
    assert step.metrics.outcome == outcome
    assert same(arrays(actor), before)
    assert same(state(learner), moments)
    assert learner.train(batch, SETTINGS, "policy", "value").metrics.outcome == "taken"


def test_actor_and_critic_apart_learn_in_one_step_to_the_bit_what_they_learn_in_two(folder: Path) -> None:
    together, alone = (make_actor(folder, value_model="adapter") for _ in range(2))
    batch = moved_on(scored(together, random_batch()))
    learners = learner_of(together, max_grad_norm=0.01), learner_of(alone, max_grad_norm=0.01)
    learners[0].train(batch, SETTINGS, "policy", "value")
    for objective in ("policy", "value"):
        learners[1].train(batch, SETTINGS, objective)
    assert same(arrays(together), arrays(alone))
    assert same(state(learners[0]), state(learners[1]))
