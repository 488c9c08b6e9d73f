"""The critic in the training pane: what the sentence says, what the bars show, and where it appears."""

from __future__ import annotations

import math
from typing import Any

import pytest
from charts import texts
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from training_bench import Bench, opened, shown, view_of

from workbench.training.critic import critic_lines

PERFECT = [(0.0, 0.0, 50), (0.25, 0.25, 50), (0.5, 0.5, 50), (0.75, 0.75, 50), (1.0, 1.0, 50)]
numbers = st.floats() | st.sampled_from([1e308, -1.7e308, 5e-324, 0.0])
finite = numbers.filter(math.isfinite)


def drawn(fifths: list[tuple[float, float, int]], explained: float, width: int = 40, height: int = 16) -> list[str]:
    return texts(critic_lines(fifths, explained, "In iteration 3", width, height))


@pytest.mark.parametrize(
    ("most", "explained", "words"),
    [
        ((1.0, 0.8), 0.31, "the critic explains 31% of the returns; where it promises most it is 0.2 too high."),
        ((1.0, 1.3), 0.31, "the critic explains 31% of the returns; where it promises most it is 0.3 too low."),
        ((1.0, 0.91), 0.31, "where it promises most it is about right."),
        ((1.0, 1.0), 0.001, "the critic predicts the returns no better than their mean; where"),
        ((1.0, 1.0), -0.2, "the critic predicts the returns worse than their mean; where"),
        ((0.0, 1.0), math.nan, "no better than their mean."),
    ],
)
def test_the_sentence_says_how_good_it_is_and_where_it_promises_too_much(
    most: tuple[float, float], explained: float, words: str
) -> None:
    below = [(0.0, 0.0, 50)] if most[0] == 0 else PERFECT[:-1]
    text = " ".join(line.strip() for line in drawn([*below, (*most, 50)], explained, 200))
    assert text.startswith("In iteration 3 the critic ")
    assert words in text


def test_the_bars_of_a_perfect_critic_end_at_the_diagonal() -> None:
    def tops(fifths: list[tuple[float, float, int]]) -> tuple[list[int], list[int]]:
        lines = drawn(fifths, 0.5, 40, 15)
        plot = [line[7:].ljust(33) for line in lines if line[6:7] in "│┤"]
        across = 33 // 5
        bars = [[row[across * fifth] != " " for row in plot].index(True) for fifth in range(5)]
        marks = [[row[across * (fifth + 1) - 1] for row in plot].index("◂") for fifth in range(5)]
        return bars, marks

    bars, marks = tops(PERFECT)
    assert marks == sorted(marks, reverse=True)
    assert len(set(marks)) == 5
    assert all(abs(bar - mark) <= 1 for bar, mark in zip(bars, marks, strict=True))
    bars, marks = tops([(value, value / 2, 50) for value, _, _ in PERFECT])
    assert bars[-1] > marks[-1] + 3, "below what it promised"


@given(
    fifths=st.lists(st.tuples(finite, finite, st.integers(1, 10**9)), min_size=1, max_size=5),
    explained=numbers,
    width=st.integers(12, 120),
    height=st.integers(1, 30),
)
def test_any_numbers_fill_the_size(fifths, explained, width, height):
    lines = drawn(fifths, explained, width, height)
    assert len(lines) == height
    assert all(cell_len(line) <= width for line in lines)


CALIBRATION = [[0.1 * fifth, 0.05 * fifth, 52] for fifth in range(5)]


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize(
    ("changes", "seen"), [({"calibration": CALIBRATION}, True), ({}, False), ({"explained_variance": math.nan}, False)]
)
async def test_the_explained_variance_is_enlarged_beside_the_calibration(
    changes: dict[str, Any], seen: bool, size: tuple[int, int]
) -> None:
    async with Bench().run_test(size=size) as pilot:
        await opened(pilot, view_of(30, **changes))
        assert "critic" not in await shown(pilot)
        await pilot.press("enter", *["down"] * 7)
        screen = " ".join((await shown(pilot)).split())
        assert ("expl. variance" in screen) is not math.isnan(changes.get("explained_variance", 0.0))
        assert ("critic" in screen) is ("◂" in screen) is seen
        if seen:
            assert "In iterations 21 to 30" in screen
            await pilot.press("home", "right", "right")
            assert "In iterations 1 to 3" in await shown(pilot)
            await pilot.press("up")
            assert "critic" not in await shown(pilot)
