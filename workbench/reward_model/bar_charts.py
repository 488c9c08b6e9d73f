"""Bar charts of a reward model: its calibration, and the rewards of chosen and rejected completions."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from trainer.reward_model.predictions import CalibrationBin
from workbench.kit.drawing import Line, line_of, rule
from workbench.kit.glyphs import MISSING, bar
from workbench.numbers import number

_CALIBRATION_BINS = 10  # from 0.5 to 1
_CALIBRATION_LABELS = 6  # columns
_WIDEST = 8
_REWARD_LABELS = 9  # columns
_MOST_BINS = 60


def calibration_lines(bins: Sequence[CalibrationBin], error: float, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: title, bars with ◂ at the predicted share, counts.

    There is a bar and a count of pairs per bin. A bar that ends below its ◂ shows that the model is overconfident.
    error: the expected calibration error (ECE).
    """
    known = f" · error {error:.3f}" if math.isfinite(error) else ""
    title = rule(f"calibration{known} · bar: observed   ◂: predicted", width)
    across = (width - _CALIBRATION_LABELS - 1) // _CALIBRATION_BINS
    if not bins:
        return [title, [(" no decided held-out pairs yet"[:width], "muted")]][:height]
    if across < 2:
        return [title][:height]
    across, rows = min(across, _WIDEST), max(height - 3, 1)
    columns = across * _CALIBRATION_BINS
    stacks: list[list[tuple[str, str]]] = [[(" ", "text")] * columns for _ in range(rows)]
    counts, marks = [" "] * columns, [""] * _CALIBRATION_BINS
    for one in bins:
        place = min(round(_within(2 * one.low - 1) * _CALIBRATION_BINS), _CALIBRATION_BINS - 1)
        for row, cell in enumerate(reversed(bar(_within(one.accuracy), rows))):
            for column in range(place * across, (place + 1) * across - 1):
                stacks[row][column] = (cell, "series")
        stacks[min(int((1 - _within(one.confidence)) * rows), rows - 1)][(place + 1) * across - 1] = ("◂", "target")
        marks[place] = _pairs(one.pairs, across - 1)
    for place, text in enumerate(marks):
        counts[place * across : place * across + len(text)] = text
    labels = {0: "100%", rows - 1: "0%"} if rows > 1 else {}
    plot: list[Line] = [
        [(labels.get(row, "").rjust(_CALIBRATION_LABELS) + " ", "muted"), *line_of(cells)]
        for row, cells in enumerate(stacks)
    ]
    ends = "0.5" + "predicted".center(columns - 6) + "1.0"
    return [
        title,
        *plot,
        [("pairs".rjust(_CALIBRATION_LABELS) + " ", "muted"), ("".join(counts), "muted")],
        [(" " * (_CALIBRATION_LABELS + 1) + ends, "muted")],
    ][:height]


def reward_histogram(chosen: Sequence[float], rejected: Sequence[float], width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: title with both means, both distributions, their axis.

    The bars of both have the same scale. The title counts rewards that are not finite.
    """
    count = len(chosen) + len(rejected)
    chosen, rejected = _finite(chosen), _finite(rejected)
    lost = count - len(chosen) - len(rejected)
    across = width - _REWARD_LABELS - 2
    if not (chosen and rejected) or across < 5:
        return [_title("rewards of chosen and rejected", lost, width), [(" none yet"[:width], "muted")]][:height]
    low, high = min(chosen[0], rejected[0]), max(chosen[-1], rejected[-1])
    bins = min(max(round(2 * math.sqrt(len(chosen))), 5), _MOST_BINS, across) if high > low else 1
    columns = across // bins
    counts = [_counts(rewards, low, high, bins) for rewards in (chosen, rejected)]
    most = max(map(max, counts))
    rows = max((height - 2) // 2, 1)
    lines = [_title(f"rewards · chosen {_mean(chosen)} · rejected {_mean(rejected)}", lost, width)]
    for (name, role), found in zip((("chosen", "series"), ("rejected", "run-1")), counts, strict=True):
        stacks = [bar(count / most, rows) if count else [" "] * rows for count in found]
        for level in reversed(range(rows)):
            label = name if level == 0 else ""
            bars = "".join(stack[level] * columns for stack in stacks)
            lines.append([(f" {label:<{_REWARD_LABELS}}", "muted"), (bars, role)])
    return [*lines, _axis(low, high, bins * columns)][:height]


def _within(share: float) -> float:
    """Clip `share` to 0 to 1, whatever a file contains; 0 if it is not finite."""
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0


def _pairs(count: int, width: int) -> str:
    """Return a number of pairs in at most `width` columns; + if it does not fit."""
    text = str(count) if count < 1000 else f"{count // 1000}k"
    return text if len(text) <= width else "+"


def _finite(rewards: Sequence[float]) -> list[float]:
    """Return the finite rewards, ascending."""
    return sorted(reward for reward in rewards if math.isfinite(reward))


def _title(text: str, lost: int, width: int) -> Line:
    missing = f" · {MISSING} {lost} not finite" if lost else ""
    return rule(text, width, after=[(missing[: max(width - len(text) - 1, 0)], "missing")])


def _counts(ascending: Sequence[float], low: float, high: float, bins: int) -> list[int]:
    """Count the rewards in each of `bins` equal parts from `low` to `high`."""
    inner = [low / bins * (bins - place) + high / bins * place for place in range(1, bins)]
    edges = [0, *(bisect_left(ascending, edge) for edge in inner), len(ascending)]
    return [max(end - start, 0) for start, end in pairwise(edges)]


def _mean(rewards: Sequence[float]) -> str:
    return number(sum(reward / len(rewards) for reward in rewards), 2, width=9)


def _axis(low: float, high: float, width: int) -> Line:
    first, last = number(low, 2, width=9), number(high, 2, width=9)
    indent = " " * (_REWARD_LABELS + 1)
    room = width - len(first) - len(last) - 2
    if high <= low or room < 1:
        return [(f"{indent}{first}", "muted")]
    return [(f"{indent}{first} ", "muted"), ("─" * room, "axis"), (f" {last}", "muted")]
