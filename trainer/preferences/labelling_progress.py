"""Progress of a labelling session: speed, biases and self-agreement, counted from its labels when it is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from trainer.confidence import wilson_interval
from trainer.preferences.agreement import cohen_kappa
from trainer.preferences.conversations import length_in_characters
from trainer.preferences.items import Progress, SessionItem, Share
from trainer.preferences.records import Judgement

PAUSE = 300.0  # seconds; a longer gap between two labels is a pause
_RECENT = 50  # newest labels, which the speed is measured on

What = str | tuple[tuple[int, ...], ...]
"""Verdict or ranking of a judgement, for comparison."""


class LabelFigures(NamedTuple):
    """Figures of one label of a session; None where they do not apply."""

    id: int
    repeats: int  # id of the label that it repeats; 0 for none
    what: What
    time: float | None
    seconds: float | None
    left: bool | None  # whether the left completion was chosen
    longer: bool | None  # whether the longer one was


def label_figures(item: SessionItem) -> LabelFigures:
    """Return the figures of the label of `item`, which must have one."""
    assert item.label is not None
    judgement, left, longer = item.label.judgement, None, None
    if judgement.choice in ("a", "b"):  # else neither is chosen, or there are more than two
        chosen = judgement.ranking[0][0]
        lengths = [length_in_characters(completion) for completion in item.item.comparison.completions]
        left = item.item.order[0] == chosen
        longer = lengths[chosen] == max(lengths) if lengths[0] != lengths[1] else None
    what = verdict_or_ranking(judgement)
    return LabelFigures(item.label.id, item.item.repeats, what, judgement.time, judgement.seconds, left, longer)


def verdict_or_ranking(judgement: Judgement) -> What:
    """Return the verdict, or the ranking with each group sorted."""
    if judgement.verdict != "ranked":
        return judgement.verdict
    return tuple(tuple(sorted(group)) for group in judgement.ranking)


def measure_progress(labels: Sequence[LabelFigures], firsts: dict[int, What], left: int | None) -> Progress:
    """Return the progress of a session.

    labels: in the order of labelling. firsts: what the labels that they repeat say, by id, if they are not undone.
    left: number of items still to be judged; None if not known.
    """
    times = [label.time for label in labels if label.time is not None]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    worked = [0 <= gap <= PAUSE for gap in gaps]  # the clock may have been set back
    recent = [gap for gap, work in zip(gaps[-_RECENT + 1 :], worked[-_RECENT + 1 :], strict=True) if work]
    per_hour = 3600 * len(recent) / sum(recent) if sum(recent) else math.nan  # NaN without two labels in a row
    pauses = [place for place, work in enumerate(worked) if not work]
    repeats = [
        (first, label.what)
        for label in labels
        if (first := firsts.get(label.repeats, "skip")) != "skip" and label.what != "skip"
    ]
    seconds = [label.seconds for label in labels if label.seconds is not None]
    return Progress(
        done=len(labels),
        left=left,
        per_hour=per_hour,
        median_seconds=median(seconds) if seconds else math.nan,
        eta_seconds=math.nan if left is None else left / per_hour * 3600,
        streak=len(gaps) - pauses[-1] if pauses else len(times),
        left_side=_share([label.left for label in labels if label.left is not None]),
        longer=_share([label.longer for label in labels if label.longer is not None]),
        same=_share([first == again for first, again in repeats]),
        kappa=_kappa(tuple(repeats)),
    )


def _share(so: Sequence[bool]) -> Share:
    count, total = sum(so), len(so)
    return Share(count, total, count / total if total else math.nan, *wilson_interval(count, total))


@lru_cache(maxsize=1)  # most labels repeat nothing
def _kappa(repeats: tuple[tuple[What, What], ...]) -> float:
    return cohen_kappa([first for first, _ in repeats], [again for _, again in repeats]).value
