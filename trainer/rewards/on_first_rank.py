"""A reward that only the first of several ranks computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainer.reward_types import RewardInput, RewardSource, SourceScores

if TYPE_CHECKING:
    from trainer.distributed.ranks import Ranks


class OnFirstRank:
    """A source that sees the whole batch on the first rank, and of which the others get the scores.

    So a user's function runs once for each batch, as on one machine, and other machines run no code of it.
    """

    def __init__(self, name: str, source: RewardSource | None, ranks: Ranks) -> None:
        """Wrap `source`, which is None on other ranks than the first."""
        self.name = name
        self.source = source
        self._ranks = ranks

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        """Return the first rank's scores of `batch`. Raises its RewardError, and RankError on the others.

        What its function logged for the samples stays there, where they are saved.
        """
        extra: dict[str, list[Any]] = {}

        def scores() -> list[Any] | None:
            if self.source is None:
                return None
            found = self.source(batch)
            extra.update(found.extra)
            return [found.scores, found.token_rewards, dict(found.details)]

        found = self._ranks.together(scores)[0]
        assert found is not None
        return SourceScores(*found)._replace(extra=extra)
