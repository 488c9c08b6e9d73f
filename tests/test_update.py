"""Optimiser steps: how many, on what, how far, and when none is taken."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import reference
from batches import LENGTHS, make_actor, moved_on, random_batch, scored
from reference import float64
from trainer import maths
from trainer.config import Config
from trainer.config.schema import ModelConfig, OptimConfig, PPOConfig, RolloutConfig
from trainer.events import Alert, Event
from trainer.experience import Experience
from trainer.learner import Learner, StepMetrics, has_signal, schedule_factor
from trainer.models.actor_critic import ActorCriticLLM
from trainer.ppo import PPO
from trainer.steps import silent

HOW: Any = {"temperature": 1.0, "progress": silent}
ALL: dict[str, Any] = {"policy_lr": 1e-2, "value_lr": 1e-2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models") / "llama"


@pytest.fixture
def actor(folder: Path) -> ActorCriticLLM:
    return make_actor(folder)


def arrays(actor: ActorCriticLLM, *parts: str) -> dict[str, Any]:
    """Plain numbers of policy and value, as they are now."""
    both = {"policy": actor.policy_parameters(), "value": actor.value_parameters()}
    return {f"{part}.{name}": np.array(x) for part in parts or both for name, x in both[part].items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def learner_of(actor: ActorCriticLLM, **optim: Any) -> Learner:
    return Learner(actor, OptimConfig(**(ALL | optim)), total_steps=10)


def algorithm(actor: ActorCriticLLM, events: list[Event] | None = None, *, optim: Any = ALL, **ppo: Any) -> PPO:
    config = Config(
        ppo=PPOConfig(**ppo),
        optim=OptimConfig(**optim),
        rollout=RolloutConfig(batch_size=len(LENGTHS)),
        model=ModelConfig(value_model="head" if actor.shares_trunk else "adapter"),
    )
    emit = events.append if events is not None else lambda event: None
    return PPO(config, actor, None, [], None, emit=emit)  # type: ignore[arg-type]  # no rollout is made here


def learn(ppo: PPO, batch: Experience, number: int = 1) -> list[StepMetrics]:
    return ppo.learn(number, batch, silent)


# How many steps, on what


@pytest.mark.parametrize(("minibatches", "epochs"), [(1, 1), (2, 3), (6, 2)])
def test_k_minibatches_give_k_optimiser_steps_an_epoch(actor: ActorCriticLLM, minibatches: int, epochs: int) -> None:
    ppo = algorithm(actor, minibatches=minibatches, epochs=epochs)
    taken = learn(ppo, scored(actor, random_batch()))
    assert len(taken) == ppo.learner.steps == minibatches * epochs
    assert ppo.learner.policy_optimizer.state["step"].item() == minibatches * epochs


def test_every_epoch_visits_every_row_once_in_a_new_order(
    actor: ActorCriticLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    ppo, rows = algorithm(actor, minibatches=2, epochs=4), []
    plain = ppo.learner.train_joint

    def watched(batch: Experience, *arguments: Any, **how: Any) -> StepMetrics:
        rows.append(batch.prompt_indices)
        return plain(batch, *arguments, **how)

    monkeypatch.setattr(ppo.learner, "train_joint", watched)
    learn(ppo, scored(actor, random_batch()))
    orders = [rows[epoch * 2] + rows[epoch * 2 + 1] for epoch in range(4)]
    assert all(sorted(order) == list(range(len(LENGTHS))) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_whitened_advantages_are_trained_on_and_returns_are_left_alone(
    actor: ActorCriticLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, seen = scored(actor, random_batch()), []
    ppo = algorithm(actor, minibatches=1, epochs=1, whiten_advantages=True)
    monkeypatch.setattr(ppo.learner, "train_joint", lambda part, *_, **__: seen.append(part) or STEP)
    learn(ppo, batch)
    order, counts = seen[0].prompt_indices, [LENGTHS[row][1] for row in seen[0].prompt_indices]
    advantages = reference.real(seen[0].advantages, counts)
    assert (advantages.mean(), advantages.var()) == pytest.approx((0, 1), abs=1e-4)
    assert seen[0].returns.tolist() == batch.returns[mx.array(order)].tolist()


STEP = StepMetrics(0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, taken=True)


@pytest.mark.parametrize("value_model", ["head", "adapter"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_ratio_is_1_in_the_first_minibatch_and_moves_after_it(
    folder: Path, value_model: Any, temperature: float
) -> None:
    actor = make_actor(folder, value_model=value_model)
    ppo = algorithm(actor, minibatches=1, epochs=2, value_coef=0.1)
    rollout = ppo.config.rollout.model_copy(update={"temperature": temperature})
    ppo.config = ppo.config.model_copy(update={"rollout": rollout})
    first, second = learn(ppo, scored(actor, random_batch(), temperature=temperature))
    assert (first.ratio_mean, first.ratio_max) == pytest.approx((1, 1), abs=1e-5)
    assert (first.clip_fraction, first.approx_kl) == (0, pytest.approx(0, abs=1e-9))
    assert second.ratio_max > 1.001


def test_with_learning_rates_of_zero_the_ratio_stays_1_and_nothing_changes(actor: ActorCriticLLM) -> None:
    before = arrays(actor)
    ppo = algorithm(actor, minibatches=3, epochs=4, optim={"policy_lr": 0.0, "value_lr": 0.0})
    for step in learn(ppo, scored(actor, random_batch())):
        assert (step.ratio_mean, step.ratio_max) == pytest.approx((1, 1), abs=1e-5)
    assert same(arrays(actor), before)


# When none is taken


def test_a_batch_without_signal_takes_no_step_and_says_so(folder: Path) -> None:
    actor, events = make_actor(folder, fresh=True), []
    ppo, before = algorithm(actor, events), arrays(actor)
    batch = scored(actor, random_batch(), kl_coef=0, scores=[0.7] * len(LENGTHS))
    assert not has_signal(batch)
    assert learn(ppo, batch) == []
    assert same(arrays(actor), before)
    assert [(event.code, event.level) for event in events if isinstance(event, Alert)] == [("no_signal", "warning")]


def test_rounding_noise_in_the_padding_is_no_signal() -> None:
    batch = random_batch()
    batch = batch._replace(advantages=mx.where(batch.mask > 0, 0.7, mx.random.normal(batch.mask.shape)))
    assert not has_signal(batch)


@pytest.mark.parametrize("field", ["advantages", "returns", "logprobs"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -1e4])
def test_a_step_that_is_not_finite_is_skipped_reported_and_changes_nothing(
    actor: ActorCriticLLM, field: str, bad: float
) -> None:
    if bad == -1e4 and field != "logprobs":
        pytest.skip("a large finite number is no trouble there")
    learner, batch, ppo = learner_of(actor), moved_on(scored(actor, random_batch())), PPOConfig(value_clip=0)
    learner.train_joint(batch, ppo, **HOW)  # so that there are moments to spoil
    before, moments = arrays(actor), [np.array(x) for x in flat_state(learner)]
    sign = mx.array(getattr(batch, field))
    sign[0, 1] = bad  # with log pi_old = -1e4 the ratio is exp(1e4)
    step = learner.train_joint(batch._replace(**{field: sign, "advantages": _hit(batch, field, sign)}), ppo, **HOW)
    assert not step.taken
    assert same(arrays(actor), before)
    assert all(np.array_equal(a, np.array(b)) for a, b in zip(moments, flat_state(learner), strict=True))
