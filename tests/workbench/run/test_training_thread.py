"""The trainer's thread, its queue of events, and its end."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
from scripted_run import Script, answered, diverged, done, ended, iteration, steered, unhurt, wait

from trainer.config import Config
from trainer.events import (
    CheckpointSaved,
    Event,
    Iteration,
    PhaseProgress,
)
from trainer.questions import Answer, Question
from workbench.run.threads import TrainingThread


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
