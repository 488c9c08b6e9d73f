"""What ranks exchange, on three real processes, and how they share work."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from ranks_helper import ended, started

from trainer.distributed.ranks import Ranks, facts_of
from trainer.errors import RankError

PROGRAM = """
import json, sys
import mlx.core as mx
import numpy as np
from trainer.distributed import join
from trainer.distributed.ranks import Released
from trainer.errors import DataError, RankError

ranks = join()
rank = ranks.rank
tree = {"a.b": mx.array([1.5, -2.0]) * (rank + 1), "c": [mx.full((2, 2), rank, dtype=mx.int32), mx.array(0.1 * rank)]}
total = ranks.summed(tree if rank else dict(reversed(tree.items())))
def numbers(share):
    return np.array([[row, rank] for row in share])

found = {
    "sums": [total["a.b"].tolist(), total["c"][0].tolist(), total["c"][1].item(), str(total["c"][0].dtype)],
    "largest": ranks.largest(mx.array([rank, -rank])).tolist(),
    "first": ranks.from_first(mx.array([10 + rank])).tolist(),
    "gathered": ranks.gather({"text": "\\ud800\\u00e9" * rank, "number": float("nan") if rank == 1 else rank / 3}),
    "rows": ranks.rows(8),
    "dealt": ranks.dealt([5, 1, 9, 3, 7, 7, 2]),
    "by_row": [ranks.by_row([4] * rows, numbers).tolist() for rows in (2, 5)],
    "sent": ranks.sent > 0,
}

def fails(error, where):
    try:
        with ranks.all_or_none():
            if rank == where:
                raise error
        return "no error"
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"

problems = [(DataError("no such row"), 1), (MemoryError("full"), 2), (RuntimeError("[malloc]"), 0)]
found["errors"] = [fails(*problem) for problem in problems]
with ranks.apart():
    found["apart"] = [ranks.alone, ranks.rows(2), ranks.gather(rank)]

class Stop(Exception):
    pass

def stop():
    raise Stop

words = []
if rank == 0:
    ranks.send("work", number=3)
    ranks.meet(lambda: words.append("checked"))
    try:
        ranks.meet(stop)
    except Stop:
        words.append("stopped")
    ranks.end()
else:
    words.append(ranks.receive())
    ranks.meet(stop)  # only the first rank's check counts
    try:
        ranks.meet(lambda: None)
    except Released:
        words.append("released")
    words.append(ranks.receive()["do"])
found["words"] = words
print(json.dumps(found))
"""


def test_exchanges_of_three_ranks(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with started(tmp_path, [[str(program)]] * 3) as processes:
        results = ended(tmp_path, processes)
    assert [result.code for result in results] == [0, 0, 0], results[0].err
    first, second, third = (json.loads(result.out) for result in results)
    for rank, found in enumerate((first, second, third)):
        assert found["sums"][:2] == [[9.0, -12.0], [[3, 3], [3, 3]]]
        assert found["sums"][2] == pytest.approx(0.3)
        assert found["sums"][3] == "mlx.core.int32"
        assert found["largest"] == [2, 0]
        assert found["first"] == [10]
        assert [value["text"] for value in found["gathered"]] == ["", "\ud800é", "\ud800é" * 2]
        assert math.isnan(found["gathered"][1]["number"])
        assert found["gathered"][2]["number"] == 2 / 3
        assert found["by_row"] == [[[0, 0], [1, 1]], [[0, 0], [1, 1], [2, 2], [3, 2], [4, 1]]]
        assert found["apart"] == [True, [0, 1], [rank]]
        assert found["sent"]
    assert [first["rows"], second["rows"], third["rows"]] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [first["dealt"], second["dealt"], third["dealt"]] == [[2, 6, 1], [4, 3], [5, 0]]
    assert first["errors"] == [
        "RankError: rank 1 failed: no such row",
        "MemoryError: rank 2 failed: full",
        "RuntimeError: [malloc]",
    ]
    assert second["errors"][0] == "DataError: no such row"
    assert third["errors"] == [
        "RankError: rank 1 failed: no such row",
        "MemoryError: full",
        "RuntimeError: rank 0 failed: [malloc]",
    ]
    assert first["words"] == ["checked", "stopped"]
    for found in (second, third):
        assert found["words"] == [{"do": "work", "number": 3}, "released", "end"]


def test_alone_nothing_is_exchanged() -> None:
    ranks = Ranks()
    assert ranks.alone
    assert ranks.rows(3) == [0, 1, 2]
    assert sorted(ranks.dealt([3, 1, 2])) == [0, 1, 2]
    assert ranks.gather("x") == ["x"]
    assert ranks.by_row([2, 7], lambda share: np.array(share)).tolist() == [0, 1]
    assert ranks.together(lambda: 5) == [5]
    assert ranks.described(1.0, 2) == []
    assert ranks.sent == 0


class FirstOfTwo(Ranks):
    """The first of two ranks, whose words are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.alone = 2, False
        self.order: list[Any] = []

    def send(self, do: str, **values: Any) -> None:
        self.idle = False
        self.order.append((do, values))

    def from_first(self, tree: Any) -> Any:
        self.order.append(tree)
        return tree


def test_the_state_is_sent_until_all_have_it() -> None:
    ranks, arrays = FirstOfTwo(), {"a": mx.array(1.0)}

    def lead(do: str, work: Callable[[], int], **values: int) -> int:
        return ranks.lead(do, work, lambda: ({"number": 1}, arrays), **values)

    assert lead("step", lambda: 7, number=2) == 7
    assert ranks.idle
    assert ranks.order == [("step", {"state": {"number": 1}, "number": 2}), arrays]
    lead("step", lambda: 8)
    assert ranks.order[2:] == [("step", {"state": None})]
    ranks.same_state = False
    lead("step", lambda: 9)
    assert ranks.order[3:] == [("step", {"state": {"number": 1}}), arrays]


def test_only_what_has_failed_on_all_ranks_can_be_repeated() -> None:
    ranks = FirstOfTwo()

    def fails(*, idle: bool) -> None:
        ranks.idle = idle
        raise RuntimeError("[malloc] Unable to allocate 5 bytes.")

    with pytest.raises(RuntimeError, match="malloc"):
        ranks.lead("step", lambda: fails(idle=True), lambda: ({}, {}))
    with pytest.raises(RankError, match=r"rank 0 failed, and the others do not know it \(\[malloc\]"):
        ranks.lead("step", lambda: fails(idle=False), lambda: ({}, {}))


@pytest.mark.parametrize("place", [0, -1])
def test_ranks_with_other_files_of_the_model_differ(place: int, tmp_path: Path) -> None:
    content = bytearray(40 << 20)
    (tmp_path / "model.safetensors").write_bytes(content)
    (tmp_path / "note.txt").write_text("mine")
    before = facts_of(tmp_path, [["prompt"]])
    (tmp_path / "note.txt").write_text("yours")
    assert facts_of(tmp_path, [["prompt"]]) == before
    content[place] = 1
    (tmp_path / "model.safetensors").write_bytes(content)
    after = facts_of(tmp_path, [["another"]])
    assert {name for name in before if before[name] != after[name]} == {
        "the model's file model.safetensors",
        "the data (its hash)",
    }
