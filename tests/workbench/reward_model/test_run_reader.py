"""Reward model runs as the pane reads them: found among others, followed, and turned into numbers."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from charts import roles, texts
from reward_pane_app import REPORT, Run, evaluation, pair, some_pairs, step
from scripted_run import ended, make_run, started

from trainer.events import StateChanged
from trainer.reward_model.predictions import HELD_OUT
from trainer.runs.folder import RunFolder
from workbench.reward_model.accuracy import accuracy_lines, report_of
from workbench.reward_model.pairs import pair_facts, pair_text_lines, pairs_heading, plain_text, verdict
from workbench.reward_model.pane import run_heading
from workbench.reward_model.run_reader import Look, RewardRunLister, RunFollower
from workbench.run.view import RunView


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def held_run() -> Iterator[Run]:
    """Return a run that some process trains, here this one."""
    run = Run("live", 3)
    with run.folder.lock():
        yield run


def names(lister: RewardRunLister) -> list[str]:
    return [run.folder.name for run in lister.list().runs]


# The listing


def test_reward_models_are_found_among_other_runs_newest_first(held_run: Run) -> None:
    Run("old", 1), Run("new", 4), Run("middle", 2)
    make_run("ppo")
    Path("runs", "no-config").mkdir()
    Path("runs", "broken").mkdir()
    Path("runs", "broken", "config.toml").write_text("kind = ")
    listing = RewardRunLister(Path("runs")).list()
    assert [(run.folder.name, run.live) for run in listing.runs] == [
        ("new", False),
        ("live", True),
        ("middle", False),
        ("old", False),
    ]
    assert listing.problem == ""
    assert RewardRunLister(Path("nowhere")).list().runs == []


def test_configurations_are_read_once_until_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    loads = tomllib.loads

    def counting(text: str) -> dict[str, Any]:
        reads.append(text)
        return loads(text)

    monkeypatch.setattr(tomllib, "loads", counting)
    runs = [Run(f"run-{number}", 1) for number in range(5)]
    lister = RewardRunLister(Path("runs"))
    assert len(names(lister)) == len(reads) == 5
    assert len(names(lister)) == len(reads) == 5
    runs[2].folder.config.write_text('kind = "dpo"')
    assert names(lister) == ["run-4", "run-3", "run-1", "run-0"]
    assert len(reads) == 6


def test_a_run_without_a_journal_yet_counts_from_its_configuration() -> None:
    Run("old", 1)
    folder = Path("runs", "beginning")
    folder.mkdir()
    (folder / "config.toml").write_text('kind = "reward-model"')
    assert names(RewardRunLister(Path("runs"))) == ["beginning", "old"]


def test_an_unreadable_folder_is_reported() -> None:
    Path("file").touch()
    listing = RewardRunLister(Path("file")).list()
    assert listing.runs == []
    assert "cannot list runs" in listing.problem


# The events of a run


def fold(view: RunView, look: Look | None) -> RunView:
    """Fold events as the reader of a run does with those it finds."""
    assert look is not None
    for event in look.events:
        view.take(event)
    return view


def test_a_resumed_run_replaces_what_it_repeats() -> None:
    made = RunView()
    for event in (
        started(run_kind="reward-model", iterations=9),
        evaluation(0),
        *(step(number) for number in range(1, 6)),
        evaluation(4, accuracy=0.1),
        ended("stopped", 3),
        started(run_kind="reward-model", iterations=9, resumed_at=3),
    ):
        made.take(event)
    assert (made.iteration, [one.iteration for one in made.held_out]) == (3, [0])
    made.take(step(4, loss=7.0))
    made.take(evaluation(4, accuracy=0.9))
    assert list(made.history.numbers) == [1, 2, 3, 4]
    losses, accuracies = made.history.column("loss"), made.history.column("accuracy")
    assert (losses[-1], len(losses), len(accuracies)) == (7.0, 4, 4)
    assert [(one.iteration, one.accuracy) for one in made.held_out] == [(0, 0.63), (4, 0.9)]
    assert (made.ended, made.iteration, made.total) == (None, 4, 9)


# Following a run


def test_a_live_run_is_followed_and_nothing_is_read_twice(held_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = RunFollower(held_run.folder)
    first = follower.look()
    assert first is not None
    view = fold(RunView(), first)
    assert (first.live, first.predictions, view.iteration) == (True, None, 0)
    assert follower.look() is None
    held_run.report(step(1), step(2), evaluation(2))
    second = follower.look()
    assert second is not None
    assert len(second.events) == 3
    fold(view, second)
    assert (view.iteration, len(view.held_out)) == (2, 1)
    held_run.keep([pair(1, -1.0)], iteration=2)
    third = follower.look()
    assert third is not None
    assert third.predictions is not None
    assert third.predictions.iteration == 2
    held_run.keep(some_pairs(1200), iteration=4)
    fourth = follower.look()
    assert fourth is not None
    assert fourth.predictions is not None
    assert (fourth.predictions.iteration, fourth.predictions.total, len(fourth.predictions.pairs)) == (4, 1200, 1000)
    assert follower.look() is None
    assert not follower.finished


def test_a_run_that_has_ended_is_read_once() -> None:
    follower = RunFollower(Run("done").train().folder)
    found = follower.look()
    assert found is not None
    view = fold(RunView(), found)
    assert (found.live, view.iteration, view.state, found.problems) == (False, 75, "done", [])
    assert not follower.finished
    assert follower.look() is None
    assert follower.finished


def test_the_end_of_a_process_is_seen_without_an_event() -> None:
    run = Run("killed")
    follower = RunFollower(run.folder)
    with run.folder.lock():
        run.report(StateChanged(state="training"))
        found = follower.look()
        assert found is not None
        view = fold(RunView(), found)
        assert "● training" in run_heading("killed", view, live=found.live)
    follower._source._looked = -math.inf  # who trains a run is looked up once a second
    found = follower.look()
    assert found is not None
    assert "! interrupted" in run_heading("killed", fold(view, found), live=found.live)


def test_unreadable_parts_are_reported_and_the_rest_is_shown() -> None:
    run = Run("a").train()
    (run.folder.root / HELD_OUT).write_bytes(b"PAR1 and nothing of use PAR1")
    with run.folder.events.open("a") as file:
        file.write("no event\n")
    found = RunFollower(run.folder).look()
    assert found is not None
    assert fold(RunView(), found).iteration == 75
    assert found.predictions is None
    assert any("held_out.parquet' is damaged" in problem for problem in found.problems)
    assert any("ignored" in problem for problem in found.problems)
    nowhere = RunFollower(RunFolder(Path("nowhere"))).look()
    assert nowhere is not None
    assert any("no journal" in problem for problem in nowhere.problems)


# Numbers and words


def test_lines_that_are_cut_end_with_an_ellipsis() -> None:
    worse = report_of(evaluation(75, accuracy_low=0.54))
    for lines in (accuracy_lines(REPORT, 75, 90, 20), accuracy_lines(worse, 75, 90, 20)):
        assert not any("…" in line for line in texts(lines))
    cut = texts(accuracy_lines(worse, 75, 40, 20))
    assert " △ not clearly better than length alone…" in cut
    assert any(line.startswith(" log-loss") and line.endswith("…") for line in cut)
    assert texts(accuracy_lines(None, 0, 20, 2))[1] == " no held-out pairs,…"
    headings = [line for line in texts(pair_text_lines(pair(1), 20)) if "reward" in line]
    assert [line[-1] for line in headings[-2:]] == ["…", "…"]


def test_a_report_and_an_event_give_the_same_rows() -> None:
    kept = texts(accuracy_lines(REPORT, 75, 90, 20))
    reported = texts(accuracy_lines(report_of(evaluation(75)), 75, 90, 20))
    assert reported == kept[: len(reported)]
    assert [line.split("%")[0].split() for line in reported[1:4]] == [
        ["reward", "model", "63.0"],
        ["length", "alone", "54.8"],
        ["untrained", "59.0"],
    ]
    assert not roles(accuracy_lines(report_of(evaluation(75)), 75, 90, 20), "alert")
    assert roles(accuracy_lines(report_of(evaluation(75, accuracy_low=0.54)), 75, 90, 20), "alert")
    unknown = evaluation(0, pairs=0, accuracy_low=math.nan)
    assert not roles(accuracy_lines(report_of(unknown), 0, 90, 20), "alert")


def test_a_pair_is_described_in_words_as_far_as_there_is_room() -> None:
    assert [verdict(pair(1, lead)) for lead in (1.5, -0.25, 0.0)] == ["✓ +1.50 reward", "✗ -0.25 reward", "= even"]
    normalised = pair(1, -0.36, chosen_reward=0.58, rejected_reward=0.65)  # a lead in logits beside them would mislead
    assert pair_facts(normalised, 80).startswith("✗ -0.07 reward   chosen +0.58   rejected +0.65   ")
    assert verdict(pair(1, -2.0, is_tie=True)) == "~ tie, rewards 2.00 apart"
    assert pair_facts(pair(1, -2.0, strength=3, source="a\x1b"), 200) == (
        "✗ -2.00 reward   chosen -0.70   rejected +1.30   11 and 8 tokens   strongly better   a␛"
    )
    assert pair_facts(pair(1, -2.0), 40) == "✗ -2.00 reward   chosen -0.70"
    assert pair_facts(pair(1), 3) == "✓ …"
    assert plain_text([{"role": "assistant", "content": "x"}]) == "x"
    assert plain_text([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]) == (
        "user: x\nassistant: y"
    )


def test_the_pairs_are_counted_in_the_heading_of_their_list() -> None:
    run = Run("a")
    run.keep([pair(1, -1.0), pair(2, 1.0), pair(3, -1.0), pair(4, 1.0, is_tie=True), *some_pairs(1000)])
    found = RunFollower(run.folder).look()
    assert found is not None
    assert found.predictions is not None
    wrong = 2 + sum(one.lead < 0 for one in some_pairs(1000))
    assert pairs_heading(found.predictions, 2) == (
        f"held-out pairs, most wrong first: ✗ {wrong} of 1,003   ~ 1 tie   first 1,000 listed   ◆ 2 marked"
    )
