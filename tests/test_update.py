"""The update of an iteration: how many steps, on what, and when there is none."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import reference
from batches import LENGTHS, arrays, make_actor, random_batch, same, scored

from trainer.config import Config
from trainer.config.schema import ModelConfig, OptimConfig, PPOConfig, RolloutConfig
from trainer.events import Alert, Event
from trainer.experience import Experience
from trainer.learner import StepMetrics, has_signal
from trainer.models.actor_critic import ActorCriticLLM
from trainer.ppo import PPO
from trainer.steps import silent

STEP = StepMetrics(0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, taken=True)
ALL: dict[str, Any] = {"policy_lr": 1e-2, "value_lr": 1e-2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models") / "llama"


@pytest.fixture
def actor(folder: Path) -> ActorCriticLLM:
    return make_actor(folder)


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


@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_skipped_steps_are_reported_and_training_goes_on(folder: Path, value_model: Any) -> None:
    actor, events = make_actor(folder, value_model=value_model), []
    batch = scored(actor, random_batch())
    returns = mx.array(batch.returns)
    returns[0, 0] = math.nan
    taken = learn(algorithm(actor, events, minibatches=6, epochs=1), batch._replace(returns=returns))
    assert sorted(step.taken for step in taken) == [False, *[True] * 5]
    assert [event.code for event in events if isinstance(event, Alert)] == ["step_skipped"]


def test_advantages_of_nan_are_skipped_steps_and_not_a_lack_of_signal(actor: ActorCriticLLM) -> None:
    batch, events = scored(actor, random_batch()), []
    taken = learn(algorithm(actor, events, epochs=2), batch._replace(advantages=batch.advantages + math.nan))
    assert [step.taken for step in taken] == [False, False]
    assert {event.code for event in events if isinstance(event, Alert)} == {"step_skipped"}


def test_the_schedule_scales_both_learning_rates_and_moves_with_the_minibatches(actor: ActorCriticLLM) -> None:
    optim = {"policy_lr": 1e-3, "value_lr": 1e-2, "schedule": "linear"}
    ppo = algorithm(actor, optim=optim, iterations=2, epochs=2, minibatches=2)
    assert ppo.learner.learning_rates() == (1e-3, 1e-2)
    learn(ppo, scored(actor, random_batch()))
    assert ppo.learner.learning_rates() == pytest.approx((5e-4, 5e-3))
