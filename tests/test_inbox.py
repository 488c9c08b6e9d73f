"""Another process asks, the trainer's inbox takes it in order and once, and nothing that lies there can harm it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from runs_helper import Recorder, run_python, tiny_config

from trainer.control import Request
from trainer.errors import StorageError, UsageError
from trainer.events import Alert, Event, Iteration, SettingChanged, StateChanged
from trainer.inbox import Inbox, send
from trainer.runs import RunFolder
from trainer.training import train


def complaint(message: str) -> None:
    raise AssertionError(message)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "a").mkdir()
    return RunFolder(tmp_path / "a")


def test_requests_are_taken_once_and_in_the_order_of_sending(folder: RunFolder) -> None:
    with folder.lock():
        inbox = Inbox(folder.control, complaint)
        for number in range(20):
            send(folder.root, "set", key="ppo.epochs", value=number)
        send(folder.root, "pause")
        assert inbox.take() == [Request("set", key="ppo.epochs", value=n) for n in range(20)] + [Request("pause")]
        assert inbox.take() == []
        send(folder.root, "resume")
        assert inbox.take() == [Request("resume")]
    assert list(folder.control.iterdir()) == []


def test_an_end_has_a_reason(folder: RunFolder) -> None:
    with folder.lock():
        inbox = Inbox(folder.control, complaint)
        send(folder.root, "stop", reason="out of time")
        send(folder.root, "stop")
        send(folder.root, "abort")
        reasons = ["out of time", "stopped from another process", "aborted from another process"]
        assert [request.reason for request in inbox.take()] == reasons


def test_what_was_left_by_an_earlier_time_is_dropped(folder: RunFolder) -> None:
    with folder.lock():
        send(folder.root, "stop")
        (folder.control / ".half-written.json.tmp").write_text("{")
        inbox = Inbox(folder.control, complaint)
        assert inbox.take() == []
    assert list(folder.control.iterdir()) == []


def test_a_run_that_nobody_trains_takes_no_request(folder: RunFolder) -> None:
    with pytest.raises(UsageError, match=r"run 'a' is not being trained, so nobody hears 'pause': resume it first"):
        send(folder.root, "pause")
    with pytest.raises(UsageError, match="run 'gone'"):
        send(folder.root.with_name("gone"), "stop")
    assert not folder.control.exists()


def test_a_request_that_cannot_be_written_is_told_and_leaves_nothing(folder: RunFolder) -> None:
    with folder.lock():
        folder.control.write_text("not a folder")
        with pytest.raises(StorageError, match="cannot leave a request in"):
            send(folder.root, "stop")
        with pytest.raises(StorageError, match=r"cannot use .* for requests"):
            Inbox(folder.control, complaint)


BROKEN: dict[str, Any] = {
    "cut": b'{"command": "pau',
    "empty": b"",
    "no text": b"\xff\xfe\x00",
    "a list": b"[1]",
    "unknown": b'{"command": "dance"}',
    "no string": b'{"command": ["pause"]}',
    "no key": b'{"command": "set", "value": 1}',
    "no value": b'{"command": "set", "key": "ppo.clip"}',
    "deep": b"[" * 30_000,
    "long": b'{"command": "pause", "x": "' + b"x" * 1_000_000 + b'"}',
    "huge number": b'{"command": "set", "key": "ppo.clip", "value": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_told_of_once_and_keeps_no_other_request_back(folder: RunFolder, content: bytes) -> None:
    complaints: list[str] = []
    inbox = Inbox(folder.control, complaints.append)
    (folder.control / "0.json").write_bytes(content)
    (folder.control / "1.json").write_text('{"command": "step"}')
    assert inbox.take() == [Request("step")]
    assert inbox.take() == []
    assert [message.startswith("request '0.json' left out: ") for message in complaints] == [True]
    assert "\n" not in complaints[0]
    assert list(folder.control.iterdir()) == []


def test_what_is_no_file_is_told_of_once_and_never_waited_for(folder: RunFolder) -> None:
    complaints: list[str] = []
    inbox = Inbox(folder.control, complaints.append)
    (folder.control / "0.json").mkdir()
    os.mkfifo(folder.control / "1.json")
    assert [inbox.take() for _ in range(3)] == [[], [], []]
    assert complaints == [f"request '{n}.json' left out: it is not a file" for n in (0, 1)]


def test_a_request_that_cannot_be_removed_is_heeded_once(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox(folder.control, complaint)
    (folder.control / "0.json").write_text('{"command": "step"}')

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert [inbox.take() for _ in range(3)] == [[Request("step")], [], []]


def test_an_inbox_that_is_gone_is_empty(folder: RunFolder) -> None:
    inbox = Inbox(folder.control, complaint)
    folder.control.rmdir()
    assert inbox.take() == []


def test_another_process_pauses_changes_and_stops_a_run(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    script = "import sys, json; from pathlib import Path; from trainer.inbox import send; "
    script += "[send(Path(sys.argv[1]), **request) for request in json.loads(sys.argv[2])]"

    def ask(*requests: dict[str, Any]) -> None:
        asked = run_python("-c", script, str(run), json.dumps(requests))
        assert asked.returncode == 0, asked.stderr

    def watch(event: Event) -> None:
        if isinstance(event, Iteration) and event.iteration == 1:
            ask({"command": "pause"})
        elif event == StateChanged(state="paused") and not recorder.of(SettingChanged):
            (run / "control" / "broken.json").write_text("{")
            ask({"command": "set", "key": "ppo.kl_coef", "value": 0.5}, {"command": "step"})
        elif event == StateChanged(state="paused"):
            ask({"command": "stop", "reason": "enough"})

    recorder = Recorder(watch)
    (run.parent).mkdir()
    ended = train(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1000"), sinks=[recorder])
    assert (ended.state, ended.reason) == ("stopped", "enough")
    (change,) = recorder.of(SettingChanged)
    assert [i.kl_coef for i in recorder.of(Iteration) if i.iteration >= change.iteration] == [0.5] * (
        ended.iteration - change.iteration + 1
    )
    assert [alert.code for alert in recorder.of(Alert)] == ["request_broken"]
    assert list((run / "control").iterdir()) == []
