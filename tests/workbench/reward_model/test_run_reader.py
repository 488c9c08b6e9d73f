"""Reward model runs as the pane reads them: found among others, followed, and turned into numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from charts import texts
from reward_pane_app import REPORT, Run, evaluation, pair, some_pairs, step
from scripted_run import make_run

from trainer.events import StateChanged
from workbench.reward_model.charts import accuracy_lines, report_of
from workbench.reward_model.pairs import pair_facts, pair_text_lines, pairs_heading, plain_text
from workbench.reward_model.pane import run_heading
from workbench.reward_model.run_reader import RunReader


@pytest.fixture
def held_run() -> Iterator[Run]:
    """Return a run that some process trains, here this one."""
    run = Run("live", 3)
    with run.folder.lock():
        yield run


def nothing() -> None:
    pass


async def read(reader: RunReader) -> RunReader:
    """Read what there is now."""
    await reader.read_runs()
    await reader.read_run()
    return reader


# The listing


async def test_reward_models_are_found_among_other_runs_newest_first(held_run: Run) -> None:
    Run("old", 1), Run("new", 4), Run("middle", 2)
    make_run("ppo")
    Path("runs", "no-config").mkdir()
    Path("runs", "broken").mkdir()
    Path("runs", "broken", "config.toml").write_text("kind = ")
    beginning = Path("runs", "beginning")
    beginning.mkdir()
    (beginning / "config.toml").write_text('kind = "reward-model"\n[model]\npath = "starter"\n')
    reader = await read(RunReader(Path("runs"), nothing))
    assert [(run.name, run.state) for run in reader.runs] == [
        ("new", "interrupted"),
        ("live", "training"),
        ("middle", "interrupted"),
        ("old", "interrupted"),
        ("beginning", "interrupted"),
    ]
    assert (reader.problem, reader.place) == ("", 0)
    assert (await read(RunReader(Path("nowhere"), nothing))).runs == []
    reader = await read(RunReader(held_run.folder.events, nothing))
    assert reader.runs == []
    assert "cannot list runs" in reader.problem


# Following a run


async def test_a_live_run_is_followed_and_shown_only_when_something_is_new(held_run: Run) -> None:
    changes: list[None] = []
    reader = RunReader(Path("runs"), lambda: changes.append(None))
    reader.choose(held_run.folder.root)
    await reader.read_run()
    assert (reader.live, reader.predictions, reader.view.iteration, len(changes)) == (True, None, 0, 2)
    await reader.read_run()
    assert len(changes) == 2
    held_run.report(step(1), step(2), evaluation(2))
    await reader.read_run()
    assert (reader.view.iteration, len(reader.view.held_out), len(changes)) == (2, 1, 3)
    held_run.keep(some_pairs(1200), iteration=4)
    await reader.read_run()
    found = reader.predictions
    assert found is not None
    assert (found.iteration, found.total, len(found.pairs), len(changes)) == (4, 1200, 1000, 4)
    await reader.read_run()
    assert (reader.predictions, len(changes)) == (found, 4)


async def test_a_run_that_has_ended_is_read_to_its_end_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("done").train()
    reader = await read(RunReader(Path("runs"), nothing))
    assert (reader.live, reader.view.iteration, reader.view.state, reader.problems) == (False, 75, "done", [])
    await reader.read_run()
    run.keep([pair(1)])
    before = reader.predictions
    await reader.read_run()
    assert reader.predictions is before


async def test_the_end_of_a_process_is_seen_without_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.run.run_on_disk._LOOK_AGAIN", 0.0)
    run = Run("killed")
    reader = RunReader(Path("runs"), nothing)
    for held, heading in ((True, "● training"), (False, "! interrupted")):
        if held:
            with run.folder.lock():
                run.report(StateChanged(state="training"))
                await read(reader)
        else:
            await reader.read_run()
        assert heading in run_heading("killed", reader.view, live=bool(reader.live))


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
    kept, reported = (texts(accuracy_lines(one, 75, 90, 20)) for one in (REPORT, report_of(evaluation(75))))
    assert reported == kept[: len(reported)]
    rows = [line.split("%")[0].split() for line in reported[1:4]]
    assert rows == [["reward", "model", "63.0"], ["length", "alone", "54.8"], ["untrained", "59.0"]]


def test_a_pair_is_described_in_words_as_far_as_there_is_room() -> None:
    for lead, verdict in ((1.5, "✓ +1.50 reward"), (-0.25, "✗ -0.25 reward"), (0.0, "= even")):
        assert pair_facts(pair(1, lead), 80).startswith(f"{verdict}   chosen ")
    normalised = pair(1, -0.36, chosen_reward=0.58, rejected_reward=0.65)  # a lead in logits beside them would mislead
    assert pair_facts(normalised, 80).startswith("✗ -0.07 reward   chosen +0.58   rejected +0.65   ")
    assert pair_facts(pair(1, -2.0, is_tie=True), 80).startswith("~ tie, rewards 2.00 apart   chosen ")
    assert pair_facts(pair(1, -2.0, strength=3, source="a\x1b"), 200) == (
        "✗ -2.00 reward   chosen -0.70   rejected +1.30   11 and 8 tokens   strongly better   a␛"
    )
    assert pair_facts(pair(1, -2.0), 40) == "✗ -2.00 reward   chosen -0.70"
    assert pair_facts(pair(1), 3) == "✓ …"
    assert plain_text([{"role": "assistant", "content": "x"}]) == "x"
    assert plain_text([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]) == (
        "user: x\nassistant: y"
    )


async def test_the_pairs_are_counted_in_the_heading_of_their_list() -> None:
    run = Run("a")
    run.keep([pair(1, -1.0), pair(2, 1.0), pair(3, -1.0), pair(4, 1.0, is_tie=True), *some_pairs(1000)])
    predictions = (await read(RunReader(Path("runs"), nothing))).predictions
    assert predictions is not None
    wrong = 2 + sum(one.lead < 0 for one in some_pairs(1000))
    assert pairs_heading(predictions, 2) == (
        f"held-out pairs, most wrong first: ✗ {wrong} of 1,003   ~ 1 tie   first 1,000 listed   ◆ 2 marked"
    )
