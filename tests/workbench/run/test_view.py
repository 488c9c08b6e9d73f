"""A run as the screen shows it: a function of its events for every kind of run, in columns and in words."""

from __future__ import annotations

import math
from typing import Any

import pytest
from long_journal import events_of
from rich.cells import cell_len
from run_kinds_helper import (
    dpo_evaluation,
    dpo_step,
    human,
    other_run,
    reward_evaluation,
    reward_step,
)
from scripted_run import ended, iteration, samples, started
from textual.widgets import Static
from training_bench import Bench, opened
from training_bench import view_of as bench_view
from views import drawn, folded, view_of

from trainer.events import Alert, CheckpointSaved, Evaluation, Event, PhaseProgress, SettingChanged, StateChanged
from workbench.headless import summary
from workbench.kit.pane_strip import fitted, status_pieces
from workbench.run.history import MetricHistory, kind_of
from workbench.run.metrics import METRICS_OF_KIND
from workbench.run.sentences import rank_texts, sentences
from workbench.run.view import Mark, RunView


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
    view, new = folded([*before, ended()]), RunView()
    for one in (view, new):
        one.take(started(seed=1), at=0.0)
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


STEPS: dict[str, Any] = {"ppo": iteration, "reward-model": reward_step, "dpo": dpo_step}
OTHERS = ("reward-model", "dpo")


def evaluation(number: int, **changes: Any) -> Evaluation:
    numbers = dict.fromkeys(("score_std", "kl", "response_length", "truncated", "seconds"), 0.5)
    return Evaluation(**{"iteration": number, "prompts": 4, "score_mean": 0.25, **numbers, **changes})


# Columns


@pytest.mark.parametrize("kind", METRICS_OF_KIND)
def test_every_metric_of_a_kind_is_a_column_of_its_history_with_the_value_of_its_events(kind: str) -> None:
    history, event = MetricHistory(kind), STEPS[kind](3)
    history.append(event)
    assert kind_of(event) == history.kind == kind
    for metric in METRICS_OF_KIND[kind]:
        if not metric.field.startswith("eval/"):
            value = history.column(metric.field)[0] * metric.factor
            assert value == pytest.approx(metric.of(event), rel=0, nan_ok=True), metric.field
        assert len(f"{metric.label} {metric.unit}".rstrip()) <= 16, f"{metric.field} does not fit its column"


def test_earlier_events_of_another_kind_are_left_out() -> None:
    history, other = MetricHistory("dpo"), MetricHistory()
    history.append(dpo_step(5))
    other.append(iteration(1))
    history.prepend(other)
    assert list(history.numbers) == [5]
    assert all(len(history.column(name)) == 1 for name in history.names)


def test_a_kind_that_only_a_newer_version_knows_has_the_columns_of_ppo() -> None:
    assert MetricHistory("grpo").names == MetricHistory().names
    assert view_of(started(run_kind="grpo"), iteration(1)).history.kind == "ppo"


# Folding


@pytest.mark.parametrize("kind", OTHERS)
def test_steps_are_folded_as_iterations_are(kind: str) -> None:
    step = STEPS[kind]
    view = view_of(other_run(kind, iterations=20), *(step(n) for n in range(1, 9)))
    assert (view.iteration, view.total, view.last, view.previous) == (8, 20, step(8), step(7))
    assert view.history.kind == kind
    assert view.seconds_left() == 12 * 2.5
    view.take(other_run(kind, resumed_at=7))
    assert (view.last, view.iteration) == (step(7), 7)


def test_steps_without_a_start_decide_the_kind_and_those_of_another_kind_are_left_out() -> None:
    view = view_of(dpo_step(1), iteration(2), reward_step(2), dpo_step(2))
    assert (view.history.kind, list(view.history.numbers), view.last) == ("dpo", [1, 2], dpo_step(2))


def test_the_newest_evaluation_of_each_sort_is_kept_and_each_is_marked() -> None:
    view = view_of(other_run("dpo"), dpo_evaluation(0), evaluation(0), dpo_evaluation(5), evaluation(5), human(5))
    assert view.newest_evaluations == [human(5), dpo_evaluation(5), evaluation(5)]
    assert view.held_out == [dpo_evaluation(0), dpo_evaluation(5)]
    assert [mark.kind for mark in view.marks] == ["evaluation"] * 5
    assert view.marks[-1] == Mark(5, "evaluation", "human win rate 61% (52 to 70) of 80")


def test_a_resumption_drops_the_evaluations_of_repeated_steps() -> None:
    view = view_of(other_run("dpo"), dpo_evaluation(0), dpo_evaluation(5), human(5), other_run("dpo", resumed_at=4))
    assert view.newest_evaluations == [dpo_evaluation(0)]
    kept = view_of(started(), human(3), started(resumed_at=4))
    assert kept.judged == human(3)
    assert view_of(started(), human(3), dpo_evaluation(1), started()).newest_evaluations == []


def test_a_win_rate_that_grows_label_by_label_has_one_mark_until_something_else_happens() -> None:
    saved = CheckpointSaved(iteration=6, path="checkpoints/step-000006", seconds=0.1)
    labels = [human(5, comparisons=count) for count in (1, 2, 3)]
    view = view_of(started(), *labels, saved, human(5, comparisons=4), human(6, comparisons=5))
    assert [(mark.iteration, mark.text[-4:]) for mark in view.marks] == [
        (5, "of 3"),
        (6, "0006"),
        (5, "of 4"),
        (6, "of 5"),
    ]
    assert view.judged == human(6, comparisons=5)


# Words


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        (
            reward_evaluation(5),
            "iteration 5: held-out accuracy 0.710 (0.644 to 0.769) of 200 pairs, log-loss 0.561; "
            "by length alone 0.550, untrained 0.490, 4.2s",
        ),
        (
            dpo_evaluation(5),
            "iteration 5: held-out accuracy 0.710 (0.644 to 0.769) of 200 pairs, log-loss 0.561, lead 0.320, "
            "KL 0.013 nats a token; by length alone 0.550, untrained 0.490, 4.2s",
        ),
        (
            human(5),
            "iteration 5: human win rate 61% (52 to 70) of 80 comparisons by 2 people: "
            "45 for the policy, 8 ties, 27 for the reference",
        ),
        (
            evaluation(5, parts={"likes": 0.5, "length": 0.125}),
            "iteration 5: evaluation on 4 prompts: score 0.250 (likes 0.500, length 0.125), deviation 0.500, "
            "KL 0.500 nats a sequence, 0.5s",
        ),
    ],
)
def test_an_evaluation_is_described_in_one_sentence(reported: Event, words: str) -> None:
    assert sentences(reported) == [words]


def test_the_summary_shows_the_main_numbers_of_a_run_of_each_kind() -> None:
    steps = [dpo_step(n, loss=0.7 - 0.01 * n) for n in range(1, 11)]
    lines = dict(summary(view_of(other_run("dpo"), dpo_evaluation(0), *steps, dpo_evaluation(10), ended("stopped"))))
    assert lines["loss"] == "0.670 -> 0.620, first and last five iterations"
    assert lines["held out"] == "accuracy 0.490 -> 0.710 (0.644 to 0.769) of 200 pairs, by length alone 0.550"
    assert lines["KL"] == "0.013 nats a token"
    assert "score" not in lines
    lines = dict(summary(view_of(other_run("reward-model"), reward_step(1), reward_evaluation(1))))
    assert "KL" not in lines
    lines = dict(summary(view_of(started(), iteration(1), human(1))))
    assert lines["people"] == "human win rate 61% (52 to 70) of 80"
    assert lines["score"].startswith("0.100 -> 0.100 (+0.000)")


# Headless displays


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_rich_display_draws_the_metrics_and_the_newest_evaluations_of_every_kind(width: int) -> None:
    steps = [dpo_step(1), dpo_step(2, loss=0.5)]
    parts = {"[bold]x[/x]\x1b[2J": 1.0, "b": 2.0}
    shown = drawn(
        view_of(other_run("dpo"), *steps, dpo_evaluation(0), dpo_evaluation(2), evaluation(2, parts=parts)), width
    )
    assert max(cell_len(line) for line in shown.splitlines()) <= width
    loss = next(line for line in shown.splitlines() if line.startswith("loss"))
    assert loss.split() == ["loss", "0.500", "-0.112", "█▁"]
    assert "812 tok/s" in shown
    assert "◇ iteration 2: held-out accuracy 0.71 (0.64 to 0.77)" in shown
    assert "iteration 0" not in shown
    assert "score 0.250 ([bold]x[/x]␛[2J 1.000" in shown


@pytest.mark.parametrize("kind", OTHERS)
def test_the_status_line_shows_step_speed_memory_and_time_left_of_every_kind(kind: str) -> None:
    view = view_of(other_run(kind), StateChanged(state="training"), STEPS[kind](3))
    shown = fitted(status_pieces(view), 200).plain
    assert " ".join(shown.split()) == f"{kind}-0001 ● training iteration 3/12 ETA 22s 812 tok/s 1.6 GB"


def ranks(count: int, host: str = "studio") -> list[dict[str, Any]]:
    """Return what some ranks report; the first of them waits for the others."""
    rest = {"seconds": 42.0, "sent": 12_300_000, "memory_bytes": 3_400_000_000}
    return [{"host": f"rank {n} ({host})", "waiting": 21.0 if n == 0 else 2.1, **rest} for n in range(count)]


def test_a_line_has_host_time_share_of_waiting_memory_and_bytes() -> None:
    assert rank_texts(iteration(1, ranks=ranks(2))) == [
        "rank 0 (studio)  works 21s  waits 50%  3.4 GB  sends 12.3 MB",
        "rank 1 (studio)  works 40s  waits 5%  3.4 GB  sends 12.3 MB",
    ]
    assert rank_texts(iteration(1, ranks=[{"host": "\x1b[31m"}])) == ["␛[31m  works -  waits -"]


async def test_the_pane_shows_them_below_the_metrics() -> None:
    async with Bench().run_test(size=(80, 24)) as pilot:
        pane = await opened(pilot, bench_view(40, ranks=ranks(2)))
        lines = pilot.app.query_one("#ranks", Static)
        assert str(lines.render()).splitlines() == rank_texts(iteration(40, ranks=ranks(2)))
        assert lines.region.height == 2
        await pilot.press("enter")
        assert not pilot.app.query_one("#ranks").display, "a large chart has the pane to itself"
        await pilot.press("escape")
        pane.show_run(bench_view(40))
        await pilot.pause()
        assert not pilot.app.query_one("#ranks").display, "of one process there is nothing to compare"


def test_headless_displays_have_them_too() -> None:
    view = view_of(started(), iteration(1, ranks=ranks(2)), ended("done", 1))
    assert "rank 1 (studio)  works 40s  waits 5%" in drawn(view)
    assert ("ranks", "rank 0 (studio)  works 21s  waits 50%  3.4 GB  sends 12.3 MB") in summary(view)
    view.take(iteration(2))
    assert "ranks" not in dict(summary(view))
