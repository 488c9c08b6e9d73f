"""Facts about a token whose advantage, clip or KL is not plain PPO's: against float64, and in words."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_samples import SETTINGS, row_without_critic, sample_row, sample_without_critic, token_sample

from trainer import maths
from trainer.config.ppo import PPOConfig
from trainer.ppo.estimators import ESTIMATORS
from trainer.rollout.experience import Experience
from trainer.runs.folder import RunFolder
from trainer.runs.samples import SampleSettings, read_samples, write_samples
from workbench.run.sample_reader import read_token_sample
from workbench.run.sample_table import SampleKey
from workbench.samples.token_facts import TokenFacts
from workbench.samples.token_maths import advantage_terms
from workbench.samples.token_sentence import sentence

WITHOUT_CRITIC = ("reinforce", "rloo", "remax", "grpo")
WHOLE = ("rloo", "grpo")


def settings(**changes: Any) -> SampleSettings:
    return replace(SETTINGS, **changes)


def token(
    *,
    advantage: float = 0.41,
    ratios: tuple[float, ...] = (),
    logprob: float = -2.5,
    ref_logprob: float = -2.5,
    advantage_scale: float | None = None,
    **changes: Any,
) -> TokenFacts:
    """Return a token in the middle of a response; changes: of settings that whiten nothing."""
    row = sample_row(0, 3)
    numbers = {"advantages": advantage, "logprobs": logprob, "sampler_logprobs": logprob, "ref_logprobs": ref_logprob}
    columns = {name: [value, *row[name][1:]] for name, value in numbers.items()}
    without = {} if changes.get("estimator", "gae") == "gae" else {"values": None, "td_errors": None}
    found = token_sample(length=3, **columns, **without, advantage_scale=advantage_scale, ratios=[list(ratios)] * 3)
    base = {"whiten_advantages": False, "epochs": max(len(ratios), 1), "kl_coef": 0.0}
    return TokenFacts(replace(found, settings=settings(**base | changes)), 0)


# Numbers


@pytest.mark.parametrize("estimator", WITHOUT_CRITIC)
@pytest.mark.parametrize("changes", [{}, {"gamma": 0.9}, {"whiten_advantages": False}, {"kl_in": "loss"}])
def test_the_numbers_are_those_of_float64_formulas_on_the_file(tmp_path: Path, estimator: str, changes: Any) -> None:
    held = settings(estimator=estimator, **changes)
    folder = RunFolder(tmp_path)
    written = [row_without_critic(estimator, row, gamma=held.gamma) for row in (0, 2)]
    write_samples(folder.samples_file(7), written, 7, held)
    for row, file in zip((0, 2), read_samples(folder.samples_file(7)).to_pylist(), strict=True):
        found = read_token_sample(folder, SampleKey(7, row))
        rewards = np.array(file["rewards"], dtype=np.float64)
        for t in range(len(rewards)):
            facts = TokenFacts(found, t)
            ahead = np.arange(len(rewards) - t)
            to_go = float((rewards[t:] * (1.0 if estimator in WHOLE else held.gamma) ** ahead).sum())
            earned = float(rewards.sum()) if estimator in WHOLE else file["returns"][t]
            expected = (earned - file["baseline"]) / (file["advantage_scale"] or 1)
            assert facts.recomputed["return_"].value == pytest.approx(to_go, rel=1e-12, abs=1e-15)
            assert facts.recomputed["advantage"].value == pytest.approx(expected, rel=1e-12, abs=1e-15)
            assert (facts.total_reward is None) == (estimator not in WHOLE)
            assert (facts.baseline, facts.advantage_scale) == (file["baseline"], file["advantage_scale"])
            assert (facts.value, facts.next_value, facts.td_error) == (None, None, None)
            assert facts.recomputed["td_error"].value is None
            wrong = {"reward"} if held.kl_in == "loss" else set()  # the row has the penalty in its rewards
            assert {*facts.disagreements} == wrong


def rollout(rewards: mx.array, mask: mx.array) -> Experience:
    size, zeros = mask.shape[0], mx.zeros_like(mask)
    return Experience(
        sequences=zeros,
        responses=zeros,
        prompt_lengths=mx.ones(size),
        response_lengths=mask.sum(axis=1),
        mask=mask,
        truncated=mx.zeros(size),
        sampler_logprobs=zeros,
        texts=[""] * size,
        prompt_indices=[0] * size,
        rewards=mx.where(mask > 0, rewards, 0.0),
        baselines=mx.array([0.3] * size),  # which remax takes from greedy responses
    )


@pytest.mark.parametrize("estimator", WITHOUT_CRITIC)
@pytest.mark.parametrize("group_std", [True, False])
def test_the_trainers_float32_numbers_agree_and_wrong_ones_do_not(estimator: str, group_std: bool) -> None:
    lengths, gamma = [400, 37, 1, 120], 0.99
    mask = mx.array([[1.0] * length + [0.0] * (400 - length) for length in lengths])
    batch = rollout(mx.random.normal(mask.shape, key=mx.random.key(3)), mask)
    ppo = PPOConfig.model_validate({"estimator": estimator, "gamma": gamma, "group_std": group_std})
    batch = ESTIMATORS[estimator](batch, ppo, 2)
    held = {"estimator": estimator, "gamma": gamma, "group_std": group_std}
    for row, length in enumerate(lengths):
        columns = {name: getattr(batch, name)[row, :length].tolist() for name in ("rewards", "advantages", "returns")}
        scales = batch.advantage_scales
        numbers = {
            "baseline": batch.baselines[row].item() if batch.baselines is not None else None,
            "advantage_scale": None if scales is None else scales[row].item(),
        }
        found = token_sample(length=length, **columns, values=None, td_errors=None, **numbers)
        found = replace(found, settings=settings(**held))
        for t in range(0, length, 7):
            again = TokenFacts(found, t).recomputed
            assert again["advantage"].value is not None
            assert again["advantage"].agrees(columns["advantages"][t])
            assert again["return_"].agrees(columns["returns"][t])
        for name, column in (("advantage", "advantages"), ("return_", "returns")):
            off = {column: [x * 1.001 + 1e-4 for x in columns[column]]}
            assert name in TokenFacts(replace(found, numbers={**found.numbers, **off}), length // 2).disagreements


@pytest.mark.parametrize("estimator", WITHOUT_CRITIC)
@pytest.mark.parametrize("index", [0, 2, 5])
def test_the_terms_are_the_rewards_that_the_advantage_counts(estimator: str, index: int) -> None:
    found = sample_without_critic(estimator, gamma=0.8)
    terms, rewards = advantage_terms(found, index), found.numbers["rewards"]
    first = 0 if estimator in WHOLE else index
    assert [term.token for term in terms] == list(range(first, 6))
    assert [term.x for term in terms] == rewards[first:]
    assert [term.weight for term in terms] == [1.0 if estimator in WHOLE else 0.8**ahead for ahead in range(6 - first)]
    facts = TokenFacts(found, index)
    total = facts.total_reward if estimator in WHOLE else facts.recomputed["return_"].value
    assert terms[-1].running == pytest.approx(total, abs=1e-12)


def test_without_a_baseline_no_advantage_is_made_up() -> None:
    for estimator in (*WITHOUT_CRITIC, "another"):
        found = replace(
            sample_without_critic("grpo"),
            baseline=math.nan,
            advantage_scale=math.nan,
            settings=settings(estimator=estimator),
        )
        facts = TokenFacts(found, 1)
        assert facts.recomputed["advantage"].value is None
        assert facts.baseline is None
        assert "critic" not in sentence(facts)


def test_a_scale_of_zero_divides_nothing() -> None:
    of = replace(sample_without_critic("grpo"), advantage_scale=0.0)
    assert TokenFacts(of, 1).recomputed["advantage"].value is None


# The loss


@given(
    ratio=st.floats(0.3, 6),
    advantage=st.floats(-2, 2).filter(lambda x: x == 0 or abs(x) > 1e-3),
    clip_high=st.sampled_from([0.0, 0.28, 0.1]),
    dual_clip=st.sampled_from([0.0, 1.1, 3.0]),
)
def test_the_loss_is_the_trainers_and_the_clip_takes_hold_where_its_gradient_is_zero(
    ratio: float, advantage: float, clip_high: float, dual_clip: float
) -> None:
    if any(abs(ratio - edge) < 1e-4 for edge in (0.8, 1.1, 1.2, 1.28, 3.0)):
        return
    one = token(advantage=advantage, ratios=(ratio,), clip_high=clip_high, dual_clip=dual_clip).passes[0]

    def loss(logprob: mx.array) -> mx.array:
        bounds = {"clip_high": clip_high or None, "dual_clip": dual_clip or None}
        return maths.clipped_policy_loss(logprob, mx.array(0.0), mx.array(advantage), clip=0.2, **bounds)

    at = mx.array(math.log(ratio))
    assert one.loss is not None
    assert one.loss.total == pytest.approx(loss(at).item(), rel=1e-5, abs=1e-6)
    assert one.clipped == (advantage != 0 and mx.grad(loss)(at).item() == 0)
    assert one.outside == (not 0.8 <= ratio <= 1 + (clip_high or 0.2))


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@given(ratio=st.floats(0.5, 2), gap=st.floats(-15, 15), cap=st.sampled_from([0.0, 1.5]))
def test_a_kl_in_the_loss_is_that_of_each_passs_policy(estimator: str, ratio: float, gap: float, cap: float) -> None:
    changes = {"kl_in": "loss", "kl_coef": 0.3, "kl_estimator": estimator, "importance_cap": cap}
    facts = token(ratios=(ratio,), logprob=-2.5, ref_logprob=-2.5 + gap, **changes)
    (loss,) = (one.loss for one in facts.passes)
    assert loss is not None

    def kl(logprob: mx.array) -> mx.array:
        return maths.kl_loss(logprob, mx.array(-2.5 + gap), "k2" if estimator == "k2" else "k3")

    now = mx.array(-2.5 + math.log(ratio))
    policy = maths.clipped_policy_loss(now, mx.array(-2.5), mx.array(0.41), clip=0.2)
    assert loss.kl == pytest.approx(0.3 * kl(now).item(), abs=1e-5)
    assert loss.total == pytest.approx(policy.item() + 0.3 * kl(now).item(), abs=1e-5), "a weight of 1 changes nothing"
    assert facts.kl_pull == pytest.approx(-0.3 * mx.grad(kl)(mx.array(-2.5)).item(), abs=1e-5)
    assert facts.kl_penalty is None


def test_a_kl_in_the_loss_is_not_part_of_the_reward() -> None:
    plain = sample_row(0, 4)
    rewards = [0.0, 0.0, 0.0, plain["sequence_score"]]
    found = replace(token_sample(length=4, rewards=rewards), settings=settings(kl_in="loss", kl_estimator="k3"))
    again = [TokenFacts(found, t).recomputed["reward"].value for t in range(4)]
    assert again == rewards
    assert not any("reward" in TokenFacts(found, t).disagreements for t in range(4))
    in_reward = replace(found, settings=settings(kl_in="reward", kl_coef=0.5))
    assert all("reward" in TokenFacts(in_reward, t).disagreements for t in range(4))


def test_a_token_is_weighted_by_the_ratio_of_trainer_to_sampler() -> None:
    found = token_sample(length=2, logprobs=[-1.0, -1.0], sampler_logprobs=[-1.3, -3.0], ratios=[[1.0]] * 2)
    found = replace(found, settings=settings(importance_cap=2.0, epochs=1, whiten_advantages=False))
    facts = [TokenFacts(found, t) for t in range(2)]
    weights = maths.importance_weights(mx.array([-1.0, -1.0]), mx.array([-1.3, -3.0]), 2.0).tolist()
    assert [one.weight for one in facts] == pytest.approx(weights)
    for one in facts:
        assert one.passes[0].loss is not None
        assert one.advantage is not None
        assert one.weight is not None
        assert one.passes[0].loss.total == pytest.approx(-one.weight * one.advantage)
    assert token(ratios=(1.0,)).weight is None


def test_a_loss_with_an_unknown_part_is_not_shown() -> None:
    found = replace(token_sample(length=2, ratios=[[1.0]] * 2), settings=settings(kl_in="loss", epochs=1))
    without = {name: values for name, values in found.numbers.items() if name != "ref_logprobs"}
    assert TokenFacts(replace(found, numbers=without), 0).passes[0].loss is None
    exact = replace(found, settings=settings(kl_in="loss", kl_estimator="full", epochs=1))
    facts = TokenFacts(exact, 0)  # no number of this token tells the KL of all others
    assert (facts.passes[0].loss, facts.kl_pull) == (None, None)
    held = settings(importance_cap=2.0, epochs=1)
    without = {name: values for name, values in found.numbers.items() if name != "sampler_logprobs"}
    assert TokenFacts(replace(found, numbers=without, settings=held), 0).passes[0].loss is None


def test_an_epoch_that_made_no_step_has_no_loss_and_is_not_after_the_last() -> None:
    passes = token(ratios=(1.0, math.nan, math.nan, 1.5), epochs=3).passes
    assert [one.name for one in passes] == ["epoch 1", "epoch 2", "epoch 3", "after"]
    assert [one.in_loss for one in passes] == [True, False, False, False]
    assert [one.skipped for one in passes] == [False, True, True, False]
    assert [one.loss is not None for one in passes] == [True, False, False, False]


# The sentence


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (
            token(estimator="reinforce"),
            "pushed up: its return is 0.41 above the mean reward of the batch's other responses",
        ),
        (
            token(estimator="rloo", advantage=-0.41),
            "pushed down: the reward of its response is 0.41 below the mean of the prompt's other responses",
        ),
        (token(estimator="remax"), "pushed up: its return is 0.41 above the score of the greedy response"),
        (
            token(estimator="grpo", advantage=0.82, advantage_scale=0.5),
            "pushed up: the reward of its response is 0.41 above the mean of the prompt's responses",
        ),
        (
            token(estimator="grpo", advantage=0.82),
            "pushed up: the reward of its response is above the mean of the prompt's responses",
        ),
        (
            token(estimator="rloo", advantage=0.0),
            "hardly pushed: the reward of its response is the mean of the prompt's other responses",
        ),
        (
            token(estimator="rloo", advantage=0.05, whiten_advantages=True),
            "the reward of its response is 0.05 above the mean of the prompt's other responses, but its advantage is "
            "below the batch's mean of 0.10: pushed down",
        ),
        (
            token(estimator="remax", advantage=0.11, whiten_advantages=True),
            "its return is 0.11 above the score of the greedy response, and its advantage is close to the batch's mean "
            "of 0.10: hardly pushed",
        ),
        (token(trains_policy=False), "not pushed: only the critic is trained in this iteration"),
        (token(ratios=(math.nan, math.nan, 1.1), epochs=2), "not pushed: no optimiser step used its minibatches"),
        (
            token(ratios=(1.0, 1.25), clip_high=0.28),
            "pushed up: better than the critic expected by 0.41",
        ),
        (
            token(ratios=(1.0, 1.3, 1.3), clip_high=0.28),
            "pushed up until the clip stopped it in epoch 2: better than the critic expected by 0.41",
        ),
        (
            token(advantage=-0.41, ratios=(1.0, 3.5), dual_clip=3.0),
            "pushed down until the clip stopped it in epoch 2: worse than the critic expected by 0.41",
        ),
        (
            token(advantage=-0.41, ratios=(1.0, 3.5)),
            "pushed down: worse than the critic expected by 0.41",
        ),
    ],
)
def test_a_sentence_says_what_happened(facts: TokenFacts, expected: str) -> None:
    about_reference = "; the reference gives it about the same: 8.2%"
    assert sentence(facts) == expected + about_reference


@pytest.mark.parametrize(
    ("advantage", "ref_logprob", "kl_coef", "expected"),
    [
        (0.41, -3.5, 0.3, ""),
        (0.41, -3.5, 0.4, "the KL in the loss pushes it down"),
        (0.41, -3.5, 2.0, "the KL in the loss pushes it down more strongly"),
        (0.41, -1.5, 0.2, "the KL in the loss pushes it up"),
        (0.41, -2.5, 50.0, ""),
        (0.0, -3.5, 0.03, ""),  # 0.019, a twentieth of the deviation being 0.025
        (0.0, -3.5, 0.05, "the KL in the loss pushes it down"),
    ],
)
def test_a_kl_in_the_loss_is_mentioned_where_it_pushes_about_as_much_as_the_advantage(
    advantage: float, ref_logprob: float, kl_coef: float, expected: str
) -> None:
    held = {"kl_coef": kl_coef, "kl_in": "loss", "kl_estimator": "k3"}
    said = sentence(token(advantage=advantage, ref_logprob=ref_logprob, **held))
    clauses = [clause for clause in said.split("; ") if "KL" in clause]
    assert clauses == ([expected] if expected else [])
    assert "penalty" not in said


@given(
    estimator=st.sampled_from(WITHOUT_CRITIC),
    advantage=st.floats(-4, 4) | st.sampled_from([0.0, 1e-9, math.inf, math.nan]),
    scale=st.floats(0.01, 3),
    mean=st.floats(-1, 1),
    std=st.floats(0, 2),
    whiten=st.booleans(),
)
def test_direction_and_amount_are_those_of_the_numbers(
    estimator: str, advantage: float, scale: float, mean: float, std: float, whiten: bool
) -> None:
    moments = {"advantage_mean": mean, "advantage_std": std, "whiten_advantages": whiten}
    facts = token(estimator=estimator, advantage=advantage, advantage_scale=scale, **moments)
    said, seen = sentence(facts), facts.loss_advantage
    assert "critic" not in said
    if not math.isfinite(advantage):
        assert "pushed" not in said
        return
    assert seen is not None
    directions = re.findall(r"hardly pushed|not pushed|pushed up|pushed down", said)
    if std <= 1e-6:
        assert directions == ["not pushed"]
        return
    hardly = seen == 0 or abs(seen) < 0.05 * (1 if whiten else std)
    assert directions == ["hardly pushed" if hardly else "pushed up" if seen > 0 else "pushed down"]
    found = re.search(r"is (\S+) (above|below) the (?:mean|score)", said)
    assert (found is None) == (advantage == 0)
    if found:
        expected = abs(advantage) * (scale if estimator == "grpo" else 1)
        assert abs(float(found[1]) - expected) <= max(0.0051, 0.051 * expected)
        assert (found[2] == "above") == (advantage > 0)
    if batch := re.search(r"its advantage is (below|above|close to) the batch's mean", said):
        assert {"below": advantage < mean, "above": advantage > mean, "close to": True}[batch[1]]
