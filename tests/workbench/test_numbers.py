"""Numbers read the same wherever they appear."""

from __future__ import annotations

import math

import pytest

from workbench.numbers import duration, number, percent


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf, -math.inf])
def test_an_unknown_number_is_a_dash(unknown: float | None) -> None:
    assert number(unknown) == number(unknown, 2, signed=True, width=8) == percent(unknown) == "-"


@pytest.mark.parametrize(
    ("value", "digits", "signed", "text"),
    [(1.25, 2, False, "1.25"), (-1.25, 1, True, "-1.2"), (0.5, 3, True, "+0.500"), (12345.0, 0, False, "12345")],
)
def test_numbers_have_the_digits_and_the_sign_asked_for(value: float, digits: int, signed: bool, text: str) -> None:
    assert number(value, digits, signed=signed) == text


@pytest.mark.parametrize(("value", "text"), [(1815.0, "1815.00"), (-181512.25, "-181512"), (12345678.0, "1.2e+07")])
def test_a_large_number_loses_decimals_before_it_is_written_in_scientific_notation(value: float, text: str) -> None:
    assert number(value, 3, width=7) == text


@pytest.mark.parametrize("value", [1e300, -1e300, 123456789.0, -1e9, 1e-300])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("width", [7, 8, 12])
def test_a_huge_number_stays_within_its_columns(value: float, signed: bool, width: int) -> None:
    text = number(value, 3, signed=signed, width=width)
    assert len(text) <= width
    assert float(text) == pytest.approx(value, rel=0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("share", "digits", "text"), [(0.144, 0, "14%"), (1.0, 0, "100%"), (0.0123, 1, "1.2%"), (-0.5, 0, "-50%")]
)
def test_shares_are_written_as_percentages(share: float, digits: int, text: str) -> None:
    assert percent(share, digits) == text


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (4.23, "4.2s"),
        (42.4, "42s"),
        (59.6, "1m 00s"),
        (380, "6m 20s"),
        (11100, "3h 05m"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_durations_are_written_in_the_unit_of_their_size(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
