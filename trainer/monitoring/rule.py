"""What a rule is, and what it says when it finds something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from trainer.config.schema import Config
from trainer.events import Fix
from trainer.monitoring.history import History

Level = Literal["warning", "error"]


class Sign(NamedTuple):
    """What is wrong, by which numbers, and what to do about it."""

    level: Level
    message: str
    evidence: dict[str, float]
    advice: str
    fixes: Sequence[Fix | None]  # likeliest first; None: one that cannot be had


Rule = Callable[[History, Config], Sign | None]
"""Looks at a run so far and its configuration now. A number that is not known (NaN) is no sign of anything."""
