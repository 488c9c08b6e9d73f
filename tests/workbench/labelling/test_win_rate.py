"""The win rate follows the labels on its own thread, and changes are reported to the run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from human_judgements import judged

from trainer.errors import StorageError
from trainer.events import HumanEvaluation, StateChanged
from trainer.preferences.items import Item, QueuePlan, SessionPlan
from trainer.preferences.records import Judgement
from trainer.preferences.store import PreferenceStore
from trainer.runs.journal import Journal, read_journal
from workbench.labelling import workspace
from workbench.labelling.workspace import WinRate

DEADLINE = 30.0


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the folder of a finished run `a`."""
    (tmp_path / "a").mkdir()
    journal = Journal(tmp_path / "a/events.jsonl")
    journal.emit(StateChanged(state="done"))
    journal.close()
    return tmp_path / "a"


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_PAUSE", 0.0)
    monkeypatch.setattr(workspace, "_SHARE", 0)


@pytest.fixture
def reporting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[HumanEvaluation], object]], None]:
    """Send what is reported to a run to a function instead."""
    return lambda report: monkeypatch.setattr(workspace, "add_event", lambda _, event: report(event))


def label(store: Path, number: int, choice: str = "a", run: str = "a") -> int:
    with PreferenceStore(store) as kept:
        return kept.add(judged(number, choice, runs=(run, run)))  # type: ignore[arg-type]


def test_each_change_of_the_labels_is_reported_and_an_undo_too(run: Path, tmp_path: Path, reporting: Any) -> None:
    store, reported = tmp_path / "preferences.db", queue.SimpleQueue[HumanEvaluation]()
    reporting(reported.put)
    counting = WinRate(store, run)
    label(store, 1)
    counting.labelled()
    assert reported.get(timeout=DEADLINE).win_rate == 1.0
    id_ = label(store, 2, "b")
    counting.labelled()
    assert reported.get(timeout=DEADLINE).win_rate == 0.5
    with PreferenceStore(store) as kept:
        kept.undo(id_, "ann")
    counting.labelled()
    assert reported.get(timeout=DEADLINE).comparisons == 1
    counting.close()
    counting.join(DEADLINE)
    assert reported.empty()
    assert counting.problem == ""


def test_known_win_rates_and_labels_of_other_runs_are_not_reported(run: Path, tmp_path: Path, reporting: Any) -> None:
    store, reported = tmp_path / "preferences.db", list[HumanEvaluation]()
    reporting(reported.append)
    first = WinRate(store, run)
    label(store, 1)
    first.labelled()
    first.close()
    first.join(DEADLINE)
    assert len(reported) == 1
    again = WinRate(store, run, known=reported[0])
    label(store, 2, run="another")
    again.labelled()
    again.close()
    again.join(DEADLINE)
    assert len(reported) == 1
    unchanged = WinRate(store, run)
    unchanged.close()
    unchanged.join(DEADLINE)
    assert len(reported) == 1, "nothing was labelled"


def test_a_close_right_after_a_label_still_reports_it_to_the_run(run: Path, tmp_path: Path) -> None:
    counting = WinRate(tmp_path / "preferences.db", run)
    label(tmp_path / "preferences.db", 1)
    counting.labelled()
    counting.close()
    counting.join(DEADLINE)
    last = read_journal(run / "events.jsonl").events[-1]
    assert isinstance(last, HumanEvaluation)
    assert last == counting.known
    assert last.wins == 1


def test_many_labels_at_once_are_counted_together(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reporting: Any
) -> None:
    monkeypatch.setattr(workspace, "_PAUSE", DEADLINE)
    store, reported, first = tmp_path / "preferences.db", list[HumanEvaluation](), threading.Event()
    reporting(lambda event: (reported.append(event), first.set()))
    counting = WinRate(store, run)
    label(store, 0)
    counting.labelled()
    assert first.wait(DEADLINE)
    for number in range(1, 20):
        label(store, number)
        counting.labelled()
    counting.close()
    counting.join(DEADLINE)
    assert [event.comparisons for event in reported] == [1, 20]


def test_a_failed_report_is_made_up_for_with_the_next_label(run: Path, tmp_path: Path, reporting: Any) -> None:
    store, reported, tries = tmp_path / "preferences.db", list[HumanEvaluation](), queue.SimpleQueue[int]()
    left = threading.Event()

    def report(event: HumanEvaluation) -> None:
        tries.put(event.comparisons)
        if event.comparisons == 1:
            assert left.wait(DEADLINE)
            raise StorageError("cannot write\nthe journal")
        reported.append(event)

    reporting(report)
    counting = WinRate(store, run)
    label(store, 1)
    counting.labelled()
    assert tries.get(timeout=DEADLINE) == 1
    label(store, 2)
    counting.labelled()
    counting.close()
    left.set()  # the label and the end came while the first was being reported
    counting.join(DEADLINE)
    assert [event.comparisons for event in reported] == [2]
    assert counting.problem == ""


def test_a_missing_store_and_a_missing_run_are_reported_in_a_line(run: Path, tmp_path: Path) -> None:
    missing = WinRate(tmp_path / "none.db", run)
    missing.labelled()
    missing.close()
    missing.join(DEADLINE)
    assert "none.db" in missing.problem
    assert "\n" not in missing.problem
    label(tmp_path / "preferences.db", 1, run="gone")
    gone = WinRate(tmp_path / "preferences.db", tmp_path / "gone")
    gone.labelled()
    gone.close()
    gone.join(DEADLINE)
    assert gone.problem.startswith("no run in")
    assert gone.known is None


def test_a_label_on_its_way_when_the_session_is_left_is_still_reported_to_the_run(run: Path, tmp_path: Path) -> None:
    store, busy = tmp_path / "preferences.db", threading.Event()
    labels = workspace.LabelWorkspace(store, lambda *_: pytest.fail("no question"), lambda _: pytest.fail("set below"))
    session = labels.thread
    session.begin("ann", SessionPlan(queues=(QueuePlan(queue="samples"),)))
    session.put([Item(comparison=judged(1, "a").comparison, queue="samples", order=(0, 1))]).result(DEADLINE)
    labels.win_rate = counting = WinRate(store, run)
    session.guidelines().add_done_callback(lambda _: busy.wait(DEADLINE))  # holds the thread
    session.label(0, Judgement.chosen("a"))
    labels.close()
    busy.set()
    session.join()
    counting.join(DEADLINE)
    assert labels.win_rate is None
    assert counting.known == read_journal(run / "events.jsonl").events[-1]
    assert counting.known is not None
    assert counting.known.wins == 1
