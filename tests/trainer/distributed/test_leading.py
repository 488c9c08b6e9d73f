"""How the first rank leads: what it says, when it sends its state, and which failures can be repeated."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from trainer.distributed.leading import Leader
from trainer.distributed.ranks import Ranks
from trainer.errors import RankError


class FirstOfTwo(Ranks):
    """The first of two ranks, whose words are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 2
        self.said: list[Any] = []

    def tell(self, do: str, **values: Any) -> None:
        self.idle = False
        self.said.append((do, values))

    def from_first(self, tree: Any) -> Any:
        self.said.append(tree)
        return tree


def test_the_state_is_sent_until_it_is_known() -> None:
    ranks, arrays = FirstOfTwo(), {"a": mx.array(1.0)}
    leader = Leader(ranks, lambda: {"number": 1}, lambda: arrays)
    assert leader.led("step", lambda: 7, number=2) == 7
    assert ranks.idle
    assert ranks.said == [("step", {"state": {"number": 1}, "number": 2}), arrays]
    leader.led("step", lambda: 8)
    assert ranks.said[2:] == [("step", {"state": None})]
    leader.is_known = False
    leader.led("step", lambda: 9)
    assert ranks.said[3:] == [("step", {"state": {"number": 1}}), arrays]


def test_only_what_has_failed_on_all_ranks_can_be_repeated() -> None:
    ranks = FirstOfTwo()
    leader = Leader(ranks, dict, dict)

    def fails(*, idle: bool) -> None:
        ranks.idle = idle
        raise RuntimeError("[malloc] Unable to allocate 5 bytes.")

    with pytest.raises(RuntimeError, match="malloc"):
        leader.led("step", lambda: fails(idle=True))
    with pytest.raises(RankError, match=r"rank 0 failed, and the others do not know it \(\[malloc\]"):
        leader.led("step", lambda: fails(idle=False))


def test_alone_nothing_is_said() -> None:
    leader = Leader(Ranks(), lambda: pytest.fail("read"), lambda: pytest.fail("read"))
    assert leader.led("step", lambda: 7) == 7
