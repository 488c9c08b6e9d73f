"""What each rank of a run on several processes did in an iteration, as text."""

from __future__ import annotations

import math

from workbench.numbers import duration, gigabytes, percent
from workbench.run.metrics import Numbers
from workbench.text import visible


def rank_texts(event: Numbers | None) -> list[str]:
    """Return a line for each rank: its host, how long it worked and waited for others; none for one process."""
    return [_text(place, rank) for place, rank in enumerate(event.ranks)] if event else []


def _text(place: int, rank: dict[str, object]) -> str:
    def value(name: str) -> float:
        found = rank.get(name)
        return float(found) if isinstance(found, int | float) else math.nan

    seconds, waiting, memory, sent = map(value, ("seconds", "waiting", "memory_bytes", "sent"))
    name = visible(str(rank.get("host", f"rank {place}")))
    share = percent(waiting / seconds if seconds > 0 else math.nan)
    text = f"{name}  works {duration(seconds - waiting)}  waits {share}"
    known = math.isfinite(memory + sent)
    return text + (f"  {gigabytes(int(memory))}  sends {sent / 1e6:.1f} MB" if known else "")
