"""Human win rates: counted correctly, and reported to the run in every state of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import call, create_autospec

import pytest
from human_judgements import judged
from preferences_helper import add_label
from runs_helper import Recorder, outcome, record, tiny_config, within

from trainer.engine.control import Control
from trainer.engine.inbox import Inbox, add_event, send
from trainer.engine.training import train
from trainer.errors import UsageError
from trainer.events import HumanEvaluation, Iteration
from trainer.preferences.agreement import human_evaluation
from trainer.preferences.records import Comparison, Judgement, Origin, Preference
from trainer.preferences.store import PreferenceStore
from trainer.runs.folder import RunFolder
from trainer.runs.journal import read_journal
from trainer.runs.listing import list_runs
from workbench.run.run_on_disk import RunOnDisk
from workbench.run.view import RunView

REPORTED = HumanEvaluation(
    iteration=2, comparisons=4, wins=2, ties=1, losses=1, win_rate=0.625, low=0.2, high=0.9, labellers=1
)


def evaluated(*preferences: Preference) -> HumanEvaluation:
    found = human_evaluation(preferences, "a")
    assert found is not None
    return found


def test_the_win_rate_counts_a_tie_half_and_has_wilsons_interval() -> None:
    labels = [judged(number, choice) for number, choice in enumerate(["a"] * 6 + ["tie", "both_bad"] + ["b"] * 2)]  # type: ignore[arg-type, list-item]
    found = evaluated(*labels)
    assert (found.comparisons, found.wins, found.ties, found.losses) == (10, 6, 2, 2)
    assert found.win_rate == 0.7
    # By the definition: the shares p whose distance from 0.7 is 1.96 standard errors of their own.
    for share in (found.low, found.high):
        assert abs(0.7 - share) / math.sqrt(share * (1 - share) / 10) == pytest.approx(1.959964, abs=1e-5)
    assert found.low < 0.7 < found.high


def test_the_policys_win_counts_on_either_side() -> None:
    swapped = ("reference", "policy")
    found = evaluated(judged(1, "b", writers=swapped), judged(2, "a"), judged(3, "a", writers=swapped))
    assert (found.wins, found.losses) == (2, 1)


def test_only_pairs_of_the_runs_own_policy_and_its_reference_count() -> None:
    others = [
        judged(1, "a", runs=("b", "b")),
        judged(2, "a", runs=("a", "b")),
        judged(3, "a", writers=("policy", "policy")),
        judged(4, "a", writers=("reference", "reference")),
        judged(5, "a", writers=("policy", "human")),
        judged(6, "skip"),
    ]
    without = judged(7, "a")
    others.append(replace(without, comparison=replace(without.comparison, origins=())))
    three = Comparison(prompt="", completions=("x", "y", "z"), origins=(*judged(8, "a").comparison.origins, Origin()))
    others.append(Preference(comparison=three, judgement=Judgement(ranking=((0,), (1,), (2,)))))
    assert human_evaluation(others, "a") is None
    found = evaluated(*others, judged(9, "b"))
    assert (found.comparisons, found.losses) == (1, 1)
    assert human_evaluation([], "a") is None


def test_the_last_label_of_each_labeller_counts(tmp_path: Path) -> None:
    with PreferenceStore(tmp_path / "preferences.db") as store:
        add_label(store, judged(1, "a"))
        undone = add_label(store, judged(2, "a"))
        add_label(store, judged(1, "b"))
        add_label(store, judged(1, "skip"))
        add_label(store, judged(1, "tie", labeller="ben"))
        store.undo(undone, "ann")
        found = evaluated(*store.preferences())
    assert (found.wins, found.ties, found.losses, found.labellers) == (0, 1, 1, 2)
    assert found.comparisons == 2


def test_the_win_rate_is_that_of_the_newest_judged_policy() -> None:
    labels = [judged(1, "a", iteration=7), judged(2, "b", iteration=12), judged(3, "b", iteration=9)]
    assert evaluated(*labels).iteration == 12


def test_a_finished_run_gets_the_win_rate_in_its_journal_and_is_otherwise_unchanged(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=2", "eval.every=0"))
    run = tmp_path / "runs/a"
    before, source, view = outcome(run), RunOnDisk(run), RunView()
    for event in source.take():
        view.take(event)
    add_event(run, REPORTED)
    assert source.take() == [REPORTED]
    view.take(REPORTED)
    assert view.ended is not None
    assert read_journal(run / "events.jsonl").events[-1] == REPORTED
    assert not read_journal(run / "events.jsonl").problems
    assert outcome(run) == before
    assert not RunFolder(run).is_live()
    assert [(summary.state, summary.iteration) for summary in list_runs(tmp_path / "runs")] == [("done", 2)]
    resumed = record(tiny_config(tmp_path, "eval.every=0"), resume=run)
    assert [iteration.iteration for iteration in resumed.of(Iteration)] == [3]
    assert REPORTED in read_journal(run / "events.jsonl").events


def test_a_win_rate_stays_valid_when_later_iterations_are_repeated(tmp_path: Path) -> None:
    control = Control()
    abort = Recorder(lambda event: control.abort() if within(event, "update", 3) else None)
    config = tiny_config(tmp_path, "run.name=a", "eval.every=0", "checkpoint.every=0")
    train(config, sinks=[abort], control=control)
    add_event(tmp_path / "runs/a", REPORTED)
    record(config, resume=tmp_path / "runs/a")
    assert REPORTED in read_journal(tmp_path / "runs/a/events.jsonl").events


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no run in '.*': name the folder of a run that was started"):
        add_event(tmp_path, REPORTED)
    assert list(tmp_path.iterdir()) == []


BROKEN: dict[str, Any] = {
    "nothing": {},
    "no object": {"event": [1]},
    "an event of the trainer's own": {
        "event": {"event": "end", "state": "done", "exit_code": 0, "reason": "", "iteration": 1}
    },
    "unknown": {"event": {"event": "party"}},
    "a number that is text": {"event": {**REPORTED.as_dict(), "wins": "2"}},
    "a field too few": {"event": {key: value for key, value in REPORTED.as_dict().items() if key != "wins"}},
    "too large": {"event": {**REPORTED.as_dict(), "iteration": 2**80}},
}


@pytest.mark.parametrize("request_values", BROKEN.values(), ids=BROKEN.keys())
def test_nothing_else_can_be_reported(request_values: dict[str, Any], tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    complaints: list[str] = []
    with run.lock():
        inbox = Inbox(run.control, control := create_autospec(Control, instance=True), complaints.append)
        send(tmp_path, "report", **request_values)
        send(tmp_path, "report", event=REPORTED.as_dict())
        inbox.take()
    assert control.mock_calls == [call.report(REPORTED)]
    (complaint,) = complaints
    assert "ignored: " in complaint
    assert "not a complete" in complaint
    assert "\n" not in complaint


@pytest.mark.parametrize("shared", [True, False])
def test_reporting_to_a_finished_run_changes_no_file_permissions(shared: bool, tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1", f"run.shared={str(shared).lower()}"))
    journal = tmp_path / "runs/a/events.jsonl"
    mode = journal.stat().st_mode
    assert bool(mode & 0o044) == shared
    add_event(journal.parent, REPORTED)
    assert journal.stat().st_mode == mode
