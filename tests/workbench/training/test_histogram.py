"""The distribution of a batch's scores."""

from __future__ import annotations

import math

from charts import any_values, roles, texts
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from workbench.training.histogram import histogram

BARS = " ▁▂▃▄▅▆▇█"


def heights(line: str) -> list[int]:
    return [BARS.index(cell) for cell in line[1:]]


@given(scores=any_values, width=st.integers(20, 120), height=st.integers(1, 5))
def test_any_scores_are_drawn_within_the_size(scores, width, height):
    lines = histogram(scores, 7, width, height)
    assert len(lines) <= height
    assert all(cell_len(text) <= width for text in texts(lines))


def test_bars_are_as_high_as_their_share_of_the_scores():
    scores = [0.0] * 10 + [0.5] * 20 + [1.0] * 40
    title, line, axis = texts(histogram(scores, 7, 60, 3))
    bars = heights(line)
    assert bars[0] < max(bars[15:30]) < bars[-1] == 7
    assert bars.count(0) > len(bars) / 2
    assert "70 · mean 0.71 ± 0.36" in title
    assert axis.split()[0] == "0.00"
    assert axis.split()[-1] == "1.00"
    assert abs(axis.index("┴") - (1 + 0.714 * (len(line) - 2))) <= 1, "the mean has its place on the axis"


def test_every_score_is_counted_the_greatest_one_too():
    _, line, _ = texts(histogram([0.0, 1.0], 7, 40, 3))
    assert heights(line)[0] == heights(line)[-1] == 7


def test_non_finite_scores_are_reported_and_left_out():
    lines = histogram([0.1, math.nan, 0.9, math.inf], 7, 100, 3)
    assert "× 2 not finite" in roles(lines, "missing")
    assert "4 · mean 0.50" in texts(lines)[0]
    assert len(histogram([math.nan], 7, 60, 3)) == 1


def test_equal_scores_are_one_bar():
    title, line, axis = texts(histogram([0.5] * 8, 7, 60, 3))
    assert line.strip() in {"▇", "▇▇▇"}
    assert axis == " 0.50"
    assert "± 0.00" in title


def test_more_lines_make_the_bars_finer():
    scores = [i / 100 for i in range(100)] + [0.5] * 30
    low, high = histogram(scores, 7, 60, 3), histogram(scores, 7, 60, 4)
    assert len(high) == len(low) + 1
    assert len(set(texts(high)[2])) >= 1
    assert texts(high)[1].strip()
