"""A run on disk is shown as if its events had come one by one: whole, cut, growing, replaced, or newer."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_journal import write_long_journal
from scripted_run import alarm, ended, iteration, started, write_events
from scripted_run import write_events as write
from views import drawn, view_of

from trainer.config import Config
from trainer.events import Alert, Decision, Event, Fix, PhaseProgress, RunStarted, StateChanged
from trainer.monitoring import Monitor
from trainer.runs import journal
from trainer.runs.folder import RunFolder
from trainer.runs.listing import list_runs
from trainer.runs.sinks import ProgressFile
from workbench.cli.main import main
from workbench.kit.pane_strip import fitted, status_pieces
from workbench.run import run_on_disk
from workbench.run.history import MetricHistory
from workbench.run.run_on_disk import RunOnDisk, whole_run
from workbench.run.sentences import sentences
from workbench.run.view import RunView
from workbench.runs.table import COLUMNS
from workbench.text import plain
from workbench.training.alarms import alarm_line
from workbench.training.timeline import timeline


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a-run").mkdir()
    return tmp_path / "a-run"


@pytest.fixture
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Make a short journal a long one: so many iterations at first, then blocks of so many bytes, one per call."""

    def set_sizes(newest: int, block: int) -> None:
        monkeypatch.setattr(run_on_disk, "NEWEST", newest)
        monkeypatch.setattr(run_on_disk, "BLOCK_BYTES", block)
        monkeypatch.setattr(run_on_disk, "SHARE", 0.0)
        monkeypatch.setattr(journal, "BLOCK_BYTES", block)

    return set_sizes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the clock by which a source checks whether its run is live; `now` is set by the test."""
    clock = SimpleNamespace(now=0.0, perf_counter=time.perf_counter)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(run_on_disk, "time", clock)
    return clock


def append(folder: Path, data: bytes) -> None:
    with (folder / "events.jsonl").open("ab") as file:
        file.write(data)


def take(source: RunOnDisk, view: RunView | None = None) -> RunView:
    view = view or RunView()
    for event in source.take():
        view.take(event)
    return view


def chunks(source: RunOnDisk) -> Iterator[MetricHistory]:
    while (chunk := source.earlier()) is not None:
        yield chunk


def table(history: MetricHistory) -> dict[str, list[float]]:
    return {"iteration": list(history.numbers)} | {name: list(history.column(name)) for name in ("kl", "tokens")}


def test_the_newest_iterations_come_first_and_the_older_ones_chunk_by_chunk_before_them(
    folder: Path, few_at_a_time: Callable[[int, int], None]
) -> None:
    few_at_a_time(20, 9000)
    write_long_journal(folder / "events.jsonl", 200)
    source = RunOnDisk(folder)
    view = take(source)
    assert list(view.history.numbers) == list(range(181, 201))
    assert view.started is not None
    assert view.ended == ended(iteration=200)
    for chunk in chunks(source):
        if chunk:  # a block may hold no iteration at all
            assert chunk.numbers[-1] == view.history.numbers[0] - 1
        view.history.prepend(chunk)
    assert source.earlier() is None
    assert table(view.history) == table(folded(folder).history)
    assert len(view.history) == 200


def folded(folder: Path) -> RunView:
    """Return the view computed the plain way: from every event of the journal, one by one."""
    view = RunView()
    for line in (folder / "events.jsonl").read_bytes().splitlines():
        try:
            event = journal.event_in(journal.values_in(line))
        except ValueError:
            continue
        if event is not None:
            view.take(event)
    return view


steps = st.one_of(
    st.tuples(st.just("train"), st.integers(1, 12)),
    st.tuples(st.just("resume"), st.integers(0, 40)),
    st.tuples(st.just("damage"), st.sampled_from([b'{"time":1,"event":"iteration","iter', b"\0\0", b"[]", b""])),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(steps, max_size=14), st.integers(1, 12), st.integers(200, 6000))
def test_however_a_run_continued_its_history_is_that_of_its_events_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    few_at_a_time: Callable[[int, int], None],
    script: list[tuple[str, int | bytes]],
    newest: int,
    block: int,
) -> None:
    few_at_a_time(newest, block)
    folder, last = tmp_path_factory.mktemp("run"), 0
    write(folder, started())
    for count, (step, value) in enumerate(script):
        if isinstance(value, bytes):
            append(folder, value + b"\n")
        elif step == "train":
            kl = 10.0 * count
            write(folder, *(event for n in range(last + 1, last + 1 + value) for event in (iteration(n, kl=kl + n),)))
            last += value
        else:
            last = min(last, value)
            write(folder, started(resumed_at=last))
    assert table(whole_run(folder).history) == table(folded(folder).history)


def test_opening_a_long_journal_parses_its_end_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_long_journal(folder / "events.jsonl", 6000)
    parsed: list[int] = []
    monkeypatch.setattr(journal, "from_json", lambda line: parsed.append(len(line)) or json.loads(line))
    source = RunOnDisk(folder)
    assert len(take(source).history) == 2000
    assert sum(parsed) < 0.36 * (folder / "events.jsonl").stat().st_size
    parsed.clear()
    monkeypatch.setattr(run_on_disk, "SHARE", 0.0)
    source.earlier()
    assert 0 < sum(parsed) < run_on_disk.BLOCK_BYTES / 2  # samples, states and checkpoints are passed over


def test_a_run_that_was_resumed_with_more_iterations_or_renamed_is_opened_with_the_present_total_and_name(
    folder: Path, few_at_a_time: Callable[[int, int], None]
) -> None:
    few_at_a_time(3, 500)
    write(folder, started(iterations=10), *map(iteration, range(1, 11)), started(iterations=90, resumed_at=10))
    write(folder, *map(iteration, range(11, 60)))
    assert take(RunOnDisk(folder)).total == 10
    (folder / "config.toml").write_text("[ppo]\niterations = 90\n")
    assert take(RunOnDisk(folder)).total == 90
    (folder / "config.toml").write_text("[ppo]\niterations = 'x'\n[")
    view = take(RunOnDisk(folder))
    assert view.total == 10
    assert view.started is not None
    assert (view.started.name, view.started.folder) == ("a-run", str(folder)), "as the run is called now"


def test_a_resumption_that_comes_while_the_older_part_is_read_counts_for_that_part(
    folder: Path, few_at_a_time: Callable[[int, int], None]
) -> None:
    few_at_a_time(3, 3000)
    write(folder, started(), *map(iteration, range(1, 41)))
    source = RunOnDisk(folder)
    view = take(source)
    view.history.prepend(next(chunks(source)))
    write(folder, started(resumed_at=5), iteration(6, kl=99.0))
    take(source, view)
    for chunk in chunks(source):
        view.history.prepend(chunk)
    assert list(view.history.numbers) == [1, 2, 3, 4, 5, 6]


def test_a_journal_that_replaces_another_is_read_like_the_first(
    folder: Path, few_at_a_time: Callable[[int, int], None]
) -> None:
    few_at_a_time(10, 3000)
    write_long_journal(folder / "events.jsonl", 50)
    write(folder, started(resumed_at=3))
    source = RunOnDisk(folder)
    view = take(source)
    (folder / "other").mkdir()
    write(folder / "other", started(seed=1), *map(iteration, range(1, 31)))
    (folder / "other" / "events.jsonl").replace(folder / "events.jsonl")
    assert source.earlier() is None
    take(source, view)
    assert view.started is not None
    assert (view.started.seed, view.ended) == (1, None)
    for chunk in chunks(source):
        view.history.prepend(chunk)
    assert list(view.history.numbers) == list(range(1, 31))


def test_progress_comes_while_the_run_is_live_and_once(folder: Path) -> None:
    write(folder, started(), iteration(1))
    progress = ProgressFile(folder / "progress.json", itertools.count(1.0).__next__)
    progress.emit(reported := PhaseProgress(iteration=2, phase="update", done=1, total=4))
    assert not any(isinstance(event, PhaseProgress) for event in RunOnDisk(folder).take())
    with RunFolder(folder).lock():
        source = RunOnDisk(folder)
        assert source.take()[-1] == reported
        assert source.take() == []
        progress.emit(next_one := PhaseProgress(iteration=2, phase="update", done=2, total=4))
        assert source.take() == [next_one]
        write(folder, iteration(2))
        for phase, reported_now in (("update", 0), ("evaluate", 1)):  # the iteration is over
            progress.emit(PhaseProgress(iteration=2, phase=phase, done=1, total=4))
            assert sum(isinstance(event, PhaseProgress) for event in RunOnDisk(folder).take()) == reported_now


def test_a_source_is_finished_when_nobody_trains_the_run_and_everything_was_read(
    folder: Path, clock: SimpleNamespace
) -> None:
    write(folder, started())
    source = RunOnDisk(folder)
    with RunFolder(folder).lock():
        source.take()
        assert source.live
        write(folder, ended())
        clock.now += 0.9
        assert not source.finished
    assert source.live  # as it was when last looked up
    clock.now += 0.2
    assert source.take() == [ended()]
    assert not source.finished
    source.take()
    assert source.finished
    with RunFolder(folder).lock():
        clock.now += 1.1
        source.take()
        assert not source.finished


def test_unknown_events_newer_versions_and_damage_are_reported_wherever_they_are(
    folder: Path, few_at_a_time: Callable[[int, int], None]
) -> None:
    few_at_a_time(5, 2000)
    head = '{"journal": 2, "created": "later"}\n'
    (folder / "events.jsonl").write_text(head + json.dumps({"time": 1.0, **started().as_dict()}) + "\n")
    write(folder, *map(iteration, range(1, 10)))
    append(folder, b'{"time": 1, "event": "iteration", "iteration": "x"}\n')
    write(folder, *map(iteration, range(10, 30)))
    append(folder, b'{"time": 1, "event": "weather"}\n\0\0\n{"time": 1, "ev')
    source = RunOnDisk(folder)
    view = take(source)
    for chunk in chunks(source):
        view.history.prepend(chunk)
    assert list(view.history.numbers) == list(range(1, 30))
    version, damaged, unknown, older, cut = source.problems
    assert "version 2" in version
    assert damaged == "line 7 of the newest ignored: it was cut or damaged"
    assert "'weather'" in unknown
    assert older == "1 earlier line ignored: cut or damaged"
    assert cut == "the last line is cut: its event is lost"


def test_a_folder_without_a_journal_that_can_be_read_is_a_problem_until_there_is_one(folder: Path) -> None:
    source = RunOnDisk(folder)
    assert source.take() == []
    [problem] = source.problems
    assert problem.startswith(f"no journal '{folder / 'events.jsonl'}'")
    write(folder, started())
    assert isinstance(source.take()[0], RunStarted)
    assert source.problems == []
    (folder / "events.jsonl").unlink()
    (folder / "events.jsonl").mkdir()
    source = RunOnDisk(folder)
    assert (source.take(), source.earlier()) == ([], None)
    assert "Is a directory" in source.problems[0]


HOSTILE = "quantum\x1b[2J"
SHOWN = "quantum␛[2J"
END = dataclasses.replace(ended(), state=HOSTILE)  # type: ignore[arg-type]
DECISION = {"iteration": 3, "message": "because", "evidence": {}, "code": "convergence_quantum"}


@pytest.fixture
def newer(tmp_path: Path) -> RunFolder:
    """Make a run whose events have newer values wherever there is a choice of values."""
    run: Any = {"state": HOSTILE}
    events: list[Event] = [
        started(run_kind=HOSTILE),
        StateChanged(**run),
        iteration(3),
        alarm(3, code=HOSTILE, level=HOSTILE, fixes=[Fix(label="fix it", action=HOSTILE)]),  # type: ignore[arg-type]
        Alert(iteration=3, level=HOSTILE, code="news", message="see here"),  # type: ignore[arg-type]
        Decision(**DECISION, level=HOSTILE, rule=HOSTILE, action=HOSTILE),  # type: ignore[arg-type]
        END,
    ]
    root = tmp_path / "runs/a"
    root.mkdir(parents=True)
    (root / "config.toml").write_text(f"kind = {json.dumps(HOSTILE)}\n[ppo]\niterations = 12\n[model]\npath = 'x'\n")
    write_events(root, *events)
    return RunFolder(root)


def test_the_list_of_runs_and_its_json_show_an_unknown_state(
    newer: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "--dir", str(newer.root.parent)]) == 0
    assert f"a    {SHOWN}" in capsys.readouterr().out
    assert main(["runs", "--dir", str(newer.root.parent), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["state"], values["kind"], values["damaged"]) == (HOSTILE, HOSTILE, False)
    [run] = list_runs(newer.root.parent)
    assert [column.text(run, 0.0) for column in COLUMNS][1] == f"● {SHOWN}"


def test_the_screen_and_the_headless_displays_show_unknown_states_levels_and_phases(newer: RunFolder) -> None:
    view = view_of(*RunOnDisk(newer.root).take())
    assert f"● {SHOWN}" in fitted(status_pieces(view), 200).plain
    view.take(PhaseProgress(iteration=4, phase=HOSTILE, done=1, total=2))  # type: ignore[arg-type]
    assert f"{SHOWN} ━" in fitted(status_pieces(view), 200).plain
    shown = drawn(view, 120)
    assert f"● {SHOWN}" in shown
    assert "⚠ iteration 3: see here" in shown
    texts = ["".join(text for text, _ in line) for line in timeline(view.marks, 60)]
    assert any(SHOWN in text for text in texts)
    assert SHOWN in plain(alarm_line(view.alarms, 100, "A"))
    reported = [sentence for event in RunOnDisk(newer.root).take() for sentence in sentences(event)]
    assert f"iteration 3: {HOSTILE}: see here" in reported  # the writer makes it visible
    assert f"iteration 3: decision to {HOSTILE}: because" in reported


def test_a_resumed_run_skips_unknown_decisions_and_alarms(newer: RunFolder) -> None:
    past = RunOnDisk(newer.root).take()
    assert Monitor(Config, past).due(3) is None
