"""The update of an iteration: how many steps, on what, and when there are none."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import reference
from batches import LENGTHS, arrays, make_actor, random_batch, same, scored
from reference import float64

from trainer import maths
from trainer.arrays import filled
from trainer.config import Config
from trainer.config.ppo import PPOConfig
from trainer.config.schema import ModelConfig, OptimConfig, RolloutConfig, RunConfig
from trainer.events import Alert, Event, PhaseProgress, silent
from trainer.models.actor_critic import ActorCriticLLM
from trainer.ppo.estimators import ESTIMATORS
from trainer.ppo.learner import Step, StepMetrics, has_signal
from trainer.ppo.loop import PPO
from trainer.ppo.metrics import update_metrics
from trainer.rollout.experience import Experience

STEP = Step(StepMetrics(0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, "taken"), mx.array([[1.0]]), {})
ALL: dict[str, Any] = {"policy_lr": 1e-2, "value_lr": 1e-2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models") / "llama"


@pytest.fixture
def actor(folder: Path) -> ActorCriticLLM:
    return make_actor(folder)


def algorithm(
    actor: ActorCriticLLM, events: list[Event] | None = None, *, optim: Any = ALL, run: Any = None, **ppo: Any
) -> PPO:
    config = Config(
        ppo=PPOConfig(**ppo),
        optim=OptimConfig(**optim),
        rollout=RolloutConfig(batch_size=len(LENGTHS)),
        model=ModelConfig(value_model=actor.value_model),
        run=RunConfig(**(run or {})),
    )
    emit = events.append if events is not None else lambda event: None
    return PPO(config, actor, None, [], None, report=emit)  # type: ignore[arg-type]  # no rollout is made here


def learn(ppo: PPO, batch: Experience) -> list[StepMetrics]:
    return ppo.learn(1, batch, silent)[1]


def with_rollout(ppo: PPO, **rollout: Any) -> PPO:
    ppo.config = ppo.config.model_copy(update={"rollout": ppo.config.rollout.model_copy(update=rollout)})
    return ppo


# How many steps, on what


@pytest.mark.parametrize(("minibatches", "epochs"), [(1, 1), (2, 3), (6, 2)])
def test_k_minibatches_give_k_optimiser_steps_an_epoch(actor: ActorCriticLLM, minibatches: int, epochs: int) -> None:
    ppo = algorithm(actor, minibatches=minibatches, epochs=epochs)
    taken = learn(ppo, scored(actor, random_batch()))
    assert len(taken) == ppo.learner.steps == minibatches * epochs
    assert ppo.learner.optimizers["policy"].state["step"].item() == minibatches * epochs


def test_every_epoch_visits_every_row_once_in_a_new_order(
    actor: ActorCriticLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    ppo, rows = algorithm(actor, minibatches=2, epochs=4), []
    plain = ppo.learner.train

    def watched(batch: Experience, *arguments: Any, **how: Any) -> Step:
        rows.append(batch.prompt_indices)
        return plain(batch, *arguments, **how)

    monkeypatch.setattr(ppo.learner, "train", watched)
    learn(ppo, scored(actor, random_batch()))
    orders = [rows[epoch * 2] + rows[epoch * 2 + 1] for epoch in range(4)]
    assert all(sorted(order) == list(range(len(LENGTHS))) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_whitened_advantages_are_trained_on_and_returns_are_left_alone(
    actor: ActorCriticLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, seen = scored(actor, random_batch()), []
    ppo = algorithm(actor, minibatches=1, epochs=1, whiten_advantages=True)
    monkeypatch.setattr(ppo.learner, "train", lambda part, *_, **__: seen.append(part) or STEP)
    learn(ppo, batch)
    order, counts = seen[0].prompt_indices, [LENGTHS[row][1] for row in seen[0].prompt_indices]
    advantages = reference.real(seen[0].advantages, counts)
    assert (advantages.mean(), advantages.var()) == pytest.approx((0, 1), abs=1e-4)
    assert seen[0].returns.tolist() == batch.returns[mx.array(order)].tolist()


@pytest.mark.parametrize("value_model", ["fitted", "head", "adapter"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_ratio_is_1_in_the_first_minibatch_and_moves_after_it(
    folder: Path, value_model: Any, temperature: float
) -> None:
    actor = make_actor(folder, value_model=value_model)
    ppo = algorithm(actor, minibatches=1, epochs=2, value_coef=0.1)
    first, second = learn(
        with_rollout(ppo, temperature=temperature), scored(actor, random_batch(), temperature=temperature)
    )
    assert (first.ratio_mean, first.ratio_max) == pytest.approx((1, 1), abs=1e-5)
    assert (first.clip_fraction, first.approx_kl) == (0, pytest.approx(0, abs=1e-9))
    assert second.ratio_max > 1.001


# The ratios of each token


@pytest.mark.parametrize("value_model", ["head", "adapter"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("minibatches", [1, 3])
def test_every_epoch_records_the_ratio_of_every_token_before_its_step(
    folder: Path, value_model: Any, temperature: float, minibatches: int
) -> None:
    actor = make_actor(folder, value_model=value_model)
    batch = scored(actor, random_batch(), temperature=temperature)
    ppo = algorithm(actor, minibatches=minibatches, epochs=3, run={"final_ratios": True})
    _, steps, ratios = with_rollout(ppo, temperature=temperature).learn(1, batch, silent)
    assert ratios.shape == (*batch.mask.shape, 4)
    real = np.array(batch.mask) > 0
    if minibatches == 1:
        assert ratios[real][:, 0] == pytest.approx(1, abs=1e-5)
    for epoch in range(3):
        taken = steps[epoch * minibatches : (epoch + 1) * minibatches]
        assert ratios[real][:, epoch].max() == pytest.approx(max(step.ratio_max for step in taken), rel=1e-5)
    after = scored(actor, random_batch(), temperature=temperature)
    expected = np.exp(float64(after.logprobs) - float64(batch.logprobs))
    np.testing.assert_allclose(ratios[real][:, 3], expected[real], rtol=1e-4)
    assert (abs(np.diff(ratios[real], axis=1)).max(axis=0) > 1e-3).all()  # each epoch moved it


def test_ratios_after_the_last_epoch_are_measured_only_where_samples_are_kept(actor: ActorCriticLLM) -> None:
    batch = scored(actor, random_batch())
    for run, passes in (({}, 2), ({"final_ratios": True}, 3), ({"final_ratios": True, "save_samples": False}, 2)):
        assert algorithm(actor, epochs=2, run=run).learn(1, batch, silent)[2].shape[2] == passes


@pytest.mark.parametrize("value_model", ["fitted", "head", "adapter"])
@pytest.mark.parametrize("final_ratios", [False, True])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_the_progress_of_an_update_rises_to_its_end(
    folder: Path, value_model: Any, final_ratios: bool, minibatches: int
) -> None:
    """The passes are counted as `iteration` counts them."""
    actor, events = make_actor(folder, value_model=value_model), []
    ppo = algorithm(actor, events, epochs=2, minibatches=minibatches, run={"final_ratios": final_ratios})
    with ppo.phases(1, "update", passes=ppo.update_passes) as progress:
        ppo.learn(1, scored(actor, random_batch()), progress)
    reported = [(event.done, event.total) for event in events if isinstance(event, PhaseProgress)][1:]
    assert [done / total for done, total in reported] == pytest.approx(np.linspace(0, 1, len(reported) + 1)[1:])
    assert reported[-1][0] == reported[-1][1]


# Updates without a step


def equally_good(actor: ActorCriticLLM, score: float = 0.7) -> Experience:
    return scored(actor, random_batch(), kl_coef=0, scores=[score] * len(LENGTHS))


def grouped(batch: Experience, scores: mx.array, size: int, estimator: Any) -> Experience:
    rewards = maths.shaped_rewards(mx.zeros(batch.mask.shape), scores, batch.mask, kl_coef=0)
    return ESTIMATORS[estimator](batch._replace(rewards=rewards), PPOConfig(estimator=estimator), size)


def reported(events: list[Event]) -> list[tuple[str, str, str]]:
    return [(event.code, event.level, event.message) for event in events if isinstance(event, Alert)]


def test_a_batch_without_signal_takes_no_step_and_says_so(folder: Path) -> None:
    actor, events = make_actor(folder, fresh=True), []
    ppo, before = algorithm(actor, events, estimator="rloo"), arrays(actor)
    batch = equally_good(actor)
    assert not has_signal(batch)
    assert not learn(ppo, batch)
    assert same(arrays(actor), before)
    message = "all advantages are equal, so no step was taken: is the reward constant?"
    assert reported(events) == [("no_signal", "warning", message)]


@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_equal_advantages_teach_the_critic_alone_until_it_is_right(folder: Path, value_model: Any) -> None:
    actor, events = make_actor(folder, value_model=value_model, fresh=True), []
    ppo, before = algorithm(actor, events, epochs=3), arrays(actor)
    batch = equally_good(actor)
    _, taken, ratios = ppo.learn(1, batch, silent)
    assert [step.outcome == "taken" for step in taken] == [True] * 3
    assert ratios is None
    changed = {name for name, array in arrays(actor).items() if not np.array_equal(array, before[name])}
    assert "value.head.weight" in changed
    assert all(name.startswith("value.") for name in changed)
    assert reported(events)[0][2] == "all advantages are equal, so only the critic was trained: is the reward constant?"
    right = batch._replace(values=batch.returns, advantages=mx.zeros_like(filled(batch.advantages)))
    assert not learn(ppo, right)


def exact_kl(actor: ActorCriticLLM, batch: Experience) -> float:
    """Return the mean KL of policy and reference at the responses' tokens."""

    def logits() -> mx.array:
        forward = actor(batch.sequences, batch.prompt_lengths, batch.responses.shape[1], want="logits")
        return forward.head(filled(forward.states))

    policy = logits()
    with actor.reference():
        reference_logits = logits()
    return float(maths.masked_mean(maths.kl_divergence(policy, reference_logits), batch.mask))


def test_equal_scores_let_the_kl_in_the_loss_pull_the_policy_back(folder: Path) -> None:
    actor, events = make_actor(folder), []
    ppo = algorithm(
        actor, events, estimator="grpo", kl_in="loss", kl_estimator="full", kl_coef=5.0, whiten_advantages=False
    )
    kls = [exact_kl(actor, random_batch())]
    for _ in range(5):
        batch = grouped(scored(actor, random_batch()), mx.full((len(LENGTHS),), 0.7), 3, "grpo")
        learn(ppo, batch)
        kls.append(exact_kl(actor, batch))
    assert kls == sorted(kls, reverse=True)
    assert kls[-1] < 0.5 * kls[0]
    message = "all advantages are equal, so only the KL penalty moved the policy: is the reward constant?"
    assert reported(events) == [("no_signal", "warning", message)] * 5


def test_equal_advantages_leave_the_entropy_bonus_its_gradient(folder: Path) -> None:
    actor, events = make_actor(folder), []
    ppo = algorithm(actor, events, estimator="rloo", entropy_coef=0.1, epochs=4)
    batch = grouped(scored(actor, random_batch()), mx.full((len(LENGTHS),), 0.7), 3, "rloo")
    learn(ppo, batch)
    before, after = (float(maths.masked_mean(filled(one.entropy), one.mask)) for one in (batch, scored(actor, batch)))
    assert after > before
    assert "only the entropy bonus moved the policy" in reported(events)[0][2]


@pytest.mark.parametrize("whiten", [False, True])
def test_rounding_errors_of_equal_advantages_move_nothing(folder: Path, whiten: bool) -> None:
    noise, outcomes = 1e-7 * mx.random.normal(random_batch().mask.shape, key=mx.random.key(3)), []
    for scale in (0.0, 1.0):
        actor = make_actor(folder)
        ppo = algorithm(actor, estimator="rloo", entropy_coef=0.1, whiten_advantages=whiten)
        batch = grouped(scored(actor, random_batch()), mx.full((len(LENGTHS),), 0.7), 3, "rloo")
        learn(ppo, batch._replace(advantages=filled(batch.advantages) + scale * noise))
        outcomes.append(arrays(actor, "policy"))
    assert same(*outcomes)


@pytest.mark.parametrize("estimator", ["rloo", "grpo"])
@pytest.mark.parametrize("score", [0.1, 0.7, -0.3182, 8.37, 33.3, 1000.7, 54321.7])
@pytest.mark.parametrize("size", [3, 6])
def test_equal_scores_in_every_group_are_no_signal(size: int, score: float, estimator: Any) -> None:
    batch = random_batch()
    scores = mx.repeat(mx.array([score, score / 3, 2 * score]), size)[: batch.size]
    assert not has_signal(grouped(batch, scores, size, estimator))


@pytest.mark.parametrize("score", [1.3, 8.37, 1000.7])
def test_a_score_that_differs_in_its_last_bit_is_no_signal_and_one_that_differs_in_100_is(score: float) -> None:
    for ulps, expected in ((1, False), (100, True)):
        scores = np.full(len(LENGTHS), score, dtype=np.float32)
        scores[1] += ulps * np.spacing(scores[1])
        for estimator in ("rloo", "grpo"):
            assert has_signal(grouped(random_batch(), mx.array(scores), 3, estimator)) is expected


@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_skipped_steps_are_reported_and_training_goes_on(folder: Path, value_model: Any) -> None:
    actor, events = make_actor(folder, value_model=value_model), []
    batch = scored(actor, random_batch())
    returns = mx.array(batch.returns)
    returns[0, 0] = math.nan
    taken = learn(algorithm(actor, events, minibatches=6, epochs=1), batch._replace(returns=returns))
    assert sorted(step.outcome == "taken" for step in taken) == [False, *[True] * 5]
    assert [event.code for event in events if isinstance(event, Alert)] == ["step_skipped"]


def test_advantages_of_nan_are_skipped_steps_and_not_a_lack_of_signal(actor: ActorCriticLLM) -> None:
    batch, events = scored(actor, random_batch()), []
    taken = learn(algorithm(actor, events, epochs=2), batch._replace(advantages=batch.advantages + math.nan))
    assert [step.outcome == "taken" for step in taken] == [False, False]
    assert {event.code for event in events if isinstance(event, Alert)} == {"step_skipped"}


def test_the_schedule_scales_both_learning_rates_and_moves_with_the_minibatches(actor: ActorCriticLLM) -> None:
    optim = {"policy_lr": 1e-3, "value_lr": 1e-2, "schedule": "linear"}
    ppo = algorithm(actor, optim=optim, iterations=2, epochs=2, minibatches=2)
    assert ppo.learner.learning_rates() == (1e-3, 1e-2)
    learn(ppo, scored(actor, random_batch()))
    assert ppo.learner.learning_rates() == pytest.approx((5e-4, 5e-3))


# Updates that end early, and skipped steps


def far_off(batch: Experience, row: int, log_ratio: float) -> Experience:
    """Return `batch` as if the policy now gave the first token of `row` exp(log_ratio) times its old probability."""
    logprobs = mx.array(batch.logprobs)
    logprobs[row, 0] = logprobs[row, 0] - log_ratio
    return batch._replace(logprobs=logprobs)


@pytest.mark.parametrize("log_ratio", [6.0, 30.0, -30.0, 100.0])
def test_a_minibatch_whose_ratio_spikes_takes_no_step_and_is_counted_apart(
    actor: ActorCriticLLM, log_ratio: float
) -> None:
    events: list[Event] = []
    ppo = algorithm(actor, events, minibatches=6, epochs=1)
    taken = learn(ppo, far_off(scored(actor, random_batch()), 0, log_ratio))
    assert sorted(step.outcome for step in taken) == ["ratio_spike", *["taken"] * 5]
    metrics = update_metrics(taken, minibatches=6)
    assert (metrics["steps"], metrics["skipped_steps"], metrics["spiked_steps"]) == (5, 1, 1)
    assert metrics["log_ratio_max"] == pytest.approx(abs(log_ratio), abs=1)  # steps before it have moved the policy
    assert [event.code for event in events if isinstance(event, Alert)] == ["ratio_spike"]


def test_without_a_threshold_no_ratio_is_a_spike(actor: ActorCriticLLM) -> None:
    ppo = algorithm(actor, minibatches=6, epochs=1, ratio_threshold=0.0)
    taken = learn(ppo, far_off(scored(actor, random_batch()), 0, 6.0))
    assert {step.outcome for step in taken} == {"taken"}


def test_any_number_of_spikes_does_not_end_the_run_as_nan_does(actor: ActorCriticLLM) -> None:
    batch = scored(actor, random_batch())
    for row in range(batch.size):
        batch = far_off(batch, row, 30.0)
    taken = learn(algorithm(actor, minibatches=6, epochs=2), batch)
    assert [step.outcome for step in taken] == ["ratio_spike"] * 12


@pytest.mark.parametrize("value_model", ["fitted", "head", "adapter"])
def test_the_epochs_end_before_a_step_too_far_from_the_policy_that_sampled(folder: Path, value_model: Any) -> None:
    actor, other = (make_actor(folder, value_model=value_model) for _ in range(2))
    batch = scored(actor, random_batch())
    free = learn(algorithm(actor, minibatches=1, epochs=6, optim={"policy_lr": 1e-2}), batch)
    bound = free[3].approx_kl * 0.999
    assert free[2].approx_kl < bound
    ppo = algorithm(other, minibatches=1, epochs=6, target_approx_kl=bound, optim={"policy_lr": 1e-2})
    taken = learn(ppo, scored(other, random_batch()))
    assert [step.outcome for step in taken] == ["taken"] * 3 + ["target_kl"]
    assert ppo.learner.steps == 3
    assert {optimizer.state["step"].item() for optimizer in ppo.learner.optimizers.values()} == {3}
    metrics = update_metrics(taken)
    assert (metrics["steps"], metrics["skipped_steps"], metrics["epochs_done"]) == (3, 0, 3)


# The critic alone, and no critic


@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_while_the_critic_warms_up_the_policy_stays_as_it_is(folder: Path, value_model: Any) -> None:
    actor = make_actor(folder, value_model=value_model)
    ppo, batch = algorithm(actor, epochs=2, critic_warmup=1), scored(actor, random_batch())
    policy, value = arrays(actor, "policy"), arrays(actor, "value")
    _, taken, ratios = ppo.learn(1, batch, silent)
    assert same(arrays(actor, "policy"), policy)
    assert not same(arrays(actor, "value"), value)
    assert ratios is None
    assert all(math.isnan(step.policy_loss) and math.isfinite(step.value_loss) for step in taken)
    ppo.learn(2, batch, silent)
    assert not same(arrays(actor, "policy"), policy)


def test_the_policys_schedule_begins_with_its_own_first_step(actor: ActorCriticLLM) -> None:
    optim = {"policy_lr": 1.0, "value_lr": 1.0, "schedule": "linear", "warmup_steps": 0}
    ppo = algorithm(actor, epochs=2, minibatches=1, iterations=4, critic_warmup=2, optim=optim)
    rates = []
    for ppo.learner.steps in range(8):
        rates.append(ppo.learner.learning_rates())
    assert [rate for rate, _ in rates] == pytest.approx([1, 1, 1, 1, 1, 0.75, 0.5, 0.25])
    assert [rate for _, rate in rates] == pytest.approx([1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])


def test_a_warm_up_learns_from_a_constant_reward_too(actor: ActorCriticLLM) -> None:
    """The critic still has to learn it; only the policy has nothing to learn."""
    batch = scored(actor, random_batch(), kl_coef=0, scores=[0.7] * len(LENGTHS))
    assert len(algorithm(actor, epochs=2, critic_warmup=1).learn(1, batch, silent)[1]) == 2


def test_without_a_critic_values_are_neither_needed_nor_learnt(actor: ActorCriticLLM) -> None:
    batch = scored(actor, random_batch())._replace(values=None, td_errors=None, final_values=None)
    value = arrays(actor, "value")
    taken = learn(algorithm(actor, estimator="reinforce", epochs=2), batch)
    assert [step.outcome == "taken" for step in taken] == [True, True]
    assert all(math.isnan(step.value_loss) for step in taken)
    assert same(arrays(actor, "value"), value)


# The average


def test_the_average_follows_the_policy_by_its_decay_step_by_step(actor: ActorCriticLLM) -> None:
    ppo = algorithm(actor, minibatches=1, epochs=1, optim={"policy_lr": 1e-2, "ema_decay": 0.75})
    expected = {name: float64(array) for name, array in actor.policy_parameters().items()}
    for _ in range(3):
        learn(ppo, scored(actor, random_batch()))
        now = actor.policy_parameters()
        expected = {name: 0.75 * mean + 0.25 * float64(now[name]) for name, mean in expected.items()}
    for name, mean in filled(ppo.learner.average).items():
        np.testing.assert_allclose(float64(mean), expected[name], atol=1e-6)
        assert abs(float64(mean) - float64(actor.policy_parameters()[name])).max() > 1e-4


@pytest.mark.parametrize("value_model", ["fitted", "head", "adapter"])
def test_the_critics_share_is_measured_in_the_first_step_of_every_twentieth_iteration(
    folder: Path, value_model: Any
) -> None:
    for number in (1, 5, 6, 15, 25):
        actor = make_actor(folder, value_model=value_model)
        steps = algorithm(actor, epochs=2).learn(number, scored(actor, random_batch()), silent)[1]
        measured = [0 < step.critic_share < 1 for step in steps]
        assert measured == [value_model == "head" and number in (5, 25), False]
