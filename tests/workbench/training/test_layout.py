"""How the pane shares its lines out, and that charts, cells and time fill them at every size."""

from __future__ import annotations

import pytest
from charts import texts
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from training_bench import dpo_view, view_of

from workbench.kit.axes import window_of
from workbench.run.metrics import DEFAULT
from workbench.run.view import RunView
from workbench.training.layout import layout
from workbench.training.metric_choice import large_ones, metrics_of
from workbench.training.metric_grid import Charted
from workbench.training.overview import Shown, cells_hidden, overview


def varied(view: RunView) -> RunView:
    """Let all numbers of the run rise: a number that never changes has a low bar and nothing above it."""
    for name in view.history.names:
        column = view.history.column(name)
        for place, value in enumerate(column):
            column[place] = value + place * abs(value) / 10  # type: ignore[index]
    return view


VIEWS = {"ppo": varied(view_of(40)), "young": varied(view_of(2)), "dpo": varied(dpo_view(30))}
FRAME = 5  # lines of the screen around the pane: its border, status line, strip and footer


def shown(view: RunView, width: int, height: int, **others: bool) -> Shown:
    metrics = metrics_of(view, DEFAULT)
    large = large_ones(metrics, view.history.kind)
    shares = layout(
        width, height, large=large, small=len(metrics) - large, scores=others.get("scores", False), events=4
    )
    return Shown(charted=Charted(window=window_of(view.history)), metrics=metrics, selected=0, layout=shares)


@pytest.mark.parametrize("kind", VIEWS)
def test_every_size_is_filled_and_nothing_is_cut(kind: str) -> None:
    for width in range(60, 221, 7):
        for height in (20, 24, 30, 40, 50, 60):
            content = shown(VIEWS[kind], width - 2, height - FRAME)
            lines, zones = overview(content, width - 2)
            drawn = texts(lines)
            assert len(drawn) == content.layout.above == height - FRAME - content.layout.below, (width, height)
            assert all(cell_len(line) <= width - 2 for line in drawn)
            assert not any("…" in line.replace(" … ", "") for line in drawn), "a range of an axis has one too"
            assert not any(line.isspace() for line in drawn), (width, height)
            text = "\n".join(drawn)
            assert all(metric.label in text for metric in content.metrics), (width, height)
            assert all(metric.unit in text for metric in content.metrics), (width, height, text)
            assert cells_hidden(content) == 0
            assert [zone.number for zone in zones] == list(range(len(content.metrics)))
            right = max(zone.columns.stop for zone in zones if zone.number > 1)
            assert right == width - 2, "the cells go to the edge"
            assert all(len(zone.plot) >= 3 for zone in zones)


@given(
    width=st.integers(20, 250),
    height=st.integers(1, 80),
    large=st.integers(0, 2),
    small=st.integers(0, 20),
    scores=st.booleans(),
    events=st.integers(0, 50),
)
def test_no_line_is_left_over_and_none_is_given_twice(width, height, large, small, scores, events):
    if not large + small:
        return
    shares = layout(width, height, large=large, small=small, scores=scores, events=events)
    assert all(lines >= 0 for lines in (*shares.charts, shares.rows, shares.time, shares.histogram, shares.events))
    assert len(shares.charts) == large
    if height >= 4:
        assert shares.above + shares.below == height
    assert not shares.histogram or scores
    assert shares.events <= events or not large
    if height >= 20 and width >= 58 and large:
        assert shares.rows * shares.columns >= small, "every metric has a cell"
        assert (shares.columns - 1) * shares.rows < max(small, 1), "no column is empty"
        assert shares.time == 1
        assert min(shares.charts) >= 4


def test_charts_are_side_by_side_where_there_is_room_and_stacked_in_a_tall_narrow_pane():
    assert not layout(118, 35, large=2, small=11, scores=False, events=0).stacked
    assert not layout(78, 19, large=2, small=11, scores=False, events=0).stacked
    assert layout(44, 33, large=2, small=11, scores=False, events=0).stacked
    assert not layout(44, 19, large=2, small=11, scores=False, events=0).stacked, "too low for two"


def test_scores_are_beside_the_events_in_a_wide_pane_and_above_them_in_others():
    wide = layout(198, 55, large=2, small=11, scores=True, events=9)
    assert wide.beside
    assert wide.histogram == wide.events == wide.below
    narrow = layout(78, 40, large=2, small=11, scores=True, events=9)
    assert not narrow.beside
    assert narrow.below == narrow.histogram + narrow.events
    assert not layout(198, 55, large=2, small=11, scores=True, events=0).beside
