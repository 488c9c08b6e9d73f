"""Sparklines of one line."""

from __future__ import annotations

import math

from workbench.kit.glyphs import sparkline


def test_a_sparkline_goes_from_the_lowest_bar_to_the_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 0, 10], 2) == "▁█"


def test_a_flat_series_is_a_flat_line_and_values_that_are_not_finite_are_gaps() -> None:
    assert sparkline([1.0, 1.0 + 1e-9, 1.0], 8) == "▄▄▄"
    assert sparkline([0.0, math.nan, 1.0, math.inf], 8) == "▁ █ "
    assert sparkline([math.nan], 8) == " "
    assert sparkline([], 8) == sparkline([1.0], 0) == ""
