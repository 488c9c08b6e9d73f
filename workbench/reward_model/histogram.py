"""Histograms of the rewards of chosen and rejected completions, above each other on one axis."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from workbench.kit.drawing import Drawn, Line, component_classes, rule
from workbench.kit.scale import number_text
from workbench.kit.sparkline import MISSING, bar

_NAMES = (("chosen", "series"), ("rejected", "run-1"))
_LABELS = 9  # columns
_MOST_BINS = 60
_DIGITS = 2


def reward_histogram(chosen: Sequence[float], rejected: Sequence[float], width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: title with both means, both distributions, their axis.

    The bars of both have the same scale. The title counts rewards that are not finite.
    """
    count = len(chosen) + len(rejected)
    chosen, rejected = _finite(chosen), _finite(rejected)
    lost = count - len(chosen) - len(rejected)
    across = width - _LABELS - 2
    if not (chosen and rejected) or across < 5:
        return [_title("rewards of chosen and rejected", lost, width), [(" none yet"[:width], "muted")]][:height]
    low, high = min(chosen[0], rejected[0]), max(chosen[-1], rejected[-1])
    bins = min(max(round(2 * math.sqrt(len(chosen))), 5), _MOST_BINS, across) if high > low else 1
    columns = across // bins
    counts = [_counts(rewards, low, high, bins) for rewards in (chosen, rejected)]
    most = max(map(max, counts))
    rows = max((height - 2) // 2, 1)
    lines = [_title(f"rewards · chosen {_mean(chosen)} · rejected {_mean(rejected)}", lost, width)]
    for (name, role), found in zip(_NAMES, counts, strict=True):
        stacks = [bar(count / most, rows) if count else [" "] * rows for count in found]
        for level in reversed(range(rows)):
            label = name if level == 0 else ""
            lines.append(
                [(f" {label:<{_LABELS}}", "muted"), ("".join(stack[level] * columns for stack in stacks), role)]
            )
    return [*lines, _axis(low, high, bins * columns)][:height]


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
    mean = sum(reward / len(rewards) for reward in rewards)
    return number_text(mean, _DIGITS, 9)


def _axis(low: float, high: float, width: int) -> Line:
    first, last = number_text(low, _DIGITS, 9), number_text(high, _DIGITS, 9)
    indent = " " * (_LABELS + 1)
    room = width - len(first) - len(last) - 2
    if high <= low or room < 1:
        return [(f"{indent}{first}", "muted")]
    return [(f"{indent}{first} ", "muted"), ("─" * room, "axis"), (f" {last}", "muted")]


class RewardHistogram(Drawn):
    """Widget that draws the rewards it was given last."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes("muted", "axis", "series", "run-1", "missing")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chosen: Sequence[float] = ()
        self._rejected: Sequence[float] = ()

    def show(self, chosen: Sequence[float], rejected: Sequence[float]) -> None:
        """Draw these rewards from now on."""
        self._chosen, self._rejected = chosen, rejected
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        return reward_histogram(self._chosen, self._rejected, width, height)
