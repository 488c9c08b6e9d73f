"""A filter for comparisons that have not been asked yet."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.preferences.queues.context import Drawn, QueueContext, Wait
from trainer.preferences.queues.known import Known

_PASSED_OVER = 200  # known ones in a row, after which other queues get a turn


def new_ones(found: Iterator[Drawn], known: Known, context: QueueContext) -> Iterator[Drawn]:
    """Yield the new ones of `found`; after many known ones in a row, let other queues go first."""
    stale = 0
    for drawn in found:
        context.heed()
        if isinstance(drawn, Wait) or known.is_new(drawn):
            stale = 0
            yield drawn
            continue
        stale += 1
        if stale % _PASSED_OVER == 0:
            context.wake()
            yield Wait("passes over what was judged before")
