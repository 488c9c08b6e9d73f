"""Gradients of a minibatch: those of the loss as written down, however it is cut; and the steps that follow them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import reference
from batches import LENGTHS, NAN, arrays, make_actor, moved_on, random_batch, same, scored, with_garbage
from mlx.utils import tree_flatten
from reference import Floats, float64

from trainer.arrays import filled
from trainer.config.ppo import PPOConfig
from trainer.config.schema import OptimConfig
from trainer.models.actor_critic import ActorCriticLLM
from trainer.ppo.learner import Learner, Trainables
from trainer.ppo.losses import LossSettings, LossSums, Objective
from trainer.rollout.experience import Experience

COUNTS = [count for _, count in LENGTHS]
PPO = PPOConfig(value_coef=0.3, relative_value_clip=0.2)
MAX_NEW_TOKENS = 10
OPTIONS = {
    "by sequence": PPOConfig(value_coef=0.3, loss_aggregation="sequence", entropy_coef=0.2),
    "by a constant": PPOConfig(value_coef=0.3, loss_aggregation="constant", entropy_coef=0.2),
    "values clipped": PPOConfig(relative_value_clip=0.2),
    "clipped higher": PPOConfig(clip=0.1, clip_high=0.4),
    "clipped lower": PPOConfig(clip=0.4, clip_high=0.05),
    "clipped twice": PPOConfig(clip=0.1, dual_clip=1.2),
    "KL k3 in the loss": PPOConfig(kl_in="loss", kl_estimator="k3"),
    "KL k2 in the loss, by sequence": PPOConfig(kl_in="loss", kl_estimator="k2", loss_aggregation="sequence"),
    "exact KL in the loss": PPOConfig(kl_in="loss", kl_estimator="full"),
    "weighted for the sampler": PPOConfig(importance_cap=1.1),
}
WEIGHTED = {  # by a constant, which finite differences would move
    "cispo": PPOConfig(policy_loss="cispo", clip_high=0.4, importance_cap=1.1),
    "ratio of a sequence": PPOConfig(ratio="sequence", clip=0.1, clip_high=0.05, loss_aggregation="sequence"),
    "with other terms": PPOConfig(ratio="sequence", clip=0.1, entropy_coef=0.2, kl_in="loss", kl_estimator="k3"),
}
OBJECTIVES: list[Objective] = ["joint", "policy", "value"]


@pytest.fixture(scope="module")
def actor(tmp_path_factory: pytest.TempPathFactory) -> ActorCriticLLM:
    return make_actor(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def batch(actor: ActorCriticLLM) -> Experience:
    """Return a batch whose ratios and values have moved, so that some tokens are clipped and some are not."""
    return moved_on(scored(actor, random_batch()))


def gradients(
    actor: ActorCriticLLM,
    batch: Experience,
    objective: Objective = "joint",
    ppo: PPOConfig = PPO,
    *,
    micro_batch_tokens: int = 10_000,
    temperature: float = 1.0,
    kl_coef: float = 0.0,
    value_unit: float = 1.0,
) -> tuple[Trainables, LossSums]:
    learner = Learner(actor, OptimConfig(micro_batch_tokens=micro_batch_tokens), total_steps=1)
    settings = LossSettings(ppo, temperature, kl_coef, MAX_NEW_TOKENS, value_unit)
    return learner.gradients(batch, settings, objective)[:2]


def flat(gradient: Trainables, *parts: str) -> Floats:
    """Return all numbers of `parts` (by default of everything) in one vector."""
    chosen = [gradient[part] for part in parts or sorted(gradient)]
    return np.concatenate([float64(array).ravel() for _, array in tree_flatten(chosen)])


def close(actual: Floats, expected: Floats, tolerance: float = 1e-5) -> None:
    assert abs(expected).max() > 1e-3  # there is something to compare
    np.testing.assert_allclose(actual, expected, atol=tolerance * max(1, abs(expected).max()))


def slow_loss(
    actor: ActorCriticLLM, batch: Experience, ppo: PPOConfig, temperature: float = 1.0, kl_coef: float = 0.0
) -> dict[str, float]:
    """Compute the loss and its parts in float64, from the logits and values of each sequence alone."""
    logprobs, values, entropies, divergences = [], [], [], []
    for row, (start, count) in enumerate(LENGTHS):
        ids = batch.sequences[row : row + 1, : start + count]
        hidden = actor.backbone.model(ids)
        logits = float64(actor.backbone(ids)[0, start - 1 : -1]) / temperature
        logprobs.append(reference.log_softmax(logits)[np.arange(count), np.array(ids)[0, start:]])
        entropies.append(reference.entropy(logits))
        with actor.reference():
            ref_logits = float64(actor.backbone(ids)[0, start - 1 : -1]) / temperature
        policy_logprobs, ref_logprobs = reference.log_softmax(logits), reference.log_softmax(ref_logits)
        divergences.append((np.exp(policy_logprobs) * (policy_logprobs - ref_logprobs)).sum(axis=-1))
        head = actor.value_parameters()
        values.append(float64(hidden @ head["head.weight"] + head["head.bias"])[0, start - 1 : -1])
    old, advantages, old_values, returns, ref, sampled = (
        reference.real(array, COUNTS)
        for array in (
            batch.logprobs,
            batch.advantages,
            batch.values,
            batch.returns,
            batch.ref_logprobs,
            batch.sampler_logprobs,
        )
    )

    def mean(losses: Floats) -> float:
        return reference.aggregated(losses, COUNTS, ppo.loss_aggregation, MAX_NEW_TOKENS)

    new, log_ratio = np.concatenate(logprobs), np.concatenate(logprobs) - old
    ratio = np.exp(log_ratio)
    weights = np.minimum(np.exp(old - sampled), ppo.importance_cap) if ppo.importance_cap else 1.0
    policy = mean(weights * reference.policy_loss(new, old, advantages, ppo.clip, ppo.clip_high, ppo.dual_clip))
    value = mean(reference.value_loss(np.concatenate(values), old_values, returns, ppo.relative_value_clip))
    exact, estimator = np.concatenate(divergences), ppo.kl_estimator
    kl = mean(exact if estimator == "full" else reference.kl_estimate(new, ref, estimator)) * (ppo.kl_in == "loss")
    return {
        "loss": policy + ppo.value_coef * value - ppo.entropy_coef * mean(np.concatenate(entropies)) + kl_coef * kl,
        "policy_loss": policy,
        "value_loss": value,
        "clipped": ((ratio < 1 - ppo.clip) | (ratio > 1 + (ppo.clip_high or ppo.clip))).mean(),
        "approx_kl": (ratio - 1 - log_ratio).mean(),
        "ratio": ratio.mean(),
        "ratio_max": ratio.max(),
        "log_ratio_max": abs(log_ratio).max(),
    }


# The loss


@pytest.mark.parametrize(
    ("ppo", "temperature"),
    [(PPO, 1.0), (PPO, 0.7), (OPTIONS["clipped higher"], 1.0), (OPTIONS["clipped lower"], 1.0)],
)
def test_losses_and_ratios_are_means_over_real_tokens(
    actor: ActorCriticLLM, batch: Experience, ppo: PPOConfig, temperature: float
) -> None:
    sums = gradients(actor, batch, "joint", ppo, temperature=temperature)[1]
    expected, tokens = slow_loss(actor, batch, ppo, temperature), sum(COUNTS)
    assert 0.1 < expected["clipped"] < 0.9
    for name, value in sums._asdict().items():
        assert value.item() / (1 if name.endswith("max") else tokens) == pytest.approx(expected[name], abs=1e-4), name


def test_the_value_clip_is_in_the_unit_that_is_given(actor: ActorCriticLLM, batch: Experience) -> None:
    half = PPO.model_copy(update={"relative_value_clip": 0.1})
    found = [gradients(actor, batch, "value", *how)[1].value_loss.item() for how in ((PPO,), (half,))]
    doubled = gradients(actor, batch, "value", half, value_unit=2.0)[1].value_loss.item()
    assert doubled == found[0] != found[1]


def test_the_critic_learns_what_the_score_so_far_leaves(actor: ActorCriticLLM, batch: Experience) -> None:
    phi = mx.random.normal(batch.mask.shape, key=mx.random.key(5))
    shifted = batch._replace(base_values=phi, values=filled(batch.values) + phi, returns=filled(batch.returns) + phi)
    (before, sums), (after, shifted_sums) = (gradients(actor, one, "value") for one in (batch, shifted))
    close(flat(after), flat(before))
    assert shifted_sums.value_loss.item() == pytest.approx(sums.value_loss.item(), rel=1e-5)


def assert_slope(actor: ActorCriticLLM, batch: Experience, ppo: PPOConfig, **how: float) -> Trainables:
    """Check that the slope of `slow_loss` along the joint gradient is its squared norm. Leaves the actor moved."""
    gradient, step = gradients(actor, batch, "joint", ppo, **how)[0], 3e-4
    policy, value = actor.policy_parameters(), actor.value_parameters()

    def loss_along_the_gradient(distance: float) -> float:
        actor.update_policy({name: array + distance * gradient["policy"][name] for name, array in policy.items()})
        actor.update_value({name: array + distance * gradient["value"][name] for name, array in value.items()})
        return slow_loss(actor, batch, ppo, **how)["loss"]

    slope = (loss_along_the_gradient(step) - loss_along_the_gradient(-step)) / (2 * step)
    assert slope == pytest.approx((flat(gradient) ** 2).sum(), rel=0.01)
    return gradient


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_the_loss_agrees_with_finite_differences_of_its_formula(tmp_path: Path, option: str) -> None:
    actor = make_actor(tmp_path / "llama")
    batch = moved_on(scored(actor, random_batch()))
    near = filled(batch.logprobs) + 0.2 * mx.random.normal(batch.mask.shape, key=mx.random.key(13))
    batch = batch._replace(sampler_logprobs=near)
    ppo = OPTIONS[option]
    gradient = assert_slope(actor, batch, ppo, kl_coef=0.5, temperature=0.7)
    plain = gradients(actor, batch, "joint", PPOConfig(value_coef=ppo.value_coef), temperature=0.7)[0]
    assert abs(flat(plain) - flat(gradient)).max() > 1e-3 * abs(flat(plain)).max(), "the option does something"


@pytest.mark.parametrize("option", [*OPTIONS, *WEIGHTED])
def test_every_option_of_the_loss_has_the_same_gradient_however_the_minibatch_is_cut(
    actor: ActorCriticLLM, batch: Experience, option: str
) -> None:
    ppo = (OPTIONS | WEIGHTED)[option]
    whole = flat(gradients(actor, batch, "joint", ppo, kl_coef=0.5)[0])
    cut = flat(gradients(actor, batch, "joint", ppo, kl_coef=0.5, micro_batch_tokens=12)[0])
    close(cut, whole)


@pytest.mark.parametrize("option", WEIGHTED)
def test_each_token_is_pushed_by_its_advantage_times_its_bounded_ratio_or_that_of_its_response(
    actor: ActorCriticLLM, batch: Experience, option: str
) -> None:
    ppo, now = WEIGHTED[option], filled(scored(actor, random_batch()).logprobs)
    log_ratio, advantages = float64(now) - float64(batch.logprobs), float64(batch.advantages)
    ratio, high = np.exp(log_ratio), 1 + (ppo.clip_high or ppo.clip)
    if ppo.ratio == "sequence":
        ratio = np.exp([[row[:count].mean()] * len(row) for row, count in zip(log_ratio, COUNTS, strict=True)])
        clipped = ((ratio > high) & (advantages > 0)) | ((ratio < 1 - ppo.clip) & (advantages < 0))
        weights, outside = np.where(clipped, 0.0, ratio), (ratio > high) | (ratio < 1 - ppo.clip)
        assert 0 < (clipped * float64(batch.mask)).sum() < sum(COUNTS)
    else:
        weights, outside = np.minimum(ratio, high), ratio > high
        near = filled(batch.logprobs) + 0.2 * mx.random.normal(batch.mask.shape, key=mx.random.key(13))
        batch = batch._replace(sampler_logprobs=near)
        weights = weights * np.minimum(np.exp(float64(batch.logprobs) - float64(near)), ppo.importance_cap)
    found, sums = gradients(actor, with_garbage(batch), "policy", ppo, kl_coef=0.5)
    assert sums.clipped.item() == (outside * float64(batch.mask)).sum()
    plain = batch._replace(logprobs=now, advantages=mx.array(weights * advantages).astype(mx.float32))
    update = {"ratio": "token", "policy_loss": "clip", "importance_cap": 0.0}
    close(flat(found), flat(gradients(actor, plain, "policy", ppo.model_copy(update=update), kl_coef=0.5)[0]))


# Ratios


def ratios_of(actor: ActorCriticLLM, batch: Experience, objective: Objective = "joint", budget: int = 10_000) -> Floats:
    learner = Learner(actor, OptimConfig(micro_batch_tokens=budget), total_steps=1)
    return float64(learner.gradients(batch, LossSettings(PPO, 0.7), objective)[2]["ratios"])


@pytest.mark.parametrize("objective", ["joint", "policy"])
@pytest.mark.parametrize("budget", [1, 18, 30, 10_000])
def test_a_pass_gives_the_ratio_of_each_token_however_it_is_cut(
    actor: ActorCriticLLM, batch: Experience, objective: Objective, budget: int
) -> None:
    new = scored(actor, random_batch(), temperature=0.7)
    expected = np.exp(float64(new.logprobs) - float64(batch.logprobs)) * float64(batch.mask)
    assert abs(expected - 1).max() > 0.1
    np.testing.assert_allclose(ratios_of(actor, batch, objective, budget), expected, rtol=1e-4, atol=1e-5)
    garbage = ratios_of(actor, with_garbage(batch), objective, budget)
    np.testing.assert_allclose(garbage[:, : expected.shape[1]], expected, rtol=1e-4, atol=1e-5)
    assert not garbage[:, expected.shape[1] :].any()


def test_a_step_of_both_has_the_ratios_of_the_actor_and_the_loss_of_the_critic(tmp_path: Path) -> None:
    actor = make_actor(tmp_path / "llama", value_model="adapter")
    batch = moved_on(scored(actor, random_batch()))
    learner = Learner(actor, OptimConfig(policy_lr=0.0, value_lr=0.0), total_steps=1)
    critic, policy = (learner.train(batch, LossSettings(PPO, 1.0), side) for side in ("value", "policy"))
    both = learner.train(batch, LossSettings(PPO, 1.0), "policy", "value")
    assert critic.ratios is None
    assert mx.array_equal(both.ratios, policy.ratios)
    norm = float(np.hypot(policy.metrics.grad_norm, critic.metrics.grad_norm))
    expected = policy.metrics._replace(value_loss=critic.metrics.value_loss, grad_norm=norm)
    assert both.metrics[:-1] == expected[:-1], "all but the critic's share, which is NaN"
    total = float64(both.ratios).sum() / sum(COUNTS)
    assert total == pytest.approx(both.metrics.ratio_mean, rel=1e-5)  # as found before the step was taken


# Cuts and padding


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("micro_batch_tokens", [1, 18, 30])
def test_micro_batches_give_the_gradient_of_one_big_batch(
    actor: ActorCriticLLM, batch: Experience, objective: Objective, micro_batch_tokens: int
) -> None:
    whole, sums = gradients(actor, batch, objective)
    parts, part_sums = gradients(actor, batch, objective, micro_batch_tokens=micro_batch_tokens)
    close(flat(parts), flat(whole))
    np.testing.assert_allclose(float64(part_sums), float64(sums), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("garbage", [NAN, -1e4, 1e4])
def test_garbage_in_the_padding_reaches_neither_gradient_nor_metric(
    actor: ActorCriticLLM, batch: Experience, objective: Objective, garbage: float
) -> None:
    ppo = PPOConfig(entropy_coef=0.1)
    spoiled = with_garbage(batch, garbage=garbage)
    clean, sums = gradients(actor, batch, objective, ppo)
    dirty, dirty_sums = gradients(actor, spoiled, objective, ppo)
    close(flat(dirty), flat(clean))
    np.testing.assert_allclose(float64(dirty_sums), float64(sums), rtol=1e-4, atol=1e-5)


# What is trained


def test_the_critics_share_is_that_of_its_gradient_on_the_shared_trunk(tmp_path: Path) -> None:
    actor = make_actor(tmp_path / "llama")
    batch = moved_on(scored(actor, random_batch()))
    for ppo in (PPO, PPO.model_copy(update={"value_coef": 30.0}), PPO.model_copy(update={"value_coef": 0.0})):
        policy = flat(gradients(actor, batch, "policy", ppo)[0], "policy")
        critic = flat(gradients(actor, batch, "joint", ppo)[0], "policy") - policy
        learner = Learner(actor, OptimConfig(policy_lr=0.0, value_lr=0.0, micro_batch_tokens=18), total_steps=1)
        share = learner.train(batch, LossSettings(ppo, 1.0), "joint", critic_share=True).metrics.critic_share
        expected = np.linalg.norm(critic) / (np.linalg.norm(critic) + np.linalg.norm(policy))
        assert share == pytest.approx(expected, rel=1e-3)
        assert np.isnan(learner.train(batch, LossSettings(ppo, 1.0), "joint").metrics.critic_share)


@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_every_trainable_leaf_gets_a_gradient_and_nothing_else_does(tmp_path: Path, value_model: str) -> None:
    actor = make_actor(tmp_path / "llama", value_model=value_model)
    batch = moved_on(scored(actor, random_batch()))
    policy, value = (gradients(actor, batch, objective)[0] for objective in ("policy", "value"))
    assert set(policy) == {"policy"}
    assert set(value) == {"value"}
    assert set(policy["policy"]) == set(actor.policy_parameters())
    assert set(value["value"]) == set(actor.value_parameters())
    for name, gradient in [*policy["policy"].items(), *value["value"].items()]:
        assert mx.abs(gradient).max().item() > 0, name


SETTINGS = LossSettings(PPOConfig(), 1.0)
ALL: dict[str, Any] = {"policy_lr": 1e-2, "value_lr": 1e-2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models") / "llama"


@pytest.fixture
def fresh_actor(folder: Path) -> ActorCriticLLM:
    return make_actor(folder)


def state(learner: Learner) -> dict[str, Any]:
    """Return moments and step counts of both optimisers, as they are now."""
    return {name: np.array(x) for name, x in tree_flatten(learner.state())}


def learner_of(actor: ActorCriticLLM, **optim: Any) -> Learner:
    return Learner(actor, OptimConfig(**(ALL | optim)), total_steps=10)


# Size of a step


@pytest.mark.parametrize("max_grad_norm", [0.01, 1e6])
def test_gradients_are_clipped_by_their_global_norm_and_the_norm_before_is_reported(
    fresh_actor: ActorCriticLLM, max_grad_norm: float
) -> None:
    batch = moved_on(scored(fresh_actor, random_batch()))
    learner = learner_of(fresh_actor, max_grad_norm=max_grad_norm)
    gradients = learner.gradients(batch, SETTINGS, "joint")[0]
    norm = math.sqrt(sum((float64(x) ** 2).sum() for _, x in tree_flatten(gradients)))
    step = learner.train(batch, SETTINGS, "joint").metrics
    moments = [x for name, x in state(learner).items() if name.endswith(".m")]
    used = math.sqrt(sum((float64(x) ** 2).sum() for x in moments)) / (1 - 0.9)
    assert step.grad_norm == pytest.approx(norm, rel=1e-4)
    assert used == pytest.approx(min(norm, max_grad_norm), rel=1e-3)
    assert 0.01 < norm < 1e6


def test_two_steps_are_those_of_adam_with_bias_correction_and_decoupled_decay(fresh_actor: ActorCriticLLM) -> None:
    settings: dict[str, Any] = {"beta1": 0.8, "beta2": 0.95, "eps": 1e-5}
    learner = learner_of(fresh_actor, weight_decay=0.1, max_grad_norm=1e6, policy_lr=0.01, value_lr=0.03, **settings)
    batch, before, gradients = moved_on(scored(fresh_actor, random_batch())), arrays(fresh_actor), []
    for _ in range(2):
        both = learner.gradients(batch, SETTINGS, "joint")[0]
        gradients.append({f"{part}.{name}": float64(x) for part, tree in both.items() for name, x in tree.items()})
        learner.train(batch, SETTINGS, "joint")
    for name, after in arrays(fresh_actor).items():
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


def test_a_joint_step_changes_adapter_and_head_and_no_weight_of_the_backbone(fresh_actor: ActorCriticLLM) -> None:
    before, frozen = arrays(fresh_actor), arrays(fresh_actor, "backbone")
    learner_of(fresh_actor).train(scored(fresh_actor, random_batch()), SETTINGS, "joint")
    assert not any(np.array_equal(x, before[name]) for name, x in arrays(fresh_actor).items())
    assert same(arrays(fresh_actor, "backbone"), frozen)


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
    fresh_actor: ActorCriticLLM, field: str, bad: float
) -> None:
    learner, batch = learner_of(fresh_actor), moved_on(scored(fresh_actor, random_batch()))
    assert learner.train(batch, SETTINGS, "joint").metrics.outcome == "taken"  # so that there are moments to spoil
    before, moments = arrays(fresh_actor), state(learner)
    spoiled = mx.array(getattr(batch, field))
    spoiled[0, 1] = bad
    assert learner.train(batch._replace(**{field: spoiled}), SETTINGS, "joint").metrics.outcome != "taken"
    assert same(arrays(fresh_actor), before)
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
