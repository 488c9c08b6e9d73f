"""The chart of a metric: dots, axes, cursor, threshold, marks and further runs; and score against KL."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
from charts import CLIP, KL, SCORE, Counted, any_values, history_of, roles, texts
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from scripted_run import evaluation, iteration

from workbench.compare.frontier import Curve
from workbench.kit.axes import window_of, window_over
from workbench.kit.glyphs import Canvas
from workbench.run.history import MetricHistory
from workbench.run.metrics import METRICS, Metric
from workbench.run.view import Mark, RunView
from workbench.text import Line
from workbench.training.chart import DOT, metric_chart
from workbench.training.metric_grid import Charted
from workbench.training.score_against_kl import curve_of, point_at, point_text, score_against_kl


def drawn(
    history: MetricHistory,
    metric: Metric = SCORE,
    *,
    width: int = 80,
    height: int = 24,
    at: int | None = None,
    average: bool = False,
    log: bool = False,
    marks: tuple[Mark, ...] = (),
    others: tuple[tuple[str, MetricHistory], ...] = (),
    selected: bool = True,
) -> tuple[list[Line], range]:
    window = window_over([history, *(other for _, other in others)]) if others else window_of(history)
    charted = Charted(window=window, at=at, average=average, log=log)
    return metric_chart(charted, metric, width, height, selected=selected, marks=marks, others=others)


def chart(*arguments: Any, **options: Any) -> list[Line]:
    return drawn(*arguments, **options)[0]


def axis_of(lines: list[Line]) -> int:
    return next(number for number, text in enumerate(texts(lines)) if "└" in text)


def plot(lines: list[Line]) -> list[str]:
    """Return the rows between title and axis, right of the y axis."""
    left = texts(lines)[axis_of(lines)].index("└") + 1
    return [text[left:] for text in texts(lines)[1 : axis_of(lines)]]


def labels(lines: list[Line]) -> dict[str, int]:
    """Return the rows of the numbers of the y axis."""
    return {text.split("┤")[0].strip(): row for row, text in enumerate(texts(lines)[1:]) if "┤" in text}


def dots(rows: list[str]) -> set[tuple[int, int]]:
    """Return the places of the dots, x from the left and y from the top."""
    places = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))  # of the bits of a braille pattern
    return {
        (2 * column + x, 4 * row + y)
        for row, text in enumerate(rows)
        for column, cell in enumerate(text)
        for bit, (x, y) in enumerate(places)
        if 0x2800 <= ord(cell) <= 0x28FF and ord(cell) >> bit & 1
    }


@given(
    start=st.tuples(st.integers(0, 39), st.integers(0, 39)),
    end=st.tuples(st.integers(0, 39), st.integers(0, 39)),
)
def test_a_line_has_no_gap_and_holds_both_ends(start, end):
    start, end = sorted([start, end])
    canvas = Canvas(20, 10)
    canvas.line(start, end, "policy")
    drawn = dots(["".join(cell for cell, _ in row) for row in canvas.rows()])
    assert {start, end} <= drawn
    for x in range(start[0], end[0]):
        here, there = ([y for place, y in drawn if place == at] for at in (x, x + 1))
        assert min(abs(a - b) for a in here for b in there) <= 1


@given(
    values=any_values,
    other=any_values,
    width=st.integers(20, 130),
    height=st.integers(4, 40),
    metric=st.sampled_from(METRICS),
    average=st.booleans(),
    log=st.booleans(),
    marks=st.sampled_from([(), (Mark(1, "alert", "x"), Mark(10**9, "end", "y"))]),
)
def test_any_numbers_fill_the_size(values, other, width, height, metric, average, log, marks):
    others = (("run", history_of(other, field=metric.field)),) if other and height > 6 else ()
    lines, place = drawn(
        history_of(values, field=metric.field),
        metric,
        width=width,
        height=height,
        at=0 if values else None,
        average=average,
        log=log,
        marks=marks if height > 6 else (),
        others=others,
    )
    assert [cell_len(text) for text in texts(lines)] == [width] * height
    assert place.stop == width - bool(others)


def test_a_rising_metric_is_a_line_from_the_lower_left_to_the_upper_right():
    lines, place = drawn(history_of([i / 20 for i in range(21)]))
    rows = plot(lines)
    points = dots(rows)
    across, down = 2 * len(place), 4 * len(rows)
    assert {(0, down - 1), (across - 1, 0)} <= points
    assert {x for x, _ in points} == set(range(across))
    tops = [min(y for at, y in points if at == x) for x in range(across)]
    assert tops == sorted(tops, reverse=True)


def test_a_bucket_of_many_values_spans_from_its_least_to_its_greatest():
    rows = plot(chart(history_of([i % 2 for i in range(5000)])))
    for row in (rows[2], rows[-3]):
        assert all(cell == "⣿" for cell in row.rstrip())


def test_the_y_axis_has_round_numbers_at_their_height():
    lines = chart(history_of([i / 20 for i in range(21)]), height=13)
    assert labels(lines) == {"1.0": 0, "0.5": 5, "0.0": 10}


@pytest.mark.parametrize(
    ("size", "at", "numbers"),
    [
        (500, None, "1 100 200 300 400 500"),
        (500, 249, "1 100 200 250 300 400 500"),
        (2, None, "1 2"),
        (3, None, "1 2 3"),
    ],
)
def test_the_x_axis_names_the_iteration_of_the_cursor_the_ends_and_round_ones(size, at, numbers):
    lines = chart(history_of([0.5] * size, first=1), at=at)
    assert texts(lines)[-1].replace("─", " ").strip(" └").split() == numbers.split()
    assert roles(lines[-1:], "cursor") == ("" if at is None else str(at + 1))


@pytest.mark.parametrize(("count", "places"), [(1, [37]), (2, [0, 74]), (3, [0, 37, 74])])
def test_young_runs_use_the_whole_width_with_a_dot_for_each_iteration(count, places):
    (row,) = [row for row in plot(chart(history_of([0.5] * count))) if DOT in row]
    assert [at for at, cell in enumerate(row) if cell == DOT] == places


def test_a_gap_in_the_iterations_and_a_nan_break_the_line():
    history = history_of([0.5] * 10)
    for number in range(21, 31):
        history.append(iteration(number, score_mean=0.5, score_std=math.nan))
    (row,) = [row for row in plot(chart(history)) if any(cell > "⠀" for cell in row)]
    assert " " * 20 in row[10:60]
    lines, place = drawn(history_of([0.5] * 10 + [math.nan] + [0.5] * 10))
    rows = plot(lines)
    assert roles(lines, "missing") == "×"
    assert rows[-1].index("×") == len(place) // 2
    assert not [x for x, _ in dots(rows) if abs(x - len(place)) <= 2]


def test_the_spread_is_a_dotted_edge_on_either_side_of_the_line():
    lines = chart(history_of([0.5] * 100, score_std=0.2))
    edges = [row for row, text in enumerate(texts(lines)) if text.count("⠁") + text.count("⡀") + text.count("⠂") > 40]
    (middle,) = [row for row, line in enumerate(lines) if len(roles([line], "policy")) > 40]
    assert len(edges) == 2
    assert abs((middle - edges[0]) - (edges[1] - middle)) <= 1 < middle - edges[0]
    assert len(roles([lines[edges[0]]], "axis")) > 40
    assert not any("⡀⡀⡀" in text for text in texts(chart(history_of([0.5] * 100))))


def test_the_spread_follows_the_batches_of_some_iterations_and_never_hides_the_line():
    """The deviation of one batch is noise: drawn as it is, it scatters dots over the chart."""
    history = history_of([])
    for number in range(1, 61):
        history.append(iteration(number, score_mean=0.5, score_std=0.1 if number % 2 else 0.3))
    lines, place = drawn(history)
    heights = {y for x, y in dots(plot(lines)) if x > len(place)}  # in the later half
    assert 3 <= len(heights) <= 12
    assert max(heights) - min(heights) > 30, "on both sides"
    assert len("".join(roles(lines[1:], "policy"))) == len(place)


def test_the_second_main_metric_has_a_colour_of_its_own_unless_runs_are_beside_it():
    history = history_of([1.0, 2.0] * 20, field="kl")
    assert len(roles(chart(history, KL)[1:], "reference")) > 40
    assert not roles(chart(history, KL)[1:], "policy")
    assert not roles(chart(history)[1:], "reference")
    overlaid = chart(history, KL, others=(("other", history),))
    assert len(roles(overlaid[1:], "policy")) > 40


def test_alarms_are_signs_on_the_curve_at_their_iterations_and_nothing_else_is():
    history = history_of([i / 60 for i in range(61)])
    marks = (
        Mark(1, "alert", "", "warning"),
        Mark(31, "alarm", "", "warning"),
        Mark(46, "alarm", "", "error"),
        Mark(46, "alarm", "", "warning"),
        Mark(50, "checkpoint", ""),
        Mark(90, "alarm", "", "error"),
    )
    lines, place = drawn(history, marks=marks)
    rows = plot(lines)
    found = {cell: (row, column) for row, text in enumerate(rows) for column, cell in enumerate(text) if cell in "⚠✖✓·"}
    assert found.keys() == {"⚠", "✖"}, "the worst where two meet"
    for sign, number in (("⚠", 31), ("✖", 46)):
        row, column = found[sign]
        assert column == pytest.approx((number - 1) / 60 * (len(place) - 1), abs=1)
        assert row == pytest.approx((1 - (number - 1) / 60) * (len(rows) - 1), abs=1)
    assert "⚠ alarm" in texts(lines)[0]
    assert "alarm" not in texts(chart(history))[0]


def test_values_beyond_the_axis_are_cut_and_marked():
    explained = next(metric for metric in METRICS if metric.field == "explained_variance")
    rows = plot(chart(history_of([0.5] * 20 + [-7.7] + [0.5] * 20, field="explained_variance"), explained))
    assert [row for row, text in enumerate(rows) if "▾" in text] == [len(rows) - 1]
    assert not any("▾" in row or "▴" in row for row in plot(chart(history_of([-1.0, 0.5, 1.0] * 20))))


def test_the_title_has_value_unit_change_deviation_average_and_a_limit_that_the_plot_does_not_name():
    history = history_of([4.0, 6.0, 9.5], field="kl", kl_std=2.5)
    lines = chart(history, KL)
    assert texts(lines)[0].startswith("▸KL    9.50 nats/seq  ▲ 3.50  ± 2.50  ")
    (limit,) = [text for text in texts(lines) if "┄ limit 10" in text]
    assert limit.count("┄") > 10
    assert texts(chart(history, KL, at=1, selected=False))[0].startswith(" KL    6.00 nats/seq  ▲ 2.00")
    far = history_of([0.1, 0.2], field="kl", kl_std=math.nan)
    assert texts(chart(far, KL))[0].rstrip() == "▸KL    0.20 nats/seq  ▲ 0.10  ┄ limit 10"
    titles = [texts(chart(history_of(values, field="kl", kl_std=0.5), KL))[0] for values in ([1, 1], [-0.1, 9.5])]
    assert len({tuple(title.index(part) for part in ("nats", "±")) for title in titles}) == 1, (
        "numbers keep their place"
    )
    history = history_of([i / 100 for i in range(101)])
    assert "EMA 0.4" in texts(chart(history, at=50, average=True))[0]
    assert "EMA 0.000" in texts(chart(history, at=0, average=True))[0]


def test_the_cursor_is_a_line_through_its_iteration():
    lines, place = drawn(history_of([i / 100 for i in range(101)]), at=50)
    cursor = [row[len(place) // 2] for row in plot(lines)]
    assert len(cursor) - 2 <= cursor.count("│") < len(cursor), "but where the metric crosses it"


def test_the_threshold_is_a_line_at_its_height_behind_the_metric():
    lines = chart(history_of([0.1] * 20 + [0.3] * 20, field="clip_fraction"), CLIP)
    (row,) = [number for number, row in enumerate(plot(lines)) if row.count("┄") > 10]
    assert labels(lines)["20"] == row
    assert "20" in roles(lines[1 + row :][:1], "target"), "its number is in its colour"
    covered = chart(history_of([0.2] * 40, field="clip_fraction"), CLIP)
    assert "20" in labels(covered), "it has its number where the metric hides the line"
    far = chart(history_of([0.01] * 40, field="clip_fraction"), CLIP)
    assert not any("┄" in row for row in plot(far)), "far above, it would flatten the metric"


def test_marks_are_under_their_iterations_the_alert_and_above_all_the_error_first():
    marks = (Mark(1, "checkpoint", ""), Mark(50, "alert", ""), Mark(50, "checkpoint", ""), Mark(99, "setting", ""))
    lines, place = drawn(history_of([0.5] * 99), marks=(*marks, Mark(200, "end", "")))
    row = texts(lines)[-1][place.start :]
    assert {at: cell for at, cell in enumerate(row) if cell != " "} == {0: "✓", 37: "⚠", 74: "→"}
    lines = chart(history_of([0.5] * 99), marks=(Mark(50, "alarm", "", "error"), Mark(50, "rollback", "")))
    assert texts(lines)[-1].split() == ["✖"]
    assert "✖" in roles(lines, "missing")


def test_further_runs_have_letters_at_their_ends_and_in_the_legend_and_a_colour_each():
    others = tuple(
        (f"run-{name}", history_of([level] * 30))
        for name, level in zip("vwxyz", (0.9, 0.9, 0.5, 0.1, 0.2), strict=True)
    )
    lines = chart(history_of([0.0] * 10), others=others, width=110)
    ends = "".join(row[-1] for row in plot(lines)).replace(" ", "")
    assert sorted(ends) == list("abcde")
    assert ends.index("a") < ends.index("c") < ends.index("e") < ends.index("d")
    assert " ".join(texts(lines)[-1].split()) == "─ this run a run-v b run-w c run-x d run-y e run-z"
    for number, letter in enumerate("abcde", 1):
        assert roles(lines[:-1], f"run-{number}").count(letter) == 1
    assert "30" in texts(lines)[-2].replace("─", " ").split(), "the axis holds the longest of them"


def test_the_letter_of_a_short_run_is_beside_its_last_value():
    short = history_of([0.8 * i / 19 for i in range(20)])
    lines = chart(history_of([i / 99 for i in range(100)]), others=(("short", short),), width=110, height=25)
    assert [row for row, text in enumerate(plot(lines)) if "a" in text] == [labels(lines)["0.8"]]


def test_names_of_runs_are_shown_and_not_obeyed():
    lines = chart(history_of([0.0] * 10), others=(("\x1b[2J[/x]", history_of([1.0] * 10)),))
    assert "␛[2J[/x]" in texts(lines)[-1]


def test_a_logarithmic_axis_is_used_where_it_fits_and_otherwise_its_absence_is_noted():
    values = [10.0 ** (i / 10) for i in range(-20, 11)]
    lines = chart(history_of(values, field="kl"), KL, log=True)
    assert "no log scale" not in texts(lines)[0]
    points = dots(plot(lines))
    tops = [min(y for at, y in points if at == x) for x in sorted({x for x, _ in points})]
    steps = {before - after for before, after in itertools.pairwise(tops)}
    assert steps <= {0, 1}, "an exponential is a straight line"
    assert {"0.01", "0.1", "1", "10"} <= labels(lines).keys()
    assert "no log scale" in texts(chart(history_of([0.1, 0.2]), log=True))[0]


def test_drawing_reads_two_buckets_a_column_for_every_run_and_for_the_spread_of_its_own():
    histories = [Counted(), Counted()]
    for number in range(1, 10_001):
        for history in histories:
            history.append(iteration(number))
    chart(histories[0], others=(("other", histories[1]),), width=100, average=True)
    assert [history.read for history in histories] == [pytest.approx(4 * 94, abs=6), pytest.approx(2 * 94, abs=3)]


def test_a_run_without_iterations_draws_an_empty_chart():
    lines = chart(history_of([]))
    assert not dots(plot(lines))
    assert texts(lines)[0].split() == ["▸score", "NaN"]


def curve_with(scores: list[float], kls: list[float], name: str = "", other: int | None = None) -> Curve:
    view = RunView()
    for number, (score, kl) in enumerate(zip(scores, kls, strict=True), 1):
        view.take(iteration(number, score_mean=score, kl=kl))
    return curve_of(view, other, name)


def test_a_young_run_has_a_point_for_each_iteration_and_an_older_one_means():
    young = curve_with([0.1, 0.2, 0.3], [1.0, 2.0, 4.0])
    assert [(point.iteration, point.kl) for point in young.training] == [(1, 1.0), (2, 2.0), (3, 4.0)]
    older = curve_with([n / 100 for n in range(100)], [n / 10 for n in range(100)])
    assert older.training[-1].iteration == 100
    assert math.isclose(older.training[-1].kl, 9.7), "the mean of five iterations"
    plot = " ".join(line[10:] for line in texts(score_against_kl([older], None, None, 100, 30)[1:-3]))
    named = [int(number) for number in re.findall(r"\d+", plot)]
    assert len(named) >= 4, "the curve has iterations beside it"
    assert set(named) <= {point.iteration for point in older.training}


def test_the_title_has_the_point_of_the_cursor():
    curve = curve_with([0.1, 0.25, 0.3], [1.0, 2.0, 4.0])
    assert point_at(curve, None) == curve.training[-1]
    second = point_at(curve, 2)
    assert second is not None
    assert point_text(second) == "iteration 2: score 0.250 at a KL of 2.00 nats/seq"
    lines = score_against_kl([curve], 2, 10.0, 100, 20)
    assert point_text(second) in texts(lines)[0]
    assert roles(lines[:-1], "cursor") == "●"
    assert roles(lines[-1:], "cursor").strip() == "● cursor", "the legend has its colour"


def test_the_cursor_is_further_right_with_more_kl_and_higher_with_more_score():
    curve = curve_with([0.1, 0.5, 0.3], [1.0, 2.0, 4.0])
    places = []
    for number in (1, 2, 3):
        lines = texts(score_against_kl([curve], number, None, 80, 20)[1:])
        places.append(next((row, line.index("●")) for row, line in enumerate(lines) if "●" in line))
    assert places[0][1] < places[1][1] < places[2][1]
    assert places[1][0] < places[2][0] < places[0][0]


def test_each_marked_run_has_a_letter_in_the_plot_and_the_legend():
    this, other = curve_with([0.1, 0.2], [1.0, 9.0]), curve_with([0.1, 0.6, 0.2], [1.0, 3.0, 8.0], "other\x1b", other=0)
    lines = score_against_kl([this, other], None, 10.0, 100, 30)
    assert roles(lines[1:-1], "run-1").count("a") == 2, "the third is where this run is, too"
    legend = texts(lines)[-1]
    for part in ("• this run", "a other␛", "┊ KL 10"):
        assert part in legend


def test_evaluations_are_marked_and_a_run_of_evaluations_alone_is_compared_by_them():
    view = RunView()
    view.take(evaluation(0, score_mean=0.1, kl=0.0))
    view.take(evaluation(5, score_mean=0.4, kl=3.0))
    curve = curve_of(view)
    assert [point.score for point in curve.compared] == [0.1, 0.4]
    assert "◇" in "".join(texts(score_against_kl([curve], None, None, 80, 20)))


def test_without_points_a_sentence_says_so():
    assert "No iteration with a score and a KL yet." in "".join(
        texts(score_against_kl([curve_of(RunView())], None, None, 80, 20))
    )


@given(
    scores=any_values,
    kl=st.floats(0, 1e6),
    width=st.integers(30, 200),
    height=st.integers(1, 60),
    limit=st.none() | st.floats(0.1, 100),
)
def test_any_numbers_fit_at_any_size(scores, kl, width, height, limit):
    view = RunView()
    view.history = history_of(scores, kl=kl)
    lines = score_against_kl(
        [curve_of(view), *(curve_of(view, n, "x" * 50) for n in range(2))], None, limit, width, height
    )
    assert len(lines) <= height
    assert all(cell_len(line) <= width for line in texts(lines))
