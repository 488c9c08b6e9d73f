"""The run folder's `control/`: requests of other processes to the one that trains the run.

Each request is one small JSON file, `{"command": "set", "key": "ppo.kl_coef", "value": 0.1}`, renamed into place; names
sort in the order of sending. The trainer removes a request when it takes it. A question stays until it is answered, and
removing its file drops it. The answer is in `control/answers/` under the name of the request, until it is read. Only
the user who trains the run has access.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

from trainer.engine.control import Control
from trainer.errors import StorageError, UsageError, storage_error
from trainer.events import HumanEvaluation
from trainer.files import PRIVATE, is_folder, open_file, own_folder, write_whole
from trainer.questions import Answer, Question, from_json, to_json
from trainer.runs.folder import RunFolder
from trainer.runs.journal import Journal, event_in

_MAX_BYTES = 512 * 1024  # a prompt and a response of 30,000 tokens each
_ANSWERS = "answers"
_OURS = re.compile(r"[^.].*\.json|\..*\.json\.tmp")  # names of requests and answers, whole and half-written
Command = Literal["pause", "resume", "step", "checkpoint", "rollback", "set", "ask", "report", "stop", "abort"]
_COMMANDS = get_args(Command)
_REASONS = {
    "stop": "stopped from another process",
    "abort": "aborted from another process",
    "rollback": "requested by another process",
}
_PRIVATE_FOLDER = 0o700
_count = itertools.count()


def send(folder: Path, command: Command, **values: Any) -> str:
    """Send a request to the process that trains the run in `folder`; return its name before it is handled.

    values: `key` and `value` of "set", which must be plain; `event` of "report", as its `as_dict` gives it; `reason` of
    "stop", "abort" and "rollback"; `to` of "rollback", an iteration. Raises UsageError if no process trains the run or
    the request is too long, StorageError if it cannot be written.
    """
    run = RunFolder(folder)
    if not run.is_live():
        raise UsageError(f"run '{run.name}' is not being trained, so '{command}' does nothing: resume it first")
    text = json.dumps({"command": command, **values}, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode(errors="replace")) > _MAX_BYTES:
        raise UsageError(f"the {command} takes more than {_MAX_BYTES // 1024} KiB: shorten its prompt or its prefix")
    name = f"{time.time_ns():020d}-{os.getpid()}-{next(_count):06d}.json"
    way_out = "fix the folder; only the user who trains a run can steer it"
    with storage_error(f"cannot leave a request in '{run.control}'", way_out):
        _write(run.control / name, text)
    return name


def add_event(folder: Path, event: HumanEvaluation) -> None:
    """Add `event` to the events of the run in `folder`.

    If the run is active, the process that trains it emits the event soon; otherwise it is appended to the journal.
    Raises UsageError if there is no run, or it is just starting or ending, StorageError if the event cannot be written.
    """
    run = RunFolder(folder)
    if not run.events.is_file():
        raise UsageError(f"no run in '{folder}': name the folder of a run that was started")
    if run.is_live():
        send(folder, "report", event=event.as_dict())
        return
    with run.lock(), contextlib.closing(Journal(run.events, shared=None)) as journal:
        journal.emit(event)


def ask(folder: Path, question: Question) -> Path:
    """Ask the model of the run that another process trains in `folder`; return where the answer will be.

    Raises what `send` does.
    """
    name = send(folder, "ask", question=json.loads(to_json(question)))
    return RunFolder(folder).control / _ANSWERS / name


def read_answer(path: Path) -> Answer | None:
    """Read and remove the answer at the path that `ask` returned; None while it is not there.

    Raises StorageError if it cannot be read.
    """
    try:
        with os.fdopen(open_file(path), "rb") as file:
            answer = from_json(Answer, file.read())
        path.unlink()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageError(f"answer '{path}' cannot be read: {reason}; ask again") from None
    return answer


def waits(path: Path) -> bool:
    """Return whether the question whose answer belongs at `path` is still there to be answered."""
    return os.path.lexists(path.parent.parent / path.name)


def withdraw(path: Path) -> None:
    """Withdraw the question whose answer belongs at `path`, and remove an answer that is there."""
    for left in (path.parent.parent / path.name, path):
        with contextlib.suppress(OSError):
            left.unlink()


class Inbox:
    """The trainer's end of `control/`. Requests that are there at first are outdated and removed.

    control: gets the later ones. complain: receives one line about each file that contains no request. Raises
    StorageError if the folder cannot be made.
    """

    def __init__(self, path: Path, control: Control, complain: Callable[[str], None]) -> None:
        self._path = path
        self._control = control
        self._complain = complain
        self._seen: set[str] = set()  # requests that are still there: questions, and what cannot be removed
        with storage_error(f"cannot use '{path}' for requests", "fix the folder"):
            own_folder(path, mode=_PRIVATE_FOLDER)
            if stat.S_IMODE(path.lstat().st_mode) != _PRIVATE_FOLDER:  # as in a copy of a run
                path.chmod(_PRIVATE_FOLDER)
            answers = path / _ANSWERS
            for left in [*path.iterdir(), *(answers.iterdir() if is_folder(answers) else ())]:
                if _OURS.fullmatch(left.name):
                    self._remove(left)

    def take(self) -> None:
        """Pass on the requests since the last call, in the order of sending; none from behind a link."""
        for path in sorted(self._path.glob("[!.]*.json")) if is_folder(self._path) else ():
            if path.name in self._seen:
                continue
            self._seen.add(path.name)
            try:
                with os.fdopen(open_file(path), "rb") as file:
                    if (owner := os.fstat(file.fileno()).st_uid) != os.geteuid():
                        raise ValueError(f"it belongs to user {owner}; only the user who trains a run may steer it")
                    if self._request(file.read(_MAX_BYTES), path.name):
                        continue  # it stays until it is answered
            except FileNotFoundError:  # withdrawn since it was listed
                pass
            except (OSError, ValueError, RecursionError) as error:
                self._complain(f"request '{path.name}' ignored: {getattr(error, 'strerror', None) or error}")
            self._remove(path)

    def _request(self, data: bytes, name: str) -> bool:
        """Pass on the request in `data`; return whether it is a question. Raises ValueError if there is none."""
        try:
            values = json.loads(data)
        except ValueError:
            raise ValueError("it is not JSON") from None
        if not isinstance(values, dict) or values.get("command") not in _COMMANDS:
            raise ValueError(f"its command must be one of {', '.join(_COMMANDS)}")
        command, control = values["command"], self._control
        reason = str(values.get("reason") or _REASONS.get(command, ""))
        match command:
            case "ask":
                question, path = from_json(Question, json.dumps(values.get("question"))), self._path / name
                control.ask(question, functools.partial(self._reply, name), lambda: not os.path.lexists(path))
            case "report":
                event = event_in(values["event"]) if isinstance(values.get("event"), dict) else None
                if not isinstance(event, HumanEvaluation):  # only the trainer may report what it does
                    raise ValueError(f"its event is not a complete '{HumanEvaluation.kind}'")
                control.report(event)
            case "set":
                if not (isinstance(values.get("key"), str) and "value" in values):
                    raise ValueError("'set' needs a key and a value")
                control.set(values["key"], values["value"])
            case "rollback":
                if not (values.get("to") is None or type(values["to"]) is int):
                    raise ValueError("'to' is not an iteration")
                control.rollback(values.get("to"), reason)
            case "stop" | "abort":
                getattr(control, command)(reason)
            case _:
                getattr(control, command)()
        return bool(command == "ask")

    def _reply(self, name: str, answer: Answer) -> None:
        if not os.path.lexists(self._path / name):  # it was dropped
            self._seen.discard(name)
            return
        with contextlib.suppress(OSError):  # whoever waits finds neither question nor answer
            _write(self._path / _ANSWERS / name, to_json(answer))
        self._remove(self._path / name)

    def _remove(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # a folder, or not ours: still handled only once
            path.unlink(missing_ok=True)
            self._seen.discard(path.name)


def _write(path: Path, text: str) -> None:
    """Write a file of the inbox whole or not at all, and its folder if there is none."""
    own_folder(path.parent, mode=_PRIVATE_FOLDER)
    write_whole(path, text.encode(errors="replace"), mode=PRIVATE)
