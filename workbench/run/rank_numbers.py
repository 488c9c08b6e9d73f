"""What the ranks of a run on several processes did in its newest iteration, as numbers to show."""

from __future__ import annotations

import math
from typing import NamedTuple

from workbench.numbers import duration, gigabytes, percent
from workbench.run.metrics import Numbers
from workbench.text import visible


class RankNumbers(NamedTuple):
    """Numbers of one rank in one iteration; unknown ones are NaN."""

    name: str  # with its host, safe to print
    seconds: float
    waiting: float  # seconds in exchanges with the others, most of them for the slowest
    memory_bytes: float
    sent: float  # bytes

    @property
    def works(self) -> float:
        """Share of the time in which the rank did not wait."""
        return 1 - self.waiting / self.seconds if self.seconds > 0 else math.nan

    @property
    def texts(self) -> list[str]:
        """The numbers as text, the most important ones first."""
        known = math.isfinite(self.memory_bytes + self.sent)
        return [
            f"works {duration(self.seconds - self.waiting)}",
            f"waits {percent(1 - self.works)}",
            *([gigabytes(int(self.memory_bytes)), f"sends {self.sent / 1e6:.1f} MB"] if known else []),
        ]


def rank_numbers(event: Numbers | None) -> list[RankNumbers]:
    """Return the numbers of each rank; none for a run of one process."""
    return [_numbers(place, rank) for place, rank in enumerate(event.ranks)] if event else []


def _numbers(place: int, rank: dict[str, object]) -> RankNumbers:
    def value(name: str) -> float:
        found = rank.get(name)
        return float(found) if isinstance(found, int | float) else math.nan

    name = visible(str(rank.get("host", f"rank {place}")))
    return RankNumbers(name, value("seconds"), value("waiting"), value("memory_bytes"), value("sent"))
