"""What Home reads of the runs: curves, times of an iteration, and the news since the last visit."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest
from preferences_helper import add_label, preference
from rich.cells import cell_len
from scripted_run import alarm, ended
from workspace_runs import LONG_NAME, write_run, write_workspace

from trainer.config import Config, load_config
from trainer.preferences.store import PreferenceStore
from trainer.runs.folder import RunFolder
from workbench.run import run_listing
from workbench.run.metrics import METRICS
from workbench.run.run_listing import Workspace, read_workspace
from workbench.runs.curves import curve_lines
from workbench.runs.details import news
from workbench.screen.home import NextRun, home_facts
from workbench.text import plain

NOW = float(int(time.time()))


RUNS = Path("runs")


def read() -> Workspace:
    workspace = read_workspace(RUNS)
    assert workspace is not None
    return workspace


def test_runs_are_read_newest_first_with_their_curves() -> None:
    write_workspace(NOW)
    workspace = read()
    assert [glance.run.name for glance in workspace.glances] == [LONG_NAME, "broken", "absurd", "old"]
    newest = workspace.glances[0]
    assert newest.scores == [number / 40 for number in range(1, 15)]
    assert newest.kls == [3 * (number / 40) for number in range(1, 15)]
    assert (newest.seconds, newest.ended) == (10.0, None)
    assert workspace.glances[3].ended == NOW - 90_000 + 400
    assert math.isfinite(workspace.glances[1].scores[-1]), "what came after the end of the run does not count"


def test_a_journal_is_read_again_only_if_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    write_workspace(NOW)
    shown = read()
    assert read_workspace(RUNS, shown.states) is None
    opened = []
    plain_read = run_listing.glance_at
    monkeypatch.setattr(run_listing, "glance_at", lambda run: opened.append(run.name) or plain_read(run))
    os.utime("runs/old/events.jsonl", (NOW, NOW))
    assert read_workspace(RUNS, shown.states) is not None
    assert opened == ["old"]
    assert len(read().glances) == len(shown.glances), "a reading that was not shown hides nothing from the next"
    with RunFolder(Path("runs/broken")).lock():
        again = read()
    assert opened == ["old", "broken"]
    assert {glance.run.name: glance.run.state for glance in again.glances}["broken"] == "training"
    assert (ended_ := read_workspace(RUNS, again.states)) is not None, "a trainer that was killed changes no file"
    assert {glance.run.name: glance.run.state for glance in ended_.glances}["broken"] == "failed"


def test_an_unreadable_journal_a_missing_folder_and_a_file_in_its_place_are_survived() -> None:
    assert read() == ([], "", {})
    assert read_workspace(RUNS, {}) is None
    Path("file").touch()
    assert "'file'" in (read_workspace(Path("file")) or read()).problem
    write_run("hurt", 2, began=NOW, end=None)
    Path("runs/hurt/events.jsonl").write_bytes(b"\x00\xff not a journal\n")
    [glance] = read().glances
    assert (glance.scores, glance.run.damaged) == ([], True)


def test_news_are_what_happened_since_the_last_visit() -> None:
    write_workspace(NOW)
    write_run("alarmed", 5, began=NOW - 500, end=None, events=[alarm(5)])
    found = read().glances
    assert news(found, 0, NOW) == ""
    since = NOW - 8700
    assert news(found, 2, since) == (
        f"Since {time.strftime('%H:%M', time.localtime(since))}: "
        "✖ broken failed at 3/40 · ⚠ absurd done at 40/40, KL high · ⚠ alarmed: KL high · 2 labels added"
    )
    assert news(found, 0, NOW - 3 * 86_400).startswith(
        f"Since {time.strftime('%d %b', time.localtime(NOW - 3 * 86_400))}: "
    )
    for number in range(6):
        write_run(f"run-{number}", 1, began=NOW + number, end=ended("done", 1))
    assert news(read().glances, 0, NOW).endswith(" · 3 more runs ended")


def test_a_label_that_was_undone_is_no_news(tmp_path: Path) -> None:
    with PreferenceStore(tmp_path / "preferences.db") as store:
        before = time.time()
        undone = add_label(store, preference("first"))
        store.undo(undone, "ann")
        add_label(store, preference("second"))
    plan = NextRun("quickstart", load_config("quickstart"), 0, "", RUNS, tmp_path / "preferences.db", before - 1)
    assert home_facts(plan, Workspace([], "")).labels == 1


def test_a_chart_has_the_asked_size_and_its_scale_round_numbers() -> None:
    metric = next(metric for metric in METRICS if metric.field == "score_mean")
    for values in ([0.0, 0.5, 1.0], [math.nan, 1.0], [2.0], [math.inf, -1e300, 1e300]):
        lines = curve_lines(metric, [("series", 7, values)], 60, 10)
        assert len(lines) == 10
        assert {cell_len(plain(line)) for line in lines} == {60}
    first, *_, last = curve_lines(metric, [("series", 7, [0.0, 0.5, 1.0])], 60, 10)
    assert "1.000" in plain(first)
    assert plain(last).split("└")[1].split() == ["7", "9"]
    lines = curve_lines(metric, [("series", 1, [-0.1657, 0.0312, 0.3333])], 60, 12)
    labels = [text for line in map(plain, lines) if (text := line.partition("│")[0].strip()) and "│" in line]
    assert len(labels) >= 2
    assert [float(text) for text in labels] == sorted(map(float, labels), reverse=True)
    assert all(len(text.lstrip("-")) == 3 for text in labels), f"{labels} are not round"


def test_the_expected_time_comes_from_the_newest_run_of_the_same_model() -> None:
    def train(config: Config, workspace: Workspace) -> str:
        return home_facts(NextRun("mine", config, 0, "", RUNS, RUNS / "no.db", 0.0), workspace).choices[0].text

    config = Config.model_validate({"ppo": {"iterations": 60}})
    assert train(config, Workspace([], "")) == "SmolLM2-135M, 60 iterations"
    assert train(load_config("quickstart"), Workspace([], "")).endswith(", about 10 min"), "before its first run"
    write_workspace(NOW)
    assert train(config, read()) == "SmolLM2-135M, 60 iterations, about 10 min"
    other = Config.model_validate({"model": {"path": "elsewhere"}})
    assert train(other, read()) == "elsewhere, 100 iterations"
