"""The inbox: another process asks, the trainer takes each request once and in order, and nothing in it does harm."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import call, create_autospec

import pytest
from runs_helper import Recorder, run_python, tiny_config
from scripted_run import answered

from trainer.engine.control import Control
from trainer.engine.inbox import Inbox, ask, read_answer, send, withdraw
from trainer.engine.training import train
from trainer.errors import StorageError, UsageError
from trainer.events import Alert, Event, Iteration, SettingChanged, StateChanged
from trainer.questions import Question
from trainer.runs.folder import RunFolder


def complaint(message: str) -> None:
    raise AssertionError(message)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "a").mkdir()
    return RunFolder(tmp_path / "a")


class Box:
    """An inbox, and a control that keeps the requests it makes."""

    def __init__(self, folder: RunFolder, complain: Callable[[str], None] = complaint) -> None:
        self.control = create_autospec(Control, instance=True)
        self.inbox = Inbox(folder.control, self.control, complain)

    def take(self) -> list[Any]:
        """Return the requests since the last call."""
        self.control.reset_mock()
        self.inbox.take()
        return list(self.control.mock_calls)

    def questions(self) -> list[tuple[Any, ...]]:
        """Return the questions since the last call, each with its reply and whether it is dropped."""
        return [values for name, values, _ in self.take() if name == "ask"]


def test_requests_are_taken_once_in_the_order_of_sending_with_their_reasons(folder: RunFolder) -> None:
    with folder.lock():
        inbox = Box(folder)
        for number in range(20):
            send(folder.root, "set", key="ppo.epochs", value=number)
        send(folder.root, "pause")
        assert inbox.take() == [call.set("ppo.epochs", n) for n in range(20)] + [call.pause()]
        assert inbox.take() == []
        send(folder.root, "resume")
        send(folder.root, "stop", reason="out of time")
        for command in ("stop", "abort", "rollback"):
            send(folder.root, command)  # type: ignore[arg-type]
        send(folder.root, "rollback", to=3, reason="it went wrong")
        assert inbox.take() == [
            call.resume(),
            call.stop("out of time"),
            call.stop("stopped from another process"),
            call.abort("aborted from another process"),
            call.rollback(None, "requested by another process"),
            call.rollback(3, "it went wrong"),
        ]
    assert list(folder.control.iterdir()) == []


def test_requests_and_questions_that_nobody_can_take_are_refused(folder: RunFolder) -> None:
    with pytest.raises(UsageError, match=r"run 'a' is not being trained, so 'pause' does nothing: resume it first"):
        send(folder.root, "pause")
    with pytest.raises(UsageError, match="run 'gone'"):
        send(folder.root.with_name("gone"), "stop")
    with pytest.raises(UsageError, match=r"run 'a' is not being trained, so 'ask' does nothing: resume it first"):
        ask(folder.root, Question(prompt="one"))
    with folder.lock(), pytest.raises(UsageError, match=r"more than 512 KiB: shorten its prompt"):
        ask(folder.root, Question(prompt="é" * 300_000))
    assert not folder.control.exists()


def test_a_request_that_cannot_be_written_is_reported_and_leaves_nothing(folder: RunFolder) -> None:
    with folder.lock():
        folder.control.write_text("not a folder")
        with pytest.raises(StorageError, match=r"cannot leave a request in '.*needs; fix the folder; only the user"):
            send(folder.root, "stop")
        with pytest.raises(StorageError, match=r"cannot use .* for requests"):
            Box(folder)


def test_a_question_stays_until_answered_and_removing_it_drops_it(folder: RunFolder) -> None:
    question = Question(prompt="one", prefix=list(range(20_000)), columns={"a": [1]})
    with folder.lock():
        inbox = Box(folder)
        kept, withdrawn = (ask(folder.root, each) for each in (question, Question(prompt="two")))
        assert read_answer(kept) is None
        one, two = inbox.questions()
        assert one[0] == question
        assert inbox.take() == [], "each is taken once"
        assert [dropped() for _, _, dropped in (one, two)] == [False, False]
        withdraw(withdrawn)
        assert [dropped() for _, _, dropped in (one, two)] == [False, True]
        for asked, reply, _ in (one, two):
            reply(answered(asked))
        assert read_answer(kept) == answered(question)
        assert (read_answer(kept), read_answer(withdrawn)) == (None, None), "read once; nobody would take the other"
    assert [path.name for path in folder.control.rglob("*")] == ["answers"]


def test_requests_and_answers_left_from_an_earlier_time_are_dropped(folder: RunFolder) -> None:
    with folder.lock():
        inbox = Box(folder)
        path = ask(folder.root, Question(prompt="one"))
        ((question, reply, _),) = inbox.questions()
        reply(answered(question))
        send(folder.root, "stop")
        for place in (path.parent, folder.control):
            (place / ".half-written.json.tmp").write_text("{")
        assert Box(folder).take() == []
    assert list(folder.control.rglob("*")) == [path.parent]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[1]", b'{"writer": "policy"}', b"[" * 30_000])
def test_a_broken_answer_is_reported_in_one_line(folder: RunFolder, content: bytes) -> None:
    path = folder.root / "answer.json"
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"^answer '.*' cannot be read: [^\n]*; ask again$"):
        read_answer(path)


BROKEN: dict[str, Any] = {
    "cut": b'{"command": "pau',
    "no text": b"\xff\xfe\x00",
    "unknown": b'{"command": "dance"}',
    "no string": b'{"command": ["pause"]}',
    "no key": b'{"command": "set", "value": 1}',
    "no value": b'{"command": "set", "key": "ppo.clip"}',
    "a rollback to no iteration": b'{"command": "rollback", "to": "best"}',
    "no question": b'{"command": "ask"}',
    "misspelt question": b'{"command": "ask", "question": {"promt": "one"}}',
    "question of another type": b'{"command": "ask", "question": {"prompt": "one", "count": "3"}}',
    "deep": b"[" * 30_000,
    "long": b'{"command": "pause", "x": "' + b"x" * 1_000_000 + b'"}',
    "huge number": b'{"command": "set", "key": "ppo.clip", "value": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_reported_once_and_holds_up_no_other_request(folder: RunFolder, content: bytes) -> None:
    complaints: list[str] = []
    inbox = Box(folder, complaints.append)
    (folder.control / "0.json").write_bytes(content)
    (folder.control / "1.json").write_text('{"command": "step"}')
    assert inbox.take() == [call.step()]
    assert inbox.take() == []
    assert [message.startswith("request '0.json' ignored: ") for message in complaints] == [True]
    assert "\n" not in complaints[0]
    assert list(folder.control.iterdir()) == []


def test_anything_but_a_regular_file_is_reported_once_and_never_waited_for(folder: RunFolder) -> None:
    complaints: list[str] = []
    inbox = Box(folder, complaints.append)
    (folder.control / "0.json").mkdir()
    os.mkfifo(folder.control / "1.json")
    assert [inbox.take() for _ in range(3)] == [[], [], []]
    assert complaints == [f"request '{n}.json' ignored: it is not a file" for n in (0, 1)]


def test_a_request_that_cannot_be_removed_is_handled_once(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Box(folder)
    (folder.control / "0.json").write_text('{"command": "step"}')

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert [inbox.take() for _ in range(3)] == [[call.step()], [], []]


def test_another_process_pauses_asks_changes_and_stops_a_run(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    script = "import sys, json; from pathlib import Path; from trainer.engine.inbox import send; "
    script += "[send(Path(sys.argv[1]), **request) for request in json.loads(sys.argv[2])]"

    def sent(*requests: dict[str, Any]) -> None:
        asked = run_python("-c", script, str(run), json.dumps(requests))
        assert asked.returncode == 0, asked.stderr

    def watch(event: Event) -> None:
        if isinstance(event, Iteration) and event.iteration == 1:
            sent({"command": "pause"})
        elif event == StateChanged(state="paused") and not recorder.of(SettingChanged):
            (run / "control" / "broken.json").write_text("{")
            question = {"prompt": "one", "count": 2, "prefix": [65]}
            sent({"command": "ask", "question": question})
            sent({"command": "set", "key": "ppo.kl_coef", "value": 0.5}, {"command": "step"})
        elif event == StateChanged(state="paused"):
            sent({"command": "stop", "reason": "enough"})

    recorder = Recorder(watch)
    (run.parent).mkdir()
    ended = train(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1000"), sinks=[recorder])
    assert (ended.state, ended.reason) == ("stopped", "enough")
    (change,) = recorder.of(SettingChanged)
    assert [i.kl_coef for i in recorder.of(Iteration) if i.iteration >= change.iteration] == [0.5] * (
        ended.iteration - change.iteration + 1
    )
    assert [alert.code for alert in recorder.of(Alert)] == ["request_broken"]
    (path,) = (run / "control").rglob("*.json")
    answer = read_answer(path)
    assert answer is not None
    assert (answer.problem, answer.prompt, [one.tokens[0] for one in answer.completions]) == ("", "one", [65, 65])
    assert read_answer(path) is None, "it is read once"


def test_a_request_of_another_user_is_refused_and_reported(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[str] = []
    inbox = Box(folder, complaints.append)
    for name, command in (("1.json", "abort"), ("2.json", "step")):
        (folder.control / name).write_text(json.dumps({"command": command}))
    them = (folder.control / "1.json").stat().st_ino
    original = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        found = original(descriptor)
        changed = (*found[:4], found.st_uid + 1, *found[5:]) if found.st_ino == them else tuple(found)
        return os.stat_result(changed)

    monkeypatch.setattr(os, "fstat", fstat)
    assert inbox.take() == [call.step()]
    (reported,) = complaints
    user = os.geteuid() + 1
    assert (
        reported == f"request '1.json' ignored: it belongs to user {user}; only the user who trains a run may steer it"
    )
    assert list(folder.control.iterdir()) == []


def test_requests_and_answers_are_private_to_the_owner(folder: RunFolder) -> None:
    before = os.umask(0)
    try:
        with folder.lock():
            inbox = Box(folder)
            answer = ask(folder.root, Question(prompt="one"))
            request_modes = [stat.S_IMODE(path.stat().st_mode) for path in folder.control.iterdir()]
            ((question, reply, _),) = inbox.questions()
            reply(answered(question))
    finally:
        os.umask(before)
    assert request_modes == [0o600]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder.control, answer.parent)] == [0o700, 0o700]
    assert stat.S_IMODE(answer.stat().st_mode) == 0o600


def test_a_link_is_neither_a_request_nor_an_answer(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.json").write_text('{"command": "abort"}')
    complaints: list[str] = []
    inbox = Box(folder, complaints.append)
    (folder.control / "1.json").symlink_to(tmp_path / "elsewhere.json")
    assert inbox.take() == []
    assert complaints == ["request '1.json' ignored: it is a symbolic link"]
    assert list(folder.control.iterdir()) == []
    folder.control.rename(folder.root / "moved")
    folder.control.symlink_to(tmp_path)  # whose files are not requests, and are not removed
    assert inbox.take() == []
    folder.control.unlink()
    (folder.root / "moved").rename(folder.control)
    (folder.control / "answer.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(StorageError, match="it is a symbolic link; ask again"):
        read_answer(folder.control / "answer.json")
    assert (tmp_path / "elsewhere.json").exists()
