"""Values from the score so far: exact least squares, the newest batch the heaviest, and a state that survives JSON."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from batches import make_actor, random_batch
from reference import Floats, float64

from trainer.arrays import filled
from trainer.config import validate
from trainer.policy_checkpoint import take_snapshot
from trainer.ppo import steps
from trainer.ppo.loop import PPO
from trainer.ppo.prefix_scores import FEATURES, FORGETTING, PrefixValues
from trainer.rewards import Rewards
from trainer.rollout.experience import Experience

WIDTH = 10  # T
EVERY = 2  # tokens from one score to the next


def batch_of(seed: int, *, slope: float = 0.3, start: float = 0.5, gamma: float = 1.0) -> Experience:
    """Return a batch whose discounted return from a token on is `start` and `slope` times the score before it."""
    batch, draws = random_batch(seed=seed), np.random.default_rng(seed)
    mask = np.array(batch.mask)
    phi = draws.normal(size=mask.shape) * mask
    returns = (start + slope * phi) * mask
    rewards = returns - gamma * np.concatenate([returns[:, 1:], np.zeros((len(mask), 1))], axis=1)  # they add up to it
    return batch._replace(
        prefix_scores=mx.array(phi.astype(np.float32)),
        final_prefix_scores=mx.array(draws.normal(size=len(mask)).astype(np.float32)),
        rewards=mx.array(rewards.astype(np.float32)),
        values=mx.zeros(mask.shape),
        final_values=mx.zeros(len(mask)),
    )


def features(batch: Experience) -> Floats:
    phi = float64(filled(batch.prefix_scores))
    place = np.broadcast_to(np.arange(phi.shape[1]) / WIDTH, phi.shape)
    first = np.broadcast_to(np.arange(phi.shape[1]) < EVERY, phi.shape)
    return np.stack([np.ones_like(phi), phi, place, phi * place, first], axis=-1)[np.array(batch.mask) > 0]


def real(batch: Experience, x: Any) -> Floats:
    return float64(filled(x))[np.array(batch.mask) > 0]


def test_at_first_the_score_stays_as_it_is() -> None:
    batch = batch_of(0)
    found = PrefixValues(WIDTH).add(batch._replace(values=2 * batch.mask), EVERY)
    assert real(batch, found.prefix_values) == pytest.approx(real(batch, batch.prefix_scores))
    assert real(batch, found.values) == pytest.approx(2 + real(batch, batch.prefix_scores))
    assert not np.array(filled(found.prefix_values))[np.array(batch.mask) == 0].any()


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_it_is_least_squares_with_each_batch_half_the_weight_of_the_next(gamma: float) -> None:
    values, batches = PrefixValues(WIDTH), [batch_of(seed, slope=0.1 * seed, gamma=gamma) for seed in range(4)]
    for batch in batches:
        values.learn(batch, EVERY, gamma)
    roots = [np.sqrt(FORGETTING ** (len(batches) - 1 - seed)) for seed in range(len(batches))]
    phi = np.concatenate([root * real(one, one.prefix_scores) for root, one in zip(roots, batches, strict=True)])
    counts = np.concatenate([np.full(int(one.mask.sum()), root**2) for root, one in zip(roots, batches, strict=True)])
    unit = np.sqrt((phi**2).sum() / counts.sum())
    rows, targets = [np.diag([1, unit, 1, unit, 1])], [np.zeros(FEATURES)]  # |b|^2, in the unit of each feature
    for seed, (root, batch) in enumerate(zip(roots, batches, strict=True)):
        rows.append(root * features(batch))
        targets.append(root * (0.5 + (0.1 * seed - 1) * real(batch, batch.prefix_scores)))
    b = np.linalg.lstsq(np.concatenate(rows), np.concatenate(targets), rcond=None)[0]
    new = batch_of(9)
    found = values.add(new, EVERY)
    expected = real(new, new.prefix_scores) + features(new) @ b
    assert real(new, found.prefix_values) == pytest.approx(expected, abs=1e-4)
    phi, end = float64(filled(new.final_prefix_scores)), float64(new.response_lengths) / WIDTH
    after = np.stack([np.ones_like(phi), phi, end, phi * end, np.zeros_like(phi)], axis=-1)  # the end is always scored
    assert float64(filled(found.final_values)) == pytest.approx(phi + after @ b, abs=1e-4)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_the_return_of_a_bootstrapped_response_goes_on_with_the_value_after_it(gamma: float) -> None:
    batch = batch_of(0)._replace(final_values=mx.array([3.0, -1.0, 2.0, 5.0, 1.0, 4.0]))
    last = np.eye(batch.mask.shape[1])[np.array(batch.response_lengths) - 1]
    after = mx.array(gamma * float64(batch.final_values * batch.truncated)[:, None] * last)
    told, bootstrapped = PrefixValues(WIDTH), PrefixValues(WIDTH)
    told.learn(batch._replace(rewards=filled(batch.rewards) + after), EVERY, gamma)
    bootstrapped.learn(batch, EVERY, gamma, bootstrap_truncated=True)
    assert np.array(bootstrapped.state()["products"]) == pytest.approx(np.array(told.state()["products"]), abs=1e-4)


@pytest.mark.parametrize("bootstrap_truncated", [False, True])
def test_a_score_that_is_complete_at_the_cut_leaves_no_error_there(bootstrap_truncated: bool) -> None:
    batch = random_batch()
    rising = 0.7 * np.arange(batch.mask.shape[1] + 1) / np.array(batch.response_lengths)[:, None]  # 0.7 at the end
    scores = mx.full(batch.size, 0.7)
    batch = batch._replace(
        truncated=mx.ones(batch.size),
        scores=scores,
        kl=mx.zeros_like(batch.mask),
        token_scores=mx.zeros_like(batch.mask),
        values=mx.zeros_like(batch.mask),
        final_values=mx.zeros(batch.size),
        prefix_scores=mx.array(rising[:, :-1]) * batch.mask,
        final_prefix_scores=scores,
    )
    batch = PrefixValues(WIDTH).add(batch, 1)
    batch = steps.adjust_rewards_with_kl(batch, kl_coef=0.0, bootstrap_truncated=bootstrap_truncated)
    batch = steps.compute_td_errors(batch, gamma=1.0, bootstrap_truncated=bootstrap_truncated)
    steps_of = np.repeat(0.7 / np.array(batch.response_lengths), np.array(batch.response_lengths))
    assert real(batch, batch.td_errors) == pytest.approx(steps_of, abs=1e-5)  # what each token adds to the score


def test_its_state_goes_through_json_bit_for_bit_and_none_begins_anew() -> None:
    values, again = PrefixValues(WIDTH), PrefixValues(WIDTH)
    for seed in range(3):
        values.learn(batch_of(seed), EVERY, 0.9)
    values.apart = 4
    again.restore(json.loads(json.dumps(values.state())))
    batch = batch_of(9)
    assert filled(values.add(batch, EVERY).values).tolist() == filled(again.add(batch, EVERY).values).tolist()
    assert again.apart == 4
    again.restore(None)
    assert again.state() == PrefixValues(WIDTH).state() != values.state()


def test_switched_off_during_a_run_it_forgets_as_a_resumed_run_would(tmp_path: Path) -> None:
    on = validate({"ppo": {"prefix_scores": EVERY}})
    ppo = PPO(on, make_actor(tmp_path / "llama"), None, [], Rewards([]))
    ppo.prefix_values.learn(batch_of(0), EVERY, 1.0)
    ppo.configure(on)
    assert take_snapshot(1, ppo).prefix_values == ppo.prefix_values.state() != PrefixValues(WIDTH).state()
    ppo.configure(validate({"ppo": {"prefix_scores": 0}}))
    assert take_snapshot(2, ppo).prefix_values is None
    ppo.configure(on)
    assert ppo.prefix_values.state() == PrefixValues(WIDTH).state()


def test_below_lambda_1_a_score_that_is_always_lost_again_is_worth_something() -> None:
    """The numbers of docs/algorithms.md. Half of the responses have a token that adds 1 to the score for 8 tokens."""
    values, draws, (count, length) = PrefixValues(32), np.random.default_rng(0), (64, 32)
    found: dict[float, list[float]] = {0.7: [], 1.0: []}
    for _ in range(20):
        so_far = 0.2 * np.cumsum(draws.normal(size=(count, length)), axis=1)  # the score that the response ends with
        places = draws.integers(0, length - 9, size=count // 2)
        before = np.concatenate([np.zeros((count, 1)), so_far[:, :-1]], axis=1)
        for row, place in enumerate(places):
            before[row, place + 1 : place + 9] += 1
        batch = random_batch([(1, length)] * count)._replace(
            scores=mx.array(so_far[:, -1]),
            kl=mx.zeros((count, length)),
            token_scores=mx.zeros((count, length)),
            values=mx.zeros((count, length)),
            final_values=mx.zeros(count),
            prefix_scores=mx.array(before),
            final_prefix_scores=mx.array(so_far[:, -1]),
        )
        batch = steps.adjust_rewards_with_kl(values.add(batch, 1), kl_coef=0.0)
        batch = steps.compute_td_errors(batch, gamma=1.0)
        for lam, advantages in found.items():
            of_all = float64(filled(steps.compute_gae_advantages(batch, gamma=1.0, lam=lam).advantages))
            advantages.append(of_all[np.arange(count // 2), places].mean())
        values.learn(batch, 1, 1.0)
    means = {lam: float(np.mean(advantages[5:])) for lam, advantages in found.items()}
    assert means == {0.7: pytest.approx(0.75, abs=0.03), 1.0: pytest.approx(0.06, abs=0.03)}


@pytest.mark.parametrize(
    ("taken", "iteration", "apart"),
    [(0.05, 0.06, 2), (0.4, 9.0, 2), (0.46, 9.0, 4), (2.3, 6.0, 32), (1.0, 1.0, 32)],  # 2 now; 0.1 s are always allowed
)
def test_scores_that_take_over_5_percent_of_the_rest_of_an_iteration_go_further_apart(
    taken: float, iteration: float, apart: int
) -> None:
    values = PrefixValues(WIDTH)
    values.apart = 2
    assert values.spacing(taken, iteration) == apart


def test_a_batch_with_a_broken_reward_teaches_nothing() -> None:
    values = PrefixValues(WIDTH)
    values.learn(batch_of(0), EVERY, 1.0)
    before = values.state()
    batch = batch_of(1)
    values.learn(batch._replace(rewards=filled(batch.rewards) * float("nan")), EVERY, 1.0)
    assert values.state() == before
