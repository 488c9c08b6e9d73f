"""The view of a run: a function of its events whose size does not grow with them."""

from __future__ import annotations

import math

import pytest
from long_journal import events_of
from scripted_run import ended, iteration, samples, started
from views import folded

from trainer.events import Alert, CheckpointSaved, Evaluation, PhaseProgress, SettingChanged, StateChanged
from workbench.run.view import Mark, RunView


def evaluation(number: int) -> Evaluation:
    numbers = dict.fromkeys(("score_std", "kl", "response_length", "truncated", "seconds"), 0.5)
    return Evaluation(iteration=number, prompts=4, score_mean=0.25, **numbers)


def alert(number: int) -> Alert:
    return Alert(iteration=number, level="warning", code="x", message=f"look at {number}")


def saved(number: int) -> CheckpointSaved:
    return CheckpointSaved(iteration=number, path=f"checkpoints/step-{number:06d}", seconds=0.1)


def changed(number: int, value: float = 0.1) -> SettingChanged:
    return SettingChanged(iteration=number, key="ppo.kl_coef", old=0.05, value=value)


def test_the_view_shows_state_phase_and_iteration_of_the_newest_events() -> None:
    progress = PhaseProgress(iteration=2, phase="update", done=1, total=4)
    view = folded([started(), StateChanged(state="training"), iteration(1), progress])
    assert (view.state, view.iteration, view.total, view.phase) == ("training", 1, 12, progress)
    view.take(iteration(2))
    assert (view.phase, view.last, view.previous) == (None, iteration(2), iteration(1))
    view.take(StateChanged(state="paused"))
    assert view.state == "paused"


def test_the_remaining_time_comes_from_the_last_five_iterations_and_is_unknown_before_the_first() -> None:
    slow = [iteration(n, seconds={"update": 1000.0}) for n in range(1, 4)]
    quick = [iteration(n, seconds={"generate": 2.0, "update": 8.0}) for n in range(4, 9)]
    assert folded([started(), *slow, *quick]).seconds_left() == 4 * 10
    assert math.isnan(folded([started()]).seconds_left())


def test_a_resumption_drops_repeated_iterations_and_keeps_earlier_messages() -> None:
    events = [e for n in range(1, 9) for e in (samples(n), iteration(n), evaluation(n), saved(n), alert(n), changed(n))]
    view = folded([started(), *events, ended("stopped", 8), started(resumed_at=5)])
    assert list(view.history.numbers) == [1, 2, 3, 4, 5]
    assert [e.iteration for e in view.evaluations] == [1, 2, 3, 4, 5]
    assert view.checkpoints[-1] == saved(5)
    assert [a.iteration for a in view.alerts] == list(range(1, 9))
    assert [c.iteration for c in view.settings] == list(range(1, 9))
    assert (view.ended, view.iteration, view.samples, view.state) == (None, 5, None, "loading")
    above = {mark.kind for mark in view.marks if mark.iteration > 5}
    assert above == {"alert", "setting", "end"}
    assert view.marks[-1] == Mark(5, "resumed", "resumed after iteration 5")


@pytest.mark.parametrize(("resumed_at", "last", "previous"), [(8, 8, 7), (7, 7, None), (3, None, None)])
def test_after_a_resumption_the_last_iteration_is_one_that_counts(
    resumed_at: int, last: int | None, previous: int | None
) -> None:
    view = folded([started(), *(iteration(n) for n in range(1, 9)), started(resumed_at=resumed_at)])
    assert (view.last and view.last.iteration, view.previous and view.previous.iteration) == (last, previous)
    assert view.iteration == resumed_at
    view.take(iteration(resumed_at + 1))
    assert view.previous is None or view.previous.iteration <= resumed_at


def test_an_iteration_repeated_without_a_resumption_replaces_the_old_one() -> None:
    view = folded([iteration(1), iteration(2), iteration(2, kl=9.0)])
    assert (view.last, view.previous) == (iteration(2, kl=9.0), iteration(1))
    view.take(iteration(1, kl=9.0))
    assert (view.last, view.previous, list(view.history.numbers)) == (iteration(1, kl=9.0), None, [1])


def test_a_new_run_clears_the_one_that_was_shown_before() -> None:
    before = [started(), *(event for n in range(1, 9) for event in events_of(n)), alert(1), evaluation(2), changed(3)]
    view, new = folded([*before, ended(), started(seed=1)]), folded([started(seed=1)])
    for name in RunView.__dataclass_fields__:
        if name != "history":
            assert getattr(view, name) == getattr(new, name), name
    assert len(view.history) == 0


def test_marks_describe_what_happened() -> None:
    events = [evaluation(1), alert(2), changed(3, 0.2), saved(4), ended("failed", 4, reason="loss was NaN"), ended()]
    assert folded([started(), *events]).marks == [
        Mark(1, "evaluation", "score 0.250"),
        Mark(2, "alert", "look at 2", "warning"),
        Mark(3, "setting", "ppo.kl_coef 0.05 -> 0.2"),
        Mark(4, "checkpoint", "checkpoints/step-000004"),
        Mark(4, "end", "failed: loss was NaN"),
        Mark(12, "end", "done"),
    ]


def test_only_the_newest_events_of_a_long_run_are_kept() -> None:
    view = folded(event for n in range(1, 2502) for event in (evaluation(n), alert(n), saved(n), changed(n)))
    for events in (view.evaluations, view.alerts, view.checkpoints, view.settings):
        assert [event.iteration for event in events] == list(range(2002, 2502))
    assert len(view.marks) == 2000
    assert view.marks[-1].iteration == 2501
