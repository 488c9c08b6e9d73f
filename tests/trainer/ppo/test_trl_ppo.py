"""TRL's PPO, recorded step by step: where the numbers are equal, and the size of each intended difference."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from apart import ROOT
from reference import float64
from trl_reference import (
    CASES,
    FOLDER,
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
    unlike,
)

from trainer import maths
from trainer.arrays import filled
from trainer.events import silent
from trainer.models.actor_critic import ActorCriticLLM
from trainer.ppo import steps
from trainer.ppo.losses import LossSettings
from trainer.ppo.metrics import rollout_metrics
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
            loss = maths.clipped_policy_loss(logprobs - old_logprobs, advantages, clip=ppo.clip)  # noqa: B023
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


GRPO: dict[str, Any] = json.loads((FOLDER / "grpo.json").read_text(encoding="utf-8"))
AGGREGATION: dict[str, maths.Aggregation] = {"grpo": "sequence", "dr_grpo": "constant", "dapo": "token"}


@pytest.mark.parametrize("case", GRPO["cases"])
def test_losses_of_groups_and_their_gradients_are_those_of_trls_grpo(case: str) -> None:
    trl = GRPO["cases"][case]
    old, ref, logprobs = (mx.array(GRPO[name]).astype(mx.float32) for name in ("old", "reference", "logprobs"))
    mask = (mx.arange(old.shape[1])[None] < mx.array(GRPO["lengths"])[:, None]).astype(mx.float32)
    advantages = mx.array(GRPO["advantages"])[:, None] * mask
    aggregation = AGGREGATION.get(trl["loss_type"], "token")

    def loss(logprobs: mx.array) -> mx.array:
        log_ratio = logprobs - old
        if trl["importance_sampling_level"] == "sequence":
            log_ratio = maths.sequence_log_ratio(log_ratio, mask)
        if trl["loss_type"] == "cispo":  # there the bound itself
            losses = maths.cispo_loss(logprobs, log_ratio, advantages, clip_high=trl["epsilon_high"] - 1)
        else:
            bounds = {"clip": trl["epsilon"], "clip_high": trl["epsilon_high"], "dual_clip": trl["delta"]}
            losses = maths.clipped_policy_loss(log_ratio, advantages, **bounds)
        losses = losses + trl["beta"] * maths.kl_loss(logprobs, ref, "k3")
        total = maths.aggregation_total(mask, aggregation, GRPO["max_tokens"])
        return maths.aggregated(losses, mask, aggregation) / total

    found, gradient = mx.value_and_grad(loss)(logprobs)
    close(found, trl["loss"])
    close(gradient, trl["gradient"])


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


def bessel(mask: Any) -> float:
    """Return the real tokens' deviation divided by their deviation with n - 1 in place of n."""
    count = int(np.array(mask).sum())
    return float(np.sqrt((count - 1) / count))


@of("plain", "k3", "monte_carlo", "minibatches")
def test_trl_puts_the_score_one_place_after_the_end_and_with_it_the_end_of_the_episode(reference: Reference) -> None:
    ours, ppo = shaped(reference, "ours"), reference.ppo
    rewards, raw = float64(ours.rewards), float64(ours.advantages)
    width = rewards.shape[1]
    for row, length in enumerate(lengths_of(reference.mask)):
        score = reference["scores"][row]
        if length == width:  # no place is left: on the last token, as ours
            close(rewards[row], reference["rewards"][row])
            close(raw[row], reference["raw_advantages"][row])
            continue
        close(reference["rewards"][row, length], score)
        close(rewards[row, length - 1] - score, reference["rewards"][row, length - 1])
        # TRL bootstraps the last token from the critic's value of the ended text, and learns that one from the score.
        after = reference["values"][row, length]
        last = score - ppo.gamma * (after + ppo.lam * (score - after))
        difference = last * (ppo.gamma * ppo.lam) ** np.arange(length - 1, -1, -1)
        close(raw[row, :length] - reference["raw_advantages"][row, :length], difference)


@of("plain", "clipped")
def test_trl_trains_the_critic_on_the_state_after_the_end_too(actor: ActorCriticLLM, reference: Reference) -> None:
    lengths, width = lengths_of(reference.mask), reference.mask.shape[1]
    assert lengths_of(reference.value_mask) == [min(length + 1, width) for length in lengths]
    batch = reference.micro_batches("ours", "values", "returns")[0]
    sums = gradients(actor, batch, reference, "value")[1]
    unlike(sums.value_loss / batch.mask.sum(), reference["vf_loss"][0])
    after = reference.value_mask & ~reference.mask
    trained = at(reference["loss_by_value"][0], after[reference["rows"][0]])
    assert (trained != 0).any()


@of(*STOP_IS_NO_PAD)
def test_trl_whitens_advantages_by_the_unbiased_variance(reference: Reference) -> None:
    whitened = maths.whiten(reference.array("raw_advantages"), mx.array(reference.mask))
    close(bessel(reference.mask) * whitened, reference["advantages"])
    unlike(whitened, reference["advantages"])


@of("whitened_rewards")
def test_trl_whitens_rewards_over_the_place_after_the_end_too(reference: Reference) -> None:
    raw, mask = reference.array("raw_rewards"), mx.array(reference.value_mask)
    mean = mx.where(mask, maths.masked_mean(raw, mask), 0.0)
    whitened = maths.whiten(raw, mask, shift_mean=False)
    close((whitened - mean) * bessel(reference.value_mask) + mean, reference["rewards"])
    batch = reference.filled("ours", "kl", "scores")
    batch = batch._replace(token_scores=mx.zeros_like(batch.mask))
    ours = steps.adjust_rewards_with_kl(batch, kl_coef=reference.ppo.kl_coef, whiten=True)
    full = [row for row, length in enumerate(lengths_of(reference.mask)) if length == reference.mask.shape[1]]
    unlike(float64(ours.rewards)[full], reference["rewards"][full])


@of("plain")
def test_trl_writes_1_in_place_of_the_log_probs_of_padding(actor: ActorCriticLLM, reference: Reference) -> None:
    batch = scored(actor, reference)
    assert (at(reference["logprobs"], ~reference.mask) == 1).all()
    assert (at(batch.logprobs, ~reference.mask) == 0).all()


@of("pad_is_stop")
def test_trl_takes_lengths_from_ids_so_that_a_stop_that_is_the_pad_is_not_trained_on(reference: Reference) -> None:
    stopped = ~reference["truncated"]
    assert lengths_of(reference.mask) == (reference["response_lengths"] - stopped).tolist()
    assert 0 in lengths_of(reference.mask)  # a response that is nothing but the stop
    assert lengths_of(reference.batch().mask) == reference["response_lengths"].tolist()
    stops = np.eye(reference.mask.shape[1], dtype=bool)[reference["response_lengths"] - 1] & stopped[:, None]
    assert (at(reference["loss_by_logprob"][0], stops[reference["rows"][0]]) == 0).all()


@of("clipped")
def test_trl_takes_the_samplers_log_probs_for_the_old_ones(actor: ActorCriticLLM, reference: Reference) -> None:
    assert abs(at(reference["ratios"][0], reference.mask[reference["rows"][0]]) - 1).max() > 0.01
    batch = scored(actor, reference)
    unlike(at(batch.logprobs, batch.mask), at(reference["logprobs"], reference.mask))
    ratios = learner_of(actor).ratios(batch, temperature=reference.temperature, progress=silent)
    close(at(ratios, batch.mask), np.ones(int(batch.mask.sum())))


@of("clipped")
def test_trl_reports_k2_over_padding_too_as_the_distance_from_the_old_policy(
    actor: ActorCriticLLM, reference: Reference
) -> None:
    batch, rows = reference.micro_batches("ours", "logprobs", "advantages")[0], reference["rows"][0]
    mask = reference.mask[rows]
    log_ratio = reference["new_logprobs"][0] - reference["logprobs"][rows]
    close((log_ratio**2).sum() / 2 / mask.size, reference["approx_kl"][0])
    real = at(log_ratio, mask)
    ours = gradients(actor, batch, reference, "policy")[1].approx_kl / batch.mask.sum()
    close(ours, (np.exp(real) - 1 - real).mean())
    unlike(ours, reference["approx_kl"][0])


@of("clipped", "minibatches")
def test_trl_counts_as_clipped_only_where_the_clip_takes_hold(actor: ActorCriticLLM, reference: Reference) -> None:
    ppo, batch = reference.ppo, reference.micro_batches("ours", "logprobs", "advantages")[0]
    for number, rows in enumerate(reference["rows"]):
        mask = reference.mask[rows]
        ratio, advantages = at(reference["ratios"][number], mask), at(reference["advantages"][rows], mask)
        held = np.where(advantages > 0, ratio > 1 + ppo.clip, ratio < 1 - ppo.clip)
        close(held.mean(), reference["pg_clipfrac"][number])
    sums = gradients(actor, batch, reference, "policy")[1]
    ratio = at(reference["ratios"][0], reference.mask[reference["rows"][0]])
    close(sums.clipped / batch.mask.sum(), (abs(ratio - 1) > ppo.clip).mean())
    assert sums.clipped.item() / batch.mask.sum().item() >= reference["pg_clipfrac"][0]


@of("clipped", "minibatches")
def test_trl_reports_the_mean_ratio_over_padding_too(actor: ActorCriticLLM, reference: Reference) -> None:
    batch, rows = reference.micro_batches("ours", "logprobs", "advantages")[0], reference["rows"][0]
    sums, tokens = gradients(actor, batch, reference, "policy")[1], int(reference.mask[rows].sum())
    places = reference.mask[rows].size
    close((sums.ratio + places - tokens) / places, reference["ratios"][0].mean())
    close(sums.ratio / tokens, at(reference["ratios"][0], reference.mask[rows]).mean())


@of("plain", "k3")
def test_trl_reports_the_mean_entropy_over_padding_too(actor: ActorCriticLLM, reference: Reference) -> None:
    batch, rows = scored(actor, reference), reference["rows"][0]
    close(reference["entropies"][0].mean(), reference.metrics["policy/entropy_avg"])
    ours = maths.masked_mean(filled(batch.entropy), batch.mask)
    close(ours, at(reference["entropies"][0], reference.mask[rows]).mean())
    unlike(ours, reference.metrics["policy/entropy_avg"])


@of("plain", "k3")
def test_trl_reports_minus_the_log_prob_of_a_response_as_the_entropy_of_the_objective(
    actor: ActorCriticLLM, reference: Reference
) -> None:
    batch = scored(actor, reference)
    close(-filled(batch.logprobs).sum(axis=1).mean(), reference.metrics["objective/entropy"])
    unlike(filled(batch.entropy).sum(axis=1).mean(), reference.metrics["objective/entropy"])


@of("plain", "k3")
def test_trl_reports_the_kl_by_the_estimator_of_the_penalty(actor: ActorCriticLLM, reference: Reference) -> None:
    batch, ppo = scored(actor, reference), reference.ppo
    ours = shaped(reference, "ours")
    batch = ours._replace(
        logprobs=batch.logprobs, ref_logprobs=batch.ref_logprobs, entropy=batch.entropy, token_scores=ours.token_scores
    )
    reported = rollout_metrics(batch, kl_coef=ppo.kl_coef)
    close(reported["score_mean"], reference.metrics["objective/scores"])
    close(reported["reward_mean"], reference.metrics["objective/rlhf_reward"])
    by_k1 = (reference["logprobs"] - reference["ref_logprobs"]).sum(axis=1).mean()
    close(reported["kl"], by_k1)
    same = ppo.kl_estimator == "k1"
    (close if same else unlike)(reported["kl"], reference.metrics["objective/kl"])


@of("accumulated")
def test_trl_takes_the_mean_of_the_means_of_micro_batches(actor: ActorCriticLLM, reference: Reference) -> None:
    parts = reference.micro_batches("ours", "logprobs", "advantages")
    tokens = [int(part.mask.sum()) for part in parts]
    assert tokens[0] != tokens[1]
    means = [gradients(actor, part, reference, "policy")[0] for part in parts]
    close((means[0] + means[1]) / 2, reference["policy_gradients"][0])
    whole = reference.filled("ours", "logprobs", "advantages")
    ours = gradients(actor, whole, reference, "policy")[0]
    close(ours, np.average(means, axis=0, weights=tokens))
    unlike(ours, reference["policy_gradients"][0])


@of("accumulated_minibatches")
def test_trl_takes_a_step_for_so_many_micro_batches_whatever_the_minibatches(
    actor: ActorCriticLLM, reference: Reference
) -> None:
    minibatches = reference.micro_batches("ours", "logprobs", "advantages")
    assert len(minibatches) == reference.settings["num_mini_batches"] == 2
    assert len(reference["policy_gradients"]) == 1
    means = [gradients(actor, batch, reference, "policy")[0] for batch in minibatches]  # of one and the same policy
    close((means[0] + means[1]) / 2, reference["policy_gradients"][0])


@of("accumulated_minibatches")
def test_trl_divides_its_averages_by_passes_that_were_not_made(reference: Reference) -> None:
    planned = reference.settings["num_mini_batches"] * reference.settings["gradient_accumulation_steps"]
    assert planned == 2 * len(reference["pg_loss"])
    close(reference["pg_loss"].sum() / planned, reference.metrics["loss/policy_avg"])


@of("minibatches")
def test_trl_does_not_bound_the_norm_of_the_gradient(actor: ActorCriticLLM, reference: Reference) -> None:
    learner = learner_of(actor, reference.optim("policy", max_grad_norm=0.5))
    for step, batch in enumerate(reference.micro_batches("ours", "logprobs", "advantages")):
        settings = LossSettings(reference.ppo, reference.temperature)
        metrics = learner.train(batch, settings, "policy").metrics
        assert metrics.grad_norm > 0.5
        if step == 0:
            close(metrics.grad_norm, np.linalg.norm(reference["policy_gradients"][0]))
    unlike(flat(actor.policy_parameters()), reference["policy_after"][-1])


@of("plain")
def test_trl_weighs_the_loss_of_a_critic_that_shares_nothing_with_the_policy(
    actor: ActorCriticLLM, reference: Reference
) -> None:
    batch = reference.micro_batches("trl", "values", "returns")[0]
    ours = gradients(actor, batch, reference, "value")[0]
    close(reference.ppo.value_coef * ours, reference["value_gradients"][0])
    unlike(ours, reference["value_gradients"][0])


def test_the_page_gives_a_reason_for_every_difference() -> None:
    page = (ROOT / "docs" / "evidence" / "trl-differences.md").read_text(encoding="utf-8")
    named = re.findall(r"`(test_trl_\w+)`", page)
    assert sorted(named) == sorted(name for name in globals() if name.startswith("test_trl_"))
