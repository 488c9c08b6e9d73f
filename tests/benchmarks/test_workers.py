"""Worker of the benchmarks: results, exceptions, crashes and hangs of functions in another process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import workers

    worker = workers.Worker()
    yield worker
    worker.close()


def test_failures_are_reported_and_the_next_function_runs(worker: Any) -> None:
    def failure(function: Any, *arguments: Any, seconds: float = 60) -> str:
        with pytest.raises(sys.modules["workers"].WorkerError) as caught:
            list(worker.results(function, *arguments, seconds=seconds))
        return str(caught.value)

    assert list(worker.results(range, 3, seconds=60)) == [0, 1, 2]
    assert failure(os.listdir, "/no such folder").startswith("FileNotFoundError: ")
    assert failure(os._exit, 7) == "process exited with code 7"
    assert failure(signal.raise_signal, signal.SIGKILL) == "process killed by SIGKILL"
    assert failure(signal.pause, seconds=0.3) == "no result in 0.3 s"
    assert failure(range, 3, seconds=0) == "no time is left"
    assert list(worker.results(range, 2, seconds=60)) == [0, 1]
