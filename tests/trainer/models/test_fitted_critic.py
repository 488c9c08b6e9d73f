"""A critic by least squares: ridge regression to the letter, on the reference's states, exact on disk and in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from batches import LENGTHS, make_actor, moved, random_batch, same, scored, with_garbage
from families import tiny_backbone, tiny_config
from mlx_lm.models import llama
from mlx_lm.models.base import create_attention_mask
from reference import Floats, float64

from trainer import maths
from trainer.arrays import filled
from trainer.config import validate
from trainer.config.schema import ModelConfig, OptimConfig
from trainer.errors import ModelError
from trainer.events import silent
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.fitted_critic import FittedCritic, half_way
from trainer.policy_checkpoint import load_checkpoint, restore_critic, restore_snapshot, save_checkpoint, take_snapshot
from trainer.ppo import steps
from trainer.ppo.learner import Learner
from trainer.ppo.loop import PPO
from trainer.ppo.losses import LossSettings
from trainer.ppo.potentials import PotentialValues, add_fitted_potentials
from trainer.rewards import Rewards
from trainer.rollout.experience import Experience

HIDDEN, B, T = 6, 5, 8
COUNTS = [count for _, count in LENGTHS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models") / "llama"


@pytest.fixture
def actor(folder: Path) -> ActorCriticLLM:
    return make_actor(folder, value_model="fitted")


class Drawn:
    """Random sums, outcomes and mask of a batch; sequences have 1 to T tokens."""

    def __init__(self, seed: int, *, hidden: int = HIDDEN) -> None:
        draws = np.random.default_rng(seed)
        states = mx.array(draws.normal(size=(B, T + 1, hidden)))
        self.sums = FittedCritic(hidden).read(states)[:, :-1]
        self.lengths = draws.integers(1, T + 1, size=B)
        self.mask = np.arange(T) < self.lengths[:, None]
        self.outcomes = draws.normal(3, 2, size=(B, T)) + float64(self.sums).sum(axis=-1)

    def learned_by(self, critic: FittedCritic, outcomes: Floats | None = None) -> None:
        critic.learn(self.sums, self.outcomes if outcomes is None else outcomes, self.mask)


def predicted(critic: FittedCritic, batch: Drawn) -> Floats:
    return critic.predict(batch.sums, np.broadcast_to(np.arange(T), (B, T)))


def bits(critic: FittedCritic) -> list[int]:
    found: list[int] = critic.arrays()["moments"].tolist()
    return found


# The regression


def features_of(sums: mx.array) -> Floats:
    """Return x of the sums of one sequence before each of its tokens: [t, 2 WIDTH]."""
    rows = [np.concatenate([total / max(count, 1), total]) for count, total in enumerate(float64(sums))]
    return np.array(rows)


def ridge(batches: list[Drawn], new: Drawn) -> Floats:
    """Predict as the docstring says, row by row, by LAPACK's least squares with a row more for each penalty."""
    rows, targets, weights = list[Floats](), list[float](), list[float]()
    for age, batch in enumerate(reversed(batches)):
        for sums, outcomes, length in zip(batch.sums, batch.outcomes, batch.lengths, strict=True):
            rows += list(features_of(sums)[:length])
            targets += list(outcomes[:length])
            weights += [0.95**age / length] * length
    x, y, u = np.array(rows), np.array(targets), np.array(weights)
    count = x.shape[1]
    variances = np.average((x - np.average(x, axis=0, weights=u)) ** 2, axis=0, weights=u)
    free = np.concatenate([np.ones((len(x), 1)), x], axis=1) * np.sqrt(u)[:, None]
    penalties = np.concatenate([np.zeros((count, 1)), np.diag(np.sqrt(count * variances))], axis=1)  # none of c
    matrix, right = np.concatenate([free, penalties]), np.concatenate([y * np.sqrt(u), np.zeros(count)])
    c, *w = np.linalg.lstsq(matrix, right, rcond=None)[0]
    return np.array([c + features_of(sums) @ np.array(w) for sums in new.sums])


@pytest.mark.parametrize("count", [1, 2, 7])
def test_it_is_ridge_regression_over_all_batches_in_which_each_weighs_less_than_the_next(count: int) -> None:
    critic, batches, new = FittedCritic(HIDDEN), [Drawn(seed) for seed in range(count)], Drawn(99)
    for batch in batches:
        batch.learned_by(critic)
    expected = ridge(batches, new)
    np.testing.assert_allclose(predicted(critic, new), expected, rtol=1e-8, atol=1e-8)
    assert expected.std() > 0.1


def test_unit_and_offset_of_the_rewards_are_those_of_the_values() -> None:
    plain, other = FittedCritic(HIDDEN), FittedCritic(HIDDEN)
    for seed in range(3):
        batch = Drawn(seed)
        batch.learned_by(plain)
        batch.learned_by(other, 1e-3 * batch.outcomes + 40)
    expected = 1e-3 * predicted(plain, Drawn(9)) + 40
    np.testing.assert_allclose(predicted(other, Drawn(9)), expected, rtol=0, atol=1e-9)


def test_a_state_that_never_varies_says_nothing_and_does_no_harm() -> None:
    critic, batch = FittedCritic(HIDDEN), Drawn(0)
    sums, lone = mx.ones((B, T, HIDDEN)) * 1e3, np.ones((B, T)) * (np.arange(T) == 2)
    critic.learn(sums, batch.outcomes, lone > 0)  # one place each: no feature varies
    found = critic.predict(sums, np.full((B, T), 2))
    assert found == pytest.approx(np.full((B, T), batch.outcomes[:, 2].mean()), rel=1e-6)


def test_a_sequence_counts_once_however_long_it_is() -> None:
    critic, mask = FittedCritic(HIDDEN), np.arange(T) < np.array([[2], [4], [8]])
    outcomes = np.repeat([[1.0], [0.0], [5.0]], T, axis=1)
    critic.learn(mx.zeros((3, T, HIDDEN)), outcomes, mask)  # nothing to read: it predicts the mean
    assert critic.predict(mx.zeros((1, 1, HIDDEN)), np.array([[3]])) == pytest.approx(2.0)


def test_before_its_first_batch_it_expects_nothing(actor: ActorCriticLLM) -> None:
    assert actor.fitted
    assert not actor.fitted.batches
    batch = scored(actor, random_batch())
    assert not np.array(filled(batch.values)).any()
    assert not np.array(filled(batch.final_values)).any()
    assert batch.potentials is None


def test_masked_places_teach_nothing_whatever_is_in_them() -> None:
    clean, dirty, batch = FittedCritic(HIDDEN), FittedCritic(HIDDEN), Drawn(0)
    batch.learned_by(clean)
    mask = np.zeros((B + 1, T + 2), dtype=bool)  # a sequence that is left out, and two more places
    mask[:B, :T] = batch.mask
    sums, outcomes = np.full((*mask.shape, HIDDEN), np.nan, dtype=np.float32), np.full(mask.shape, np.nan)
    sums[mask], outcomes[mask] = np.array(batch.sums)[batch.mask], batch.outcomes[batch.mask]
    dirty.learn(mx.array(sums), outcomes, mask)
    assert bits(dirty) == bits(clean)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_batch_with_a_broken_reward_teaches_nothing(bad: float) -> None:
    critic, batch = FittedCritic(HIDDEN), Drawn(1)
    Drawn(0).learned_by(critic)
    before = bits(critic)
    outcomes = batch.outcomes.copy()
    outcomes[0, 0] = bad
    batch.learned_by(critic, outcomes)
    assert bits(critic) == before


def test_what_it_has_learned_goes_through_arrays_to_the_bit() -> None:
    critic, again = FittedCritic(HIDDEN), FittedCritic(HIDDEN)
    for seed in range(3):
        Drawn(seed).learned_by(critic)
    again.restore(critic.arrays())
    for one in (critic, again):
        Drawn(7).learned_by(one)
    assert bits(again) == bits(critic)
    assert predicted(again, Drawn(9)).tobytes() == predicted(critic, Drawn(9)).tobytes()


# How good it is on rewards that it can and cannot predict


def explained(noise: float, *, batches: int = 40) -> list[float]:
    """Return the explained variance of batches of 16 sequences, each predicted before it is learned from.

    A sequence's score is linear in the sum of its states, which resemble each other, and has `noise`, in deviations.
    """
    critic, values, (size, length, hidden) = FittedCritic(24), PotentialValues(20), (16, 20, 24)
    values.known = "fitted"
    draws, found = np.random.default_rng(0), list[float]()
    w = draws.normal(size=hidden) / length
    for _ in range(batches):
        topic = draws.normal(size=(size, 1, hidden))
        read = critic.read(mx.array(topic + draws.normal(size=(size, length + 1, hidden))))
        score = float64(read)[:, -1] @ w
        score = (noise == 0) * score + noise * draws.normal(size=size)
        outcomes = np.repeat(score[:, None], length, axis=1)
        batch = random_batch([(1, length)] * size)._replace(fitted=read[:, :-1], final_fitted=read[:, -1])
        batch = values.add(add_fitted_potentials(critic, batch), 0)
        found.append(float(maths.explained_variance(filled(batch.values), mx.array(outcomes), batch.mask)))
        values.learn(batch, 0, outcomes)
        critic.learn(filled(batch.fitted), outcomes, np.array(batch.mask) > 0)
    return found


def test_on_rewards_that_are_pure_noise_the_values_are_no_worse_than_the_mean() -> None:
    assert np.mean(explained(noise=1.0)[10:]) > -0.05


def test_on_rewards_that_are_linear_in_what_it_reads_it_explains_most_after_a_few_hundred_sequences() -> None:
    found = explained(noise=0.0)
    assert found[0] == 0.0
    assert np.mean(found[15:25]) > 0.5
    assert np.mean(found[30:]) > 0.7


# What it reads


def projection(hidden: int) -> Floats:
    """Return the projection of a state [hidden, WIDTH], by reading one number of the state at a time."""
    states = mx.concatenate([mx.zeros((hidden, 1, hidden)), mx.eye(hidden)[:, None]], axis=1)
    return float64(FittedCritic(hidden).read(states))[:, 1] / hidden**0.5  # the root mean square is 1 / sqrt(hidden)


def test_it_sums_the_states_of_response_tokens_in_one_unit_under_random_signs() -> None:
    states = np.random.default_rng(0).normal(size=(2, T + 1, HIDDEN)) * np.array([1, 1e3])[:, None, None]
    signs = projection(HIDDEN)
    np.testing.assert_allclose(abs(signs), HIDDEN**-0.5, rtol=1e-4)
    assert set(np.sign(signs).ravel()) == {-1, 1}
    found = float64(FittedCritic(HIDDEN).read(mx.array(states)))
    for row, of_row in enumerate(states):
        total = np.zeros(HIDDEN)
        for t in range(T + 1):
            if t:  # the first state is the prompt's
                total += of_row[t] / np.sqrt((of_row[t] ** 2).mean()) @ signs
            np.testing.assert_allclose(found[row, t], total, atol=1e-4)


def test_a_wide_state_is_read_as_512_numbers_and_its_length_is_kept() -> None:
    state = np.random.default_rng(0).normal(size=(1, 2, 2048))
    found = float64(FittedCritic(2048).read(mx.array(state)))[0, 1]
    assert found.shape == (512,)
    assert np.linalg.norm(found) == pytest.approx(2048**0.5, rel=0.1)


def read(actor: ActorCriticLLM, batch: Experience, *, budget: int = 10_000) -> Experience:
    how: dict[str, Any] = {"temperature": 1.0, "micro_batch_tokens": budget}
    batch = steps.add_policy_logprobs_and_values(actor, batch, **how)
    return steps.add_kl_to_sa_pairs(actor, batch, estimator="k1", **how)


def test_it_reads_the_references_states_whatever_the_policy_is(actor: ActorCriticLLM) -> None:
    before = read(actor, random_batch())
    actor.update_policy(moved(actor.policy_parameters(), seed=9, scale=0.5))
    after = read(actor, random_batch())
    assert not mx.allclose(before.logprobs, after.logprobs, atol=0.1)
    assert mx.array_equal(before.fitted, after.fitted)
    assert mx.array_equal(before.final_fitted, after.final_fitted)
    assert mx.abs(after.fitted).max() > 0.1


def test_it_reads_the_block_half_way_up_and_nothing_of_a_token_before_it_is_written() -> None:
    mx.random.seed(0)
    backbone = llama.Model(llama.ModelArgs.from_dict(tiny_config("llama") | {"num_hidden_layers": 4}))
    actor = ActorCriticLLM(backbone, ModelConfig(), key=mx.random.key(1))
    ids, starts = mx.array(np.random.default_rng(0).integers(1, 256, (2, 16))), mx.array([3, 8])
    states = backbone.model.embed_tokens(ids)
    for block in backbone.layers[:2]:
        states = block(states, create_attention_mask(states, None), None)
    found = float64(filled(actor(ids, starts, 8, want="logits", fits=True).fitted))
    expected = filled(actor.fitted).read(mx.stack([states[0, 2:11], states[1, 7:16]]))
    np.testing.assert_allclose(found, float64(expected), atol=1e-4)

    ids[0, 3 + 5] = 3 + (ids[0, 3 + 5] == 3)  # another token 5
    after = float64(filled(actor(ids, starts, 8, want="logits", fits=True).fitted))
    assert np.array_equal(found[0, :6], after[0, :6])
    assert (abs(found[0, 6:] - after[0, 6:]).max(axis=-1) > 1e-3).all()
    assert np.array_equal(found[1], after[1])


@pytest.mark.parametrize(
    "family",
    ["gemma3_text", "gemma4_text", "mamba2", "rwkv7", "nemotron_h", "qwen3_next", "falcon_h1", "iquestloopcoder"],
)
def test_any_family_is_read_causally_and_computes_what_it_did(family: str) -> None:
    """Cover blocks that return tuples, share keys or are of several kinds, and a family that never calls a block."""
    actor = ActorCriticLLM(tiny_backbone(family, mx.float32), ModelConfig(lora_rank=2), key=mx.random.key(1))
    ids, starts = mx.array(np.random.default_rng(0).integers(1, 250, (2, 20))), mx.array([4, 6])
    plain, watched = (actor(ids, starts, 10, want="logits", fits=fits) for fits in (False, True))
    assert plain.fitted is None
    assert mx.array_equal(plain.states, watched.states)
    ids[0, 4 + 5] = 3 + (ids[0, 4 + 5] == 3)
    before, after = filled(watched.fitted), filled(actor(ids, starts, 10, want="logits", fits=True).fitted)
    assert before.shape == (2, 11, filled(actor.fitted).width)
    assert np.isfinite(float64(before)).all()
    assert mx.array_equal(before[0, :6], after[0, :6])
    assert mx.abs(before[0, 6:] - after[0, 6:]).max() > 1e-3


def modules(backbone: nn.Module) -> list[tuple[str, int, type]]:
    return [(name, id(module), type(module)) for name, module in backbone.named_modules()]


def test_a_pass_that_is_watched_leaves_the_model_as_it_was_also_after_an_error(actor: ActorCriticLLM) -> None:
    before, block = modules(actor.backbone), actor.backbone.layers[0]
    kind, parameters = type(block), actor.backbone.parameters().keys()
    with half_way(actor.backbone) as seen:
        assert isinstance(block, kind)
        assert actor.backbone.parameters().keys() == parameters
        actor.backbone(mx.array([[1, 2, 3]]))
        assert [states.shape for states in seen] == [(1, 3, 32)]
    assert modules(actor.backbone) == before
    with pytest.raises(KeyError), half_way(actor.backbone):
        raise KeyError("anything")
    assert modules(actor.backbone) == before


@pytest.mark.parametrize("budget", [1, 20, 1000])
def test_micro_batches_and_padding_change_nothing_of_what_it_reads(actor: ActorCriticLLM, budget: int) -> None:
    whole, spoiled = read(actor, random_batch()), read(actor, with_garbage(random_batch()), budget=budget)
    parts = read(actor, random_batch(), budget=budget)
    width = whole.mask.shape[1]
    for other in (parts, spoiled):
        np.testing.assert_allclose(float64(other.fitted)[:, :width], float64(whole.fitted), atol=1e-4)
        np.testing.assert_allclose(float64(other.final_fitted), float64(whole.final_fitted), atol=1e-4)
        assert not (float64(other.fitted) * (1 - float64(other.mask))[..., None]).any()
    for row, count in enumerate(COUNTS):
        assert (abs(float64(whole.final_fitted)[row] - float64(whole.fitted)[row, count - 1]) > 0).any()


def test_rows_of_a_batch_keep_all_that_was_read_after_their_last_token(actor: ActorCriticLLM) -> None:
    batch, rows = read(actor, random_batch()), [5, 1]  # of 2 tokens and 1
    taken = batch.take(rows)
    assert taken.fitted.shape == (2, 2, 32)
    assert mx.array_equal(taken.final_fitted, batch.final_fitted[mx.array(rows)])
    back = batch.spread("final_fitted", taken.final_fitted, rows)
    assert mx.array_equal(back[mx.array(rows)], taken.final_fitted)
    assert back.shape == batch.final_fitted.shape


def test_without_a_critic_nothing_is_read(actor: ActorCriticLLM) -> None:
    how: dict[str, Any] = {"temperature": 1.0, "micro_batch_tokens": 1000}
    batch = steps.add_policy_logprobs_and_values(actor, random_batch(), critic=False, **how)
    batch = steps.add_kl_to_sa_pairs(actor, batch, estimator="k1", critic=False, **how)
    assert batch.fitted is batch.final_fitted is None


# No gradient, no optimiser


def algorithm(actor: ActorCriticLLM, **ppo: Any) -> PPO:
    settings = {"model": {"value_model": actor.value_model}, "ppo": ppo, "rollout": {"batch_size": len(LENGTHS)}}
    return PPO(validate(settings), actor, None, [], Rewards([]))


def taught(actor: ActorCriticLLM) -> PPO:
    """Return PPO with a critic that has learned from a batch of the actor's."""
    ppo, batch = algorithm(actor), read(actor, random_batch())
    batch = batch._replace(outcomes=mx.random.normal(batch.mask.shape, key=mx.random.key(3)))
    ppo.learn_potentials(batch)
    return ppo


def test_gradients_train_the_policy_alone(actor: ActorCriticLLM) -> None:
    ppo, batch = taught(actor), scored(actor, random_batch())
    critic, policy = bits(filled(actor.fitted)), actor.policy_parameters()
    assert actor.value_parameters() == {}
    assert set(ppo.learner.state()) == {"policy"}
    taken = ppo.learn(5, batch, silent)[1]  # an iteration that measures the critic's share, where it has one
    assert {step.outcome for step in taken} == {"taken"}
    assert all(np.isnan([step.value_loss, step.critic_share]).all() for step in taken)
    assert bits(filled(actor.fitted)) == critic
    assert not same(actor.policy_parameters(), policy)


def test_the_policys_gradient_is_that_beside_a_critic_of_its_own_to_the_bit(
    actor: ActorCriticLLM, folder: Path
) -> None:
    batch, ppo = scored(actor, random_batch()), algorithm(actor)
    (objective,) = ppo.objectives(1)
    found, expected = (
        Learner(one, OptimConfig()).gradients(batch, LossSettings(ppo.config.ppo, 1.0), objective)[0]
        for one in (actor, make_actor(folder, value_model="adapter"))
    )
    assert found.keys() == {"policy"}
    assert same(found["policy"], expected["policy"])


def test_a_batch_is_learned_from_once_and_what_was_read_of_it_is_dropped(actor: ActorCriticLLM) -> None:
    ppo, batch = algorithm(actor), read(actor, random_batch())
    batch = batch._replace(outcomes=mx.ones(batch.mask.shape))
    left = ppo.learn_potentials(batch)
    assert left.fitted is left.final_fitted is None
    expected = FittedCritic(32)
    expected.learn(filled(batch.fitted), np.ones(batch.mask.shape), np.array(batch.mask) > 0)
    assert bits(filled(actor.fitted)) == bits(expected)


def test_a_batch_gets_what_is_expected_before_each_token_and_after_the_last(actor: ActorCriticLLM) -> None:
    critic, batch = filled(taught(actor).actor.fitted), read(actor, random_batch(seed=4))
    found = add_fitted_potentials(critic, batch)
    for row, count in enumerate(COUNTS):
        sums = mx.concatenate([batch.fitted[row, :count], batch.final_fitted[row][None]])
        (expected,) = critic.predict(sums[None], np.arange(count + 1)[None])
        values = [*float64(found.potentials)[row, :count], found.final_potentials[row].item()]
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
        assert len(set(values)) == count + 1
        assert not found.potentials[row, count:].any()


# Checkpoints


def test_a_checkpoint_on_disk_brings_back_every_bit_and_every_value(
    actor: ActorCriticLLM, folder: Path, tmp_path: Path
) -> None:
    ppo = taught(actor)
    save_checkpoint(tmp_path / "step-000001", take_snapshot(1, ppo))
    loaded = load_checkpoint(tmp_path / "step-000001", actor.adapter_config)
    assert set(loaded.optimizer) == {"policy"}
    again = algorithm(make_actor(folder, value_model="fitted"))
    restore_snapshot(loaded, again)
    assert bits(filled(again.actor.fitted)) == bits(filled(actor.fitted))
    assert again.potential_values.state() == ppo.potential_values.state()
    one, other = (scored(each, random_batch()) for each in (actor, again.actor))
    assert mx.array_equal(one.values, other.values)
    assert mx.array_equal(one.final_values, other.final_values)
    assert float(maths.masked_variance(filled(one.values), one.mask)) > 0


@pytest.mark.parametrize(("was", "now"), [("fitted", "head"), ("head", "fitted"), ("adapter", "fitted")])
def test_a_checkpoint_with_another_kind_of_critic_is_refused(was: Any, now: Any, folder: Path) -> None:
    snapshot = take_snapshot(1, algorithm(make_actor(folder, value_model=was)))
    actor = make_actor(folder, value_model=now)
    with pytest.raises(ModelError, match=r"the critic was trained on another model: .*model\.value_model"):
        restore_critic(snapshot, actor)


def test_a_critic_of_a_narrower_model_is_refused(actor: ActorCriticLLM) -> None:
    snapshot = take_snapshot(1, algorithm(actor))._replace(value=FittedCritic(16).arrays())
    with pytest.raises(ModelError, match=r"'moments' is \[1190\], this model has \[4422\]"):
        restore_critic(snapshot, actor)
