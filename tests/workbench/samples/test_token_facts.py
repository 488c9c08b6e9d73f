"""Facts about a token: its saved numbers, what follows from them by the trainer's own formulas, and its sentence."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_samples import SETTINGS, explained_token, sample_row, sample_without_critic, token_sample

from trainer import maths
from trainer.runs.folder import RunFolder
from trainer.runs.samples import SampleSettings, read_samples, write_samples
from workbench.run.sample_reader import read_token_sample
from workbench.run.sample_table import Alternative, SampleKey, TokenSample
from workbench.samples.token_facts import (
    TokenFacts,
    advantage_terms,
    amount,
    percent,
    sentence,
    token_label,
    token_name,
)

WHOLE = ("rloo", "grpo")


def settings(**changes: Any) -> SampleSettings:
    return replace(SETTINGS, **changes)


def with_settings(sample: TokenSample, **changes: Any) -> TokenSample:
    return replace(sample, settings=settings(**changes))


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bootstrap_truncated": True},
        {"gamma": 0.9, "lam": 0.8},
        {"lam": 0.0},
        {"whiten_rewards": True, "whiten_advantages": False},
    ],
)
def test_the_numbers_are_those_of_the_file_and_what_follows_from_them(tmp_path: Path, row: int, changes: Any) -> None:
    held = settings(**changes)
    folder = RunFolder(tmp_path)
    write_samples(folder.samples_file(7), [sample_row(row, 12)], 7, held)
    file = read_samples(folder.samples_file(7)).to_pylist()[0]
    sample = read_token_sample(folder, SampleKey(7, row))
    for t in range(12):
        facts, last = TokenFacts(sample, t), t == 11
        penalty = -held.kl_coef * file["kl"][t]
        after = held.bootstrap_truncated and file["truncated"]
        score = file["sequence_score"] if last and not after else None  # the value after a cut takes its place
        raw = penalty + file["token_scores"][t] + (score or 0)
        next_value = (file["final_value"] if after else 0.0) if last else file["values"][t + 1]
        assert facts.kl_penalty == pytest.approx(penalty, rel=1e-12)
        assert facts.sequence_score == score
        assert facts.raw_reward == pytest.approx(raw, rel=1e-12)
        assert facts.next_value == next_value
        if held.whiten_advantages:
            standard = (file["advantages"][t] - held.advantage_mean) / math.sqrt(held.advantage_std**2 + 1e-8)
            assert facts.whitened_advantage == pytest.approx(standard, rel=1e-12)
            assert facts.loss_advantage == facts.whitened_advantage
        else:
            assert facts.whitened_advantage is None
            assert facts.loss_advantage == facts.advantage
        for name, column in (("reward", "rewards"), ("value", "values"), ("return_", "returns"), ("kl", "kl")):
            assert getattr(facts, name) == file[column][t]


@given(
    td_errors=st.lists(st.floats(-10, 10), min_size=1, max_size=30),
    index=st.integers(0, 29),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
)
def test_the_terms_add_up_to_the_advantage(td_errors: list[float], index: int, gamma: float, lam: float) -> None:
    index = min(index, len(td_errors) - 1)
    sample = with_settings(token_sample(length=len(td_errors), td_errors=td_errors), gamma=gamma, lam=lam)
    terms = advantage_terms(sample, index)
    assert [term.token for term in terms] == list(range(index, len(td_errors)))
    assert [term.x for term in terms] == td_errors[index:]
    for ahead, term in enumerate(terms):
        assert term.weight == pytest.approx((gamma * lam) ** ahead, abs=1e-12)
        assert term.product == term.weight * term.x
        assert term.running == pytest.approx(sum(one.product for one in terms[: ahead + 1]), abs=1e-9)


@pytest.mark.parametrize("estimator", ["reinforce", "rloo", "remax", "grpo"])
@pytest.mark.parametrize("index", [0, 2, 5])
def test_the_terms_are_the_rewards_that_the_advantage_counts(estimator: str, index: int) -> None:
    found = sample_without_critic(estimator, gamma=0.8)
    terms, rewards = advantage_terms(found, index), found.numbers["rewards"]
    first = 0 if estimator in WHOLE else index
    assert [term.token for term in terms] == list(range(first, 6))
    assert [term.x for term in terms] == rewards[first:]
    weights = [1.0 if estimator in WHOLE else 0.8**ahead for ahead in range(6 - first)]
    assert [term.weight for term in terms] == pytest.approx(weights)
    facts = TokenFacts(found, index)
    total = facts.total_reward if estimator in WHOLE else facts.return_
    assert terms[-1].running == pytest.approx(total, abs=1e-12)
    assert (facts.value, facts.next_value, facts.td_error) == (None, None, None)
    assert facts.baseline == 0.25


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
    one = explained_token(advantage=advantage, ratios=(ratio,), clip_high=clip_high, dual_clip=dual_clip).passes[0]

    def loss(logprob: mx.array) -> mx.array:
        bounds = {"clip_high": clip_high or None, "dual_clip": dual_clip or None}
        return maths.clipped_policy_loss(logprob, mx.array(advantage), clip=0.2, **bounds)

    at = mx.array(math.log(ratio))
    assert one.loss is not None
    assert one.loss.total == pytest.approx(loss(at).item(), rel=1e-5, abs=1e-6)
    assert one.clipped == (advantage != 0 and mx.grad(loss)(at).item() == 0)
    outside = not 0.8 <= ratio <= 1 + (clip_high or 0.2)
    assert one.mark == ("✂ clipped" if one.clipped else "outside" if outside else "")


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@given(ratio=st.floats(0.5, 2), gap=st.floats(-15, 15), cap=st.sampled_from([0.0, 1.5]))
def test_a_kl_in_the_loss_is_that_of_each_passs_policy(estimator: str, ratio: float, gap: float, cap: float) -> None:
    changes = {"kl_in": "loss", "kl_coef": 0.3, "kl_estimator": estimator, "importance_cap": cap}
    facts = explained_token(ratios=(ratio,), logprob=-2.5, ref_logprob=-2.5 + gap, **changes)
    (loss,) = (one.loss for one in facts.passes)
    assert loss is not None

    def kl(logprob: mx.array) -> mx.array:
        return maths.kl_loss(logprob, mx.array(-2.5 + gap), "k2" if estimator == "k2" else "k3")

    now = mx.array(-2.5 + math.log(ratio))
    policy = maths.clipped_policy_loss(now + 2.5, mx.array(0.41), clip=0.2)
    assert loss.kl == pytest.approx(0.3 * kl(now).item(), abs=1e-5)
    assert loss.total == pytest.approx(policy.item() + 0.3 * kl(now).item(), abs=1e-5), "a weight of 1 changes nothing"
    assert facts.kl_pull == pytest.approx(-0.3 * mx.grad(kl)(mx.array(-2.5)).item(), abs=1e-5)
    assert facts.kl_penalty is None


def test_the_clip_sees_the_whitened_advantage_and_a_batch_without_a_signal_has_none() -> None:
    whitened = {"whiten_advantages": True, "advantage_mean": 0.3, "advantage_std": 0.1}
    facts = explained_token(advantage=0.1, ratios=(1.0, 0.7), **whitened)
    assert facts.loss_advantage == pytest.approx(-2, rel=1e-4)
    assert facts.passes[1].clipped
    facts = explained_token(advantage=5.0, ratios=(1.3,), has_signal=False)
    assert facts.loss_advantage == 0
    assert not facts.passes[0].clipped


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


def test_passes_are_named_by_the_number_of_epochs() -> None:
    ratios = (1.0, 1.1, 1.3)
    assert [one.name for one in explained_token(ratios=ratios, epochs=3).passes] == ["epoch 1", "epoch 2", "epoch 3"]
    after = explained_token(ratios=ratios, epochs=2).passes
    assert [one.name for one in after] == ["epoch 1", "epoch 2", "after"]
    assert (after[2].in_loss, after[2].mark, after[2].loss) == (False, "outside", None)
    assert [one.name for one in explained_token(ratios=ratios, epochs=9).passes] == ["pass 1", "pass 2", "pass 3"]
    without = explained_token(ratios=(1.0, math.nan, math.nan, 1.5), epochs=3).passes
    assert [one.name for one in without] == ["epoch 1", "epoch 2", "epoch 3", "after"]
    assert [one.in_loss for one in without] == [True, False, False, False]
    assert [one.mark for one in without] == ["", "no step", "no step", "outside"]
    assert [one.loss is not None for one in without] == [True, False, False, False]
    assert [one.probability for one in after] == pytest.approx([ratio * math.exp(-2.5) for ratio in ratios])


def test_the_written_token_is_among_its_alternatives_or_after_them() -> None:
    others = [Alternative(1, " a", math.log(0.5), math.log(0.4)), Alternative(2, " b", math.log(0.3), math.log(0.2))]
    sample = replace(token_sample(length=2), alternatives=[others, others], tokens=[2, 9])
    assert [(one.token, one.chosen) for one in TokenFacts(sample, 0).choices] == [(1, False), (2, True)]
    missed = TokenFacts(sample, 1)
    assert [(one.token, one.chosen) for one in missed.choices] == [(1, False), (2, False), (9, True)]
    assert missed.choices[2].probability == missed.probability
    assert [one.probability for one in missed.choices[:2]] == pytest.approx([0.5, 0.3])


def test_a_name_is_safe_and_says_which_part_of_a_character_a_token_is() -> None:
    assert token_name(" a\n\x1b[31m\u202e") == "'·a⏎␛[31m\\u202e'"
    sample = token_sample(texts=["a", "", "", "🎉", "b", "", ""])
    assert [token_label(sample, place) for place in range(7)] == [
        "'a'",
        "part 1 of 3 of '🎉'",
        "part 2 of 3 of '🎉'",
        "part 3 of 3 of '🎉'",
        "'b'",
        "part 1 of an unfinished character",
        "part 2 of an unfinished character",
    ]


def test_a_file_without_settings_has_facts_but_no_formulas() -> None:
    sample = replace(token_sample(length=4), settings=None, ratios=[], alternatives=[])
    facts = TokenFacts(sample, 3)
    assert (facts.kl_penalty, facts.raw_reward, facts.whitened_advantage, facts.loss_advantage) == (None,) * 4
    assert (facts.passes, [one.token for one in facts.choices]) == ((), [facts.token])
    assert advantage_terms(sample, 0) == []
    assert "pushed" not in sentence(facts)
    assert "than the critic expected" in sentence(facts)


def test_a_response_cut_short_without_a_known_final_value_has_no_next_value() -> None:
    sample = token_sample(row=2, length=3, final_value=math.nan)
    assert TokenFacts(sample, 2).next_value == 0
    assert TokenFacts(with_settings(sample, bootstrap_truncated=True), 2).next_value is None
    assert TokenFacts(replace(sample, settings=None), 2).next_value is None
    assert TokenFacts(sample, 1).next_value == sample.numbers["values"][2]


@pytest.mark.parametrize("index", [-1, 3])
def test_a_token_that_does_not_exist_is_an_error(index: int) -> None:
    with pytest.raises(IndexError, match=f"no token {index} in a response of 3"):
        TokenFacts(token_sample(length=3), index)


BETTER = "better than the critic expected by 0.41"
WORSE = "worse than the critic expected by 0.41"
BATCH = "the batch's mean of 0.10"
ITS = "the reward of its response is"
OTHERS = "the mean of the prompt's other responses"
WHITENED = {"whiten_advantages": True}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"logprob": math.log(0.08), "ref_logprob": math.log(0.03)}, f"pushed up: {BETTER}; reference 3%, policy 8%"),
        ({"logprob": -50, "ref_logprob": -60}, f"pushed up: {BETTER}; reference <0.01%, policy <0.01%"),
        ({"advantage": 0.01}, "hardly pushed: better than the critic expected by 0.01"),
        ({"advantage": 0.04}, "pushed up: better than the critic expected by 0.04"),
        ({"ratios": (1.0, 1.1, 1.3)}, f"pushed up until the clip stopped it in epoch 3: {BETTER}"),
        ({"ratios": (1.0, 1.3, 1.1)}, f"pushed up, held by the clip in 1 of 3 epochs: {BETTER}"),
        ({"advantage": -0.41, "ratios": (0.7,)}, f"kept from being pushed down by the clip: {WORSE}"),
        ({"ratios": (1.0, 0.5)}, f"pushed up: {BETTER}"),
        ({"advantage": 0.05, **WHITENED}, f"better than the critic expected by 0.05, but below {BATCH}: pushed down"),
        (
            {"advantage": -0.05, **WHITENED, "advantage_mean": -0.3},
            "worse than the critic expected by 0.05, but above the batch's mean of -0.30: pushed up",
        ),
        ({"advantage": 0.0, **WHITENED}, f"just as the critic expected, but below {BATCH}: pushed down"),
        ({"advantage": 0.11, **WHITENED}, f"better than the critic expected by 0.11, close to {BATCH}: hardly pushed"),
        ({"has_signal": False}, "not pushed: all advantages of the batch are equal"),
        (
            {"advantage": -0.3, "kl_penalty": -0.25},
            "pushed down: worse than the critic expected by 0.30; its reward is a KL penalty of 0.25",
        ),
        (
            {"advantage": 0.3, "kl_penalty": 0.25},
            "pushed up: better than the critic expected by 0.30; its reward is a KL bonus of 0.25",
        ),
        (
            {"advantage": -0.3, "kl_penalty": -0.25, "token_score": 0.1},
            "pushed down: worse than the critic expected by 0.30; the KL penalty of 0.25 dominates its reward of 0.10",
        ),
        ({"advantage": math.nan, "logprob": math.log(0.08), "ref_logprob": math.log(0.03)}, "reference 3%, policy 8%"),
        (
            {"estimator": "reinforce"},
            "pushed up: its return is 0.41 above the mean reward of the batch's other responses",
        ),
        ({"estimator": "rloo", "advantage": -0.41}, f"pushed down: {ITS} 0.41 below {OTHERS}"),
        ({"estimator": "remax"}, "pushed up: its return is 0.41 above the score of the greedy response"),
        (
            {"estimator": "grpo", "advantage": 0.82, "advantage_scale": 0.5},
            f"pushed up: {ITS} 0.41 above the mean of the prompt's responses",
        ),
        ({"estimator": "grpo", "advantage": 0.82}, f"pushed up: {ITS} above the mean of the prompt's responses"),
        ({"estimator": "rloo", "advantage": 0.0}, f"hardly pushed: {ITS} {OTHERS}"),
        (
            {"estimator": "rloo", "advantage": 0.05, **WHITENED},
            f"{ITS} 0.05 above {OTHERS}, but its advantage is below {BATCH}: pushed down",
        ),
        (
            {"estimator": "remax", "advantage": 0.11, **WHITENED},
            "its return is 0.11 above the score of the greedy response, and its advantage is close to "
            f"{BATCH}: hardly pushed",
        ),
        ({"trains_policy": False}, "not pushed: only the critic is trained in this iteration"),
        ({"ratios": (math.nan, math.nan, 1.1), "epochs": 2}, "not pushed: no optimiser step used its minibatches"),
        ({"ratios": (1.0, 1.25), "clip_high": 0.28}, f"pushed up: {BETTER}"),
        ({"ratios": (1.0, 1.3, 1.3), "clip_high": 0.28}, f"pushed up until the clip stopped it in epoch 2: {BETTER}"),
        (
            {"advantage": -0.41, "ratios": (1.0, 3.5), "dual_clip": 3.0},
            f"pushed down until the clip stopped it in epoch 2: {WORSE}",
        ),
        ({"advantage": -0.41, "ratios": (1.0, 3.5)}, f"pushed down: {WORSE}"),
    ],
)
def test_a_sentence_says_what_happened(changes: dict[str, Any], expected: str) -> None:
    assert sentence(explained_token(**{"ref_logprob": math.nan} | changes)) == expected


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
    text = sentence(explained_token(advantage=advantage, ref_logprob=ref_logprob, **held))
    clauses = [clause for clause in text.split("; ") if "KL" in clause]
    assert clauses == ([expected] if expected else [])
    assert "penalty" not in text


@given(p=st.floats(0, 1))
def test_a_percentage_is_right_to_its_digits(p: float) -> None:
    text = percent(p)
    bound = re.fullmatch(r"([<>])?([\d.e-]+)%", text)
    assert bound is not None
    shown = float(bound[2]) / 100
    if bound[1] == "<":
        assert 0 < p < shown
    elif bound[1] == ">":
        assert shown < p < 1
    else:
        assert abs(shown - p) <= max(0.051 * p, 0) if p < 0.1 else abs(shown - p) <= 0.0051
        assert (shown == 1) == (p == 1)
        assert (shown == 0) == (p == 0)


@given(x=st.floats(-1e9, 1e9))
def test_an_amount_is_right_to_its_digits(x: float) -> None:
    assert float(amount(x)) == pytest.approx(abs(x), rel=0.051)
