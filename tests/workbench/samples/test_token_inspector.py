"""The inspector shows a token's numbers in any size, the most telling first, and obeys no text of a model."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from charts import roles, texts
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from token_samples import SETTINGS, sample_without_critic, token_sample

from trainer.runs.samples import TOKEN_COLUMNS
from workbench.kit.drawing import DRAWN
from workbench.run.sample_table import Alternative, TokenSample
from workbench.samples.sample_view import inspector_lines
from workbench.samples.token_facts import TokenFacts, sentence

HOSTILE = [
    "[/x]",
    "[@click=app.quit]x[/]",
    "\x1b[31m",
    "\x9b",
    "\u202eabc",
    "\u2028",
    "🎉👨‍👩‍👧",
    "e\u0301",
    "日本語" * 40,
    "\t\n",
    "",
]
WIDE = (44, 60)  # room for everything


def sample(**changes: Any) -> TokenSample:
    """Return a sample with four epochs and a measurement after them; token 3 is clipped in the last two."""
    base = token_sample(length=6, **changes)
    shares = [(0.5, 0.4), (0.08, 0.03)]
    places = [
        [
            Alternative(token, f" w{token}", math.log(mine), math.log(theirs))
            for token, (mine, theirs) in zip((7, own), shares, strict=True)
        ]
        for own in base.tokens
    ]
    logprobs, ref_logprobs = [math.log(0.08)] * 6, [math.log(0.03)] * 6
    numbers = {**base.numbers, "logprobs": logprobs, "ref_logprobs": ref_logprobs, "sampler_logprobs": logprobs}
    numbers["kl"] = [mine - theirs for mine, theirs in zip(logprobs, ref_logprobs, strict=True)]
    numbers["advantages"] = [-0.41] * 6
    ratios = [[1.0, 1.1, 0.7, 0.6, 1.3]] * 6
    settings = replace(SETTINGS, epochs=4)
    return replace(base, numbers=numbers, alternatives=places, ratios=ratios, settings=settings)


def shown(of: TokenSample, index: int = 3, width: int = 44, height: int = 60) -> list[str]:
    return texts(inspector_lines(TokenFacts(of, index), width, height))


def value(lines: list[str], label: str) -> str:
    """Return what follows a label."""
    line = next(line for line in lines if line.strip().startswith(label))
    return re.sub(r"\s+", " ", line.strip().removeprefix(label)).strip()


def test_every_number_of_a_token_is_shown_with_its_unit() -> None:
    of = sample()
    facts, lines = TokenFacts(of, 3), shown(of)
    assert lines[0].split() == [*facts.name.split(), "id", "103", "4", "of", "6"]
    assert " ".join(lines[1:4]).startswith("Pushed down until the clip stopped it in")
    for label, number in (
        ("value", facts.value),
        ("next", facts.next_value),
        ("TD error", facts.td_error),
        ("return", facts.return_),
        ("reward", facts.reward),
        ("KL penalty", facts.kl_penalty),
    ):
        assert value(lines, label) == f"{number:.4f}", label
    assert value(lines, "advantage") == "-0.4100"
    assert value(lines, "whitened") == "-1.0200 std"
    assert value(lines, "log-prob") == "-2.5257 nats 8%"
    assert value(lines, "reference") == "-3.5066 nats 3%"
    assert value(lines, "sampler") == "-2.5257 nats 8%"
    assert value(lines, "KL  ") == "0.9808 nats"
    assert value(lines, "entropy") == f"{facts.entropy:.4f} nats"


def test_a_clipped_ratio_is_marked_without_colour_unlike_one_that_is_only_outside() -> None:
    lines = shown(sample())
    assert value(lines, "ratio epoch 2") == "1.1000 8.8%"
    assert value(lines, "ratio epoch 3") == "0.7000 ✂ clipped 5.6%"
    assert value(lines, "ratio epoch 4") == "0.6000 ✂ clipped 4.8%"
    assert value(lines, "ratio after") == "1.3000 outside 10%"
    narrow = shown(sample(), width=38)
    assert value(narrow, "ratio epoch 3") == "0.7000 ✂ 5.6%"
    assert value(narrow, "ratio after") == "1.3000 out 10%"
    assert roles(inspector_lines(TokenFacts(sample(), 3), 44, 60), "alert").split() == ["✂", "clipped"] * 2


def test_the_alternatives_are_a_table_with_the_written_token_marked() -> None:
    lines = shown(sample())
    table = lines[next(place for place, line in enumerate(lines) if "likeliest" in line) :]
    assert [line.split() for line in table] == [
        ["likeliest", "policy", "reference"],
        ["'·w7'", "50%", "40%"],
        ["▸", "'·w103'", "8%", "3%"],
    ]
    ends = {line.rindex("%") for line in table[1:]}
    assert len(ends) == 1, "right-aligned"


def test_the_penalised_kl_is_shown_apart_only_where_it_differs() -> None:
    of = sample()
    assert not any("by k" in line for line in shown(of))
    other = replace(of, settings=replace(SETTINGS, kl_estimator="k3"), numbers={**of.numbers, "kl": [0.25] * 6})
    assert value(shown(other), "KL  ") == "0.9808 nats"
    assert value(shown(other), "by k3") == "0.2500 nats"


def test_the_score_and_the_place_are_at_the_last_token() -> None:
    lines = shown(sample(row=0), 5)
    assert lines[0].endswith("6 of 6 · stop")
    assert value(lines, "score") == f"{TokenFacts(sample(row=0), 5).sequence_score:.4f}"
    assert shown(sample(row=2), 5)[0].endswith("6 of 6 · cut short")
    assert not any(line.strip().startswith("score") for line in shown(sample(), 4))


def test_a_whitened_reward_says_so_and_gives_its_raw_sum() -> None:
    of = sample(token_scores=[0.25] * 6)
    lines = shown(replace(of, settings=replace(SETTINGS, whiten_rewards=True)))
    assert value(lines, "reward").endswith("whitened")
    assert value(lines, "token's own") == "0.2500"
    assert value(lines, "sum") == f"{-0.05 * math.log(8 / 3) + 0.25:.4f}"


@pytest.mark.parametrize("estimator", ["reinforce", "rloo", "remax", "grpo"])
def test_without_a_critic_the_baseline_is_shown_and_no_value(estimator: str) -> None:
    of = sample_without_critic(estimator)
    facts, lines = TokenFacts(of, 5), shown(of, 5)
    for absent in ("value", "next", "TD error"):
        assert not any(line.strip().startswith(absent) for line in lines)
    assert value(lines, "baseline") == "0.2500"
    assert value(lines, "advantage") == f"{facts.advantage:.4f}"
    assert value(lines, "return") == f"{facts.return_:.4f}"
    reported = {line.strip().split("  ")[0] for line in lines}
    assert ("all rewards" in reported) == (estimator in ("rloo", "grpo"))
    assert ("divided by" in reported) == (estimator == "grpo")


def test_a_kl_in_the_loss_and_a_weight_have_lines_of_their_own() -> None:
    of = sample()
    held = replace(SETTINGS, kl_in="loss", kl_estimator="k3", importance_cap=2.0)
    lines = shown(replace(of, settings=held))
    assert not any("KL penalty" in line for line in lines)
    assert value(lines, "KL's push") == f"{-0.05 * (1 - 3 / 8):.4f}"
    assert value(lines, "weight") == "1.0000"


def test_an_epoch_without_a_step_and_numbers_that_are_none_are_marked() -> None:
    of = replace(
        sample(values=[math.nan] * 6, entropy=[math.inf] * 6), ratios=[[1.0, 1.1, math.nan, math.nan, 1.1]] * 6
    )
    lines = shown(of)
    assert value(lines, "ratio epoch 3") == "× NaN no step"
    assert value(lines, "ratio after") == "1.1000 8.8%"
    assert value(lines, "value") == "× NaN"
    assert value(lines, "entropy") == "× +inf nats"
    assert "NaN" in roles(inspector_lines(TokenFacts(of, 3), 44, 60), "missing")


def test_numbers_missing_from_the_file_are_not_shown() -> None:
    bare = replace(sample(), numbers={"logprobs": [-1.0] * 6}, settings=None, ratios=[], alternatives=[])
    assert [line.split()[0] for line in shown(bare)[1:] if line] == ["log-prob"]


@pytest.mark.parametrize(("width", "height"), [(36, 7), (36, 12), (38, 10), (44, 20)])
def test_a_low_place_keeps_the_token_the_sentence_and_the_most_telling_numbers(width: int, height: int) -> None:
    lines = shown(sample(), width=width, height=height)
    assert len(lines) == height
    lines = [line for line in lines if line]
    assert lines[0].startswith(TokenFacts(sample(), 3).name)
    assert lines[1].startswith("Pushed down")
    assert any(line.startswith("advantage") for line in lines)
    everything = shown(sample(), width=width, height=60)
    assert [line for line in everything if line in lines] == [line for line in lines if line in everything], "in order"


def test_the_alternatives_outlive_numbers_of_less_use() -> None:
    lines = shown(sample(), width=44, height=28)  # a screen of 36 lines, below the rest of it
    assert any("likeliest" in line for line in lines)
    assert any("'·w7'" in line for line in lines)
    low = shown(sample(), width=44, height=22)
    assert any("'·w7'" in line for line in low)
    assert any(line.startswith("advantage") for line in low)
    assert not any("sampler" in line or line.startswith("weight") for line in low)


def test_a_low_wide_place_sets_numbers_side_by_side() -> None:
    lines = shown(sample(), width=100, height=8)
    assert len(lines) == 8
    beside = [line for line in lines if len(re.findall(r"-?\d\.\d{4}", line)) == 2]
    assert len(beside) >= 4
    for height in range(6, 14):
        for index in (3, 5):
            stacks = [line[46:] for line in shown(sample(), index, 100, height)[2:] if line[46:].strip()]
            assert not stacks or not stacks[0].startswith(" "), "a part does not stand apart from its whole"
    one = shown(sample(), width=44, height=8)
    assert len(re.findall(r"\d\.\d{4}", " ".join(lines))) > len(re.findall(r"\d\.\d{4}", " ".join(one)))


def test_more_height_drops_nothing_that_less_height_shows() -> None:
    of = sample()
    for width in (36, 44):
        before: set[str] = set()
        for height in range(1, 50):
            lines = {line for line in shown(of, width=width, height=height) if line}
            assert all(any(line.startswith(shorter.removesuffix("…")) for line in lines) for shorter in before)
            before = lines


@pytest.mark.parametrize("width", [27, 34, 36, 44, 78])
def test_a_sentence_that_has_no_room_ends_with_an_ellipsis_and_none_is_cut_above_empty_lines(width: int) -> None:
    whole = sentence(TokenFacts(sample(), 3)).replace("pushed", "Pushed", 1).split()
    for height in range(2, 60):
        lines = shown(sample(), width=width, height=height)
        reported = itertools.takewhile(lambda line: line and not re.search(r"\d\.\d{4}", line), lines[1:])
        words = " ".join(line.rstrip() for line in reported).split()
        assert words == whole[: len(words)] or words[-1].endswith("…")
    assert not any(line.endswith("…") for line in shown(sample(), width=width, height=60))


def test_names_of_passes_are_whole_where_a_column_is_narrow() -> None:
    narrow, wide = shown(sample(), width=34, height=60), shown(sample(), width=44, height=60)
    assert [line.split()[:2] for line in wide if line.startswith("ratio")][1] == ["ratio", "epoch"]
    assert [line[:10] for line in narrow if line.startswith("ρ epoch")] == [f"ρ epoch {n} " for n in range(1, 5)]
    assert not any("…" in line for line in narrow)


@given(
    text=st.sampled_from(HOSTILE) | st.text(max_size=8),
    number=st.floats() | st.sampled_from([1e308, -1e-308, math.nan]),
    width=st.integers(0, 130),
    height=st.integers(0, 40),
    index=st.integers(0, 5),
)
def test_nothing_overflows_whatever_the_file_holds(
    text: str, number: float, width: int, height: int, index: int
) -> None:
    of = sample(texts=[text] * 6, **{name: [number] * 6 for name in TOKEN_COLUMNS})
    of = replace(of, alternatives=[[Alternative(1, text, number, number)]] * 6, ratios=[[number] * 5] * 6)
    lines = inspector_lines(TokenFacts(of, index), width, height)
    assert len(lines) <= height
    for line in lines:
        drawn = "".join(part for part, _ in line)
        assert cell_len(drawn) <= width
        assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u202e]", drawn)
        assert {f"drawn--{role}" for _, role in line} <= DRAWN
