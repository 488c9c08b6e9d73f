"""A run that is asked what its model would write ends bit for bit like one that is not, and no question is lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs_helper import Recorder, outcome, record, run_python, tiny_config, within

from trainer.engine import answers, inbox
from trainer.engine.control import Control
from trainer.engine.training import train
from trainer.errors import RewardError
from trainer.events import Alert, Event, PhaseProgress, StateChanged
from trainer.questions import Answer, Question

QUESTIONS = {
    "policy": Question(prompt="one", count=2, max_new_tokens=4),
    "reference": Question(prompt="one", prefix=[65, 66], max_new_tokens=3, writer="reference", temperature=0.5),
}


class Curious(Recorder):
    """Sink that asks at every event, both writers in turn, and notes where the run was when the answer came."""

    def __init__(self, control: Control, where: Callable[[Event], bool] = lambda event: True) -> None:
        super().__init__(self._ask)
        self.control = control
        self.where = where
        self.asked = 0
        self.answers: list[tuple[str, Answer]] = []

    def _ask(self, event: Event) -> None:
        if not self.where(event):
            return
        self.asked += 1
        self.control.ask(list(QUESTIONS.values())[self.asked % 2], self._note)

    def _note(self, answer: Answer) -> None:
        at = self.events[-1]
        if isinstance(at, PhaseProgress):
            passed = at.done / at.total
            self.answers.append((f"{at.phase} {passed:.2f}", answer))
        else:
            self.answers.append((getattr(at, "state", at.kind), answer))


def timeless(answer: Answer) -> Answer:
    return dataclasses.replace(answer, seconds=0.0)


@pytest.mark.parametrize("value_model", ["head", "adapter"])
def test_questions_anywhere_change_nothing_of_a_run(value_model: str, tmp_path: Path) -> None:
    settings = [f"model.value_model={value_model}", "optim.micro_batch_tokens=32", "ppo.minibatches=2"]
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
        if not answer.problem:
            by_policy.setdefault((answer.writer, answer.iteration), set()).add(repr(timeless(answer)))
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


def test_an_answer_uses_the_runs_reward_without_changing_its_statistics(tmp_path: Path) -> None:
    control = Control()
    recorder = Curious(control, lambda event: isinstance(event, PhaseProgress))
    settings = ["reward.normalize=running", "run.save_samples=true"]
    train(tiny_config(tmp_path, "run.name=a", *settings), sinks=[recorder], control=control)
    record(tiny_config(tmp_path, "run.name=whole", *settings))
    assert outcome(tmp_path / "runs/a") == outcome(tmp_path / "runs/whole")
    for _, answer in recorder.answers:
        for completion in answer.completions:
            share = sum(token < 128 for token in completion.tokens) / len(completion.tokens)
            assert completion.parts == {"rewards.py:score": share}


def test_another_process_asks_a_run_and_reads_its_answer(tmp_path: Path) -> None:
    run, control, paths = tmp_path / "runs" / "a", Control(), list[Path]()
    script = "import sys; from pathlib import Path; from trainer.engine import inbox; "
    script += "from trainer.questions import Question; "
    script += "print(inbox.ask(Path(sys.argv[1]), Question(prompt='one', count=2, prefix=[65])))"

    def watch(event: Event) -> None:
        if within(event, "generate", 2) and not paths:
            asked = run_python("-c", script, str(run))
            assert asked.returncode == 0, asked.stderr
            paths.append(Path(asked.stdout.strip()))
            (run / "control" / "0.json").write_text('{"command": "ask", "question": {"prompt": 3}}')
        if paths and paths[0].exists():
            control.stop()

    recorder = Recorder(watch)
    ended = train(tiny_config(tmp_path, "run.name=a", "ppo.iterations=1000"), sinks=[recorder], control=control)
    assert ended.state == "stopped"
    answer = inbox.read_answer(paths[0])
    assert answer is not None
    assert (answer.problem, answer.prompt, len(answer.completions)) == ("", "one", 2)
    assert [completion.tokens[0] for completion in answer.completions] == [65, 65]
    assert inbox.read_answer(paths[0]) is None, "it is read once"
    (alert,) = recorder.of(Alert)
    assert alert.message == "request '0.json' ignored: question.prompt.str: Input should be a valid string"
