"""The run on the screen: started here, watched elsewhere, steered, ended, failed."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import scripted_run
from config_files import save_config
from scripted_run import FIXES, Script, alarm, answered, make_run, write_events

from trainer.config import Config
from trainer.engine.control import Control
from trainer.engine.inbox import Inbox
from trainer.errors import StorageError, UsageError
from trainer.events import SettingChanged
from trainer.questions import Answer, Question
from trainer.runs.checkpoint_files import write_state
from trainer.runs.folder import RunFolder
from workbench.kit.pane_strip import status_pieces
from workbench.run import supervisor as module
from workbench.run.run_on_disk import RunOnDisk
from workbench.run.sentences import state_words
from workbench.run.supervisor import Supervisor
from workbench.run.threads import PolicyThread


@pytest.fixture(autouse=True)
def _garbage_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what pytest has loaded from the collection at a run's end, which would take 0.2 s."""
    monkeypatch.setattr(module, "gc", create_autospec(gc))


def poll(supervisor: Supervisor) -> None:
    """Look for what is new, as the screen does."""
    supervisor.take()
    if (found := supervisor.look()) is not None:
        supervisor.fold(found)


def poll_until(supervisor: Supervisor, condition: Callable[[], bool]) -> None:
    tick, waited = threading.Event(), 0
    while not condition():
        poll(supervisor)
        tick.wait(0.01)
        waited += 1
        assert waited < 30_000, "the condition did not come about within five minutes"


def supervise(play: Any, **how: Any) -> Supervisor:
    supervisor = Supervisor(Script(play))
    supervisor.start(Config(), **how)
    return supervisor


def allowed(supervisor: Supervisor) -> set[str]:
    requests = ("start", "pause", "resume", "step", "checkpoint", "stop")
    return {request for request in requests if supervisor.allows(request)}  # type: ignore[arg-type]


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_is_loading_from_its_first_moment(resume: bool) -> None:
    """The trainer's first event comes after seconds of imports."""
    may_load = threading.Event()
    supervisor = Supervisor(Script(lambda *run: (may_load.wait(), scripted_run.done(*run))[1]))
    supervisor.start(Config(), resume=make_run("old") if resume else None)
    shown = supervisor.view.is_starting, state_words(supervisor.view.state), supervisor.note
    assert list(supervisor.view.history.numbers) == [1, 2] * resume, "a resumed run keeps its past"
    assert supervisor.view.ended is None
    may_load.set()
    assert shown == (True, "loading the model", "")
    poll_until(supervisor, lambda: not supervisor.trains_here)
    assert not supervisor.view.is_starting
    assert (supervisor.view.state, allowed(supervisor)) == ("done", {"start", "step"})


def test_only_actions_that_make_sense_are_allowed() -> None:
    assert allowed(Supervisor()) == {"start", "step"}
    supervisor = supervise(scripted_run.wait)
    poll_until(supervisor, lambda: len(supervisor.view.history) == 1)
    assert allowed(supervisor) == {"pause", "step", "checkpoint", "stop"}
    supervisor.stop()
    assert allowed(supervisor) == set()
    poll_until(supervisor, lambda: not supervisor.trains_here)
    assert supervisor.view.state == "stopped"
    assert supervisor.note == ""


def test_a_pause_can_be_taken_back_before_and_after_it_has_come() -> None:
    supervisor = supervise(scripted_run.steered)
    poll_until(supervisor, lambda: supervisor.view.iteration > 0)
    for comes in (False, True):
        supervisor.ask("pause")
        assert supervisor.note == "pausing"
        if comes:
            poll_until(supervisor, lambda: supervisor.view.state == "paused")
            assert supervisor.note == ""
        assert allowed(supervisor) == {"resume", "step", "checkpoint", "stop"}
        supervisor.ask("resume")
        poll_until(supervisor, lambda: allowed(supervisor) == {"pause", "step", "checkpoint", "stop"})
    supervisor.abort()
    assert (supervisor.note, allowed(supervisor)) == ("aborting", set())
    poll_until(supervisor, lambda: not supervisor.trains_here)


def test_a_second_run_waits_until_the_first_has_ended() -> None:
    supervisor = supervise(scripted_run.wait)
    poll_until(supervisor, lambda: len(supervisor.view.history) == 1)
    with pytest.raises(UsageError, match="quickstart-0001 is training here: stop it"):
        supervisor.start(Config())
    with pytest.raises(UsageError, match="is training here"):
        supervisor.watch(make_run("other"))
    assert len(supervisor.view.history) == 1
    supervisor.abort()
    poll_until(supervisor, lambda: not supervisor.trains_here)
    supervisor.start(Config())
    poll_until(supervisor, lambda: len(supervisor.view.history) == 1)
    supervisor.abort()
    poll_until(supervisor, lambda: not supervisor.trains_here)


@pytest.mark.parametrize(
    ("play", "failure", "printed"),
    [
        (scripted_run.diverged, "loss was NaN 3 times in a row: lower optim.policy_lr and resume", False),
        (scripted_run.unhurt, "unexpected ZeroDivisionError: a bug of ours: this is a bug", True),
        (scripted_run.bug, "unexpected ZeroDivisionError: a bug of ours", False),
    ],
)
def test_errors_are_reported_in_the_trainers_words_and_the_traceback_of_a_bug_without_a_run_printed(
    play: Any,
    failure: str,
    printed: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RUN_FOLDER", str(tmp_path))
    supervisor = supervise(play)
    poll_until(supervisor, lambda: not supervisor.trains_here)
    assert supervisor.failure.startswith(failure)
    assert "\n" not in supervisor.failure
    if play is scripted_run.bug:
        assert str(tmp_path / "crash.log") in supervisor.failure
        assert "a second line" in (tmp_path / "crash.log").read_text()
    assert supervisor.view.state == "failed"
    assert ("Traceback" in capsys.readouterr().out) == printed


def test_a_run_of_another_process_is_steered_by_its_inbox() -> None:
    folder = make_run("elsewhere")
    with RunFolder(folder).lock():
        supervisor = Supervisor()
        supervisor.watch(folder)
        assert supervisor.under_way
        supervisor.ask("pause")
        supervisor.set("ppo.kl_coef", 0.1)
        supervisor.apply(FIXES[1], "KL high")
        sent = [json.loads(path.read_text()) for path in sorted((folder / "control").iterdir())]
        assert sent == [
            {"command": "pause"},
            {"command": "set", "key": "ppo.kl_coef", "value": 0.1},
            {"command": "rollback", "to": None, "reason": "KL high"},
        ]


def test_a_fix_is_offered_while_its_run_can_be_steered_and_its_alarm_is_active() -> None:
    supervisor = supervise(scripted_run.steered)
    poll_until(supervisor, lambda: supervisor.view.iteration > 0)
    reported = alarm(supervisor.view.iteration)
    assert supervisor.fixes(reported) == [], "it does not stand"
    supervisor.view.take(reported)
    assert supervisor.fixes(reported) == FIXES
    supervisor.apply(FIXES[2], "why")
    poll_until(supervisor, lambda: supervisor.view.state == "paused")
    assert supervisor.fixes(reported) == FIXES[:2], "it is paused"
    supervisor.apply(FIXES[1], "why")
    poll_until(supervisor, lambda: any(mark.kind == "rollback" for mark in supervisor.view.marks))
    assert supervisor.view.marks[-1].text == "rolled back to iteration 0: why"
    supervisor.view.take(reported)
    supervisor.abort()
    assert supervisor.fixes(reported) == []
    poll_until(supervisor, lambda: not supervisor.trains_here)
    for fix in FIXES:
        with pytest.raises(UsageError):
            Supervisor().apply(fix, "why")


def test_the_target_of_the_kl_is_that_of_the_run_and_follows_its_settings() -> None:
    folder = make_run("elsewhere")
    supervisor = Supervisor()
    supervisor.watch(folder)
    assert supervisor.view.kl_target is None, "a fixed coefficient has none"
    config = Config()
    ppo = config.ppo.model_copy(update={"kl_controller": "adaptive", "kl_target": 4.5})
    save_config(config.model_copy(update={"ppo": ppo}), folder / "config.toml")
    supervisor.watch(folder)
    assert supervisor.view.kl_target == 4.5
    write_events(folder, SettingChanged(iteration=2, key="ppo.kl_target", old=4.5, value=6.0))
    poll(supervisor)
    assert supervisor.view.kl_target == 6.0
    for content in ("broken [", f'ppo = {{ kl_controller = "adaptive", kl_target = 1{"0" * 400} }}\n'):
        (folder / "config.toml").write_text(content)
        supervisor.watch(folder)
        assert supervisor.view.kl_target is None


def test_a_run_whose_process_was_killed_is_shown_as_interrupted() -> None:
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


@pytest.mark.parametrize("has_trained", [True, False])
def test_a_run_that_is_about_to_start_in_another_process_is_not_shown_as_stopped(has_trained: bool) -> None:
    folder = make_run("elsewhere")
    if not has_trained:
        (folder / "events.jsonl").unlink()
    supervisor = Supervisor()
    with RunFolder(folder).lock():
        supervisor.watch(folder)
        assert (supervisor.note, supervisor.view.problems) == ("starting", [])
        assert "◌ starting" in status_pieces(supervisor.view, note=supervisor.note)[0].plain
        write_events(folder, scripted_run.started(name="elsewhere", folder=str(folder), resumed_at=2))
        poll_until(supervisor, lambda: supervisor.view.ended is None and supervisor.view.started is not None)
        assert supervisor.note == ""
        write_events(folder, scripted_run.ended())
        poll_until(supervisor, lambda: supervisor.view.ended is not None)
        assert supervisor.note == "", "the process of the run that has just ended"


@pytest.mark.parametrize(
    ("play", "reported"), [(scripted_run.done, "quickstart-0001 had already ended: done"), (None, "had not started")]
)
def test_a_run_that_cannot_continue_headless_is_reported(
    play: Any, reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.run.supervisor.continue_headless", lambda _: pytest.fail("a process was started"))
    supervisor = Supervisor()
    if play is not None:
        supervisor = supervise(play)
        poll_until(supervisor, lambda: not supervisor.trains_here)
    assert reported in supervisor.detach()


QUESTION = Question(prompt="Once", count=2)


class Loaded:
    """Stand-in for a saved policy."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint

    def use(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint

    def answer(self, question: Question, progress: Callable[[], None]) -> Answer:
        progress()
        return answered(question, iteration=len(self.checkpoint))


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[PolicyThread]:
    """Return the threads that a supervisor makes, with a stand-in for the model."""
    made: list[PolicyThread] = []
    load: Any = lambda _, checkpoint: Loaded(checkpoint)  # noqa: E731

    def make(folder: Path) -> PolicyThread:
        made.append(PolicyThread(folder, load))
        return made[-1]

    monkeypatch.setattr("workbench.run.supervisor.PolicyThread", make)
    return made


def closed(thread: PolicyThread) -> bool:
    with pytest.raises(UsageError, match="unloaded"):
        thread.ask(QUESTION)
    thread.join()
    return True


def make_checkpoint(folder: Path, iteration: int) -> None:
    path = RunFolder(folder).checkpoint(iteration)
    path.mkdir(parents=True)
    write_state(path, {})


def test_loaded_objects_are_freed_once_the_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gc", gc)
    gc.unfreeze()  # what was frozen before the test
    supervisor = supervise(scripted_run.steered)
    poll_until(supervisor, lambda: supervisor.view.started is not None)
    assert gc.get_freeze_count() > 0, "keys do not wait for the collector to look through a model"
    supervisor.stop()
    poll_until(supervisor, lambda: not supervisor.trains_here)
    assert gc.get_freeze_count() == 0


def test_the_model_of_a_failed_run_is_gone_before_another_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gc", gc)

    class Model:
        def __init__(self) -> None:
            self.layers = [self]  # in a cycle, as models are

    models: list[weakref.ref[Model]] = []

    def load() -> None:
        model = Model()
        models.append(weakref.ref(model))
        raise OSError("no memory")

    def train(*_: Any, **__: Any) -> Any:
        try:
            load()
        except OSError as error:
            raise StorageError("not loaded") from error

    supervisor = Supervisor(train)
    supervisor.start(Config())
    poll_until(supervisor, lambda: not supervisor.trains_here)
    assert supervisor.failure == "not loaded"
    assert [model() for model in models] == [None]


def test_a_run_that_has_just_ended_is_asked_by_its_checkpoint_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policies = create_autospec(PolicyThread)
    monkeypatch.setattr(module, "PolicyThread", policies)
    folder, supervisor = make_run("elsewhere"), Supervisor()
    with RunFolder(folder).lock():
        supervisor.watch(folder)
        assert supervisor.under_way
    supervisor.ask_model(QUESTION)
    policies.return_value.ask.assert_called_once_with(QUESTION, "")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[RunOnDisk]:
    """Return a run that another process trains, as far as its lock says."""
    folder = RunFolder(tmp_path / "a")
    folder.root.mkdir()
    with folder.lock():
        yield RunOnDisk(folder.root)


def test_a_lost_question_is_reported_while_the_run_continues(elsewhere: RunOnDisk) -> None:
    lost = elsewhere.ask(QUESTION)
    elsewhere.take()
    Inbox(elsewhere.folder / "control", create_autospec(Control, instance=True), print)  # a trainer that just begins
    elsewhere.take()
    with pytest.raises(StorageError, match="run 'a' lost the question: ask again"):
        lost.result(0)


def test_a_question_to_another_process_is_withdrawn_when_it_is_dropped(elsewhere: RunOnDisk) -> None:
    inbox = Inbox(elsewhere.folder / "control", control := create_autospec(Control, instance=True), print)
    dropped, closed_ = elsewhere.ask(QUESTION), elsewhere.ask(QUESTION)
    elsewhere.take()
    inbox.take()
    (_, _, one_is_dropped), (_, _, two_is_dropped) = [asked.args for asked in control.ask.call_args_list]
    assert dropped.cancel()
    elsewhere.take()
    assert (one_is_dropped(), two_is_dropped()) == (True, False)
    elsewhere.close()
    assert two_is_dropped()
    with pytest.raises(UsageError, match="was cancelled"):
        closed_.result(0)


def test_a_run_that_is_trained_here_answers_by_its_trainer() -> None:
    with pytest.raises(UsageError, match="no run yet: start one"):
        Supervisor().ask_model(QUESTION)
    supervisor = supervise(scripted_run.steered)
    poll_until(supervisor, lambda: supervisor.view.started is not None)
    assert supervisor.ask_model(QUESTION).result(30).completions == answered(QUESTION).completions
    assert supervisor.saved_policies() == []
    with pytest.raises(UsageError, match="cannot ask step-000001 while the run is training"):
        supervisor.ask_model(QUESTION, "step-000001")
    supervisor.abort()
    poll_until(supervisor, lambda: not supervisor.trains_here)


def test_a_run_that_has_ended_answers_by_its_checkpoints(threads: list[PolicyThread]) -> None:
    folder = make_run("past")
    for number in (2, 10):
        make_checkpoint(folder, number)
    (folder / "checkpoints" / "step-000011").mkdir()  # cut short
    supervisor = Supervisor()
    supervisor.watch(folder)
    assert supervisor.saved_policies() == ["step-000010", "step-000002"]
    iterations = [supervisor.ask_model(QUESTION, name).result(30).iteration for name in ("", "step-000002")]
    assert iterations == [0, len("step-000002")]
    assert len(threads) == 1, "one model for all questions"
    supervisor.close()
    assert closed(threads[0])


def test_a_model_that_was_asked_is_released_when_another_run_comes(threads: list[PolicyThread]) -> None:
    supervisor = Supervisor(Script(scripted_run.done))
    supervisor.watch(make_run("past"))
    supervisor.ask_model(QUESTION).result(30)
    supervisor.watch(make_run("other"))
    assert closed(threads[0])
    supervisor.ask_model(QUESTION).result(30)
    supervisor.start(Config())
    assert closed(threads[1])
    poll_until(supervisor, lambda: not supervisor.trains_here)


def test_a_run_of_another_process_answers_by_its_inbox() -> None:
    folder = make_run("elsewhere")
    futures: list[Future[Answer]] = []
    supervisor = Supervisor()
    with RunFolder(folder).lock():
        inbox = Inbox(folder / "control", control := create_autospec(Control, instance=True), pytest.fail)
        supervisor.watch(folder)
        assert supervisor.saved_policies() == []
        futures = [supervisor.ask_model(QUESTION) for _ in range(3)]
        poll(supervisor)
        inbox.take()
        (_, reply_to_first, _), (_, reply_to_second, _), _ = [asked.args for asked in control.ask.call_args_list]
        reply_to_first(answered(QUESTION))
        assert not futures[0].done()
        poll(supervisor)
        assert [future.done() for future in futures] == [True, False, False]
        (folder / "control/answers").mkdir(exist_ok=True)
        reply_to_second(answered(QUESTION, iteration=7))
    poll(supervisor)
    assert [future.result(30).iteration for future in futures[:2]] == [0, 7], "written before the run ended"
    with pytest.raises(UsageError, match="run 'elsewhere' ended before it answered"):
        futures[2].result(30)


def test_a_broken_answer_and_one_that_nobody_waits_for_are_reported() -> None:
    folder = make_run("elsewhere")
    supervisor = Supervisor()
    with RunFolder(folder).lock():
        inbox = Inbox(folder / "control", create_autospec(Control, instance=True), pytest.fail)
        supervisor.watch(folder)
        broken = supervisor.ask_model(QUESTION)
        poll(supervisor)
        (name,) = [path.name for path in (folder / "control").glob("*.json")]
        inbox.take()
        (folder / "control/answers").mkdir()
        (folder / "control/answers" / name).write_text("{")
        poll(supervisor)
        with pytest.raises(StorageError, match="cannot be read"):
            broken.result(30)
        left = supervisor.ask_model(QUESTION)
        supervisor.watch(make_run("other"))
        with pytest.raises(UsageError, match="the question was cancelled"):
            left.result(30)
