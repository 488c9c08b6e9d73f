"""The training pane: what its keys do, what it reports to the app, and how its lines are shared out."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from charts import history_of
from hypothesis import given
from hypothesis import strategies as st
from run_kinds_helper import dpo_evaluation, dpo_step, human, other_run, reward_step
from scripted_run import alarm, evaluation, iteration, started
from styles_helper import styles_path
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.pilot import Pilot
from textual.widgets import SelectionList
from themed_app import ThemedApp

from trainer.events import Alert, CheckpointSaved
from workbench.kit.drawing import Drawn
from workbench.run.history import History
from workbench.run.metrics import DEFAULT, METRICS_OF_KIND
from workbench.run.view import RunView
from workbench.training.chart import MetricChart
from workbench.training.histogram import ScoreHistogram
from workbench.training.metric_list import MetricList
from workbench.training.pane import TrainingPane, shares
from workbench.training.timeline import Timeline

SHOWN = [metric for metric in DEFAULT if not metric.if_varied and not metric.field.startswith("eval/")]


class Bench(ThemedApp[None]):
    CSS_PATH = styles_path("app.tcss", "dialogs.tcss", "training.tcss")

    def __init__(self) -> None:
        super().__init__()
        self.chosen: list[int | None] = []

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield TrainingPane()

    def on_training_pane_iteration_chosen(self, message: TrainingPane.IterationChosen) -> None:
        self.chosen.append(message.iteration)


def view_of(iterations: int, **changes: Any) -> RunView:
    noise = random.Random(0)
    view = RunView()
    view.take(started(iterations=iterations))
    for number in range(1, iterations + 1):
        view.take(iteration(number, score_mean=number / 100 + noise.gauss(0, 0.001), **changes))
    return view


async def shown(pilot: Pilot[None]) -> str:
    await pilot.pause()
    return text(pilot.app)


def text(app: App[Any]) -> str:
    """Return the text of the widgets that draw."""
    lines = []
    for widget in app.query(Drawn):
        if widget.display:
            lines += [widget.render_line(y).text for y in range(widget.size.height)]
    return "\n".join(lines)


async def opened(pilot: Pilot[None], view: RunView) -> TrainingPane:
    pane = pilot.app.query_one(TrainingPane)
    pane.show_run(view)
    pane.take_focus()
    await pilot.pause()
    return pane


async def test_before_a_run_a_sentence_says_which_key_starts_one():
    async with Bench().run_test(size=(60, 24)) as pilot:
        assert "No run yet. Press space to train the configuration" in await shown(pilot)
        view = RunView()
        view.take(started())
        pilot.app.query_one(TrainingPane).show_run(view)
        assert "First iteration running" in await shown(pilot)


@pytest.mark.parametrize("size", [(44, 30), (42, 20), (80, 24), (120, 40), (122, 60)])
async def test_every_metric_has_a_row_with_its_value_at_every_size(size):
    async with Bench().run_test(size=size) as pilot:
        pane = await opened(pilot, view_of(500, clip_fraction=0.3))
        pane.show_scores(20, [0.1, 0.5, 0.9] * 8)
        screen = await shown(pilot)
        for metric in SHOWN:
            assert any(line[1:].startswith(metric.label) for line in screen.splitlines()), metric.label
        assert "!30.0" in screen
        assert all(len(line) <= size[0] - 2 for line in screen.splitlines())


async def test_left_and_right_scrub_through_the_iterations_and_inform_the_app():
    async with Bench().run_test(size=(100, 30)) as pilot:
        await opened(pilot, view_of(50))
        await pilot.press("left")
        assert pilot.app.chosen == [49]
        await pilot.press("shift+left", "right", "home", "left")
        assert pilot.app.chosen == [49, 39, 40, 1], "at the first there is nothing to tell"
        screen = await shown(pilot)
        assert "iteration 1 of 50" in screen
        assert "▾" in screen
        await pilot.press("end")
        assert pilot.app.chosen[-1] is None
        assert "iterations 1–50" in await shown(pilot)


async def test_the_values_are_those_of_the_cursor_also_when_the_run_goes_on():
    async with Bench().run_test(size=(100, 30)) as pilot:
        view = view_of(50)
        pane = await opened(pilot, view)
        await pilot.press("shift+left")
        score = view.history.column("score_mean")[39]
        assert f"{score:.3f}" in (await shown(pilot)).splitlines()[1]
        view.take(iteration(51, score_mean=9.0))
        pane.show_run(view)
        assert f"{score:.3f}" in (await shown(pilot)).splitlines()[1]
        await pilot.press("escape")
        assert "9.000" in (await shown(pilot)).splitlines()[1]


async def test_right_past_the_newest_iteration_follows_it():
    async with Bench().run_test(size=(100, 30)) as pilot:
        await opened(pilot, view_of(10))
        await pilot.press("left", "right", "right")
        assert pilot.app.chosen == [9, None]


async def test_enter_enlarges_the_selected_metric_and_escape_closes_it():
    async with Bench().run_test(size=(100, 30)) as pilot:
        pane = await opened(pilot, view_of(50))
        await pilot.press("down", "down", "enter")
        screen = await shown(pilot)
        assert screen.startswith(" KL nats/seq   iteration 50  25.00 ▲ 0.50")
        assert not pilot.app.query_one(MetricList).display
        assert pilot.app.focused is pilot.app.query_one(MetricChart)
        await pilot.press("left")
        assert "iteration 49" in await shown(pilot)
        await pilot.press("up")
        assert (await shown(pilot)).startswith(" reward")
        await pilot.press("escape")
        assert pane.query_one(MetricList).display
        assert pilot.app.focused is pane.query_one(MetricList)
        assert "iteration 49" in await shown(pilot), "the cursor stays"
        await pilot.press("escape")
        assert pilot.app.chosen == [49, None]


async def test_escape_is_left_to_others_when_there_is_nothing_to_close():
    async with Bench().run_test(size=(100, 30)) as pilot:
        pane = await opened(pilot, view_of(5))
        assert not pane.check_action("close", ())
        await pilot.press("enter")
        assert pane.check_action("close", ())
        assert not pane.check_action("enlarge", ())


async def test_zoom_goes_from_all_iterations_to_the_last_fifty_and_back():
    async with Bench().run_test(size=(100, 30)) as pilot:
        await opened(pilot, view_of(300))
        seen = []
        for key in ("plus", "plus", "plus", "plus", "minus", "minus", "minus", "minus"):
            await pilot.press(key)
            seen.append((await shown(pilot)).splitlines()[0].split()[1])
        assert seen == ["101–300", "201–300", "251–300", "251–300", "201–300", "101–300", "1–300", "1–300"]
        await pilot.press("plus", "home")
        assert "iteration 1 of 300" in await shown(pilot), "the window goes where the cursor goes"


async def test_log_scale_and_moving_average_are_indicated_where_they_are_on():
    async with Bench().run_test(size=(100, 30)) as pilot:
        await opened(pilot, view_of(20))
        plain = await shown(pilot)
        await pilot.press("e", "l")
        both = await shown(pilot)
        assert "EMA · log" in both.splitlines()[0]
        assert both.splitlines()[1:] != plain.splitlines()[1:]
        await pilot.press("e", "l")
        assert await shown(pilot) == plain


async def test_metrics_are_chosen_in_a_list_and_kept_in_a_property():
    async with Bench().run_test(size=(100, 30)) as pilot:
        pane = await opened(pilot, view_of(20))
        await pilot.press("v")
        assert isinstance(pilot.app.focused, SelectionList)
        await pilot.press("space", "down", "space", "escape")
        assert pane.metrics_shown == tuple(metric.field for metric in DEFAULT[2:])
        assert "reward" not in await shown(pilot)
        pane.metrics_shown = ("grad_norm", "kl", "of another version")
        assert pane.metrics_shown == ("kl", "grad_norm")
        pane.metrics_shown = ()
        assert pane.metrics_shown == tuple(metric.field for metric in DEFAULT)


async def test_evaluation_metrics_and_those_that_vary_have_a_row_where_the_run_has_them():
    async with Bench().run_test(size=(100, 40)) as pilot:
        pane = await opened(pilot, view_of(20))
        bare = await shown(pilot)
        for label in ("win rate", "held-out score", "KL coef.", "epochs done"):
            assert label not in bare
        view = RunView()
        view.take(started(iterations=20))
        view.take(evaluation(0, win_rate=0.5))
        for number in range(1, 21):
            view.take(iteration(number, kl_coef=0.05 * 1.1**number, explained_variance=math.nan, value_loss=math.nan))
        view.take(evaluation(20, win_rate=0.625, score_mean=0.75))
        pane.show_run(view)
        screen = await shown(pilot)
        assert "win rate %          62.5 ▲ 12.5" in screen
        assert "held-out score     0.750 ▲ 0.238" in screen
        assert "KL coef." in screen
        assert "epochs done" not in screen
        for label in ("expl. variance", "value loss", "×"):
            assert label not in screen, "a run without a critic has none"


async def test_before_the_first_evaluation_its_row_is_empty_and_nothing_is_lost():
    async with Bench().run_test(size=(100, 18)) as pilot:
        view = view_of(20)
        view.take(evaluation(20, win_rate=0.625))
        await opened(pilot, view)
        for key in ((), ("e",)):  # the moving average too
            await pilot.press(*key)
            [row] = [line for line in (await shown(pilot)).splitlines() if line.startswith(" win rate")]
            assert "×" not in row
            assert row[37:56].strip() == ""
            assert row[56] in "▁▂▃▄▅▆▇█"


async def test_the_selected_metric_stays_selected_when_another_gets_a_row():
    async with Bench().run_test(size=(100, 40)) as pilot:
        view = view_of(20)
        pane = await opened(pilot, view)
        await pilot.press("down", "down", "enter")
        view.take(evaluation(20, win_rate=0.5))
        pane.show_run(view)
        assert (await shown(pilot)).startswith(" KL nats/seq")


async def test_metrics_that_are_not_shown_by_default_can_be_chosen():
    async with Bench().run_test(size=(100, 40)) as pilot:
        pane = await opened(pilot, view_of(20, repetition=0.35, length_correlation=0.5, advantage_std=1.25))
        assert "repetition" not in await shown(pilot)
        pane.metrics_shown = (*pane.metrics_shown, "repetition", "length_correlation", "advantage_std")
        screen = await shown(pilot)
        assert "repetition %       !35.0" in screen
        assert "length corr.        0.50" in screen
        assert "adv. deviation     1.250" in screen


async def test_the_kl_has_the_target_of_a_run_that_aims_at_one_and_otherwise_a_limit():
    async with Bench().run_test(size=(100, 30)) as pilot:
        view = view_of(50)
        pane = await opened(pilot, view)
        assert "!25.00" in await shown(pilot)
        await pilot.press("down", "down", "enter")
        assert "┄ limit 10" in await shown(pilot)
        view.kl_target = 6.5
        pane.show_run(view)
        assert "┄ target 6.5" in await shown(pilot)
        await pilot.press("escape")
        assert " 25.00" in await shown(pilot), "to miss a target is nothing to mark"


@pytest.mark.parametrize(("height", "lines"), [(14, 1), (30, 3)])
async def test_active_alarms_are_shown_above_the_metrics(height, lines):
    async with Bench().run_test(size=(100, height)) as pilot:
        view = view_of(20)
        pane = await opened(pilot, view)
        before = await shown(pilot)
        for number, code in enumerate(("truncation", "repetition", "entropy_collapse", "kl_high"), 17):
            view.take(alarm(number, code=code, message="[@click=app.quit]\x1b[2J"))
        pane.show_run(view)
        screen = (await shown(pilot)).splitlines()
        assert screen[0].startswith(" ⚠ 20 KL high  [@click=app.quit]␛[2J")
        assert screen[0].rstrip().endswith(f"and {4 - lines} more   ! opens")
        assert [line.startswith(" ⚠") for line in screen[: lines + 1]] == [True] * lines + [False]
        assert len(screen) <= pane.size.height
        assert "▸score" in "\n".join(screen)
        view.alarms.clear()
        view.marks.clear()
        pane.show_run(view)
        assert await shown(pilot) == before


async def test_the_selected_row_is_visible_where_not_all_fit():
    async with Bench().run_test(size=(60, 10)) as pilot:
        await opened(pilot, view_of(20))
        assert "speed" not in await shown(pilot)
        await pilot.press(*["down"] * 20)
        assert "▸speed" in await shown(pilot)
        assert "score" not in await shown(pilot)
        await pilot.press(*["up"] * 20)
        assert "▸score" in await shown(pilot)


async def test_a_click_selects_a_row_and_the_iteration_under_it():
    async with Bench().run_test(size=(100, 20)) as pilot:
        await opened(pilot, view_of(30))
        await pilot.click(MetricList, offset=(37 + 9, 3))
        assert "▸KL" in await shown(pilot)
        assert pilot.app.chosen == [10]
        await pilot.click(MetricList, offset=(3, 4))
        assert "▸entropy" in await shown(pilot)
        assert pilot.app.chosen == [10]


async def test_scores_and_events_are_under_the_rows():
    async with Bench().run_test(size=(80, 30)) as pilot:
        view = view_of(20)
        pane = await opened(pilot, view)
        assert "events" not in await shown(pilot)
        assert not pane.query_one(ScoreHistogram).display
        view.take(CheckpointSaved(iteration=20, path="checkpoints/step-000020", seconds=0.1))
        view.take(Alert(iteration=20, level="warning", code="x", message="[@click=app.quit]\x1b[2J"))
        pane.show_run(view)
        pane.show_scores(20, [0.1, 0.9, math.nan])
        screen = await shown(pilot)
        assert "scores of iteration 20 · 3 · mean 0.50" in screen
        assert "events · 1 · checkpoint 20" in screen
        assert "⚠ 20 [@click=app.quit]␛[2J" in screen
        pane.show_run(view_of(5))
        assert "scores" not in await shown(pilot), "these were another run's"


async def test_compared_runs_are_drawn_in_the_enlarged_chart_five_at_most():
    async with Bench().run_test(size=(120, 30)) as pilot:
        pane = await opened(pilot, view_of(20))
        pane.compare([(Path(f"run-{number}"), history_of([0.1 * number] * 90)) for number in range(7)])
        await pilot.press("enter")
        legend = [line for line in (await shown(pilot)).splitlines() if "this run" in line]
        assert " ".join(legend[0].split()) == "─ this run a run-0 b run-1 c run-2 d run-3 e run-4"
        pane.compare([])
        assert "this run" not in await shown(pilot)


async def test_the_open_run_has_one_line_even_where_it_is_among_the_compared():
    async with Bench().run_test(size=(120, 30)) as pilot:
        view = view_of(20)
        assert view.started is not None
        pane = await opened(pilot, view)
        this, other = Path(view.started.folder), Path("runs/other")
        pane.compare([(this.resolve(), view.history), (other, history_of([0.1] * 20))])
        await pilot.press("enter")
        legend = [line for line in (await shown(pilot)).splitlines() if "this run" in line]
        assert legend[0].split() == ["─", "this", "run", "a", "other"]
        view.take(started(folder=str(other)))
        view.take(iteration(1))
        pane.show_run(view)
        assert "a quickstart-0001" in await shown(pilot), "another run was opened meanwhile"


async def test_nothing_is_redrawn_while_no_iteration_is_added():
    async with Bench().run_test(size=(80, 30)) as pilot:
        view = view_of(20)
        pane = await opened(pilot, view)
        before = pane._shown
        pane.show_run(view)
        assert pane._shown is before
        view.take(iteration(20, score_mean=7.0))
        pane.show_run(view)
        assert "7.000" in await shown(pilot), "done anew"


async def test_another_run_is_shown_without_the_cursor_of_the_last():
    async with Bench().run_test(size=(80, 30)) as pilot:
        pane = await opened(pilot, view_of(20))
        await pilot.press("home")
        pane.show_run(view_of(7))
        assert "iterations 1–7" in await shown(pilot)


async def test_a_cursor_beyond_what_a_resumed_run_has_kept_goes_to_the_nearest():
    async with Bench().run_test(size=(80, 30)) as pilot:
        view = view_of(20)
        pane = await opened(pilot, view)
        await pilot.press("left")
        view.take(started(resumed_at=10))
        pane.show_run(view)
        assert "iteration 10 of 10" in await shown(pilot)


def dpo_view(steps: int) -> RunView:
    view = RunView()
    view.take(other_run("dpo", iterations=steps))
    for number in range(1, steps + 1):
        view.take(dpo_step(number, loss=0.7 - number / 1000))
    return view


@pytest.mark.parametrize("size", [(44, 30), (80, 24), (122, 60)])
async def test_a_run_of_another_kind_has_its_own_metrics_and_no_choice_among_them(size):
    async with Bench().run_test(size=size) as pilot:
        pane = await opened(pilot, view_of(5))
        await pilot.press(*["down"] * 20)
        pane.show_run(dpo_view(40))
        screen = await shown(pilot)
        for metric in METRICS_OF_KIND["dpo"]:
            assert any(line[1:].startswith(metric.label) for line in screen.splitlines()), metric.label
        assert "clip fraction" not in screen
        assert "▸speed" in screen, "the last row, where the run before had more"
        assert pane.check_action("choose", ()) is False
        assert pane.metrics_shown == tuple(metric.field for metric in DEFAULT)
        await pilot.press(*["up"] * 20, "enter")
        assert (await shown(pilot)).startswith(" loss   iteration 40  0.660 ▼ 0.001")
        pane.show_run(view_of(5))
        assert pane.check_action("choose", ())


async def test_the_choice_among_the_metrics_of_ppo_is_kept_while_another_kind_is_shown():
    async with Bench().run_test(size=(100, 30)) as pilot:
        pane = await opened(pilot, view_of(5))
        pane.metrics_shown = ("kl", "grad_norm")
        pane.show_run(dpo_view(5))
        assert "accuracy" in await shown(pilot)
        pane.show_run(view_of(5))
        assert pane.metrics_shown == ("kl", "grad_norm")
        assert "entropy" not in await shown(pilot)


async def test_a_compared_run_of_another_kind_is_drawn_where_it_has_the_metric():
    async with Bench().run_test(size=(120, 30)) as pilot:
        pane = await opened(pilot, dpo_view(20))
        other = History("reward-model")
        for number in range(1, 200):
            other.append(reward_step(number))
        pane.compare([(Path("by-reward"), other), (Path("by-ppo"), history_of([0.1] * 90))])
        await pilot.press("enter")
        screen = await shown(pilot)
        assert "a by-reward" in screen
        assert "by-ppo" not in screen
        await pilot.press("down", "down", "down")
        assert (await shown(pilot)).startswith(" chosen reward")
        assert "this run" not in await shown(pilot)
        await pilot.press(*["down"] * 6)
        assert "b by-ppo" in await shown(pilot), "both have a speed"


@pytest.mark.parametrize("size", [(60, 24), (120, 40)])
async def test_the_newest_evaluations_have_a_line_each_above_the_events(size):
    async with Bench().run_test(size=size) as pilot:
        view = dpo_view(20)
        pane = await opened(pilot, view)
        view.take(dpo_evaluation(20))
        view.take(human(20))
        for number in range(1, 21):
            view.take(CheckpointSaved(iteration=number, path=f"checkpoints/step-{number:06d}", seconds=0.1))
        pane.show_run(view)
        lines = [line.strip() for line in (await shown(pilot)).splitlines()]
        first = lines.index("◇ 20 human win rate 61% (52 to 70) of 80")
        assert lines[first + 1].startswith("◇ 20 held-out accuracy 0.71 (0.64 to 0.77) of 200")
        assert lines[first + 2].startswith("events")
        assert "checkpoints 1 to 20, newest 20" in lines[first + 2]
        view.take(human(20, comparisons=81))
        pane.show_run(view)
        assert "(52 to 70) of 81" in await shown(pilot)
        pane.show_run(dpo_view(20))
        assert "held-out" not in await shown(pilot)


@pytest.mark.parametrize("height", [13, 14, 16, 18, 24, 40])
async def test_evaluations_take_no_line_from_the_rows(height):
    async with Bench().run_test(size=(60, height)) as pilot:
        view = dpo_view(20)
        view.take(dpo_evaluation(20))
        view.take(human(20))
        await opened(pilot, view)
        screen = await shown(pilot)
        assert "speed" in screen
        assert len(screen.splitlines()) <= pilot.app.query_one(TrainingPane).size.height
        free = pilot.app.query_one(TrainingPane).size.height - 11
        assert ("human win rate" in screen) == (free >= 1)
        assert ("held-out" in screen) == (free >= 2)


async def test_every_key_of_the_pane_has_an_id_and_says_what_it_does():
    for binding in [*TrainingPane.BINDINGS, *Timeline.BINDINGS]:
        assert binding.id
        assert binding.tooltip


@given(
    height=st.integers(0, 80),
    width=st.integers(20, 130),
    metrics=st.integers(1, 11),
    scores=st.booleans(),
    marks=st.integers(0, 50),
)
def test_lines_are_shared_out_without_one_too_many(height, width, metrics, scores, marks):
    shared = shares(height, width, metrics, scores=scores, marks=marks)
    rows = height - shared.histogram - shared.timeline
    assert rows >= 0
    assert shared.histogram == 0 or scores
    assert shared.timeline <= 1 + marks if marks else shared.timeline == 0
    if shared.histogram or shared.timeline:
        assert rows >= 1 + metrics * shared.row, "rows come first"


def test_a_pane_of_eighteen_lines_shows_everything_and_taller_ones_more_of_it():
    assert shares(18, 42, 11, scores=True, marks=9) == (1, 3, 3)
    assert shares(28, 42, 11, scores=True, marks=9) == (2, 3, 2)
    assert shares(28, 78, 11, scores=True, marks=30) == (1, 3, 13)
    assert shares(58, 118, 11, scores=True, marks=30).row == 4
    assert shares(15, 42, 11, scores=True, marks=9) == (1, 0, 3)
    assert shares(12, 42, 11, scores=True, marks=9) == (1, 0, 0)
