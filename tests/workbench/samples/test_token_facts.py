"""Facts about a token: its numbers against plain float64 formulas, its sentence against its numbers."""

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
from token_samples import SETTINGS, sample_row, token_sample

from trainer import maths
from trainer.runs.folder import RunFolder
from trainer.runs.samples import TOKEN_COLUMNS, SampleSettings, read_samples, write_samples
from workbench.run.sample_reader import read_token_sample
from workbench.run.sample_table import Alternative, SampleKey, TokenSample
from workbench.samples.token_facts import TokenFacts, token_label, token_name
from workbench.samples.token_maths import advantage_terms
from workbench.samples.token_sentence import amount, percent, sentence

NUMBERS = ("kl", "reward", "td_error", "advantage", "return_")


def settings(**changes: Any) -> SampleSettings:
    return replace(SETTINGS, **changes)


def with_settings(sample: TokenSample, **changes: Any) -> TokenSample:
    return replace(sample, settings=settings(**changes))


def token(
    *,
    logprob: float = -2.5,
    ref_logprob: float = -3.5,
    advantage: float = 0.41,
    ratios: tuple[float, ...] = (),
    kl_penalty: float = -0.001,
    token_score: float = 0.0,
    **changes: Any,
) -> TokenFacts:
    """Return a token in the middle of a response, by settings that whiten nothing."""
    base = {"whiten_advantages": False, "epochs": max(len(ratios), 1), "kl_coef": 1.0, "kl_estimator": "?"}
    row = sample_row(0, 3)
    numbers = {
        "logprobs": logprob,
        "sampler_logprobs": logprob,
        "ref_logprobs": ref_logprob,
        "advantages": advantage,
        "kl": -kl_penalty,
        "token_scores": token_score,
    }
    columns = {name: [value, *row[name][1:]] for name, value in numbers.items()}
    sample = token_sample(length=3, **columns, ratios=[list(ratios)] * 3)
    return TokenFacts(with_settings(sample, **base | changes), 0)


# Numbers


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
def test_the_numbers_are_those_of_float64_formulas_on_the_file(tmp_path: Path, row: int, changes: Any) -> None:
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
        assert (facts.is_last, facts.is_stop) == (last, last and row != 2)

        penalty = -held.kl_coef * file["kl"][t]
        after = held.bootstrap_truncated and file["truncated"]
        score = file["sequence_score"] if last and not after else None  # the value after a cut takes its place
        raw = penalty + file["token_scores"][t] + (score or 0)
        whitened = (raw - held.reward_mean) / (held.reward_std**2 + 1e-8) ** 0.5 + held.reward_mean
        next_value = (file["final_value"] if after else 0.0) if last else file["values"][t + 1]
        td_error = file["rewards"][t] + held.gamma * next_value - file["values"][t]
        deltas = file["td_errors"][t:]
        advantage = math.fsum((held.gamma * held.lam) ** ahead * delta for ahead, delta in enumerate(deltas))

        assert changes or facts.disagreements == [], "by the settings that the row was made with"
        assert facts.kl_penalty == pytest.approx(penalty, rel=1e-12)
        assert facts.sequence_score == score
        assert facts.raw_reward == pytest.approx(raw, rel=1e-12)
        assert facts.next_value == next_value
        again = {name: facts.recomputed[name].value for name in NUMBERS}
        assert again["kl"] == file["logprobs"][t] - file["ref_logprobs"][t] == facts.k1
        assert again["reward"] == pytest.approx(whitened if held.whiten_rewards else raw, rel=1e-12)
        assert again["td_error"] == pytest.approx(td_error, rel=1e-12, abs=1e-15)
        assert again["advantage"] == pytest.approx(advantage, rel=1e-12, abs=1e-15)
        assert again["return_"] == file["advantages"][t] + file["values"][t]
        if held.whiten_advantages:
            standard = (file["advantages"][t] - held.advantage_mean) / math.sqrt(held.advantage_std**2 + 1e-8)
            assert facts.whitened_advantage == pytest.approx(standard, rel=1e-12)
            assert facts.loss_advantage == facts.whitened_advantage
        else:
            assert facts.whitened_advantage is None
            assert facts.loss_advantage == facts.advantage
        for name, column in (("reward", "rewards"), ("value", "values"), ("entropy", "entropy"), ("kl", "kl")):
            assert getattr(facts, name) == file[column][t]
        assert facts.probability == pytest.approx(math.exp(file["logprobs"][t]))
        assert facts.ref_probability == pytest.approx(math.exp(file["ref_logprobs"][t]))
        assert [one.ratio for one in facts.passes] == file["ratios"][t]
        assert [one.token for one in facts.choices if not one.chosen] == [
            one for one in file["top_tokens"][t] if one != file["tokens"][t]
        ]


def test_the_trainers_float32_numbers_agree_and_wrong_ones_do_not() -> None:
    length, gamma, lam = 400, 0.99, 0.97
    keys = mx.random.split(mx.random.key(3), 4)
    logprobs, gap, values = (mx.random.normal((1, length), key=key) for key in keys[:3])
    logprobs, mask = -3 * mx.abs(logprobs), mx.ones((1, length))
    moments: dict[str, float] = {}
    for estimator in ("k1", "k2", "k3", "abs"):
        kl = maths.kl_estimate(logprobs, logprobs - gap, estimator)
        plain = maths.shaped_rewards(kl, mx.array([0.7]), mask, kl_coef=0.05)
        moments = {"reward_mean": plain.mean().item(), "reward_std": maths.masked_variance(plain, mask).item() ** 0.5}
        rewards = maths.whiten(plain, mask, shift_mean=False)
        deltas = maths.td_errors(rewards, values, mask, gamma=gamma)
        advantages = maths.gae_advantages(deltas, mask, gamma=gamma, lam=lam)
        columns = {
            "logprobs": logprobs,
            "ref_logprobs": logprobs - gap,
            "kl": kl,
            "token_scores": mx.zeros_like(kl),
            "rewards": rewards,
            "values": values,
            "td_errors": deltas,
            "advantages": advantages,
            "returns": advantages + values,
        }
        lists = {name: array[0].tolist() for name, array in columns.items()}
        held = {"gamma": gamma, "lam": lam, "kl_estimator": estimator, "whiten_rewards": True, **moments}
        sample = with_settings(token_sample(length=length, sequence_score=0.7, **lists), **held)
        assert [TokenFacts(sample, t).disagreements for t in range(length)] == [[]] * length
        for name, column in zip(NUMBERS, ("kl", "rewards", "td_errors", "advantages", "returns"), strict=True):
            off = {column: [x * 1.001 + 1e-4 for x in lists[column]]}
            wrong = replace(sample, numbers=sample.numbers | off)
            assert name in TokenFacts(wrong, 5).disagreements


def test_a_long_sum_in_float32_agrees_although_its_powers_drift() -> None:
    deltas = mx.random.normal((1, 3000), key=mx.random.key(1)) + 1
    advantages = maths.gae_advantages(deltas, mx.ones_like(deltas), gamma=1.0, lam=0.9995)
    lists = {"td_errors": deltas[0].tolist(), "advantages": advantages[0].tolist()}
    sample = with_settings(token_sample(length=3000, **lists), gamma=1.0, lam=0.9995)
    assert not any("advantage" in TokenFacts(sample, t).disagreements for t in range(0, 3000, 50))


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
        assert term.weight == (gamma * lam) ** ahead
        assert term.product == term.weight * term.x
        assert term.running == pytest.approx(sum(one.product for one in terms[: ahead + 1]), abs=1e-9)
    assert terms[-1].running == pytest.approx(TokenFacts(sample, index).recomputed["advantage"].value, abs=1e-9)


@pytest.mark.parametrize(
    ("advantage", "ratio", "clipped", "outside"),
    [
        (0.4, 1.19, False, False),
        (0.4, 1.21, True, True),
        (0.4, 0.79, False, True),
        (-0.4, 0.81, False, False),
        (-0.4, 0.79, True, True),
        (-0.4, 1.21, False, True),
        (0.0, 1.5, False, True),
        (math.nan, 1.5, False, True),
        (0.4, math.nan, False, False),
    ],
)
def test_the_clip_takes_hold_where_the_gradient_of_the_loss_is_zero(
    advantage: float, ratio: float, clipped: bool, outside: bool
) -> None:
    one = token(advantage=advantage, ratios=(1.0, ratio)).passes[1]
    assert (one.clipped, one.outside) == (clipped, outside)
    if advantage and math.isfinite(advantage) and math.isfinite(ratio):

        def loss(logprob: mx.array) -> mx.array:
            return maths.clipped_policy_loss(logprob, mx.array(0.0), mx.array(advantage), clip=0.2)

        assert (mx.grad(loss)(mx.array(math.log(ratio))).item() == 0) == clipped


def test_the_clip_sees_the_whitened_advantage() -> None:
    facts = token(advantage=0.1, ratios=(1.0, 0.7), whiten_advantages=True, advantage_mean=0.3, advantage_std=0.1)
    assert facts.loss_advantage == pytest.approx(-2, rel=1e-4)
    assert facts.passes[1].clipped


def test_passes_are_named_by_the_number_of_epochs() -> None:
    ratios = (1.0, 1.1, 1.3)
    assert [one.name for one in token(ratios=ratios, epochs=3).passes] == ["epoch 1", "epoch 2", "epoch 3"]
    after = token(ratios=ratios, epochs=2).passes
    assert [one.name for one in after] == ["epoch 1", "epoch 2", "after"]
    assert (after[2].in_loss, after[2].outside, after[2].clipped) == (False, True, False)
    assert [one.name for one in token(ratios=ratios, epochs=9).passes] == ["pass 1", "pass 2", "pass 3"]
    assert [one.probability for one in after] == pytest.approx([ratio * math.exp(-2.5) for ratio in ratios])


def test_the_written_token_is_among_its_alternatives_or_after_them() -> None:
    others = [Alternative(1, " a", math.log(0.5), math.log(0.4)), Alternative(2, " b", math.log(0.3), math.log(0.2))]
    sample = replace(token_sample(length=2), alternatives=[others, others], tokens=[2, 9])
    assert [(one.token, one.chosen) for one in TokenFacts(sample, 0).choices] == [(1, False), (2, True)]
    missed = TokenFacts(sample, 1)
    assert [(one.token, one.chosen) for one in missed.choices] == [(1, False), (2, False), (9, True)]
    assert missed.choices[2].probability == missed.probability
    assert [one.probability for one in missed.choices[:2]] == pytest.approx([0.5, 0.3])


# Names


def test_a_token_in_the_middle_of_a_character_says_which_part_it_is() -> None:
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
    assert TokenFacts(sample, 4).character is None


def test_a_name_is_safe_and_shows_its_spaces() -> None:
    assert token_name(" a\n\x1b[31m\u202e") == "'·a⏎␛[31m\\u202e'"
    assert token_label(replace(token_sample(length=2), texts=[]), 1) == "id 101"


# What is missing


def test_a_file_without_settings_has_facts_but_no_formulas() -> None:
    sample = replace(token_sample(length=4), settings=None, ratios=[], alternatives=[])
    facts = TokenFacts(sample, 3)
    assert (facts.kl_penalty, facts.raw_reward, facts.whitened_advantage, facts.loss_advantage) == (None,) * 4
    assert (facts.passes, facts.choices, facts.disagreements) == ((), (), [])
    assert {name for name in NUMBERS if facts.recomputed[name].value is not None} == {"return_"}
    assert advantage_terms(sample, 0) == []
    assert "pushed" not in sentence(facts)
    assert "than the critic expected" in sentence(facts)


def test_of_a_file_with_few_columns_nothing_is_made_up() -> None:
    bare = replace(
        token_sample(length=3, row=2),
        numbers={"logprobs": [-1.0, -1.0, -1.0]},
        texts=[],
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


# The sentence


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (
            token(logprob=math.log(0.08), ref_logprob=math.log(0.03)),
            "pushed up: better than the critic expected by 0.41; the reference gives it 3%, the policy 8%",
        ),
        (
            token(advantage=-0.41, logprob=math.log(0.31), ref_logprob=math.log(0.31)),
            "pushed down: worse than the critic expected by 0.41; the reference gives it about the same: 31%",
        ),
        (
            token(logprob=-50, ref_logprob=-60),
            "pushed up: better than the critic expected by 0.41; policy and reference both give it <0.01%",
        ),
        (
            token(advantage=0.01, ref_logprob=math.nan),
            "hardly pushed: better than the critic expected by 0.01",
        ),
        (
            token(advantage=0.04, ref_logprob=math.nan),
            "pushed up: better than the critic expected by 0.04",
        ),
        (
            token(ratios=(1.0, 1.1, 1.3), ref_logprob=math.nan),
            "pushed up until the clip stopped it in epoch 3: better than the critic expected by 0.41",
        ),
        (
            token(ratios=(1.0, 1.3, 1.1), ref_logprob=math.nan),
            "pushed up, held by the clip in 1 of 3 epochs: better than the critic expected by 0.41",
        ),
        (
            token(advantage=-0.41, ratios=(0.7,), ref_logprob=math.nan),
            "kept from being pushed down by the clip: worse than the critic expected by 0.41",
        ),
        (
            token(ratios=(1.0, 0.5), ref_logprob=math.nan),
            "pushed up: better than the critic expected by 0.41",
        ),
        (
            token(advantage=0.05, whiten_advantages=True, ref_logprob=math.nan),
            "better than the critic expected by 0.05, but below the batch's mean of 0.10: pushed down",
        ),
        (
            token(advantage=-0.05, whiten_advantages=True, advantage_mean=-0.3, ref_logprob=math.nan),
            "worse than the critic expected by 0.05, but above the batch's mean of -0.30: pushed up",
        ),
        (
            token(advantage=0.0, whiten_advantages=True, ref_logprob=math.nan),
            "just as the critic expected, but below the batch's mean of 0.10: pushed down",
        ),
        (
            token(advantage=0.11, whiten_advantages=True, ref_logprob=math.nan),
            "better than the critic expected by 0.11, close to the batch's mean of 0.10: hardly pushed",
        ),
        (
            token(advantage_std=0.0, ref_logprob=math.nan),
            "not pushed: all advantages of the batch are equal",
        ),
        (
            token(advantage=-0.3, kl_penalty=-0.25, ref_logprob=math.nan),
            "pushed down: worse than the critic expected by 0.30; its reward is a KL penalty of 0.25",
        ),
        (
            token(advantage=0.3, kl_penalty=0.25, ref_logprob=math.nan),
            "pushed up: better than the critic expected by 0.30; its reward is a KL bonus of 0.25",
        ),
        (
            token(advantage=-0.3, kl_penalty=-0.25, token_score=0.1, ref_logprob=math.nan),
            "pushed down: worse than the critic expected by 0.30; the KL penalty of 0.25 dominates its reward of 0.10",
        ),
        (
            token(advantage=math.nan, logprob=math.log(0.08), ref_logprob=math.log(0.03)),
            "the reference gives it 3%, the policy 8%",
        ),
    ],
)
def test_a_sentence_says_what_happened(facts: TokenFacts, expected: str) -> None:
    assert sentence(facts) == expected


numbers = st.floats(-4, 4) | st.sampled_from([0.0, math.nan, math.inf, -math.inf, 1e-9, -1e-9, 1e300])
logprobs = st.floats(-15, 0) | st.sampled_from([math.nan, -math.inf, -1e4, 0.0])


@st.composite
def any_token(draw: st.DrawFn) -> TokenFacts:
    epochs = draw(st.integers(1, 4))
    passes = st.lists(st.floats(0.5, 1.6) | st.just(math.nan), min_size=0, max_size=5).map(tuple)
    return token(
        logprob=draw(logprobs),
        ref_logprob=draw(logprobs),
        advantage=draw(numbers),
        ratios=draw(passes),
        kl_penalty=draw(numbers),
        token_score=draw(numbers),
        epochs=epochs,
        whiten_advantages=draw(st.booleans()),
        whiten_rewards=draw(st.booleans()),
        advantage_mean=draw(st.floats(-1, 1)),
        advantage_std=draw(st.floats(0, 2)),
    )


def close(text: str, value: float) -> bool:
    """Return whether a printed amount is `value` to its digits."""
    return abs(float(text) - value) <= max(0.0051, 0.051 * abs(value)) and (abs(value) > 0.1 or float(text) != 0)


@given(facts=any_token())
def test_the_direction_and_the_amounts_are_those_of_the_numbers(facts: TokenFacts) -> None:
    said, raw, seen, held = sentence(facts), facts.advantage, facts.loss_advantage, facts.settings
    assert held is not None
    assert raw is not None
    assert seen is not None
    skipped = bool(facts.passes) and not any(one.in_loss for one in facts.passes)
    no_step = held.advantage_std**2 <= 1e-12 or skipped
    if not math.isfinite(raw):
        assert "pushed" not in said
        assert "critic" not in said
        return
    directions = re.findall(r"hardly pushed|not pushed|pushed up|pushed down", said)
    if no_step:
        assert directions == ["not pushed"]
    else:
        slight = 0.05 * (1 if held.whiten_advantages else held.advantage_std)
        hardly = seen == 0 or abs(seen) < slight
        assert directions == ["hardly pushed" if hardly else "pushed up" if seen > 0 else "pushed down"]
        found = re.search(r"(better|worse) than the critic expected by (\S+?)[,:;]?(?=\s|$)", said)
        assert (found is None) == (raw == 0)
        if found:
            assert (found[1] == "better") == (raw > 0)
            assert close(found[2], abs(raw)) or abs(raw) > 1e6
    if batch := re.search(r"(below|above|close to) the batch's mean of (\S+):", said):
        mean = held.advantage_mean
        assert held.whiten_advantages
        assert close(batch[2].lstrip("-"), abs(mean)) or abs(mean) < 1e-6
        assert batch[2].startswith("-") == (mean < 0)
        assert {"below": raw < mean, "above": raw > mean, "close to": True}[batch[1]]
    elif directions in (["pushed up"], ["pushed down"]):
        assert (raw > 0) == (seen > 0), "a sign that whitening turned is told"


@given(facts=any_token())
def test_the_clip_is_mentioned_where_it_took_hold_and_nowhere_else(facts: TokenFacts) -> None:
    said, seen, held = sentence(facts), facts.loss_advantage, facts.settings
    assert held is not None
    assert seen is not None
    ratios = [one.ratio for one in facts.passes]
    known = len(ratios) - held.epochs in (0, 1)
    ratios = [ratio for ratio in (ratios[: held.epochs] if known else ratios) if not math.isnan(ratio)]
    clipped = [(seen > 0 and ratio > 1 + held.clip) or (seen < 0 and ratio < 1 - held.clip) for ratio in ratios]
    reported = "clip" in said
    pushes = re.search(r"pushed (up|down)", said) is not None
    assert reported == (pushes and any(clipped))
    if since := re.search(r"until the clip stopped it in (?:epoch|pass) (\d+)", said):
        first = [one.name for one in facts.passes if one.in_loss].index(since[0].partition(" in ")[2])
        assert first > 0
        assert clipped == [place >= first for place in range(len(clipped))]
    if share := re.search(r"held by the clip in (\d+) of (\d+) epochs", said):
        assert (int(share[1]), int(share[2])) == (sum(clipped), len(clipped))
    assert ("kept from being" in said) == (reported and all(clipped))


@given(facts=any_token())
def test_statements_about_the_reference_and_the_penalty_are_true(facts: TokenFacts) -> None:
    said, mine, theirs = sentence(facts), facts.probability, facts.ref_probability
    assert mine is not None
    assert theirs is not None
    if found := re.search(r"the reference gives it (.*?%), the policy (.*?%)", said):
        assert (found[1], found[2]) == (percent(theirs), percent(mine))
        assert abs(math.log(max(mine, 1e-300) / max(theirs, 1e-300))) > 0.09
    if found := re.search(r"about as much: (.*?%)", said):
        assert found[1] == percent(theirs)
        assert 0.9 * mine <= theirs <= 1.11 * mine
    if found := re.search(r"KL (penalty|bonus) of (\S+)", said):
        penalty, rest = facts.kl_penalty, facts.token_score
        assert penalty is not None
        assert rest is not None
        assert (found[1] == "penalty") == (penalty < 0)
        assert close(found[2].rstrip(";"), abs(penalty)) or abs(penalty) > 1e6
        assert abs(penalty) > abs(rest)
        assert ("dominates" in said) == (rest != 0)


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


def test_hostile_numbers_are_still_explained() -> None:
    for value in (math.nan, math.inf, -math.inf, 1e308, -1e308):
        sample = token_sample(length=4, **{name: [value] * 4 for name in TOKEN_COLUMNS}, ratios=[[value] * 2] * 4)
        for estimator in ("k1", "k2", "k3", "abs", "k9"):
            odd = with_settings(
                sample, kl_estimator=estimator, gamma=1e200, lam=1e200, advantage_std=value, reward_std=value
            )
            for index in range(4):
                facts = TokenFacts(odd, index)
                assert isinstance(sentence(facts), str)
                assert isinstance(facts.disagreements, list)
                assert len(advantage_terms(odd, index)) == 4 - index
