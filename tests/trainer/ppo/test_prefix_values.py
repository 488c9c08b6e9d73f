"""Values from the score so far: exact least squares, the newest batch the heaviest, and a state that survives JSON."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from batches import LENGTHS, make_actor, random_batch
from reference import Floats, float64

from trainer.arrays import filled
from trainer.config import validate
from trainer.ppo.checkpoint import take_snapshot
from trainer.ppo.loop import PPO
from trainer.ppo.prefix_values import FEATURES, FORGETTING, PrefixValues
from trainer.rewards import Rewards
from trainer.rollout.experience import Experience

WIDTH = 10  # T
EVERY = 2  # tokens from one score to the next


def batch_of(seed: int, *, slope: float = 0.3, start: float = 0.5) -> Experience:
    """Return a batch whose return from a token on is `start` and `slope` times the score before it."""
    batch, draws = random_batch(seed=seed), np.random.default_rng(seed)
    mask = np.array(batch.mask)
    phi = draws.normal(size=mask.shape) * mask
    returns = (start + slope * phi) * mask
    rewards = returns - np.concatenate([returns[:, 1:], np.zeros((len(mask), 1))], axis=1)  # so that they add up to it
    return batch._replace(
        prefix_scores=mx.array(phi.astype(np.float32)),
        rewards=mx.array(rewards.astype(np.float32)),
        values=mx.zeros(mask.shape),
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


def test_it_learns_what_the_score_so_far_tells_of_the_return() -> None:
    values = PrefixValues(WIDTH)
    for seed in range(6):
        values.learn(batch_of(seed), EVERY, 1.0)
    new = batch_of(9)
    expected = 0.5 + 0.3 * real(new, new.prefix_scores)
    assert real(new, values.add(new, EVERY).prefix_values) == pytest.approx(expected, abs=0.1)


def test_it_is_least_squares_with_each_batch_half_the_weight_of_the_next() -> None:
    values, batches = PrefixValues(WIDTH), [batch_of(seed, slope=0.1 * seed) for seed in range(4)]
    for batch in batches:
        values.learn(batch, EVERY, 1.0)
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
    expected = real(new, new.prefix_scores) + features(new) @ b
    assert real(new, values.add(new, EVERY).prefix_values) == pytest.approx(expected, abs=1e-4)


def test_its_state_goes_through_json_bit_for_bit_and_none_begins_anew() -> None:
    values, again = PrefixValues(WIDTH), PrefixValues(WIDTH)
    for seed in range(3):
        values.learn(batch_of(seed), EVERY, 0.9)
    again.restore(json.loads(json.dumps(values.state())))
    batch = batch_of(9)
    assert filled(values.add(batch, EVERY).values).tolist() == filled(again.add(batch, EVERY).values).tolist()
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


def test_a_batch_with_a_broken_reward_teaches_nothing() -> None:
    values = PrefixValues(WIDTH)
    values.learn(batch_of(0), EVERY, 1.0)
    before = values.state()
    batch = batch_of(1)
    values.learn(batch._replace(rewards=filled(batch.rewards) * float("nan")), EVERY, 1.0)
    assert values.state() == before


def test_the_batches_have_rows_of_different_lengths() -> None:  # else the mask is not tested
    assert len({count for _, count in LENGTHS}) > 2
