"""Processes of runs side by side: their ends, their signals, and those of other programs."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from trainer.runs.folder import RunFolder
from workbench.run.side_by_side import End, SideBySide, TrainedElsewhere


class Fake:
    """A process that ends when it is told to."""

    def __init__(self, *, ends_by_itself: bool = False) -> None:
        self.signals: list[int] = []
        self._ended = threading.Event()
        if ends_by_itself:
            self._ended.set()

    def wait(self) -> int:
        self._ended.wait()
        return -self.signals[-1] if self.signals else 0

    def send_signal(self, sig: int) -> None:
        self.signals.append(sig)
        self._ended.set()


def test_ends_are_returned_one_by_one() -> None:
    processes = SideBySide()
    processes.add("a", Fake(ends_by_itself=True))
    processes.add("b", Fake(ends_by_itself=True))
    ends = [processes.wait(), processes.wait()]
    assert sorted(end[:2] for end in ends if end) == [("a", 0), ("b", 0)]
    assert len(processes) == 0


def test_a_stop_reaches_all_and_those_that_start_later_and_is_reported_once() -> None:
    processes, first, second = SideBySide(), Fake(), Fake()
    processes.add("a", first)
    processes.stop("enough")
    processes.stop("again")
    processes.add("b", second)
    assert (first.signals, second.signals) == ([signal.SIGTERM] * 2, [signal.SIGTERM])
    assert processes.stop_reason == "enough"
    results = [processes.wait() for _ in range(3)]
    assert [end for end in results if end is None] == [None]
    assert {end.name for end in results if isinstance(end, End)} == {"a", "b"}


def test_a_kill_reaches_all() -> None:
    processes, one = SideBySide(), Fake()
    processes.add("a", one)
    processes.kill()
    end = processes.wait()
    assert end is not None
    assert (one.signals, end.code) == ([signal.SIGKILL], -signal.SIGKILL)


def test_a_run_of_another_process_ends_when_its_lock_does(tmp_path: Path) -> None:
    processes = SideBySide()
    with RunFolder(tmp_path).lock():
        processes.add("a", TrainedElsewhere(RunFolder(tmp_path)))
        assert processes._ends.empty()
    end = processes.wait()
    assert end is not None
    assert end[:2] == ("a", 0)


def test_a_run_of_another_process_is_not_waited_for_after_a_stop(tmp_path: Path) -> None:
    processes = SideBySide()
    with RunFolder(tmp_path).lock():
        processes.add("a", TrainedElsewhere(RunFolder(tmp_path)))
        processes.stop("enough")
        assert {processes.wait(), processes.wait()} > {None}
