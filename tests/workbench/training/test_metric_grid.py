"""Sparklines, the cells around them, their scales, and how much drawing them reads."""

from __future__ import annotations

import math
import re
import sys

import pytest
from charts import CLIP, KL, SCORE, Counted, any_values, history_of, metric, roles, texts
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from scripted_run import iteration

from workbench.kit.axes import Axis, moving_average, number_text, scale_of, tick_texts, ticks, window_of
from workbench.run.metrics import METRICS
from workbench.text import Line
from workbench.training.metric_grid import Charted, cell_shape, change_text, metric_bars, metric_cell, reading_at

BARS = " ▁▂▃▄▅▆▇█"


def spark(
    values: list[float], *, width: int = 60, height: int = 1, of: str = "score_mean", log: bool = False
) -> list[str]:
    shown = metric(of)
    columns = window_of(history_of(values, field=of)).columns(shown, width)
    means = [math.nan if column is None else column.mean for column in columns]
    scale = scale_of(zip(means, means, strict=True), shown, log=log)
    return texts(metric_bars(columns, means, scale, shown, height=height))


def heights(lines: list[str]) -> list[int]:
    """Return the bars in eighths."""
    return [sum(BARS.index(cell) for cell in column) for column in zip(*lines, strict=True)]


@given(
    values=any_values,
    width=st.integers(28, 120),
    height=st.integers(1, 4),
    shown=st.sampled_from(METRICS),
    average=st.booleans(),
    log=st.booleans(),
)
def test_a_cell_fills_its_lines_whatever_the_numbers(values, width, height, shown, average, log):
    window = window_of(history_of(values, field=shown.field))
    at = len(values) // 2 if values else None
    charted = Charted(window=window, at=at, average=average, log=log)
    lines = metric_cell(charted, shown, width, cell_shape(charted, [shown], width, height), selected=True)
    assert [cell_len(text) for text in texts(lines)] == [width] * height


def test_a_rising_metric_gives_rising_bars_from_the_lowest_to_the_highest():
    bars = heights(spark([i / 500 for i in range(500)], height=2))
    assert bars == sorted(bars)
    assert (bars[0], bars[-1]) == (1, 15)  # the topmost eighth stays free, so that rows stand apart


def test_one_spike_reaches_the_top_and_leaves_the_others_their_shape():
    values = [math.sin(i / 8) for i in range(60)]
    bars = heights(spark([*values[:30], 1e6, *values[31:]]))
    assert bars[30] == max(bars) == 7
    assert max(bars[:30]) - min(bars[:30]) >= 3
    two = heights(spark([math.sin(i / 8) + 1e6 * (i in (30, 60)) for i in range(100)], width=100))
    assert max(two[:30]) - min(two[:30]) >= 3


def test_a_metric_that_hardly_moves_is_drawn_as_hardly_moving():
    for value, field in (
        (8.0, "kl"),
        (3.5, "entropy"),
        (0.5, "score_mean"),
        (-0.03, "policy_loss"),
        (141.0, "grad_norm"),
        (1000.0, "response_length"),
    ):
        bars = heights(spark([value + 0.002 * value * (i % 3) for i in range(60)], of=field))
        assert len(set(bars)) == 1, field


def test_nan_and_infinite_are_marked_and_the_rest_is_drawn():
    (line,) = spark([0.1, math.nan, 0.5, math.inf, 0.9])
    assert [place for place, cell in enumerate(line) if cell == "×"] == [1, 3]
    assert set(line) <= {*BARS[1:], "×"}
    (line,) = spark([0.5] * 2500 + [math.nan] + [0.5] * 2499)
    assert (line.count("×"), line.index("×")) == (1, 30), "one among thousands is still seen"


def test_missing_iterations_leave_a_gap():
    history = history_of([0.5] * 10)
    for number in range(21, 30):
        history.append(iteration(number))
    columns = window_of(history).columns(SCORE, 60)
    assert [column is None for column in columns] == [False] * 10 + [True] * 10 + [False] * 9
    narrow = window_of(history).columns(SCORE, 10)
    assert [column is None for column in narrow[4:6]] == [True, True]
    assert narrow[0] is not None
    assert narrow[-1] is not None


def test_the_threshold_is_drawn_where_no_bar_crosses_it_and_bars_beyond_it_differ():
    charted = Charted(window=window_of(history_of([0.05] * 30 + [0.3] * 10, field="clip_fraction")))

    def cell(width: int, height: int) -> list[Line]:
        return metric_cell(charted, CLIP, width, cell_shape(charted, [CLIP], width, height))

    lines = cell(120, 3)
    target = roles(lines, "target")
    assert re.search("┄{20,}▇{8,}", texts(lines)[1]), "behind the bars"
    assert "!30.0" in target, "the value's sign says so without colour"
    assert "█" * 8 in target
    assert "┄ 20" in texts(lines)[0]


def test_a_few_iterations_fill_the_width_with_broad_bars():
    charted = Charted(window=window_of(history_of([0.1, 0.9, 0.5])), at=1)
    shape = cell_shape(charted, [SCORE], 60, 1)
    (line,) = metric_cell(charted, SCORE, 60, shape)
    spark = texts([line])[0][shape.spark_at : shape.spark_at + shape.spark]
    assert len(set(spark)) == 3
    assert spark == "".join(sorted(spark, key=spark.index)), "three bars, none in two pieces"
    assert max(map(spark.count, set(spark))) - min(map(spark.count, set(spark))) <= 1
    assert set(roles([line], "cursor")) == {"▇"}


def test_a_lower_limit_is_passed_from_above_and_fixed_ranges_hold_whatever_the_values():
    variance = metric("explained_variance")
    assert variance.beyond(-0.1)
    assert not variance.beyond(0.1)
    assert not SCORE.beyond(1e9)
    assert scale_of([(0.3, 0.31)], variance)[:2] == (-1, 1)
    assert scale_of([(2.0, 3.0)] * 20, KL).low == 0
    assert scale_of([], CLIP)[:2] == (0, 5)


def test_the_threshold_joins_the_range_only_when_it_is_near():
    assert scale_of([(6.0, 7.0)] * 20, KL).high == 10
    assert scale_of([(1.0, 2.0)] * 20, KL).high < 10
    assert scale_of([(1000.0, 1100.0)] * 20, KL, log=True).low > 2


@given(values=any_values, shown=st.sampled_from(METRICS), log=st.booleans(), count=st.integers(1, 20))
def test_scales_and_their_ticks_are_finite_and_in_order_for_any_values(values, shown, log, count):
    scale = scale_of([(value, value) for value in values], shown, log=log)
    assert math.isfinite(scale.low)
    assert math.isfinite(scale.high)
    assert all(0 <= scale.position(value) <= 1 for value in values if math.isfinite(value))
    marks = ticks(scale, count)
    assert marks == sorted(marks)
    assert all(math.isfinite(mark) for mark in marks)
    assert len(marks) <= 3 * count + 8
    assert len(tick_texts(marks, log=scale.log)) == len(marks)


def test_ticks_are_round_numbers_within_the_axis():
    assert ticks(Axis(-0.2, 0.85), 5) == pytest.approx([-0.2, 0, 0.2, 0.4, 0.6, 0.8])
    assert tick_texts(ticks(Axis(-0.2, 0.85), 5)) == ["-0.2", "0.0", "0.2", "0.4", "0.6", "0.8"]
    assert ticks(Axis(1, 500), 5) == pytest.approx([100, 200, 300, 400, 500])
    assert ticks(Axis(-2, 1, log=True), 5) == pytest.approx([0.01, 0.1, 1, 10])
    assert tick_texts([0.5, 10.0], log=True) == ["0.5", "10"]


@pytest.mark.parametrize(
    ("change", "digits", "width", "text"),
    [(0.04, 2, 9, "▲ 0.04"), (-0.3, 1, 9, "▼ 0.3"), (-0.3, 1, 1, "▼"), (0.0001, 2, 9, "="), (math.nan, 2, 9, "")],
)
def test_a_change_says_its_direction_and_size_without_colour(change, digits, width, text):
    assert change_text(change, digits, width) == text


def test_the_moving_average_is_that_of_single_values():
    values = [1.0, 3.0, 2.0, 5.0]
    buckets = history_of(values).buckets("score_mean", 4)
    slow, weight = 0.0, 0.0
    for value, shown in zip(values, moving_average(buckets), strict=True):
        slow, weight = 0.9 * slow + 0.1 * value, 0.9 * weight + 0.1
        assert shown == pytest.approx(slow / weight)


def test_the_moving_average_counts_a_bucket_as_its_values():
    history = history_of([2.0] * 40 + [4.0] * 40)
    coarse, fine = (moving_average(history.buckets("score_mean", width))[-1] for width in (8, 80))
    assert coarse == pytest.approx(fine)
    assert moving_average([None, *history.buckets("score_mean", 1)])[1] == pytest.approx(3.0)
    huge = moving_average(history_of([1e308, -1e308, sys.float_info.max, math.nan]).buckets("score_mean", 4))
    assert all(map(math.isfinite, huge[:3])), "it stays among the floats"


@given(size=st.integers(1, 400), first=st.integers(1, 1000), width=st.integers(1, 130))
def test_the_cursor_is_on_the_column_that_holds_its_iteration(size, first, width):
    window = window_of(history_of(range(size), first=first))
    columns = window.columns(SCORE, width)
    for place, column in enumerate(columns):
        assert column is not None
        assert window.column_of(window.iteration_in(place, len(columns)), len(columns)) == place
        for position in (column.first_index, column.last_index):
            assert window.column_of(first + position, len(columns)) == place


def test_the_cost_of_drawing_a_cell_depends_on_its_width_not_on_the_history():
    history = Counted()
    template = iteration(1)
    history.append(template)
    for number in range(2, 20_001):
        history.append(iteration(number))
    history.read = 0
    charted = Charted(window=window_of(history), at=150, average=True)
    shape = cell_shape(charted, METRICS, 100, 2)
    for shown in METRICS:
        metric_cell(charted, shown, 100, shape)
    assert history.read <= len(METRICS) * (shape.spark + 4)


def test_cells_leave_room_for_the_sparkline_and_their_numbers_end_in_the_same_place():
    charted = Charted(window=window_of(history_of([0.1, 0.2, 0.3])))
    for width in range(28, 121):
        assert cell_shape(charted, [SCORE], width, 1).spark >= 8
        assert cell_shape(charted, METRICS, width, 2).spark >= 26
    for width, height in ((42, 2), (78, 1), (118, 3)):
        shape = cell_shape(charted, METRICS, width, height)
        ends = set()
        for shown in METRICS:
            value = reading_at(charted, shown).value
            if not shown.beyond(value):
                text = texts(metric_cell(charted, shown, width, shape))[0]
                number = " " + number_text(value, shown.digits, 7)
                ends.add(text.index(number) + len(number))
        assert len(ends) == 1
