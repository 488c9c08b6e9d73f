"""Micro-batches side by side on a CPU: in order, within the budget, and with the numbers of one after the other."""

from __future__ import annotations

import shutil
import threading
import weakref
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from ranks_helper import ROUNDING, largest_difference
from runs_helper import comparable, record, tiny_config

from trainer.config import load_config
from trainer.events import Evaluation, Iteration
from trainer.fitting.micro_batches import micro_batch_rows
from trainer.models.cpu import lanes
from trainer.models.cpu.lanes import busy_lanes, lane_budget, lanes_for, side_by_side
from trainer.runs.folder import RunFolder
from trainer.runs.samples import read_samples


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lanes believe in two cores: tests run with a BLAS of one thread."""
    monkeypatch.setattr(lanes, "blas_threads", lambda: 2)


def test_results_come_in_order_and_the_parts_of_a_pair_run_at_the_same_time(two_cores: None) -> None:
    meeting = threading.Barrier(2, timeout=30)

    def compute(part: int) -> tuple[int, int, int]:
        meeting.wait()
        squares = mx.arange(part + 1) ** 2
        mx.eval(squares)
        return part, int(squares[-1]), busy_lanes()

    assert list(side_by_side(compute, range(4), 2)) == [(part, part**2, 2) for part in range(4)]
    assert busy_lanes() == 1


def test_the_next_parts_are_taken_while_nothing_is_computed(two_cores: None) -> None:
    under_way, seen = [0], []

    def parts() -> Any:
        for part in range(5):
            seen.append(under_way[0])
            yield part

    def compute(part: int) -> int:
        under_way[0] += 1
        mx.eval(mx.ones((50,)) * part)
        under_way[0] -= 1
        return part

    assert list(side_by_side(compute, parts(), 2)) == [0, 1, 2, 3, 4]
    assert seen == [0] * 5


def test_the_threads_of_lanes_are_used_again(two_cores: None) -> None:
    meeting, threads = threading.Barrier(2, timeout=30), set[threading.Thread]()

    def compute(part: int) -> int:
        threads.add(threading.current_thread())
        meeting.wait()
        return part

    for _ in range(3):
        assert list(side_by_side(compute, range(4), 2)) == [0, 1, 2, 3]
    assert len(threads) == 2


def test_a_result_is_held_by_who_asked_for_it_alone(two_cores: None) -> None:
    gone = []
    for part in side_by_side(lambda number: mx.ones((number + 1,)), range(4), 2):
        watched = weakref.ref(part)
        del part
        gone.append(watched() is None)
    assert gone == [True] * 4


@pytest.mark.parametrize("broken", [0, 1])
def test_an_error_in_any_lane_is_raised_once_all_are_done(broken: int, two_cores: None) -> None:
    done = []

    def compute(part: int) -> int:
        if part == broken:
            raise MemoryError("full")
        mx.eval(mx.ones((200, 200)) @ mx.ones((200, 200)))
        done.append(part)
        return part

    with pytest.raises(MemoryError, match="full"):
        list(side_by_side(compute, range(2), 2))
    assert done == [1 - broken]
    assert busy_lanes() == 1
    assert list(side_by_side(lambda part: part, range(3), 2)) == [0, 1, 2], "and later parts run again"


@pytest.mark.parametrize("lengths", [[7] * 8, [9, 8, 3, 3, 2, 1], [20, 1], [5], [100, 90, 4]])
@pytest.mark.parametrize("budget", [1, 8, 30, 64, 1000])
def test_lanes_keep_to_the_budget_and_share_the_rows(lengths: list[int], budget: int, two_cores: None) -> None:
    count = lanes_for(lengths, budget, 2)
    groups = list(micro_batch_rows(lengths, lane_budget(lengths, budget, count)))
    padded = [max(lengths[row] for row in rows) * len(rows) for rows in groups]
    assert sorted(row for rows in groups for row in rows) == list(range(len(lengths)))
    at_once = [sum(padded[start : start + count]) for start in range(0, len(padded), count)]
    assert max(at_once) <= max(budget, max(lengths)), "one sequence may be beyond the budget, two may not"
    if max(lengths) * (len(lengths) + 1) <= budget and len(lengths) > 1:
        assert len(groups) == 2, "each lane has one"


def test_one_thread_of_the_blas_and_a_single_row_are_one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "blas_threads", lambda: 1)
    assert lanes_for([5, 5], 100, 2) == 1
    monkeypatch.setattr(lanes, "blas_threads", lambda: 16)
    assert lanes_for([5, 5], 100, 2) == 2
    assert lanes_for([5], 100, 2) == 1
    assert lanes_for([], 100, 2) == 1


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("model.value_model=adapter", "ppo.minibatches=2", "run.final_ratios=true"),
        ("ppo.estimator=grpo", "rollout.samples_per_prompt=2", "ppo.kl_in=loss", "ppo.kl_estimator=k3"),
        ("optim.grad_checkpoint=true", "optim.micro_batch_tokens=40"),
    ],
)
def test_two_lanes_learn_what_one_learns_and_repeat_it_bit_for_bit(
    settings: tuple[str, ...], tmp_path: Path, two_cores: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths = set[int]()
    computed = lanes._computed

    def watched(compute: Any, parts: Any) -> Any:
        widths.add(len(parts))
        return computed(compute, parts)

    monkeypatch.setattr(lanes, "_computed", watched)

    def measured(name: str) -> Any:
        lanes_now = 1 if name == "one" else 2
        recorder = record(tiny_config(tmp_path, f"run.name={name}", f"optim.lanes={lanes_now}", *settings))
        samples = sorted(RunFolder(tmp_path / "runs" / name).samples.glob("*.parquet"))
        events = [comparable(event) for event in recorder.of(Iteration, Evaluation)]
        return [events, [read_samples(path).to_pylist() for path in samples]]

    first, again = measured("first"), measured("again")
    assert 2 in widths
    assert largest_difference(first, again) == 0.0
    shutil.copytree(tmp_path / "runs" / "first", tmp_path / "runs" / "longer")
    longer = load_config(tmp_path / "runs" / "longer" / "config.toml", {"ppo": {"iterations": 4}})
    resumed = record(longer, resume=tmp_path / "runs" / "longer")
    assert [event.iteration for event in resumed.of(Iteration)] == [4], "a state from a file can be used in any lane"
    widths.clear()
    assert largest_difference(first, measured("one")) < ROUNDING
    assert not widths
