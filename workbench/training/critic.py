"""The critic in a sentence and a picture: what it predicted for each fifth of the tokens, and what came."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

from workbench.kit.axes import Axis
from workbench.kit.drawing import rule
from workbench.kit.glyphs import calibration_bars
from workbench.run.history import MetricHistory
from workbench.text import Line, number, percent, text_lines

_ITERATIONS = 10  # pooled: a batch of a few sequences is mostly noise
_SEEN = 0.1  # of the height of the picture: values that are off by less are about right
_EXPLAINED = 0.005  # rounds to 0%
_FEW = 5  # lines for bars, counts and axis, which then have no heading


def critic_of(history: MetricHistory, at: int | None) -> Callable[[int, int], list[Line]] | None:
    """Return a drawing of the critic in the ten iterations up to position `at`; None where the run recorded no critic.

    at: None for the newest iteration.
    """
    stop = len(history) if at is None else at + 1
    start = max(stop - _ITERATIONS, 0)
    if not (fifths := history.calibration(start, stop)):
        return None
    explained = [value for value in history.column("explained_variance")[start:stop] if math.isfinite(value)]
    first, last = history.numbers[start], history.numbers[stop - 1]
    when = f"In iterations {first} to {last}" if first < last else f"In iteration {last}"
    return partial(critic_lines, fifths, median(explained or [math.nan]), when)


def critic_lines(
    fifths: Sequence[tuple[float, float, int]], explained: float, when: str, width: int, height: int
) -> list[Line]:
    """Return `height` lines of at most `width` columns: a sentence, and a bar for each fifth as far as there is room.

    fifths: mean value, mean return and number of tokens, the lowest values first. explained: the explained variance.
    """
    known = [end for fifth in fifths for end in fifth[:2]]
    scale = Axis(min(known), max(known))
    span = scale.high - scale.low
    digits = max(1 - math.floor(math.log10(span)), 0) if 1e-6 < span < 1e6 else 2
    low, high, first, last = (number(end, digits, width=9) for end in (*scale[:2], fifths[0][0], fifths[-1][0]))
    how = f"explains {percent(explained)} of the returns"
    if not explained > _EXPLAINED:
        how = f"predicts the returns {'worse' if explained < -_EXPLAINED else 'no better'} than their mean"
    gap = fifths[-1][0] - fifths[-1][1]
    off = f"{number(abs(gap), digits, width=9)} too {'high' if gap > 0 else 'low'}"
    where = f"; where it promises most it is {off if abs(gap) > _SEEN * span else 'about right'}"
    text = f"{when} the critic {how}{where if fifths[-1][0] > fifths[0][0] else ''}."
    lines: list[Line] = [[(f" {line}", "text")] for line in text_lines(text, width - 1)]
    if height - len(lines) > _FEW:
        lines.append(rule("bar: returns   ◂: predicted", width))
    at = scale.position
    bars = [(place, at(value), at(came), tokens) for place, (value, came, tokens) in enumerate(fifths)]
    room = max(height - len(lines), 0)
    lines += calibration_bars(bars, len(bars), (low, high), ("tokens", first, last), width, room)
    return [*lines, *([[]] * height)][:height]
