"""Work that all ranks of a run do together, when the first one says so and from its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from trainer.distributed.ranks import Ranks
from trainer.errors import RankError, one_line

Result = TypeVar("Result")


class Leader:
    """The first rank's part in such work.

    plain, arrays: return the state that the work begins with: its plain values, and a tree of its arrays.
    """

    def __init__(self, ranks: Ranks, plain: Callable[[], dict[str, Any]], arrays: Callable[[], Any]) -> None:
        self.is_known = False
        """Whether the other ranks have the current state. Set it to False after a change that they did not make too."""
        self._ranks = ranks
        self._plain = plain
        self._arrays = arrays

    def led(self, do: str, work: Callable[[], Result], **values: Any) -> Result:
        """Return the result of `work`, which all ranks do. do, values: say to the others what it is.

        Raises what `work` raises if it has failed on all, and RankError if it ran out of memory here alone.
        """
        if self._ranks.alone:
            return work()
        state = None if self.is_known else self._plain()
        self._ranks.tell(do, state=state, **values)
        if state is not None:
            self._ranks.from_first(self._arrays())
            self.is_known = True
        try:
            result = work()
        except (MemoryError, RuntimeError) as error:
            if self._ranks.idle:
                raise
            # The others wait for the rest of the work, so it cannot be repeated.
            raise RankError(
                f"rank 0 failed, and the others do not know it ({one_line(error)}): resume the run"
            ) from error
        self._ranks.idle = True
        return result


def follow(ranks: Ranks, work: Callable[[dict[str, Any]], object], free_memory: Callable[[], None]) -> None:
    """Do what the first rank says by `Leader.led`, until it ends the run.

    work: gets what it said, with its plain state as "state" if this rank must take that over; the arrays come next, by
    `Ranks.from_first`. free_memory: called after work that has failed on some rank; the first one then says what to do.
    """
    while (said := ranks.hear())["do"] != "end":
        try:
            work(said)
        except Exception:
            if not ranks.idle:  # the other ranks do not know of it
                raise
        if ranks.idle:  # only here: until its end, the exception holds the arrays of the work
            free_memory()
        ranks.idle = True
