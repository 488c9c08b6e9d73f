"""The journal loses no emitted event, survives being cut anywhere, and reads back with resumptions applied."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from run_folders import largest_file
from scripted_run import ended, evaluation, iteration, started

from trainer.errors import StorageError
from trainer.events import Alert, CheckpointSaved, Event, Iteration, PhaseProgress, SamplePreview, SamplesWritten
from trainer.runs import journal as journal_module
from trainer.runs.journal import Journal, JournalReader, read_journal


def samples(number: int) -> SamplesWritten:
    preview = SamplePreview(prompt='"\n\u2028', completion="é\udc80", score=1.0, kl=0.5, truncated=False)
    return SamplesWritten(iteration=number, path="", rows=1, previews=[preview])


def saved(number: int) -> CheckpointSaved:
    return CheckpointSaved(iteration=number, path=f"checkpoints/step-{number:06d}", seconds=0.1)


def alert(number: int) -> Alert:
    return Alert(iteration=number, level="warning", code="kl", message="KL is high: raise ppo.kl_coef")


def write(path: Path, *events: Event) -> None:
    journal = Journal(path)
    for event in events:
        journal.emit(event)
    journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_every_kept_event_reads_back_equal_with_its_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module.time, "time", lambda: 1234.56789)
    critic = iteration(2, calibration=[[-0.5, 0.25, 52.0], [1.5, 0.75, 51.0]])
    events = [started(), iteration(1), samples(1), evaluation(1), saved(1), alert(1), critic, ended()]
    transient = PhaseProgress(iteration=1, phase="generate", done=1, total=2)
    write(path, transient, *events)
    view = read_journal(path)
    assert view.events == events
    assert view.times == [1234.568] * len(events)
    assert view.problems == []
    header, *lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    assert header["journal"] == 1
    assert header["created"].endswith("+00:00")
    assert [line["event"] for line in lines] == [event.kind for event in events]


def test_numbers_that_are_not_finite_are_null_on_disk_and_nan_when_read(path: Path) -> None:
    write(path, iteration(1, kl=math.inf, seconds={"update": math.nan}))
    assert not [word for word in (b"NaN", b"Infinity") if word in path.read_bytes()]
    [event] = read_journal(path).events
    assert isinstance(event, Iteration)
    assert math.isnan(event.kl)


def test_checkpoints_and_the_end_are_synced_to_the_disk_and_others_are_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(journal_module.os, "fsync", lambda _: synced.append(path.stat().st_size))
    sizes = []
    journal = Journal(path)
    for event in (started(), iteration(1), saved(1), iteration(2), ended()):
        journal.emit(event)
        sizes.append(path.stat().st_size)
    journal.close()
    assert synced == [sizes[2], sizes[4]]


def test_a_journal_cut_at_any_byte_continues_without_harm_to_what_follows(path: Path) -> None:
    events = [started(), iteration(1), samples(1)]
    write(path, *events)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        write(path, alert(9))
        view = read_journal(path)
        assert view.events[-1] == alert(9), size
        # A line that lacks only its newline is whole once it is sealed off; the first line is the header.
        lines = whole[: size + 1].count(b"\n")
        assert view.events[:-1] == events[: max(lines - 1, 0)], size


def test_a_torn_line_is_a_problem_that_names_the_line(path: Path) -> None:
    write(path, started(), iteration(1))
    with path.open("rb+") as file:
        file.truncate(path.stat().st_size - 10)
    assert read_journal(path).problems == ["the last line is cut: its event is lost"]
    write(path, iteration(2))
    view = read_journal(path)
    assert view.events == [started(), iteration(2)]
    assert view.problems == ["line 3 ignored: it was cut or damaged"]


@pytest.mark.parametrize(
    "line",
    [b"\0\0\0\0", b"[1]", b"7", b'"run"', b"\xff\xfe{", b"[" * 100_000, b"{}", b'{"event": []}',
     b'{"time": 1, "event": "iteration"}', b'{"time": "x", "event": "state", "state": "done"}',
     b'{"time": 1, "event": "iteration", "iteration": "x"}',
     b'{"time": 1, "event": "samples", "iteration": 1, "path": "", "rows": 1, "previews": 3}'],
)  # fmt: skip
def test_a_damaged_line_is_ignored_and_the_next_is_read(path: Path, line: bytes) -> None:
    write(path, started())
    with path.open("ab") as file:
        file.write(line + b"\n")
    write(path, ended())
    view = read_journal(path)
    assert view.events == [started(), ended()]
    [problem] = view.problems
    assert problem.startswith("line 3 ignored: ")
    assert "\n" not in problem


def test_unknown_kinds_are_counted_once_a_kind(path: Path) -> None:
    write(path, started())
    with path.open("a") as file:
        for kind in ("labels", "labels", "weather", "labels"):
            file.write(json.dumps({"time": 1.0, "event": kind}) + "\n")
    labels, weather = read_journal(path).problems
    assert labels.startswith("3 events of unknown kind 'labels'")
    assert weather.startswith("1 event of unknown kind 'weather'")


def test_a_newer_version_is_a_problem_and_known_events_are_still_read(path: Path) -> None:
    line = json.dumps({"time": 1.0, "color": "red", **ended().as_dict()})
    path.write_text('{"journal": 2, "created": "later"}\n' + line + "\n")
    view = read_journal(path)
    assert view.events == [ended()]
    [problem] = view.problems
    assert "version 2" in problem
    assert "upgrade" in problem


def test_a_missing_journal_and_a_folder_in_its_place_are_storage_errors(path: Path) -> None:
    with pytest.raises(StorageError, match="no journal"):
        read_journal(path)
    for call in (read_journal, Journal):
        with pytest.raises(StorageError, match=r"Is a directory.*;"):
            call(path.parent)


def test_on_a_full_disk_emit_and_close_raise_and_later_events_bring_the_missing_ones(path: Path) -> None:
    journal = Journal(path)
    journal.emit(started())
    for room in (0, 1, 100):
        with largest_file(path.stat().st_size + room):
            for number in (1, 2):
                with pytest.raises(StorageError, match=r"'.*events\.jsonl': File too large; raise the limit"):
                    journal.emit(iteration(number))
        journal.emit(ended())
    journal.close()
    lost = Journal(path.with_name("lost.jsonl"))
    with largest_file(lost.path.stat().st_size):
        for write_more in (lambda: lost.emit(ended()), lost.close):
            with pytest.raises(StorageError):
                write_more()
    lost.close()
    view = read_journal(path)
    assert view.events == [started(), *[iteration(1), iteration(2), ended()] * 3]
    assert view.problems == []


def test_a_killed_process_loses_no_event_that_it_emitted(path: Path) -> None:
    script = """
import os, pathlib, signal, sys
from trainer.events import StateChanged
from trainer.runs.journal import Journal
journal = Journal(pathlib.Path(sys.argv[1]))
for _ in range(3):
    journal.emit(StateChanged(state="training"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script, path]).returncode == -9
    assert len(read_journal(path).events) == 3


def test_a_resumed_run_supersedes_what_it_repeats_and_nothing_else(path: Path) -> None:
    done = [e for n in (1, 2, 3, 4) for e in (iteration(n), samples(n), evaluation(n), saved(n), alert(n))]
    again = [started(resumed_at=2), iteration(3, kl=9.0), iteration(4, kl=9.0)]
    write(path, started(), *done, *again)
    counts = [event for event in done if event.iteration <= 2 or isinstance(event, Alert)]
    assert read_journal(path).events == [started(), *counts, *again]
    several = [
        *map(iteration, (1, 2, 3)),
        started(resumed_at=2),
        *map(iteration, (3, 4)),
        started(resumed_at=1),
        iteration(2),
        started(resumed_at=9),
    ]
    write(other := path.with_name("other.jsonl"), *several)
    numbers = [event.iteration for event in read_journal(other).events if isinstance(event, Iteration)]
    assert numbers == [1, 2], "the lowest of several resumptions counts for what comes before it"


def test_a_reader_gives_each_event_once_however_the_bytes_arrive(path: Path) -> None:
    events = [started(), iteration(1), samples(1), ended()]
    write(path, *events)
    whole = path.read_bytes()
    growing = path.with_name("growing.jsonl")
    reader = JournalReader(growing)
    assert reader.poll() == []
    seen = []
    with growing.open("ab", buffering=0) as file:
        for start in range(0, len(whole), 7):
            file.write(whole[start : start + 7])
            seen += reader.poll()
    assert [event for _, event in seen] == events
    assert reader.poll() == []
    assert (reader.problems, reader.restarts, reader.unfinished) == ([], 0, False)


def test_a_reader_starts_again_when_the_file_is_replaced_or_cut(path: Path) -> None:
    write(path, started(), iteration(1))
    reader = JournalReader(path)
    reader.poll()
    other = path.with_name("other.jsonl")
    write(other, *map(iteration, (7, 8, 9)))  # longer than what was read, so that the size reveals nothing
    other.replace(path)
    assert [event for _, event in reader.poll()] == [iteration(7), iteration(8), iteration(9)]
    path.unlink()
    assert reader.poll() == []
    write(path, ended())
    assert [event for _, event in reader.poll()] == [ended()]
    assert reader.restarts == 2


@pytest.mark.parametrize("count", [0, 1, 5, *range(20, 70), 400])  # cut within each of the first lines
def test_the_ends_of_a_journal_are_its_first_event_and_its_last_iterations(path: Path, count: int) -> None:
    write(path, started(), *map(iteration, range(1, count + 1)))
    view = read_journal(path, 5)
    assert view.events[0] == started()
    numbers = [event.iteration for event in view.events if isinstance(event, Iteration)]
    assert numbers == list(range(count - len(numbers) + 1, count + 1))
    assert len(numbers) >= min(count, 5)
    assert len(view.events) == 1 + len(numbers)
    assert len(view.times) == len(view.events)


def test_the_ends_reach_back_for_iterations_past_a_long_stretch_without_any(path: Path) -> None:
    write(path, started(), *map(iteration, range(1, 400)), *[alert(399)] * 1000, started(resumed_at=350))
    numbers = [event.iteration for event in read_journal(path, 5).events if isinstance(event, Iteration)]
    assert numbers[-5:] == [346, 347, 348, 349, 350]


def test_the_ends_of_a_long_journal_are_read_without_the_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, started(), *map(iteration, range(1, 400)))
    parsed: list[bytes] = []
    monkeypatch.setattr(journal_module, "from_json", lambda line: parsed.append(line) or json.loads(line))
    read_journal(path, 5)
    assert sum(map(len, parsed)) < 20_000


def test_the_ends_count_damaged_lines_among_the_newest_steps_and_after(path: Path) -> None:
    write(path, started(), *map(iteration, range(1, 21)))
    lines = path.read_bytes().splitlines(keepends=True)

    def found(*damaged: int, rest: bytes = b"") -> tuple[int, bool]:
        changed = [b'{"event": \x00\n' if number in damaged else line for number, line in enumerate(lines)]
        path.write_bytes(b"".join(changed) + rest)
        ends = read_journal(path, 5)
        return ends.damaged, ends.cut

    assert found() == (0, False)
    assert found(21) == (1, False)
    assert found(20, 21, 19) == (3, False)
    assert found(16) == (0, False), "it is before the newest five steps, which all are there"
    assert found(17) == (1, False), "an older step takes the place of the one that is lost"
    assert found(rest=b'{"event": "it') == (0, True)
    assert found(21, rest=b"\n\n") == (3, False)


def test_damage_in_iterations_that_a_resumption_repeats_is_not_counted(path: Path) -> None:
    write(path, started(), *map(iteration, range(1, 4)))
    path.write_bytes(path.read_bytes() + b'{"event": "it')
    write(path, started(resumed_at=2), iteration(3))
    ends = read_journal(path, 5)
    assert (ends.damaged, ends.cut) == (0, False)
    assert [event.iteration for event in ends.events if isinstance(event, Iteration)] == [1, 2, 3]


@pytest.mark.parametrize("time", [True, -1, 1e300, 2**70, float("nan"), float("inf"), "noon", None])
def test_an_event_at_a_time_that_has_no_date_is_damaged(path: Path, time: Any) -> None:
    write(path, started())
    values = {**json.loads(path.read_bytes().splitlines()[1]), "time": time}
    path.write_bytes(path.read_bytes() + json.dumps(values).encode() + b"\n")
    assert len(read_journal(path).events) == 1
    assert [problem.partition(" ignored")[0] for problem in read_journal(path).problems] == ["line 3"]
