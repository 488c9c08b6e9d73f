"""The status line: what it shows in each state, and what gives way when it is narrow."""

from __future__ import annotations

import pytest
from scripted_run import alarm, ended, iteration, started

from trainer.events import PhaseProgress, StateChanged
from workbench.kit.pane_strip import fitted, status_pieces
from workbench.run.view import RunView


def view(*events: object) -> RunView:
    result = RunView()
    for event in events:
        result.take(event)  # type: ignore[arg-type]
    return result


def text(view: RunView, width: int = 200, note: str = "") -> str:
    return fitted(status_pieces(view, note=note), width).plain


TRAINING = (started(), StateChanged(state="training"), iteration(3))


def test_it_names_the_run_and_what_it_does() -> None:
    assert text(view()) == "no run yet"
    assert "● stopping" in text(view(*TRAINING), note="stopping")
    assert text(view(started(name="[red]x[/]\x1b[2J"))).startswith("[red]x[/]␛[2J")


def test_a_training_run_shows_state_iteration_phase_time_left_speed_and_memory() -> None:
    shown = text(view(*TRAINING, PhaseProgress(iteration=4, phase="update", done=1, total=2)))
    assert shown == (
        "quickstart-0001  ● training   iteration 3/12   update ━━━━━━━━────────   ETA 3m 18s   142 tok/s   1.6 GB"
    )


def test_a_run_that_starts_says_what_it_does_until_it_trains() -> None:
    loading = StateChanged(state="loading")
    assert text(view(loading)) == "new run  ◌ loading the model"
    assert text(view(loading), note="stopping") == "new run  ◌ stopping"
    assert "● training" in text(view(loading, *TRAINING))
    resumed = view(*TRAINING, ended("stopped"), loading)
    assert text(resumed).startswith("quickstart-0001  ◌ loading the model   iteration 3/12   ")


def test_an_interrupted_run_has_the_sign_of_the_list_and_no_time_left() -> None:
    assert text(view(*TRAINING), note="interrupted").startswith(
        "quickstart-0001  ! interrupted   iteration 3/12   142 tok/s"
    )


@pytest.mark.parametrize("done", [-(10**6), 10**6])
def test_a_bar_keeps_its_length_whatever_the_progress(done: int) -> None:
    shown = text(view(*TRAINING, PhaseProgress(iteration=4, phase="update", done=done, total=1)))
    assert (shown + "━").count("━") + shown.count("─") == 17


@pytest.mark.parametrize(("state", "sign"), [("paused", "‖"), ("failed", "✖"), ("done", "✓"), ("stopped", "■")])
def test_each_state_has_a_sign_of_its_own(state: str, sign: str) -> None:
    shown = view(*TRAINING, ended(state)) if state != "paused" else view(*TRAINING, StateChanged(state="paused"))
    assert f"{sign} {state}" in text(shown)


def test_the_newest_alarm_is_beside_the_state_with_the_number_of_others() -> None:
    one, two = view(*TRAINING, alarm(3)), view(*TRAINING, alarm(3), alarm(4, code="truncation", level="error"))
    assert text(one, 80).startswith("quickstart-0001  ● training   ⚠ KL high   iteration 3/12")
    assert "   ✖ truncation and 1 more   iteration" in text(two)
    assert "␛[2J [b]" in text(view(*TRAINING, alarm(3, code="\x1b[2J_[b]")))


def test_the_worst_alarm_is_beside_the_state_whichever_came_last() -> None:
    reported = (alarm(3, code="no_signal"), alarm(2, level="error"), alarm(3, code="step_nan", level="error"))
    assert "   ✖ step NaN and 2 more   " in text(view(*TRAINING, reported[1], reported[2], reported[0]))
    assert "   ✖ step NaN and 2 more   " in text(view(*TRAINING, reported[1], reported[0], reported[2]))


def test_a_run_that_ended_with_an_error_has_no_green_tick() -> None:
    reported = alarm(3, level="error")
    assert "✓ done   ⚠ KL high" in text(view(*TRAINING, alarm(3), ended()))
    assert "⚠ done   ✖ KL high" in text(view(*TRAINING, reported, ended()))
    left = ended(iteration=90, alarms={"kl_high": "error"})
    assert "⚠ done   ✖ KL high" in text(view(*TRAINING, reported, left))
    assert "⚠ done, KL high   iteration" in text(view(*TRAINING, left)), "of a long journal the end alone was read"
    assert "✓ done   iteration" in text(view(*TRAINING, reported, iteration(70), ended(iteration=70)))


@pytest.mark.parametrize("width", [1, 10, 40, 60, 80, 100])
def test_it_never_exceeds_its_width_and_keeps_the_first_things(width: int) -> None:
    line = fitted(status_pieces(view(*TRAINING)), width)
    assert line.cell_length <= width
    assert line.plain[: min(width, 15) - 1] == "quickstart-0001"[: min(width, 15) - 1]
