"""The run on the screen: started here, watched elsewhere, steered, ended, failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scripted_run
from scripted_run import Script, make_run

from trainer.config import Config
from trainer.errors import UsageError
from trainer.runs import RunFolder
from workbench.supervisor import Supervisor


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def poll_until(supervisor: Supervisor, condition: Callable[[], bool]) -> None:
    tick, waited = threading.Event(), 0
    while not condition():
        supervisor.poll()
        tick.wait(0.01)
        waited += 1
        assert waited < 3000, "the condition did not come about within 30 s"


def supervise(play: Any, **how: Any) -> Supervisor:
    supervisor = Supervisor(Script(play))
    supervisor.start(Config(), **how)
    return supervisor


def allowed(supervisor: Supervisor) -> set[str]:
    requests = ("start", "pause", "resume", "step", "checkpoint", "stop")
    return {request for request in requests if supervisor.allows(request)}  # type: ignore[arg-type]


def test_a_run_is_shown_from_its_start_to_its_end() -> None:
    supervisor = supervise(scripted_run.done)
    assert supervisor.trains_here
    poll_until(supervisor, lambda: not supervisor.trains_here)
    assert supervisor.view.state == "done"
    assert len(supervisor.view.history) == 12
    assert supervisor.failure == ""
    assert allowed(supervisor) == {"start", "step"}


def test_only_what_makes_sense_is_allowed() -> None:
    assert allowed(Supervisor()) == {"start", "step"}
    supervisor = supervise(scripted_run.wait)
    poll_until(supervisor, lambda: len(supervisor.view.history) == 1)
    assert allowed(supervisor) == {"pause", "step", "checkpoint", "stop"}
    supervisor.stop()
    assert allowed(supervisor) == set()
    poll_until(supervisor, lambda: not supervisor.trains_here)
    assert supervisor.view.state == "stopped"
    assert supervisor.note == ""


def test_a_second_run_waits_until_the_first_has_ended() -> None:
    supervisor = supervise(scripted_run.wait)
    poll_until(supervisor, lambda: len(supervisor.view.history) == 1)
    with pytest.raises(UsageError, match="quickstart-0001 is being trained here: stop it"):
        supervisor.start(Config())
    with pytest.raises(UsageError, match="is being trained here"):
        supervisor.watch(make_run("other"))
    assert len(supervisor.view.history) == 1
    supervisor.abort()
    poll_until(supervisor, lambda: not supervisor.trains_here)
    supervisor.start(Config())
    poll_until(supervisor, lambda: len(supervisor.view.history) == 1)
    supervisor.abort()
    poll_until(supervisor, lambda: not supervisor.trains_here)


def test_what_a_user_can_mend_is_told_in_the_trainers_words() -> None:
    supervisor = supervise(scripted_run.diverged)
    poll_until(supervisor, lambda: not supervisor.trains_here)
    assert supervisor.failure == "loss was NaN 3 times in a row: lower optim.policy_lr and resume"
    assert supervisor.view.state == "failed"


def test_a_bug_before_there_is_a_run_is_told_and_its_traceback_printed(capsys: pytest.CaptureFixture[str]) -> None:
    supervisor = supervise(scripted_run.unhurt)
    poll_until(supervisor, lambda: not supervisor.trains_here)
    assert supervisor.failure.startswith("unexpected ZeroDivisionError: a bug of ours: this is a bug")
    assert supervisor.view.state == "failed"
    assert "Traceback" in capsys.readouterr().out


def test_a_bug_within_a_run_leaves_its_traceback_in_the_runs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUN_FOLDER", str(tmp_path))
    supervisor = supervise(scripted_run.bug)
    poll_until(supervisor, lambda: not supervisor.trains_here)
    assert str(tmp_path / "crash.log") in supervisor.failure
    assert "\n" not in supervisor.failure
    assert "a second line" in (tmp_path / "crash.log").read_text()


def test_an_ended_run_is_shown_and_cannot_be_steered() -> None:
    supervisor = Supervisor()
    supervisor.watch(folder := make_run("past"))
    assert supervisor.folder == folder
    assert [len(supervisor.view.history), supervisor.view.state] == [2, "stopped"]
    assert allowed(supervisor) == {"start", "step"}
    with pytest.raises(UsageError, match="past"):
        supervisor.ask("pause")


def test_a_run_of_another_process_is_steered_by_its_inbox() -> None:
    folder = make_run("elsewhere")
    with RunFolder(folder).lock():
        supervisor = Supervisor()
        supervisor.watch(folder)
        assert supervisor.under_way
        supervisor.ask("pause")
        supervisor.set("ppo.kl_coef", 0.1)
        sent = [path.read_text() for path in sorted((folder / "control").iterdir())]
        assert len(sent) == 2
        assert '"pause"' in sent[0]
        assert '"ppo.kl_coef"' in sent[1]


def test_a_run_whose_process_was_killed_is_told_as_interrupted() -> None:
    folder = make_run("elsewhere")
    journal = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    (folder / "events.jsonl").write_text("".join(journal[:-1]))
    supervisor = Supervisor()
    with RunFolder(folder).lock():
        supervisor.watch(folder)
        assert (supervisor.note, supervisor.under_way) == ("", True)
    poll_until(supervisor, lambda: not supervisor.under_way)
    assert supervisor.note == "interrupted"
    assert allowed(supervisor) == {"start", "step"}


def test_a_resumed_run_keeps_its_past() -> None:
    folder = make_run("past")
    supervisor = supervise(scripted_run.wait, resume=folder)
    assert list(supervisor.view.history.numbers) == [1, 2]
    assert supervisor.view.ended is None
    supervisor.abort()
    poll_until(supervisor, lambda: not supervisor.trains_here)


@pytest.mark.parametrize(
    ("play", "told"), [(scripted_run.done, "quickstart-0001 had ended by itself: done"), (None, "had not begun")]
)
def test_a_run_that_cannot_go_on_headless_is_told(play: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.supervisor.go_on_headless", lambda _: pytest.fail("a process was started"))
    supervisor = Supervisor()
    if play is not None:
        supervisor = supervise(play)
        poll_until(supervisor, lambda: not supervisor.trains_here)
    assert told in supervisor.detach()
