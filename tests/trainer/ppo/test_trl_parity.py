"""On fixed rollouts our numbers equal those of TRL 1.12.0's PPOTrainer.

Where TRL counts the place after the end of a response as one more (test_trl_differences.py), ours is given it too.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest
from reference import float64
from trl_reference import (
    CASES,
    STOP_IS_NO_PAD,
    Reference,
    at,
    close,
    flat,
    gradients,
    learner_of,
    lengths_of,
    make_actor,
    of,
    scored,
    shaped,
    unflattened,
)

from trainer import maths
from trainer.models.actor_critic import ActorCriticLLM
from trainer.ppo import steps
from trainer.ppo.losses import LossSettings
from trainer.rewards import RewardInput, Rewards, SourceScores, WeightedSource


@pytest.fixture
def actor() -> ActorCriticLLM:
    return make_actor()


@pytest.fixture
def reference(request: pytest.FixtureRequest) -> Reference:
    return Reference(request.param)


@of(*STOP_IS_NO_PAD)
def test_masks_are_the_same(reference: Reference) -> None:
    assert (np.array(reference.batch().mask) == reference.mask).all()


@of("plain", "k3", "monte_carlo", "whitened_rewards", "minibatches")  # elsewhere the rollout's differ on purpose
def test_log_probs_values_and_entropy_of_the_rollout_are_the_same(actor: ActorCriticLLM, reference: Reference) -> None:
    batch = scored(actor, reference)
    close(at(batch.logprobs, batch.mask), at(reference["logprobs"], reference.mask))
    close(at(batch.values, batch.mask), at(reference["values"], reference.mask))
    ended = [row for row, length in enumerate(lengths_of(reference.mask)) if length < reference.mask.shape[1]]
    after = [reference["values"][row, lengths_of(reference.mask)[row]] for row in ended]
    close(float64(batch.final_values)[ended], after)
    rows = reference["rows"][0]
    close(at(float64(batch.entropy)[rows], reference.mask[rows]), at(reference["entropies"][0], reference.mask[rows]))


@of(*STOP_IS_NO_PAD)
def test_log_probs_of_the_reference_are_the_same(actor: ActorCriticLLM, reference: Reference) -> None:
    close(at(scored(actor, reference).ref_logprobs, reference.mask), at(reference["ref_logprobs"], reference.mask))


@of(*CASES)
def test_kl_of_every_token_is_the_same(reference: Reference) -> None:
    estimator = reference.ppo.kl_estimator
    found = maths.kl_estimate(reference.array("logprobs"), reference.array("ref_logprobs"), estimator)
    close(found, np.minimum(reference["kl"], 10) if estimator == "k3" else reference["kl"])  # TRL does not bound k3


@of("plain", "k3")
def test_the_penalty_for_a_missing_stop_is_the_same(reference: Reference) -> None:
    class Given:
        name = "given"

        def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
            return SourceScores(reference["reward_scores"].tolist())

    penalty = reference.settings["missing_eos_penalty"] or 0.0
    rewards = Rewards([WeightedSource(Given())], missing_stop_penalty=penalty)
    batch, _ = steps.compute_rewards(rewards, reference.batch(), reference.prompts())
    close(batch.scores, reference["scores"])


@of("monte_carlo")
def test_with_lambda_1_advantages_and_returns_of_every_token_are_the_same(reference: Reference) -> None:
    batch = shaped(reference, "ours")
    close(at(batch.advantages, batch.mask), at(reference["raw_advantages"], reference.mask))
    close(at(batch.returns, batch.mask), at(reference["returns"], reference.mask))


@of(*CASES)
def test_with_the_place_after_the_end_counted_rewards_advantages_and_returns_are_the_same(reference: Reference) -> None:
    batch = shaped(reference, "trl")
    assert (np.array(batch.mask) == reference.value_mask).all()
    close(batch.rewards, reference["rewards"])
    close(batch.advantages, reference["raw_advantages"])
    close(batch.returns, reference["returns"])


@of(*STOP_IS_NO_PAD)
def test_losses_of_tokens_and_their_gradients_are_the_same(reference: Reference) -> None:
    ppo = reference.ppo
    for number, rows in enumerate(reference["rows"]):
        mask, value_mask = (mx.array(m[rows]) for m in (reference.mask, reference.value_mask))
        old_logprobs, advantages, old_values, returns = (
            reference.array(name)[mx.array(rows)] for name in ("logprobs", "advantages", "values", "returns")
        )

        def policy_loss(logprobs: mx.array) -> mx.array:
            loss = maths.clipped_policy_loss(logprobs, old_logprobs, advantages, clip=ppo.clip)  # noqa: B023
            return maths.masked_mean(loss, mask)  # noqa: B023

        def value_loss(values: mx.array) -> mx.array:
            loss = maths.clipped_value_loss(values, old_values, returns, clip=ppo.relative_value_clip)  # noqa: B023
            return maths.masked_mean(loss, value_mask)  # noqa: B023

        passes = reference.settings["gradient_accumulation_steps"]
        logprobs, values = reference.array("new_logprobs")[number], reference.array("new_values")[number]
        loss, by_logprob = mx.value_and_grad(policy_loss)(logprobs)
        close(loss, reference["pg_loss"][number])
        close(by_logprob / passes, reference["loss_by_logprob"][number])
        loss, by_value = mx.value_and_grad(value_loss)(values)
        close(loss, reference["vf_loss"][number])
        close(ppo.value_coef * by_value / passes, reference["loss_by_value"][number])


@of("plain", "k3", "monte_carlo", "whitened_rewards", "clipped", "minibatches")
def test_losses_and_gradients_of_the_parameters_are_the_same(actor: ActorCriticLLM, reference: Reference) -> None:
    policy_batches = reference.micro_batches("ours", "logprobs", "advantages")
    value_batches = reference.micro_batches("trl", "values", "returns")
    for step, (policy_batch, value_batch) in enumerate(zip(policy_batches, value_batches, strict=True)):
        gradient, sums = gradients(actor, policy_batch, reference, "policy")
        close(gradient, reference["policy_gradients"][step])
        close(sums.policy_loss / policy_batch.mask.sum(), reference["pg_loss"][step])
        gradient, sums = gradients(actor, value_batch, reference, "value")
        close(reference.ppo.value_coef * gradient, reference["value_gradients"][step])
        close(sums.value_loss / value_batch.mask.sum(), reference["vf_loss"][step])
        actor.update_policy(unflattened("policy", reference["policy_after"][step]))
        actor.update_value(unflattened("value", reference["value_after"][step]))


@of("plain", "k3", "clipped", "minibatches")
def test_parameters_after_every_optimiser_step_are_the_same(actor: ActorCriticLLM, reference: Reference) -> None:
    settings = LossSettings(reference.ppo, reference.temperature)
    policy, critic = (learner_of(actor, reference.optim(part)) for part in ("policy", "value"))
    policy_batches = reference.micro_batches("ours", "logprobs", "advantages")
    value_batches = reference.micro_batches("trl", "values", "returns")
    for step, (policy_batch, value_batch) in enumerate(zip(policy_batches, value_batches, strict=True)):
        policy.train(policy_batch, settings, "policy")
        critic.train(value_batch, settings, "value")
        close(flat(actor.policy_parameters()), reference["policy_after"][step])
        close(flat(actor.value_parameters()), reference["value_after"][step])
