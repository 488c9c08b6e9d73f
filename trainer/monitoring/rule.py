"""Type of a rule, and of the sign that it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from trainer.config.schema import Config
from trainer.events import Fix
from trainer.monitoring.history import History

Level = Literal["warning", "error"]


class Sign(NamedTuple):
    """A problem: what is wrong, the numbers that show it, and what to do."""

    level: Level
    message: str
    evidence: dict[str, float]
    advice: str
    fixes: Sequence[Fix | None]  # likeliest first; None: not available


Rule = Callable[[History, Config], Sign | None]
"""Check of a run so far under its current configuration. An unknown number (NaN) is never a sign."""
