"""The overview: how it shares its lines out, and its charts, cells, time and scores."""

from __future__ import annotations

import itertools
import math

import pytest
from charts import any_values, roles, texts
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from training_bench import dpo_view, view_of

from workbench.kit.axes import window_of
from workbench.run.metrics import DEFAULT
from workbench.run.view import RunView
from workbench.training.metric_grid import Charted, metrics_of
from workbench.training.overview import Shown, histogram, layout, overview, time_line

BARS, EIGHTHS = " ▁▂▃▄▅▆▇█", " ▏▎▍▌▋▊▉█"
PHASES = ("generate", "score", "reward", "update", "evaluate", "save")


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
    large = 2
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
            assert len(drawn) == height - FRAME - content.layout.below, (width, height)
            assert all(cell_len(line) <= width - 2 for line in drawn)
            assert not any("…" in line.replace(" … ", "") for line in drawn), "a range of an axis has one too"
            assert not any(line.isspace() for line in drawn), (width, height)
            text = "\n".join(drawn)
            assert all(metric.label in text for metric in content.metrics), (width, height)
            assert all(metric.unit in text for metric in content.metrics), (width, height, text)
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
        charts = sum(shares.charts) if shares.stacked else max(shares.charts, default=0)
        assert charts + shares.rows * shares.cell + shares.time + shares.below == height
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


def test_cells_grow_with_the_pane():
    sizes = ((100, 25), (118, 24), (198, 55))
    assert [layout(*size, large=2, small=11, scores=False, events=4).cell for size in sizes] == [1, 2, 4]


def test_scores_are_beside_the_events_in_a_wide_pane_and_above_them_in_others():
    wide = layout(198, 55, large=2, small=11, scores=True, events=9)
    assert wide.beside
    assert wide.histogram == wide.events == wide.below
    narrow = layout(78, 40, large=2, small=11, scores=True, events=9)
    assert not narrow.beside
    assert narrow.below == narrow.histogram + narrow.events
    assert not layout(198, 55, large=2, small=11, scores=True, events=0).beside
    low = layout(43, 34, large=2, small=12, scores=True, events=9)
    assert (low.charts, low.histogram, low.events) == ((8, 8), 0, 5), "no line is kept for a histogram without room"


# Where the time went


def pieces(line: str) -> list[int]:
    """Return the columns of the pieces of a line, with their ends."""
    ends = [at for at, cell in enumerate(line) if cell in "├┼┤"]
    return [stop - start for start, stop in itertools.pairwise(ends)]


def test_each_phase_has_its_name_its_seconds_and_a_piece_of_the_line_in_proportion():
    (line,) = texts([time_line({"generate": 6.0, "score": 3.0, "update": 12.0}, 7, 120)])
    assert line.startswith(" time of iteration 7  21s ├ generate 6.0s ──")
    assert [word for word in line.split() if word.endswith("s")] == ["21s", "6.0s", "3.0s", "12s"]
    generate, score, update = pieces(line)
    assert abs(generate - 2 * score) <= 2
    assert abs(update - 2 * generate) <= 2


def test_a_narrow_line_shortens_its_heading_and_then_its_pieces_and_keeps_their_names():
    spent = {"generate": 6.0, "score": 5.0, "update": 11.0, "evaluate": 3.0, "save": 0.01}
    (fair,) = texts([time_line(spent, 40, 80)])
    assert fair.startswith(" iteration 40  25s ├ generate ")
    (narrow,) = texts([time_line(spent, 40, 46)])
    assert narrow.startswith(" 25s ├generate┼ score ")
    for name in ("update 11s", "eva…"):
        assert name in narrow
    assert "save" not in narrow


def test_phases_that_did_not_run_and_numbers_that_are_none_have_no_piece():
    assert time_line({}, 1, 80) == []
    assert time_line({"train": math.nan}, 1, 80) == []
    (line,) = texts([time_line({"generate": 1.0, "evaluate": 0.0, "save": math.inf}, 1, 80)])
    assert "evaluate" not in line
    assert "save" not in line


@given(
    spent=st.dictionaries(st.sampled_from(PHASES), st.floats(0.001, 1e5), min_size=1),
    iteration=st.integers(1, 10**6),
    width=st.integers(8, 220),
)
def test_the_line_fits_and_its_pieces_fill_it(spent, iteration, width):
    line = time_line(spent, iteration, width)
    (text,) = texts([line])
    assert cell_len(text) <= width
    if len(text) > 12 and "┤" in text:
        assert cell_len(text) == width - 1
        assert sum(pieces(text)) <= width


# The distribution of the scores


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
    found = heights(line)
    assert 0 < found[0] < max(found[15:30]) < found[-1] == 7
    assert found.count(0) > len(found) / 2
    assert "70 · mean 0.71 ± 0.36" in title
    assert (axis.split()[0], axis.split()[-1]) == ("0.00", "1.00")
    assert abs(axis.index("┴") - (1 + 0.714 * (len(line) - 2))) <= 1, "the mean has its place on the axis"
    assert len(histogram(scores, 7, 60, 4)) == 4


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
