"""Alarms: their words, how long they stay active, and the line of each above the metrics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from scripted_run import FIXES, alarm, ended, iteration, started

from trainer.events import Decision, Event, RolledBack, SettingChanged
from trainer.monitoring.monitor import ACTIVE_ITERATIONS, active_alarms
from trainer.runs.journal import Journal, read_journal
from workbench.run.sentences import evidence, title, urgent_first
from workbench.run.view import Mark, RunView
from workbench.text import plain
from workbench.training.alarms import alarm_line


def folded(*events: Event) -> RunView:
    view = RunView()
    for event in events:
        view.take(event)
    return view


def standing(view: RunView) -> list[str]:
    return [alarm.code for alarm in view.alarms]


def changed(number: int, key: str = "ppo.kl_coef") -> SettingChanged:
    return SettingChanged(iteration=number, key=key, old=0.05, value=0.1)


def decision(number: int, **changes: Any) -> Decision:
    values: dict[str, Any] = {"level": "info", "code": "convergence_plateau", "message": "the score moves no more"}
    return Decision(
        **{"iteration": number, "rule": "plateau", "action": "continue", "evidence": {}, **values, **changes}
    )


def test_codes_and_evidence_are_described_in_words_and_units() -> None:
    assert [*map(title, ("kl_high", "step_nan", "truncation"))] == ["KL high", "step NaN", "truncation"]
    numbers = {"clip_fraction": 0.4321, "median_norm": 12345.678, "kl": math.nan, "lost": math.inf, "entropy": 2.5}
    words = {"clip fraction": "43.2%", "median norm": "1.235e+04", "KL": "-", "lost": "-", "entropy": "2.500 nats/tok"}
    assert evidence(alarm(1, evidence=numbers)) == [*words.items()]


TWO = (alarm(1), alarm(2, code="truncation", fixes=[]))


@pytest.mark.parametrize(
    ("events", "codes"),
    [
        ((alarm(5), iteration(4 + ACTIVE_ITERATIONS)), ["kl_high"]),
        ((alarm(5), iteration(5 + ACTIVE_ITERATIONS)), []),
        ((alarm(1), alarm(2, code="truncation"), alarm(3, level="error")), ["truncation", "kl_high"]),  # again: newest
        # The first of an iteration is the most urgent; lists begin at the end.
        (
            (alarm(2, code="old"), alarm(3, code="first"), alarm(3), alarm(3, code="x")),
            ["old", "x", "kl_high", "first"],
        ),
        ((*TWO, changed(2, "optim.policy_lr")), ["kl_high", "truncation"]),
        ((*TWO, changed(2)), ["truncation"]),  # a setting of its fixes
        ((*TWO, ended("stopped", 2)), ["kl_high", "truncation"]),
        ((*TWO, RolledBack(iteration=2, to=1, reason="x")), []),
        ((*TWO, started(name="other")), []),
    ],
)
def test_how_long_an_alarm_stays_active(events: tuple[Event, ...], codes: list[str]) -> None:
    view = folded(started(iterations=100), *events)
    assert standing(view) == codes


def test_a_resume_keeps_earlier_alarms_and_drops_those_that_are_raised_again() -> None:
    rolled = RolledBack(iteration=7, to=2, reason="x")
    events = (alarm(3), decision(3), alarm(8, code="truncation"), decision(8))
    view = folded(started(), *events, started(resumed_at=5))
    assert standing(view) == ["kl_high"]
    assert [alert.iteration for alert in view.alerts] == [3, 3]
    assert [(mark.kind, mark.iteration) for mark in view.marks] == [("alarm", 3), ("decision", 3), ("resumed", 5)]
    assert not any(mark.kind == "rollback" for mark in folded(started(), rolled, started(resumed_at=5)).marks)


def test_alarms_decisions_and_rollbacks_are_marks_with_words() -> None:
    view = folded(started(), alarm(3, message="too far"), decision(4), RolledBack(iteration=5, to=2, reason="it fell"))
    assert view.marks == [
        Mark(3, "alarm", "KL high: too far", "warning"),
        Mark(4, "decision", "the score moves no more"),
        Mark(5, "rollback", "rolled back to iteration 2: it fell"),
    ]
    assert (view.logged, len(view.alerts)) == (4, 3), "the start is in the log as well"


def test_an_alarm_comes_back_from_the_journal_with_its_fixes_and_nan(tmp_path: Path) -> None:
    written = alarm(3, evidence={"kl": math.nan, "share": 0.5})
    journal = Journal(tmp_path / "events.jsonl")
    for event in (started(), written, decision(4)):
        journal.emit(event)
    journal.close()
    view = read_journal(tmp_path / "events.jsonl")
    back = view.events[1]
    assert view.problems == []
    assert getattr(back, "fixes", None) == FIXES
    assert getattr(back, "evidence", {})["share"] == 0.5
    assert math.isnan(getattr(back, "evidence", {})["kl"])
    assert view.events[2] == decision(4)


def test_the_worst_alarm_has_the_line_with_its_key_and_how_many_have_none() -> None:
    alarms = [alarm(3, code="truncation", message="cut short"), alarm(7, level="error"), alarm(9, level="info")]
    line = plain(alarm_line(alarms, 100, "ctrl+a"))
    assert line.startswith(" ✖ 7 KL high  the KL is 24.1")
    assert line.endswith("  and 2 more   ctrl+a opens ")
    line = plain(alarm_line(alarms[:1], 100, "!"))
    assert line.startswith(" ⚠ 3 truncation  cut short")
    assert line.endswith("   ! opens ")
    assert plain(alarm_line([], 100, "!")) == " no alarms"


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["info", "warning", "error", "panic"])), max_size=8))
def test_alarms_are_sorted_by_level_and_then_from_the_newest_to_the_oldest(
    reported: list[tuple[int, str]],
) -> None:
    alarms = [alarm(number, level=level) for number, level in sorted(reported)]
    newest_first = alarms[::-1]
    ranks = {"error": 0, "warning": 1, "panic": 1, "info": 2}  # a level of a newer version is a warning
    assert urgent_first(alarms) == sorted(newest_first, key=lambda one: ranks[one.level])


def test_an_alarm_whose_sign_is_there_at_the_end_is_open_however_long_ago_it_was_raised() -> None:
    reported = [started(iterations=90), alarm(3, level="error"), alarm(80, code="truncation", fixes=[]), iteration(90)]
    past, left = folded(*reported, ended("done", 90)), folded(*reported, ended("done", 90, alarms={"kl_high": "error"}))
    assert standing(past) == ["truncation"]
    assert standing(left) == ["kl_high", "truncation"]
    assert past.active_alarms == active_alarms([*reported, ended("done", 90)]) == {"truncation": "warning"}
    assert left.active_alarms == {"kl_high": "error", "truncation": "warning"}
    assert list(active_alarms([*reported, ended("done", 90, alarms={"kl_high": "error"})])) == ["kl_high", "truncation"]


def test_a_run_that_resumes_or_restarts_has_no_alarms_of_the_iterations_it_repeats() -> None:
    reported = [started(), alarm(8, level="error"), ended("done", 9, alarms={"kl_high": "error"})]
    assert active_alarms([*reported, started(resumed_at=8)]) == {"kl_high": "error"}
    assert active_alarms([*reported, started(resumed_at=7)]) == {}
    assert active_alarms([*reported, started()]) == {}


@given(width=st.integers(1, 130), count=st.integers(0, 5), message=st.text(max_size=60))
def test_the_line_of_alarms_fits_its_space_and_obeys_no_control_characters(
    width: int, count: int, message: str
) -> None:
    hostile = f"\x1b[2J[@click=app.quit]\u202e日本{message}"
    alarms = [alarm(number, code=f"x{number}_{hostile}", message=hostile, level="panic") for number in range(count)]
    line = plain(alarm_line(alarms, width, "!"))
    assert cell_len(line) <= width
    assert not {"\x1b", "\u202e", "\n", "\r"} & set(line)
