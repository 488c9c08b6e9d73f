"""Facts about a token: its saved numbers, and what follows from them by the trainer's own formulas."""

from __future__ import annotations

import math
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
from workbench.samples.token_facts import TokenFacts, advantage_terms, sentence, token_label, token_name

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
    length = len(file["tokens"])
    for t in range(length):
        facts = TokenFacts(sample, t)
        last = t == length - 1
        assert (facts.index, facts.length, facts.token) == (t, length, file["tokens"][t])
        assert facts.is_last == last
        penalty = -held.kl_coef * file["kl"][t]
        after = held.bootstrap_truncated and file["truncated"]
        score = file["sequence_score"] if last and not after else None  # the value after a cut takes its place
        raw = penalty + file["token_scores"][t] + (score or 0)
        next_value = (file["final_value"] if after else 0.0) if last else file["values"][t + 1]
        assert facts.kl_penalty == pytest.approx(penalty, rel=1e-12)
        assert facts.sequence_score == score
        assert facts.raw_reward == pytest.approx(raw, rel=1e-12)
        assert facts.next_value == next_value
        assert facts.k1 == file["logprobs"][t] - file["ref_logprobs"][t]
        if held.whiten_advantages:
            standard = (file["advantages"][t] - held.advantage_mean) / math.sqrt(held.advantage_std**2 + 1e-8)
            assert facts.whitened_advantage == pytest.approx(standard, rel=1e-12)
            assert facts.loss_advantage == facts.whitened_advantage
        else:
            assert facts.whitened_advantage is None
            assert facts.loss_advantage == facts.advantage
        for name, column in (("reward", "rewards"), ("value", "values"), ("return_", "returns"), ("kl", "kl")):
            assert getattr(facts, name) == file[column][t]
        assert facts.probability == pytest.approx(math.exp(file["logprobs"][t]))
        assert facts.ref_probability == pytest.approx(math.exp(file["ref_logprobs"][t]))
        assert [one.ratio for one in facts.passes] == file["ratios"][t]
        assert [one.token for one in facts.choices if not one.chosen] == [
            one for one in file["top_tokens"][t] if one != file["tokens"][t]
        ]


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
        return maths.clipped_policy_loss(logprob, mx.array(0.0), mx.array(advantage), clip=0.2, **bounds)

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
    policy = maths.clipped_policy_loss(now, mx.array(-2.5), mx.array(0.41), clip=0.2)
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


def test_a_kl_in_the_loss_is_not_part_of_the_reward() -> None:
    found = with_settings(token_sample(length=4), kl_in="loss", kl_estimator="k3")
    assert [TokenFacts(found, t).raw_reward for t in range(4)] == [0.0, 0.0, 0.0, found.sequence_score]
    assert TokenFacts(found, 0).kl_penalty is None


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
    assert explained_token(ratios=(1.0,)).weight is None


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


def test_of_a_file_with_few_columns_nothing_is_made_up() -> None:
    bare = replace(
        token_sample(length=3, row=2),
        numbers={"logprobs": [-1.0, -1.0, -1.0]},
        settings=None,
        ratios=[],
        alternatives=[],
        sequence_score=math.nan,
        final_value=math.nan,
    )
    facts = TokenFacts(bare, 2)
    known = {name for name, value in vars(facts).items() if isinstance(value, float)}
    assert known == {"logprob", "probability"}
    assert sentence(facts) == ""


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
