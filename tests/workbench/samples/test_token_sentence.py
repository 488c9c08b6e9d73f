"""The sentence about a token says what its numbers say."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_samples import SETTINGS, explained_token, token_sample

from trainer.runs.samples import TOKEN_COLUMNS
from workbench.samples.token_facts import TokenFacts, advantage_terms, amount, percent, sentence

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


numbers = st.floats(-4, 4) | st.sampled_from([0.0, math.nan, math.inf, -math.inf, 1e-9, -1e-9, 1e300])
logprobs = st.floats(-15, 0) | st.sampled_from([math.nan, -math.inf, -1e4, 0.0])


@st.composite
def any_token(draw: st.DrawFn) -> TokenFacts:
    epochs = draw(st.integers(1, 4))
    passes = st.lists(st.floats(0.5, 1.6) | st.just(math.nan), min_size=0, max_size=5).map(tuple)
    return explained_token(
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
    text, raw, seen, held = sentence(facts), facts.advantage, facts.loss_advantage, facts.settings
    assert held is not None
    assert raw is not None
    assert seen is not None
    no_step = bool(facts.passes) and not any(one.in_loss for one in facts.passes)
    if not math.isfinite(raw):
        assert "pushed" not in text
        assert "critic" not in text
        return
    directions = re.findall(r"hardly pushed|not pushed|pushed up|pushed down", text)
    if no_step:
        assert directions == ["not pushed"]
    else:
        slight = 0.05 * (1 if held.whiten_advantages else held.advantage_std)
        hardly = seen == 0 or abs(seen) < slight
        assert directions == ["hardly pushed" if hardly else "pushed up" if seen > 0 else "pushed down"]
        found = re.search(r"(better|worse) than the critic expected by (\S+?)[,:;]?(?=\s|$)", text)
        assert (found is None) == (raw == 0)
        if found:
            assert (found[1] == "better") == (raw > 0)
            assert close(found[2], abs(raw)) or abs(raw) > 1e6
    if batch := re.search(r"(below|above|close to) the batch's mean of (\S+):", text):
        mean = held.advantage_mean
        assert held.whiten_advantages
        assert close(batch[2].lstrip("-"), abs(mean)) or abs(mean) < 1e-6
        assert batch[2].startswith("-") == (mean < 0)
        assert {"below": raw < mean, "above": raw > mean, "close to": True}[batch[1]]
    elif directions in (["pushed up"], ["pushed down"]):
        assert (raw > 0) == (seen > 0), "a sign that whitening turned is told"


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


def test_hostile_numbers_are_still_explained() -> None:
    for value in (math.nan, math.inf, -math.inf, 1e308, -1e308):
        sample = token_sample(length=4, **{name: [value] * 4 for name in TOKEN_COLUMNS}, ratios=[[value] * 2] * 4)
        for estimator in ("k1", "k2", "k3", "abs", "k9"):
            huge = {"gamma": 1e200, "lam": 1e200, "advantage_std": value, "reward_std": value}
            odd = replace(sample, settings=replace(SETTINGS, kl_estimator=estimator, **huge))
            for index in range(4):
                facts = TokenFacts(odd, index)
                assert isinstance(sentence(facts), str)
                assert len(advantage_terms(odd, index)) == 4 - index
