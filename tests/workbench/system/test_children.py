"""The environment of processes that compute side by side, and what they report."""

from __future__ import annotations

import io
import os

import pytest

from workbench.system.children import last_error, with_share_of_cores

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@pytest.fixture(autouse=True)
def _six_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6), raising=False)
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("jobs", "threads"), [(2, "3"), (4, "1"), (9, "1")])
def test_each_process_gets_its_share_of_the_cores(jobs: int, threads: str) -> None:
    assert with_share_of_cores(jobs) == {**os.environ, **dict.fromkeys(THREADS, threads)}


def test_one_process_gets_all_cores() -> None:
    assert with_share_of_cores(1) == dict(os.environ)


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_NUM_THREADS", "5")
    assert with_share_of_cores(2) == dict(os.environ)


def test_the_last_error_of_a_log_counts_else_its_last_line() -> None:
    log = io.BytesIO(b"ppo-workbench: error: first\nppo-workbench: error: second\nTraceback\n\n")
    assert last_error(log) == "second"
    assert last_error(io.BytesIO(b"one\ntwo\n\n")) == "two"
    assert last_error(io.BytesIO()) == ""
