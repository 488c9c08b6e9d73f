"""Numbers as text, the same on the screen, in tables and in headless output."""

from __future__ import annotations

import math
from datetime import datetime


def number(value: float | None, digits: int = 3, *, signed: bool = False, width: int = 0) -> str:
    """Format `value` with `digits` decimals; - where it is unknown (None, NaN or infinite).

    signed: with a + before a positive number.
    width: columns to stay within, 7 or more, with fewer decimals or scientific notation if need be; 0 for any.
    """
    if value is None or not math.isfinite(value):
        return "-"
    sign = "+" if signed else ""
    forms = [f".{places}f" for places in range(digits, -1, -1)] + [".3e", ".2e", ".1e", ".0e"]
    texts = (f"{value:{sign}{form}}" for form in forms)
    return next((text for text in texts if not width or len(text) <= width), f"{value:{sign}.0e}")


def score_text(score: float, digits: int = 2) -> str:
    """Format a response's score with its sign after the word; `not scored` if there is none."""
    return "not scored" if math.isnan(score) else f"score {number(score, digits, signed=True)}"


def percent(share: float | None, digits: int = 0) -> str:
    """Format a share of 1 as a percentage with `digits` decimals; - where it is unknown."""
    text = number(None if share is None else 100 * share, digits)
    return text if text == "-" else f"{text}%"


def duration(seconds: float) -> str:
    """Format `seconds` for a reader: 4.2s, 42s, 6m 20s, 3h 05m; - when unknown (NaN or infinite)."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02}m"


def moment(seconds: float | None) -> str:
    """Format a time, in unix seconds, as local date and time; - when unknown."""
    return "-" if seconds is None else f"{datetime.fromtimestamp(seconds).astimezone():%F %R}"


def gigabytes(count: int) -> str:
    """Format `count` bytes in GB (10^9 bytes)."""
    return f"{count / 1e9:.1f} GB"
