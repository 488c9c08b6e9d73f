"""The threads that use a model: a run's trainer with its events, and saved policies with their answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from runs_helper import record, run_python, tiny_config
from scripted_run import Script, answered, diverged, done, ended, iteration, steered, unhurt, wait

from trainer.config import Config
from trainer.errors import ModelError, UsageError
from trainer.events import (
    CheckpointSaved,
    Event,
    Iteration,
    PhaseProgress,
)
from trainer.questions import Answer, Question
from trainer.runs.folder import RunFolder
from workbench.run.threads import PolicyThread, TrainingThread


def progress(count: int) -> PhaseProgress:
    return PhaseProgress(iteration=1, phase="generate", done=count, total=9)


def all_events(running: TrainingThread) -> list[Event]:
    events: list[Event] = []
    while not running.finished:
        events += running.take(timeout=5)
    return events


def test_a_lagging_reader_gets_only_the_newest_progress_and_every_event_that_is_kept() -> None:
    running = TrainingThread(Config())
    running.emit(progress(1))
    running.emit(iteration(1))
    for count in range(1000):
        running.emit(progress(count))
    running.emit(iteration(2))
    assert running.take() == [progress(1), iteration(1), progress(999), iteration(2)]


def test_a_stop_wakes_a_reader_that_waits() -> None:
    running = TrainingThread(Config())
    running.stop("asked")
    assert running.take(timeout=None) == []


def test_a_thread_gives_every_event_and_then_the_end() -> None:
    script = Script(done)
    with TrainingThread(Config(), preset="quickstart", train=script) as running:
        events = all_events(running)
        assert running.result() == events[-1] == ended(checkpoint="checkpoints/step-000012")
    assert sum(isinstance(event, Iteration) for event in events) == 12
    assert script.received == {"config": Config(), "resume": None, "preset": "quickstart"}
    assert script.thread is not None
    assert script.thread is not threading.main_thread()
    assert not script.thread.is_alive(), "the exit waits for it"


def test_a_stop_ends_the_run_after_a_checkpoint_with_the_first_reason_and_an_abort_without_one() -> None:
    with TrainingThread(Config(), train=Script(wait)) as running:
        running.stop("first")
        running.stop("second")
        events = all_events(running)
        end = running.result()
    assert (end.state, end.reason, running.stop_reason) == ("stopped", "first", "first")
    assert any(isinstance(event, CheckpointSaved) for event in events)
    with TrainingThread(Config(), train=Script(wait)) as running:
        running.send("abort")
        events = all_events(running)
    assert running.result().state == "stopped"
    assert not any(isinstance(event, CheckpointSaved) for event in events)


def test_leaving_the_block_stops_the_run_and_waits_for_its_checkpoint() -> None:
    running = TrainingThread(Config(), train=Script(wait))
    with pytest.raises(KeyError), running:
        raise KeyError("a bug of the display")
    assert running.result().state == "stopped"
    assert any(isinstance(event, CheckpointSaved) for event in running.take())


def test_a_thread_is_finished_only_when_its_last_event_was_taken() -> None:
    running = TrainingThread(Config(), train=Script(done))
    running.start()
    running.result()
    assert not running.finished
    assert running.take()
    assert running.finished


def test_a_question_is_answered_by_the_trainer_paused_or_not() -> None:
    question = Question(prompt="Once", count=2)
    with TrainingThread(Config(), train=Script(steered)) as running:
        assert running.ask(question).result(30).completions == answered(question).completions
        running.send("pause")
        assert running.ask(question).result(30).problem == ""


@pytest.mark.parametrize("play", [done, unhurt, diverged], ids=["done", "bug", "failed"])
def test_a_question_to_a_run_that_ends_in_any_way_is_told_so(play: Any) -> None:
    running = TrainingThread(Config(), train=Script(play))
    futures: list[Future[Answer]] = [running.ask(Question(prompt="Once"))]
    dropped = running.ask(Question(prompt="Once"))
    assert dropped.cancel()
    with running:
        all_events(running)
        futures.append(running.ask(Question(prompt="Once")))
    problems = [future.result(30).problem for future in futures]
    assert problems == ["the run ended before it was answered"] * 2


QUESTION = Question(prompt="one", count=2)
LET_GO = "the model was unloaded before it answered"


class Loaded:
    """Stand-in for a saved policy; `writes` is what it does while it answers."""

    def __init__(self, checkpoint: str, writes: Callable[[Callable[[], None]], None] = lambda progress: None) -> None:
        self.used = [checkpoint]
        self.writes = writes
        self.threads: set[threading.Thread] = set()

    def use(self, checkpoint: str) -> None:
        self.used.append(checkpoint)

    def answer(self, question: Question, progress: Callable[[], None]) -> Answer:
        self.threads.add(threading.current_thread())
        self.writes(progress)
        return answered(question, iteration=len(self.used))


def writer(checkpoint: str, writes: Callable[[Callable[[], None]], None]) -> Any:
    """Return a stand-in that does this while it answers, as a saved policy."""
    return Loaded(checkpoint, writes)


def test_questions_are_answered_in_order_by_one_model_on_one_thread(tmp_path: Path) -> None:
    loaded: list[Loaded] = []
    done: list[int] = []

    def load(folder: RunFolder, checkpoint: str) -> Any:
        assert folder.root == tmp_path
        loaded.append(Loaded(checkpoint))
        return loaded[-1]

    policies = PolicyThread(tmp_path, load)
    assert loaded == [], "nothing is loaded before the first question"
    futures = [policies.ask(QUESTION, name) for name in ("step-000002", "", "step-000001")]
    for future in futures:
        future.add_done_callback(lambda future: done.append(future.result().iteration))
    assert [future.result(30).iteration for future in futures] == [1, 2, 3]
    policies.close()
    policies.join()
    (policy,) = loaded
    assert policy.used == ["step-000002", "", "step-000001"]
    assert sorted(done) == [1, 2, 3]
    (thread,) = policy.threads
    assert (thread.daemon, thread.is_alive()) == (False, False)
    assert thread is not threading.current_thread()


def test_closing_ends_an_answer_at_its_next_step_and_informs_all_who_wait(tmp_path: Path) -> None:
    writing, steps = threading.Event(), 0

    def write_for_ever(progress: Callable[[], None]) -> None:
        nonlocal steps
        while True:
            writing.set()
            progress()
            steps += 1

    policies = PolicyThread(tmp_path, load=lambda _, checkpoint: writer(checkpoint, write_for_ever))
    futures: list[Future[Answer]] = [policies.ask(QUESTION) for _ in range(3)]
    assert writing.wait(30)
    policies.close()
    policies.join()
    assert [future.result(0).problem for future in futures] == [LET_GO] * 3
    with pytest.raises(UsageError, match="ask again"):
        policies.ask(QUESTION)


def test_a_question_withdrawn_before_or_during_its_answer_is_not_answered_further(tmp_path: Path) -> None:
    writing, calls = threading.Event(), 0

    def write(progress: Callable[[], None]) -> None:
        nonlocal calls
        calls += 1
        while calls == 1:  # the first one writes for ever
            progress()
            writing.set()

    policies = PolicyThread(tmp_path, load=lambda _, checkpoint: writer(checkpoint, write))
    first = policies.ask(QUESTION)
    assert writing.wait(30)
    withdrawn, third = policies.ask(QUESTION), policies.ask(QUESTION)
    assert withdrawn.cancel()
    assert first.cancel()
    assert third.result(30).problem == ""
    policies.close()
    policies.join()
    assert calls == 2, "what was withdrawn before its turn is not begun"


def test_a_model_that_cannot_be_loaded_is_reported_and_tried_again_for_the_next_question(tmp_path: Path) -> None:
    problems: list[Exception] = [ModelError("model.path = 'x': no such folder"), ZeroDivisionError("a bug")]

    def load(_: RunFolder, checkpoint: str) -> Any:
        if problems:
            raise problems.pop(0)
        return Loaded(checkpoint)

    policies = PolicyThread(tmp_path, load)
    futures = [policies.ask(QUESTION) for _ in range(3)]
    with pytest.raises(ModelError, match="no such folder"):
        futures[0].result(30)
    with pytest.raises(ZeroDivisionError):
        futures[1].result(30)
    assert futures[2].result(30).problem == ""
    policies.close()
    policies.join()


def test_a_real_run_is_asked_after_its_end(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a"))
    policies = PolicyThread(tmp_path / "runs/a")
    newest, first = policies.ask(QUESTION), policies.ask(QUESTION, "step-000001")
    assert [newest.result(60).iteration, first.result(60).iteration] == [3, 1]
    assert newest.result().completions != first.result().completions
    with pytest.raises(
        UsageError, match="has no complete checkpoint 'step-000009'; available: step-000001, step-000002"
    ):
        policies.ask(QUESTION, "step-000009").result(60)
    policies.close()
    policies.join()


def test_a_process_that_exits_while_a_policy_writes_ends_cleanly(tmp_path: Path) -> None:
    record(tiny_config(tmp_path, "run.name=a", "rollout.ignore_stop=true"))
    ended = run_python(
        "-c",
        "import sys; from pathlib import Path; from workbench.run.threads import PolicyThread; "
        "from trainer.questions import Question; policies = PolicyThread(Path(sys.argv[1])); "
        "policies.ask(Question(prompt='one', max_new_tokens=1)).result(); "
        "waits = [policies.ask(Question(prompt='one', count=16, max_new_tokens=240)) for _ in range(500)]; "
        "policies.close(); print('left')",
        str(tmp_path / "runs/a"),
    )
    assert (ended.returncode, ended.stdout) == (0, "left\n"), ended.stderr
