"""Parts of a run's samples, drawn from the newest iteration that has any left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from trainer.preferences.queues.context import QueueContext, Wait
from trainer.preferences.queues.run_samples import PromptSamples, SampledIterations

T = TypeVar("T")


def newest_first(
    iterations: SampledIterations,
    parts: Callable[[list[PromptSamples]], Iterator[T]],
    context: QueueContext,
    *,
    follow: bool = True,
) -> Iterator[T | Wait]:
    """Yield the `parts` of each iteration's samples; a newer iteration that arrives goes before what is left.

    follow: wait for more while the run is under way. Raises UsageError if the run has no samples and gets none.
    """
    begun: dict[int, Iterator[T]] = {}
    iterations.check_any()
    while True:
        context.heed()
        newest = iterations.newest()
        if newest is None:
            if not follow or iterations.are_over():
                return
            yield Wait(iterations.what_comes)
            continue
        if newest not in begun:
            begun[newest] = parts(iterations.read(newest))
        part = next(begun[newest], None)
        if part is None:
            del begun[newest]
            iterations.leave_out(newest)
        else:
            yield part
