"""The plot of score against KL."""

from __future__ import annotations

import math
import re

from charts import any_values, history_of, roles, texts
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from scripted_run import evaluation, iteration

from workbench.compare.frontier import Curve
from workbench.run.view import RunView
from workbench.training.score_against_kl import curve_of, point_at, point_text, score_against_kl


def run(scores: list[float], kls: list[float], name: str = "", other: int | None = None) -> Curve:
    view = RunView()
    for number, (score, kl) in enumerate(zip(scores, kls, strict=True), 1):
        view.take(iteration(number, score_mean=score, kl=kl))
    return curve_of(view, other, name)


def test_a_young_run_has_a_point_for_each_iteration_and_an_older_one_means():
    young = run([0.1, 0.2, 0.3], [1.0, 2.0, 4.0])
    assert [(point.iteration, point.kl) for point in young.training] == [(1, 1.0), (2, 2.0), (3, 4.0)]
    older = run([n / 100 for n in range(100)], [n / 10 for n in range(100)])
    assert older.training[-1].iteration == 100
    assert math.isclose(older.training[-1].kl, 9.7), "the mean of five iterations"
    plot = " ".join(line[10:] for line in texts(score_against_kl([older], None, None, 100, 30)[1:-3]))
    named = [int(number) for number in re.findall(r"\d+", plot)]
    assert len(named) >= 4, "the curve has iterations beside it"
    assert set(named) <= {point.iteration for point in older.training}


def test_the_title_has_the_point_of_the_cursor():
    curve = run([0.1, 0.25, 0.3], [1.0, 2.0, 4.0])
    assert point_at(curve, None) == curve.training[-1]
    second = point_at(curve, 2)
    assert second is not None
    assert point_text(second) == "iteration 2: score 0.250 at a KL of 2.00 nats/seq"
    lines = score_against_kl([curve], 2, 10.0, 100, 20)
    assert point_text(second) in texts(lines)[0]
    assert roles(lines, "cursor") == "●"


def test_the_cursor_is_further_right_with_more_kl_and_higher_with_more_score():
    curve = run([0.1, 0.5, 0.3], [1.0, 2.0, 4.0])
    places = []
    for number in (1, 2, 3):
        lines = texts(score_against_kl([curve], number, None, 80, 20)[1:])
        places.append(next((row, line.index("●")) for row, line in enumerate(lines) if "●" in line))
    assert places[0][1] < places[1][1] < places[2][1]
    assert places[1][0] < places[2][0] < places[0][0]


def test_each_marked_run_has_a_letter_in_the_plot_and_the_legend():
    this, other = run([0.1, 0.2], [1.0, 9.0]), run([0.1, 0.6, 0.2], [1.0, 3.0, 8.0], "other\x1b", other=0)
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
