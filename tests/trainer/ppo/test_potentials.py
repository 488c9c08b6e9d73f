"""Values from what is known before a score comes: exact least squares, the newest batch the heaviest, kept in JSON."""

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
from trainer.policy_checkpoint import restore_snapshot, take_snapshot
from trainer.ppo import steps
from trainer.ppo.loop import PPO
from trainer.ppo.potentials import FEATURES, FORGETTING, PotentialValues
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
        potentials=mx.array(phi.astype(np.float32)),
        final_potentials=mx.array(draws.normal(size=len(mask)).astype(np.float32)),
        rewards=mx.array(rewards.astype(np.float32)),
        values=mx.zeros(mask.shape),
        final_values=mx.zeros(len(mask)),
    )


def outcomes(batch: Experience, gamma: float = 1.0) -> Floats:
    return float64(filled(steps.add_outcomes(batch, gamma=gamma).outcomes))


def features(batch: Experience, every: int) -> Floats:
    phi = float64(filled(batch.potentials))
    place = np.broadcast_to(np.arange(phi.shape[1]) / WIDTH, phi.shape)
    first = np.broadcast_to(np.arange(phi.shape[1]) < every, phi.shape)
    return np.stack([np.ones_like(phi), phi, place, phi * place, first], axis=-1)[np.array(batch.mask) > 0]


def real(batch: Experience, x: Any) -> Floats:
    return float64(filled(x))[np.array(batch.mask) > 0]


def test_at_first_the_score_stays_as_it_is() -> None:
    batch = batch_of(0)
    found = PotentialValues(WIDTH).add(batch._replace(values=2 * batch.mask), EVERY)
    assert real(batch, found.base_values) == pytest.approx(real(batch, batch.potentials))
    assert real(batch, found.values) == pytest.approx(2 + real(batch, batch.potentials))
    assert not np.array(filled(found.base_values))[np.array(batch.mask) == 0].any()


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize(("known", "every"), [("score", EVERY), ("fitted", 0)])  # a fitted critic knows each token
def test_it_is_least_squares_in_which_each_batch_has_less_weight_than_the_next(
    known: Any, every: int, gamma: float
) -> None:
    values, batches = PotentialValues(WIDTH), [batch_of(seed, slope=0.1 * seed, gamma=gamma) for seed in range(4)]
    values.known, forgetting = known, {"score": 0.5, "fitted": 0.9}[known]
    assert FORGETTING[known] == forgetting
    for batch in batches:
        values.learn(batch, every, outcomes(batch, gamma))
    roots = [np.sqrt(forgetting ** (len(batches) - 1 - seed)) for seed in range(len(batches))]
    phi = np.concatenate([root * real(one, one.potentials) for root, one in zip(roots, batches, strict=True)])
    counts = np.concatenate([np.full(int(one.mask.sum()), root**2) for root, one in zip(roots, batches, strict=True)])
    unit = np.sqrt((phi**2).sum() / counts.sum())
    rows, targets = [np.diag([1, unit, 1, unit, 1])], [np.zeros(FEATURES)]  # |b|^2, in the unit of each feature
    for seed, (root, batch) in enumerate(zip(roots, batches, strict=True)):
        rows.append(root * features(batch, every))
        targets.append(root * (0.5 + (0.1 * seed - 1) * real(batch, batch.potentials)))
    b = np.linalg.lstsq(np.concatenate(rows), np.concatenate(targets), rcond=None)[0]
    new = batch_of(9)
    found = values.add(new, every)
    expected = real(new, new.potentials) + features(new, every) @ b
    assert real(new, found.base_values) == pytest.approx(expected, abs=1e-4)
    phi, end = float64(filled(new.final_potentials)), float64(new.response_lengths) / WIDTH
    after = np.stack([np.ones_like(phi), phi, end, phi * end, np.zeros_like(phi)], axis=-1)  # the end is always scored
    assert float64(filled(found.final_values)) == pytest.approx(phi + after @ b, abs=1e-4)


def test_without_a_critic_of_another_kind_they_are_all_of_the_values() -> None:
    batch = batch_of(0)._replace(values=None, final_values=None)
    found = PotentialValues(WIDTH).add(batch, 0)
    assert filled(found.values).tolist() == filled(found.base_values).tolist()
    assert real(batch, found.values) == pytest.approx(real(batch, batch.potentials))
    assert filled(found.final_values).tolist() == pytest.approx(filled(batch.final_potentials).tolist())


def test_a_batch_of_which_nothing_is_known_stays_as_it_is_and_teaches_nothing() -> None:
    batch, values = batch_of(0)._replace(potentials=None, final_potentials=None), PotentialValues(WIDTH)
    values.learn(batch, 0, outcomes(batch))
    assert values.add(batch, 0) is batch
    assert values.state() == PotentialValues(WIDTH).state()


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
        potentials=mx.array(rising[:, :-1]) * batch.mask,
        final_potentials=scores,
    )
    batch = PotentialValues(WIDTH).add(batch, 1)
    batch = steps.adjust_rewards_with_kl(batch, kl_coef=0.0, bootstrap_truncated=bootstrap_truncated)
    batch = steps.compute_td_errors(batch, gamma=1.0, bootstrap_truncated=bootstrap_truncated)
    steps_of = np.repeat(0.7 / np.array(batch.response_lengths), np.array(batch.response_lengths))
    assert real(batch, batch.td_errors) == pytest.approx(steps_of, abs=1e-5)  # what each token adds to the score


def test_its_state_goes_through_json_bit_for_bit_and_none_begins_anew() -> None:
    values, again = PotentialValues(WIDTH), PotentialValues(WIDTH)
    for seed in range(3):
        values.learn(batch_of(seed), EVERY, outcomes(batch_of(seed), 0.9))
    again.restore(json.loads(json.dumps(values.state())))
    batch = batch_of(9)
    assert filled(values.add(batch, EVERY).values).tolist() == filled(again.add(batch, EVERY).values).tolist()
    again.restore(None)
    assert again.state() == PotentialValues(WIDTH).state() != values.state()


@pytest.mark.parametrize("value_model", ["fitted", "head"])
def test_switched_off_during_a_run_it_forgets_as_a_resumed_run_does(value_model: Any, tmp_path: Path) -> None:
    on, off = (validate({"model": {"value_model": value_model}, "ppo": {"prefix_scores": n}}) for n in (EVERY, 0))

    def begun(config: Any) -> PPO:
        return PPO(config, make_actor(tmp_path / "llama", value_model=value_model), None, [], Rewards([]))

    ppo, resumed, new = begun(on), begun(off), begun(on).potential_values.state()
    ppo.potential_values.learn(batch_of(0), EVERY, outcomes(batch_of(0)))
    ppo.configure(on)
    snapshot = take_snapshot(1, ppo)
    assert snapshot.prefix_values == ppo.potential_values.state() != new
    restore_snapshot(snapshot, resumed)
    ppo.configure(off)
    after = [take_snapshot(2, one).prefix_values for one in (ppo, resumed)]
    assert after == ([begun(off).potential_values.state()] * 2 if value_model == "fitted" else [None, None])
    for one in (ppo, resumed):
        one.configure(on)
        assert one.potential_values.state() == new


def test_below_lambda_1_a_score_that_is_always_lost_again_is_worth_something() -> None:
    """The numbers of docs/algorithms.md. Half of the responses have a token that adds 1 to the score for 8 tokens."""
    values, draws, (count, length) = PotentialValues(32), np.random.default_rng(0), (64, 32)
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
            potentials=mx.array(before),
            final_potentials=mx.array(so_far[:, -1]),
        )
        batch = steps.adjust_rewards_with_kl(values.add(batch, 1), kl_coef=0.0)
        batch = steps.compute_td_errors(batch, gamma=1.0)
        for lam, advantages in found.items():
            of_all = float64(filled(steps.compute_gae_advantages(batch, gamma=1.0, lam=lam).advantages))
            advantages.append(of_all[np.arange(count // 2), places].mean())
        values.learn(batch, 1, outcomes(batch))
    means = {lam: float(np.mean(advantages[5:])) for lam, advantages in found.items()}
    assert means == {0.7: pytest.approx(0.75, abs=0.03), 1.0: pytest.approx(0.06, abs=0.03)}


def test_a_batch_with_a_broken_reward_teaches_nothing() -> None:
    values = PotentialValues(WIDTH)
    values.learn(batch_of(0), EVERY, outcomes(batch_of(0)))
    before = values.state()
    values.learn(batch_of(1), EVERY, outcomes(batch_of(1)) * float("nan"))
    assert values.state() == before
