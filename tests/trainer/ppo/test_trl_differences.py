"""Deliberate differences from TRL 1.12.0's PPOTrainer: what it does, what we do, and proof that this is all.

The reasons are in docs/evidence/trl-differences.md, which lists every test below.
"""

from __future__ import annotations

import re
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from apart import ROOT
from reference import float64
from trl_reference import (
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
    unlike,
)

from trainer import maths
from trainer.arrays import filled
from trainer.events import silent
from trainer.models.actor_critic import ActorCriticLLM
from trainer.ppo import steps
from trainer.ppo.losses import LossSettings
from trainer.ppo.metrics import rollout_metrics


@pytest.fixture
def actor() -> ActorCriticLLM:
    return make_actor()


@pytest.fixture
def reference(request: pytest.FixtureRequest) -> Reference:
    return Reference(request.param)


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
