"""Gradients of a minibatch: those of the loss as written down, however it is cut, and of nothing frozen."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import reference
from batches import LENGTHS, NAN, make_actor, moved_on, random_batch, scored, with_garbage
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


@pytest.mark.parametrize("scale", [0.01, 10.0, 100.0, 1000.0])
def test_the_value_loss_pulls_on_trunk_and_head_as_hard_at_every_scale_of_the_rewards(
    actor: ActorCriticLLM, batch: Experience, scale: float
) -> None:
    silent_batch = batch._replace(advantages=mx.zeros_like(filled(batch.advantages)))
    scaled = silent_batch._replace(values=scale * filled(batch.values), returns=scale * filled(batch.returns))
    before = gradients(actor, silent_batch)[0]
    actor.value_scale = scale  # the head's multiples stay, its values grow
    after = gradients(actor, scaled, value_unit=scale)[0]
    actor.value_scale = None
    for part in ("policy", "value"):
        close(flat(after, part), flat(before, part))


def test_a_new_scale_of_the_head_leaves_its_values_as_they_are(tmp_path: Path) -> None:
    actor = make_actor(tmp_path / "llama")
    before = float64(scored(actor, random_batch()).values)
    for scale in (0.02, 500.0):
        actor.use_value_scale(scale)
        close(float64(scored(actor, random_batch()).values), before)


def test_the_critic_learns_what_the_score_so_far_leaves(actor: ActorCriticLLM, batch: Experience) -> None:
    phi = mx.random.normal(batch.mask.shape, key=mx.random.key(5))
    shifted = batch._replace(prefix_values=phi, values=filled(batch.values) + phi, returns=filled(batch.returns) + phi)
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


@pytest.mark.parametrize("entropy_coef", [0.0, 0.5])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_joint_gradient_agrees_with_finite_differences_of_the_loss(
    tmp_path: Path, entropy_coef: float, temperature: float
) -> None:
    actor = make_actor(tmp_path / "llama")
    batch = moved_on(scored(actor, random_batch()))
    ppo = PPOConfig(value_coef=0.3, entropy_coef=entropy_coef)
    assert_slope(actor, batch, ppo, temperature=temperature)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_the_loss_agrees_with_finite_differences_of_its_formula(tmp_path: Path, option: str) -> None:
    actor = make_actor(tmp_path / "llama")
    batch = moved_on(scored(actor, random_batch()))
    near = filled(batch.logprobs) + 0.2 * mx.random.normal(batch.mask.shape, key=mx.random.key(13))
    batch = batch._replace(sampler_logprobs=near)
    ppo = OPTIONS[option]
    gradient = assert_slope(actor, batch, ppo, kl_coef=0.5)
    plain = gradients(actor, batch, "joint", PPOConfig(value_coef=ppo.value_coef))[0]
    assert abs(flat(plain) - flat(gradient)).max() > 1e-3 * abs(flat(plain)).max(), "the option does something"


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_the_loss_has_the_same_gradient_however_the_minibatch_is_cut(
    actor: ActorCriticLLM, batch: Experience, option: str
) -> None:
    whole = flat(gradients(actor, batch, "joint", OPTIONS[option], kl_coef=0.5)[0])
    cut = flat(gradients(actor, batch, "joint", OPTIONS[option], kl_coef=0.5, micro_batch_tokens=12)[0])
    close(cut, whole)


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


@pytest.mark.parametrize("budget", [1, 30])
def test_ratios_without_a_step_are_those_of_a_pass_with_one(
    actor: ActorCriticLLM, batch: Experience, budget: int
) -> None:
    reported: list[tuple[int, int]] = []
    learner = Learner(actor, OptimConfig(micro_batch_tokens=budget), total_steps=1)
    measured = learner.ratios(batch, temperature=0.7, progress=lambda *done: reported.append(done))
    np.testing.assert_allclose(float64(measured), ratios_of(actor, batch), rtol=1e-4, atol=1e-5)
    assert reported[-1] == (batch.size, batch.size)


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


def test_the_joint_gradient_is_policy_plus_c1_times_value(actor: ActorCriticLLM, batch: Experience) -> None:
    def joint(c1: float) -> Trainables:
        return gradients(actor, batch, "joint", PPO.model_copy(update={"value_coef": c1}))[0]

    policy, value = (gradients(actor, batch, objective)[0] for objective in ("policy", "value"))
    close(flat(joint(0), "policy"), flat(policy))
    close(flat(joint(0.3), "value"), 0.3 * flat(value))
    trunk = flat(joint(1), "policy") - flat(joint(0), "policy")  # the value loss reaches the shared trunk
    close(flat(joint(0.3), "policy"), flat(policy) + 0.3 * trunk)
    assert abs(trunk).max() > 1e-3


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


def test_the_value_head_starts_at_zero_and_so_do_its_values(tmp_path: Path) -> None:
    actor = make_actor(tmp_path / "llama", fresh=True)
    assert not any(mx.any(array != 0).item() for array in actor.value_parameters().values())
    batch = scored(actor, random_batch(), kl_coef=0)
    assert not mx.any(batch.values != 0)
    for row, count in enumerate(COUNTS):  # so the first advantages are the scores themselves
        assert batch.advantages[row, :count].tolist() == pytest.approx([batch.scores[row].item()] * count)


def test_a_run_that_ends_between_two_micro_batches_leaves_the_parameters_as_they_were(
    actor: ActorCriticLLM, batch: Experience
) -> None:
    def end(done: int, total: int) -> None:
        raise InterruptedError

    before = {**actor.policy_parameters(), **actor.value_parameters()}
    learner = Learner(actor, OptimConfig(micro_batch_tokens=1), total_steps=1)
    with pytest.raises(InterruptedError):
        learner.gradients(batch, LossSettings(PPO, 1.0), "joint", end)
    after = {**actor.policy_parameters(), **actor.value_parameters()}
    assert all(after[name] is array for name, array in before.items())
