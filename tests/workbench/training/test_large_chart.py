"""The large charts of the overview."""

from __future__ import annotations

import math

from charts import KL, SCORE, any_values, history_of, roles, texts
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from workbench.kit.axes import window_of
from workbench.run.history import History
from workbench.run.metrics import METRICS, Metric
from workbench.training.chart import Picture
from workbench.training.large_chart import DOT, large_chart
from workbench.training.metric_grid import Charted


def large(history: History, metric: Metric = SCORE, *, width: int = 60, height: int = 14, at: int | None = None):
    picture = Picture(charted=Charted(window=window_of(history), at=at), metric=metric)
    return large_chart(picture, width, height, selected=True)


@given(
    values=any_values,
    width=st.integers(20, 120),
    height=st.integers(4, 40),
    metric=st.sampled_from(METRICS),
    log=st.booleans(),
)
def test_a_large_chart_fills_its_lines_whatever_the_numbers(values, width, height, metric, log):
    charted = Charted(window=window_of(history_of(values, field=metric.field)), at=0 if values else None, log=log)
    lines, place = large_chart(Picture(charted=charted, metric=metric), width, height)
    assert [cell_len(text) for text in texts(lines)] == [width] * height
    assert place.left + place.across == width


def test_its_title_has_value_unit_change_and_deviation_and_its_limit_a_number():
    history = history_of([4.0, 6.0, 9.5], field="kl", kl_std=2.5)
    lines, _ = large(history, KL)
    assert texts(lines)[0].rstrip() == "▸KL  9.50 nats/seq  ▲ 3.50  ± 2.50"
    (limit,) = [text for text in texts(lines) if "limit 10" in text]
    assert limit.count("┄") > 10
    assert texts(large(history, KL, at=1)[0])[0].startswith("▸KL  6.00 nats/seq  ▲ 2.00")
    far = history_of([0.1, 0.2], field="kl", kl_std=math.nan)
    assert texts(large(far, KL)[0])[0].rstrip() == "▸KL  0.20 nats/seq  ▲ 0.10  ┄ limit 10"


def test_the_spread_is_a_dotted_edge_on_either_side_of_the_line():
    lines, _ = large(history_of([0.5] * 100, score_std=0.2))
    edges = [row for row, text in enumerate(texts(lines)) if text.count("⠁") + text.count("⡀") + text.count("⠂") > 40]
    (middle,) = [row for row, line in enumerate(lines) if len(roles([line], "series")) > 40]
    assert len(edges) == 2
    assert abs((middle - edges[0]) - (edges[1] - middle)) <= 1 < middle - edges[0]
    assert len(roles([lines[edges[0]]], "axis")) > 40
    none, _ = large(history_of([0.5] * 100))
    assert not any("⡀⡀⡀" in text for text in texts(none))


def test_young_runs_use_the_whole_width_with_a_dot_for_each_iteration():
    for count, places in ((1, [27]), (2, [0, 54]), (3, [0, 27, 54])):
        lines, place = large(history_of([0.5] * count))
        assert place.across == 55
        (row,) = [text[place.left :] for text in texts(lines) if DOT in text]
        assert [at for at, cell in enumerate(row) if cell == DOT] == places
        axis = texts(lines)[-1][place.left :]
        assert [int(number) for number in axis.replace("─", " ").split()] == list(range(1, count + 1))


def test_the_iteration_of_the_cursor_is_on_the_axis():
    lines, _ = large(history_of([0.5] * 500), at=249)
    assert roles(lines[-1:], "cursor") == "250"
    assert "│" in roles(lines[1:-1], "cursor")
