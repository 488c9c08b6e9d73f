"""Where the time of an iteration went."""

from __future__ import annotations

import math

from charts import texts
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from workbench.training.time_bar import time_line

PHASES = ("generate", "score", "reward", "update", "evaluate", "save")


def bars(line: str) -> list[int]:
    """Return the lengths of the bars in eighths."""
    eighths = " ▏▎▍▌▋▊▉█"
    lengths, before = [], ""
    for cell in line:
        if cell in eighths[1:]:
            lengths += [] if before in eighths[1:] and before else [0]
            lengths[-1] += eighths.index(cell)
        before = cell
    return lengths


def test_each_phase_has_its_name_its_seconds_and_a_bar_in_proportion():
    (line,) = texts([time_line({"generate": 6.0, "score": 3.0, "update": 12.0}, 7, 120)])
    assert line.startswith(" where the time of iteration 7 went   21s  generate ███")
    assert [word for word in line.split() if word.endswith("s")] == ["21s", "6.0s", "3.0s", "12s"]
    generate, score, update = bars(line)
    assert abs(generate - 2 * score) <= 2
    assert abs(update - 2 * generate) <= 2


def test_a_narrow_line_shortens_words_and_then_joins_the_shortest_phases():
    spent = {"generate": 6.0, "score": 5.0, "update": 11.0, "evaluate": 3.0, "save": 0.2}
    (fair,) = texts([time_line(spent, 40, 90)])
    assert "iteration 40  25s  gen " in fair
    assert "save" in fair
    (narrow,) = texts([time_line(spent, 40, 48)])
    assert [name for name in ("gen", "score", "update", "other") if name in narrow] == [
        "gen",
        "score",
        "update",
        "other",
    ]
    assert "save" not in narrow
    assert narrow.endswith("3s")


def test_phases_that_did_not_run_and_numbers_that_are_none_have_no_bar():
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
def test_the_line_fits_and_bars_fill_it(spent, iteration, width):
    line = time_line(spent, iteration, width)
    (text,) = texts([line])
    assert cell_len(text) <= width
    if width >= 58:
        assert cell_len(text) >= width - len(spent) - 1
        assert len(bars(text)) == sum(role == "text" for _, role in line)
