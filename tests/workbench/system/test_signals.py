"""The signals that end a headless run."""

from __future__ import annotations

import os
import signal

import pytest

from workbench.system import signals
from workbench.system.signals import REASONS, stop_on_signals


class Calls:
    """Record of what the signal handler asked for."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def stop(self, reason: str) -> None:
        self.made.append(reason)

    def restore(self) -> None:
        self.made.append("restore")

    def leave(self) -> None:
        self.made.append("leave")
        raise SystemExit(130)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()
    monkeypatch.setattr(signals, "leave_now", found.leave)
    return found


@pytest.mark.parametrize("number", REASONS)
def test_each_signal_asks_for_a_stop_and_names_itself(number: signal.Signals, calls: Calls) -> None:
    with stop_on_signals(calls.stop, calls.restore):
        signal.raise_signal(number)
    assert len(calls.made) == 1
    assert number.name in calls.made[0]


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_after_any_signal_restores_the_terminal_and_leaves(first: signal.Signals, calls: Calls) -> None:
    with stop_on_signals(calls.stop, calls.restore):
        signal.raise_signal(first)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGINT)
    assert calls.made[1:] == ["restore", "leave"]


def test_signals_after_a_stop_do_not_kill_the_process_on_its_way_out(calls: Calls) -> None:
    with stop_on_signals(calls.stop, calls.restore):
        for _ in range(50):
            signal.raise_signal(signal.SIGTERM)
    for number in REASONS:
        signal.raise_signal(number)
    assert set(calls.made) == {REASONS[signal.SIGTERM]}


def test_handlers_are_put_back_and_ignored_signals_stay_ignored(calls: Calls) -> None:
    before = signal.getsignal(signal.SIGTERM)
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stop_on_signals(calls.stop, calls.restore):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) != before
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, hang_up)
    assert signal.getsignal(signal.SIGTERM) == before
    assert calls.made == []
