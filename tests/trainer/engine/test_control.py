"""A run is paused, stepped, asked and stopped within one step of its work, and none of it changes what it computes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs_helper import Recorder, acting, outcome, record, tiny_config, within
from scripted_run import answered

from trainer.engine import answers
from trainer.engine.control import INBOX_SECONDS, Control
from trainer.engine.training import train
from trainer.errors import Interrupted, RewardError
from trainer.events import (
    Alert,
    CheckpointSaved,
    Event,
    Iteration,
    PhaseProgress,
    RunEnded,
    RunStarted,
    StateChanged,
)
from trainer.questions import DROPPED, Answer, Question, QuestionDroppedError, unanswered

PHASES = ("generate", "score", "reward", "update", "evaluate")


class Log:
    """Log of what is asked of it, which calls `meanwhile` while it is held."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.heard: list[Any] = []
        self.meanwhile = meanwhile

    def handle(self, request: str, *values: Any) -> None:
        self.heard.append(values or request)
        if request == "paused":
            self.meanwhile()

    def answer(self, question: Question, check: Callable[[], None]) -> Answer:
        self.heard.append(question.prompt)
        self.meanwhile()
        check()
        return answered(question)


class Clock:
    """Stand-in for the seconds of `time.perf_counter`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


def test_the_first_reason_to_stop_counts_and_an_abort_overrules_it() -> None:
    control = Control()
    control.stop("first")
    control.stop("second")
    with pytest.raises(Interrupted) as stopped:
        control.check()
    control.abort("enough")
    control.stop("third")
    with pytest.raises(Interrupted) as aborted:
        control.check()
    assert (stopped.value.reason, stopped.value.save) == ("first", True)
    assert (aborted.value.reason, aborted.value.save) == ("enough", False)


def test_requests_are_handled_in_order_while_the_trainer_is_paused() -> None:
    control = Control()

    def meanwhile() -> None:
        control.checkpoint()
        control.set("ppo.kl_coef", 0.1)
        control.rollback(3, "it went wrong")
        control.rollback()
        control.resume()

    control.attach(log := Log(meanwhile))
    control.pause()
    control.check()
    control.check()
    rollbacks = [(3, "it went wrong"), (None, "requested by the user")]
    assert log.heard == ["paused", "checkpoint", ("ppo.kl_coef", 0.1), *rollbacks, "resumed"]


@pytest.mark.parametrize("change_of_mind", ["pause", "resume"])
def test_a_pause_or_a_resume_cancels_a_single_step(change_of_mind: str) -> None:
    control = Control()
    control.attach(log := Log(control.resume))
    control.step()
    control.check()
    getattr(control, change_of_mind)()
    control.check()
    before = list(log.heard)
    control.check(step_done=True)
    assert log.heard == before


def test_the_inbox_is_read_at_most_five_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, control, looks = Clock(monkeypatch), Control(), 0

    def inbox() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            control.set("ppo.clip", 0.1)

    control.attach(log := Log(), inbox)
    for _ in range(100):
        control.check()
    assert looks == 1
    clock.now += INBOX_SECONDS
    control.check()
    assert (looks, log.heard) == (2, [("ppo.clip", 0.1)])


class Replies:
    """Asker that keeps the replies in order."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.prompts: list[str] = []
        self.problems: list[str] = []

    def ask(self, prompt: str) -> None:
        def note(answer: Answer) -> None:
            self.prompts.append(prompt)
            self.problems.append(answer.problem)

        self.control.ask(Question(prompt=prompt), note)


ENDED = "the run ended before it was answered"


def test_questions_are_answered_in_order_and_after_the_other_requests() -> None:
    control = Control()
    control.attach(log := Log())
    replies = Replies(control)
    replies.ask("one")
    replies.ask("two")
    control.checkpoint()
    assert replies.prompts == []
    control.check()
    assert log.heard == ["checkpoint", "one", "two"]
    assert (replies.prompts, replies.problems) == (["one", "two"], ["", ""])
    control.check()
    assert log.heard == ["checkpoint", "one", "two"]


def test_a_paused_trainer_answers_and_a_pause_during_an_answer_applies_afterwards() -> None:
    control = Control()
    replies = Replies(control)

    def meanwhile() -> None:
        match log.heard:
            case ["one"]:
                control.pause()
            case ["one", "paused"]:
                replies.ask("two")
            case ["one", "paused", "two"]:
                control.resume()

    control.attach(log := Log(meanwhile))
    replies.ask("one")
    control.check()
    assert log.heard == ["one", "paused", "two", "resumed"]
    assert replies.prompts == ["one", "two"]


@pytest.mark.parametrize("paused", [False, True])
def test_a_held_run_goes_on_when_that_is_over_but_not_if_somebody_paused_it_meanwhile(paused: bool) -> None:
    control, asked, looks = Control(), list[int](), list[int]()

    def is_over() -> bool:
        asked.append(len(looks))
        if paused and len(asked) == 1:
            control.pause()
        return len(asked) > 1

    def look_into_inbox() -> None:
        looks.append(len(asked))
        if len(looks) == 6:
            control.resume()

    control.attach(log := Log(), look_into_inbox)
    control.hold(is_over)
    assert log.heard == ["paused", "resumed"]
    assert (len(asked), len(looks) == 6) == ((1, True) if paused else (2, False))


@pytest.mark.parametrize("save", [True, False], ids=["stop", "abort"])
def test_an_end_during_an_answer_leaves_no_question_without_a_reply(save: bool) -> None:
    control = Control()
    replies = Replies(control)
    control.attach(log := Log(control.stop if save else control.abort))
    replies.ask("one")
    replies.ask("two")
    with pytest.raises(Interrupted) as ended:
        control.check()
    assert (ended.value.save, log.heard) == (save, ["one"])
    control.detach()
    replies.ask("three")
    assert (replies.prompts, replies.problems) == (["one", "two", "three"], [ENDED] * 3)


def test_a_bug_during_an_answer_still_replies_and_then_ends_the_run() -> None:
    control = Control()
    replies = Replies(control)

    def bug() -> None:
        raise ZeroDivisionError

    control.attach(Log(bug))
    replies.ask("one")
    with pytest.raises(ZeroDivisionError):
        control.check()
    assert replies.problems == [ENDED]


def test_questions_from_many_threads_all_get_replies_while_the_run_ends() -> None:
    control, reported = Control(), list[str]()
    control.attach(Log())
    begun = threading.Barrier(5)

    def ask() -> None:
        begun.wait(30)
        for _ in range(200):
            control.ask(Question(prompt="one"), lambda answer: reported.append(answer.problem))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.wait(30)
    for _ in range(20):
        control.check()
    control.detach()
    for thread in threads:
        thread.join()
    assert len(reported) == 800


def test_a_question_that_is_dropped_costs_no_more_than_the_step_under_way() -> None:
    control, waits, reported = Control(), {"one": True, "two": True}, list[str]()

    class Writer(Log):
        steps = 0

        def answer(self, question: Question, check: Callable[[], None]) -> Answer:
            try:
                for _ in range(5):
                    self.steps += 1
                    waits["one"] = self.steps < 2
                    check()
            except QuestionDroppedError as dropped:
                return unanswered(question, str(dropped))
            return unanswered(question, "written to its end")

    control.attach(writer := Writer())
    for name in ("one", "two", "one"):  # the last one is dropped before its turn

        def dropped(name: str = name) -> bool:
            return not waits[name]

        control.ask(Question(prompt=name), lambda answer: reported.append(answer.problem), dropped)
    control.check()
    assert reported == [DROPPED, "written to its end", DROPPED]
    assert writer.steps == 2 + 5


def test_a_trainer_that_takes_no_questions_says_so() -> None:
    control = Control()
    replies = Replies(control)
    replies.ask("one")
    control.check()
    assert replies.problems == ["this trainer takes no questions"]


@pytest.mark.parametrize("phase", PHASES)
def test_a_pause_with_a_checkpoint_anywhere_changes_nothing_of_a_run(phase: str, tmp_path: Path) -> None:
    control = Control()
    recorder = acting(phase, 2, control.pause)

    def go_on(event: Event) -> None:
        if event == StateChanged(state="paused"):
            (control.resume if recorder.of(CheckpointSaved) else control.checkpoint)()

    settings = ("checkpoint.every=0", "checkpoint.best=off")
    train(tiny_config(tmp_path, "run.name=a", *settings), sinks=[recorder, Recorder(go_on)], control=control)
    start = recorder.events.index(StateChanged(state="paused"))
    pause = [getattr(event, "state", event) for event in recorder.events[start : start + 5]]
    state = "evaluating" if phase == "evaluate" else "training"
    assert pause[:2] + pause[3:] == ["paused", "saving", "paused", state]
    assert pause[2].path == "checkpoints/step-000001"
    assert [saved.iteration for saved in recorder.of(CheckpointSaved)] == [1, 3]
    record(tiny_config(tmp_path, "run.name=whole", *settings))
    assert outcome(tmp_path / "runs/a") == outcome(tmp_path / "runs/whole")


def test_time_that_a_run_was_paused_counts_for_no_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control, recorder, real, slept = Control(), Recorder(), time.perf_counter, 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: real() + slept)

    def watch(event: Event) -> None:
        nonlocal slept
        if any(within(event, phase, 1) for phase in ("generate", "update")):
            control.pause()
        if event == StateChanged(state="paused"):
            slept += 10_000
            control.resume()

    recorder.watch = watch
    train(tiny_config(tmp_path, "ppo.iterations=1"), sinks=[recorder], control=control)
    (iteration,) = recorder.of(Iteration)
    assert slept >= 20_000
    assert sum(iteration.seconds.values()) < 10_000
    assert iteration.tokens / iteration.tokens_per_second < 10_000


def test_a_run_can_be_taken_step_by_step_to_its_end(tmp_path: Path) -> None:
    control = Control()
    recorder = Recorder(lambda event: control.step() if event == StateChanged(state="paused") else None)
    control.step()
    ended = train(tiny_config(tmp_path, "run.name=a"), sinks=[recorder], control=control)
    assert ended.state == "done"
    pauses = [i for i, event in enumerate(recorder.events) if event == StateChanged(state="paused")]
    done = [[e.iteration for e in recorder.events[:pause] if isinstance(e, Iteration)] for pause in pauses]
    saved = [[e.iteration for e in recorder.events[:pause] if isinstance(e, CheckpointSaved)] for pause in pauses]
    assert done == saved == [[1], [1, 2]], "each pause comes after all of its iteration, and none at the end"
    record(tiny_config(tmp_path, "run.name=whole"))
    assert outcome(tmp_path / "runs/a") == outcome(tmp_path / "runs/whole")


def test_an_existing_checkpoint_is_reported_and_not_written_again(tmp_path: Path) -> None:
    control = Control()
    recorder = acting("update", 2, control.checkpoint)
    train(tiny_config(tmp_path), sinks=[recorder], control=control)
    assert {alert.code for alert in recorder.of(Alert)} == {"checkpoint_there"}
    assert [saved.iteration for saved in recorder.of(CheckpointSaved)] == [1, 2, 3]


@pytest.mark.parametrize("phase", PHASES)
def test_a_stopped_run_keeps_the_last_whole_iteration_and_resumes_exactly(phase: str, tmp_path: Path) -> None:
    control = Control()
    recorder = acting(phase, 2, lambda: control.stop("enough for today"))
    ended = train(tiny_config(tmp_path, "run.name=a", "checkpoint.every=0"), sinks=[recorder], control=control)
    assert (ended.state, ended.exit_code, ended.reason) == ("stopped", 130, "enough for today")
    assert (ended.iteration, ended.checkpoint) == (1, "checkpoints/step-000001")
    asked = next(i for i, event in enumerate(recorder.events) if within(event, phase, 2))
    kinds = [type(event) for event in recorder.events[asked + 1 :]]
    assert kinds == [StateChanged, CheckpointSaved, RunEnded], "no step was taken after the request"
    resumed = record(tiny_config(tmp_path, "checkpoint.every=0"), resume=tmp_path / "runs/a")
    assert [started.resumed_at for started in resumed.of(RunStarted)] == [1]
    record(tiny_config(tmp_path, "run.name=whole", "checkpoint.every=0"))
    assert outcome(tmp_path / "runs/a") == outcome(tmp_path / "runs/whole")


@pytest.mark.parametrize("phase", PHASES)
def test_an_aborted_run_leaves_no_new_checkpoint(phase: str, tmp_path: Path) -> None:
    control = Control()
    settings = tiny_config(tmp_path, "run.name=a", "checkpoint.every=0")
    ended = train(settings, sinks=[acting(phase, 2, control.abort)], control=control)
    assert (ended.state, ended.exit_code, ended.checkpoint) == ("stopped", 130, "")
    assert list((tmp_path / "runs/a/checkpoints").iterdir()) == []


def test_a_run_stopped_before_its_first_iteration_keeps_its_beginning(tmp_path: Path) -> None:
    control = Control()
    control.stop()
    recorder = record(tiny_config(tmp_path, "run.name=a"), control=control)
    assert recorder.of(Iteration, PhaseProgress) == []
    assert recorder.of(RunEnded)[0].checkpoint == "checkpoints/step-000000"
    record(tiny_config(tmp_path), resume=tmp_path / "runs/a")
    record(tiny_config(tmp_path, "run.name=whole"))
    assert outcome(tmp_path / "runs/a") == outcome(tmp_path / "runs/whole")


QUESTIONS = {
    "policy": Question(prompt="one", count=2, max_new_tokens=4),
    "reference": Question(prompt="one", prefix=[65, 66], max_new_tokens=3, writer="reference", temperature=0.5),
}


class Curious(Recorder):
    """Sink that asks at every event, both writers in turn, and notes where the run was when the answer came."""

    def __init__(self, control: Control) -> None:
        super().__init__(self._ask)
        self.control = control
        self.asked = 0
        self.answers: list[tuple[str, Answer]] = []

    def _ask(self, event: Event) -> None:
        self.asked += 1
        self.control.ask(list(QUESTIONS.values())[self.asked % 2], self._note)

    def _note(self, answer: Answer) -> None:
        at = self.events[-1]
        if isinstance(at, PhaseProgress):
            passed = at.done / at.total
            self.answers.append((f"{at.phase} {passed:.2f}", answer))
        else:
            self.answers.append((getattr(at, "state", at.kind), answer))


@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_questions_anywhere_change_nothing_of_a_run(value_model: str, tmp_path: Path) -> None:
    settings = [f"model.value_model={value_model}", "optim.micro_batch_tokens=32", "ppo.minibatches=2"]
    settings.append("reward.normalize=running")  # answers are scored, and no part of the statistics
    control = Control()
    recorder = Curious(control)

    def pause(event: Event) -> None:
        if within(event, "update", 2) and not paused:
            paused.append(len(recorder.answers))
            control.pause()
        if event == StateChanged(state="paused"):
            control.ask(QUESTIONS["policy"], lambda answer: control.resume())

    paused: list[int] = []
    train(tiny_config(tmp_path, "run.name=a", *settings), sinks=[recorder, Recorder(pause)], control=control)
    record(tiny_config(tmp_path, "run.name=whole", *settings))
    assert outcome(tmp_path / "runs/a") == outcome(tmp_path / "runs/whole")
    places = {place for place, answer in recorder.answers if not answer.problem}
    for phase in ("generate", "score", "reward", "update", "evaluate", "training", "paused"):
        assert any(place.startswith(phase) for place in places), f"none was answered in {phase}"
    passes = {place.rpartition(" ")[2] for place in places if place.startswith("score")}
    assert any(float(passed) <= 0.5 for passed in passes)
    assert any(float(passed) > 0.5 for passed in passes), "none within the reference's pass"
    assert len(recorder.answers) == recorder.asked
    by_policy: dict[tuple[str, int], set[str]] = {}
    for _, answer in recorder.answers:
        for completion in answer.completions:
            share = sum(token < 128 for token in completion.tokens) / len(completion.tokens)
            assert completion.parts == {"rewards.py:score": share}
        if not answer.problem:
            written = repr([(one.tokens, one.logprobs, one.ref_logprobs) for one in answer.completions])
            by_policy.setdefault((answer.writer, answer.iteration), set()).add(written)
    assert {key: len(kinds) for key, kinds in by_policy.items()} == dict.fromkeys(by_policy, 1), "one answer a policy"
    assert {iteration for _, iteration in by_policy} == {0, 1, 2}
    assert len(set.union(*(by_policy["policy", n] for n in range(3)))) == 3


@pytest.mark.parametrize("save", [True, False], ids=["stop", "abort"])
def test_a_run_that_should_end_does_so_within_a_token_step_of_an_answer(
    save: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, reported, steps = Control(), list[Answer](), 0
    real = answers.answer

    def slow(question: Question, *, progress: Callable[[], None], **how: Any) -> Answer:
        def check() -> None:
            nonlocal steps
            steps += 1
            if steps == 2:
                (control.stop if save else control.abort)()
            progress()

        return real(question, progress=check, **how)

    monkeypatch.setattr("trainer.engine.ppo.answer", slow)
    asked: list[Event] = []

    def ask(event: Event) -> None:
        if within(event, "update", 2) and not asked:
            asked.append(event)
            for _ in range(3):
                control.ask(QUESTIONS["policy"], reported.append)

    recorder = Recorder(ask)
    ended = train(tiny_config(tmp_path, "run.name=a", "checkpoint.every=0"), sinks=[recorder], control=control)
    assert (steps, ended.state, ended.iteration) == (2, "stopped", 1)
    assert ended.checkpoint == ("checkpoints/step-000001" if save else "")
    assert [answer.problem for answer in reported] == ["the run ended before it was answered"] * 3
    if save:
        record(tiny_config(tmp_path, "checkpoint.every=0"), resume=tmp_path / "runs/a")
        record(tiny_config(tmp_path, "run.name=whole", "checkpoint.every=0"))
        assert outcome(tmp_path / "runs/a") == outcome(tmp_path / "runs/whole")


def test_a_run_that_does_not_begin_replies_to_its_questions(tmp_path: Path) -> None:
    control, reported = Control(), list[Answer]()
    control.ask(QUESTIONS["policy"], reported.append)
    with pytest.raises(RewardError):
        train(tiny_config(tmp_path, "reward.sources=['gone.py:score']"), control=control)
    assert [answer.problem for answer in reported] == ["the run ended before it was answered"]
