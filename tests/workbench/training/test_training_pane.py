"""The training pane: what its keys do, what it reports to the app, runs of other kinds, and the timeline."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from charts import history_of, roles, texts
from rich.cells import cell_len
from run_kinds_helper import dpo_evaluation, human, reward_step
from scripted_run import alarm, ended, evaluation, iteration, started
from styles_helper import styles_path
from textual.app import ComposeResult
from training_bench import Bench, dpo_view, opened, shown, view_of

from trainer.events import Alert, CheckpointSaved, StateChanged
from workbench.kit.dialog import ChoiceList
from workbench.kit.theming import ThemedApp
from workbench.run.history import MetricHistory
from workbench.run.metrics import DEFAULT, METRICS_OF_KIND
from workbench.run.sentences import level_sign
from workbench.run.view import Mark, RunView
from workbench.training.overview import Overview
from workbench.training.pane import TrainingPane
from workbench.training.timeline import ERROR, SIGNS, Timeline, timeline


async def test_before_a_run_a_sentence_says_which_key_starts_one():
    async with Bench().run_test(size=(60, 24)) as pilot:
        assert "No run yet. Press space to train the configuration" in await shown(pilot)
        view, pane = RunView(), pilot.app.query_one(TrainingPane)
        view.take(StateChanged(state="loading"))
        pane.show_run(view)
        assert "Loading the model." in await shown(pilot)
        view.take(started())
        pane.show_run(view)
        assert "First iteration running" in await shown(pilot)
        view.take(ended("stopped", iteration=0))
        pane.show_run(view)
        assert "The run ended before its first iteration" in await shown(pilot)


async def test_left_and_right_scrub_through_the_iterations_and_inform_the_app():
    async with Bench().run_test(size=(100, 30)) as pilot:
        pane = await opened(pilot, view_of(50))
        await pilot.press("left")
        assert pilot.app.chosen == [49]
        await pilot.press("shift+left", "right", "home", "left")
        assert pilot.app.chosen == [49, 39, 40, 1], "at the first there is nothing to report"
        assert pane.border_subtitle == "iteration 1 of 50"
        assert "iteration 1  22s" in await shown(pilot)
        await pilot.press("end")
        assert pilot.app.chosen[-1] is None
        assert pane.border_subtitle == ""
        await pilot.press("left", "right", "right")
        assert pilot.app.chosen[-2:] == [49, None], "past the newest it is followed"


async def test_the_values_are_those_of_the_cursor_also_when_the_run_goes_on():
    async with Bench().run_test(size=(100, 30)) as pilot:
        view = view_of(50)
        pane = await opened(pilot, view)
        await pilot.press("shift+left")
        score = view.history.column("score_mean")[39]
        assert f"▸score    {score:.3f}" in await shown(pilot)
        for value in (8.0, 9.0):  # the iteration is done again
            view.take(iteration(51, score_mean=value))
            pane.show_run(view)
            assert f"▸score    {score:.3f}" in await shown(pilot)
        await pilot.press("escape")
        assert "▸score    9.000" in await shown(pilot)
        await pilot.press("left")
        view.take(started(resumed_at=10))
        pane.show_run(view)
        assert pane.border_subtitle == "iteration 10 of 10", "the nearest that is left"
        pane.show_run(view_of(7))
        assert pane.border_subtitle == "", "another run has no cursor"


async def test_enter_enlarges_the_selected_metric_and_escape_closes_it():
    async with Bench().run_test(size=(100, 30)) as pilot:
        pane = await opened(pilot, view_of(50))
        assert not pane.check_action("close", ())
        await pilot.press("down", "enter")
        screen = await shown(pilot)
        assert screen.splitlines()[1].startswith("▸KL  !25.00 nats/seq  ▲ 0.50")
        assert "entropy" not in screen
        assert not pane.check_action("mode", ("one",))
        await pilot.press("left")
        assert "KL  !24.50" in await shown(pilot)
        await pilot.click(Overview, offset=(40, 5))
        assert pilot.app.chosen[-1] not in (49, None), "a click moves the cursor"
        assert "▸KL" in await shown(pilot)
        await pilot.press("end", "left", "up")
        assert (await shown(pilot)).splitlines()[1].startswith("▸score")
        await pilot.press("escape")
        assert "entropy" in await shown(pilot)
        assert pane.border_subtitle == "iteration 49 of 50", "the cursor stays"
        await pilot.press("escape")
        assert pilot.app.chosen[-2:] == [49, None]


async def test_zoom_goes_from_all_iterations_to_the_last_fifty_and_back():
    async with Bench().run_test(size=(100, 30)) as pilot:
        await opened(pilot, view_of(300))
        seen = []
        for key in ("plus", "plus", "plus", "plus", "minus", "minus", "minus", "minus"):
            await pilot.press(key)
            [axis, *_] = [line for line in (await shown(pilot)).splitlines() if "└" in line]
            seen.append(axis.strip().lstrip("└").partition("─")[0])
        assert seen == ["101", "201", "251", "251", "201", "101", "1", "1"]
        await pilot.press("plus", "home")
        assert "└1───" in await shown(pilot), "the window goes where the cursor goes"


async def test_log_scale_and_moving_average_are_on_the_border_and_y_copies_the_value():
    async with Bench().run_test(size=(100, 30)) as pilot:
        view = view_of(20, clip_fraction=0.3)
        pane = await opened(pilot, view)
        plain = await shown(pilot)
        await pilot.press("e", "l")
        assert await shown(pilot) != plain
        assert pane.border_subtitle == "EMA · log"
        await pilot.press("e", "l")
        assert await shown(pilot) == plain
        await pilot.press("down", "y")
        assert pilot.app.clipboard == "iteration 20: KL 10.00 nats/seq"
        await pilot.press("left", "enter", "down", "y")
        assert pilot.app.clipboard == "iteration 19: reward 0.050"


async def test_metrics_are_chosen_in_a_list_and_kept_in_a_property():
    async with Bench().run_test(size=(100, 30)) as pilot:
        pane = await opened(pilot, view_of(20, repetition=0.35, length_correlation=0.5, advantage_std=1.25))
        assert "repetition" not in await shown(pilot)
        await pilot.press("v")
        listed = pilot.app.focused
        assert isinstance(listed, ChoiceList)

        def marked() -> list[str]:
            """Return what is chosen, as it can be told without colour."""
            lines = [listed.render_line(y).text.split("]") for y in range(listed.size.height)]
            return [line[1].strip() for line in lines if "✓" in line[0]]

        assert marked()[:3] == ["score", "reward", "held-out score"]
        await pilot.press("space", "down", "space")
        assert marked()[:2] == ["held-out score", "win rate"]
        await pilot.press("escape")
        assert pane.metrics_shown == tuple(metric.field for metric in DEFAULT[2:])
        assert "reward" not in await shown(pilot)
        assert pane.border_subtitle == "2 metrics hidden · v"
        pane.metrics_shown = ("grad_norm", "kl", "of another version")
        assert pane.metrics_shown == ("kl", "grad_norm")
        pane.metrics_shown = ()
        assert pane.metrics_shown == tuple(metric.field for metric in DEFAULT)
        pane.metrics_shown = (*pane.metrics_shown, "repetition", "length_correlation", "advantage_std")
        screen = " ".join((await shown(pilot)).split())
        assert "repetition % !35.0" in screen
        assert "length corr. 0.50" in screen
        assert "adv. deviation 1.250" in screen


async def test_evaluation_metrics_and_those_that_vary_are_shown_where_the_run_has_them():
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
        await pilot.press("down")
        view.take(evaluation(20, win_rate=0.625, score_mean=0.75))
        pane.show_run(view)
        screen = await shown(pilot)
        words = " ".join(screen.split())
        assert "▸KL" in screen, "it stays selected"
        assert "win rate % 62.5 ▲ 12.5" in words
        assert "held-out score 0.750 ▲ 0.238" in words
        assert "KL coef." in screen
        for label in ("epochs done", "expl. variance", "value loss", "×"):
            assert label not in screen, "a run without a critic has none"


async def test_the_kl_has_the_target_of_a_run_that_aims_at_one_and_otherwise_a_limit():
    async with Bench().run_test(size=(100, 30)) as pilot:
        view = view_of(50)
        pane = await opened(pilot, view)
        assert "KL  !25.00 nats/seq" in await shown(pilot)
        assert "┄ limit 10" in await shown(pilot)
        view.kl_target = 6.5
        pane.show_run(view)
        assert "┄ target 6.5" in await shown(pilot)
        assert "KL   25.00" in await shown(pilot), "to miss a target is nothing to mark"


async def test_active_alarms_are_shown_above_the_metrics():
    async with Bench().run_test(size=(100, 30)) as pilot:
        view = view_of(20)
        pane = await opened(pilot, view)
        before = await shown(pilot)
        for number, code in enumerate(("truncation", "repetition", "entropy_collapse", "kl_high"), 17):
            view.take(alarm(number, code=code, message="[@click=app.quit]\x1b[2J"))
        for height in (14, 30):
            await pilot.resize_terminal(100, height)
            pane.show_run(view)
            screen = (await shown(pilot)).splitlines()
            assert screen[0].startswith(" ⚠ 20 KL high  [@click=app.quit]␛[2J")
            assert screen[0].rstrip().endswith("and 3 more   ! opens")
            assert screen[1].startswith("▸score")
        assert before.splitlines()[1].startswith("▸score"), "nothing moves when an alarm comes"
        view.alarms.clear()
        view.marks.clear()
        pane.show_run(view)
        assert await shown(pilot) == before


async def test_the_selected_metric_is_visible_where_not_all_fit():
    async with Bench().run_test(size=(42, 10)) as pilot:
        pane = await opened(pilot, view_of(20))
        assert "speed" not in await shown(pilot)
        assert "more ↓" in pane.border_subtitle
        await pilot.press(*["down"] * 20)
        assert "▸speed" in await shown(pilot)
        await pilot.press(*["up"] * 20)
        assert "▸score" in await shown(pilot)
        assert "speed" not in await shown(pilot)


async def test_a_click_selects_a_metric_and_the_iteration_under_it():
    async with Bench().run_test(size=(100, 20)) as pilot:
        await opened(pilot, view_of(30))
        first, *_ = zones = pilot.app.query_one(Overview).zones
        await pilot.click(Overview, offset=(zones[1].plot[0], 3))
        assert "▸KL" in await shown(pilot)
        assert pilot.app.chosen == [1]
        await pilot.click(Overview, offset=(first.plot[-1], 3))
        assert "▸score" in await shown(pilot)
        assert pilot.app.chosen == [1, None], "the newest is followed"
        cell = next(zone for zone in zones if zone.number == 3)
        await pilot.click(Overview, offset=(cell.columns[1], cell.lines[0]))
        assert "▸entropy" in await shown(pilot)
        assert pilot.app.chosen == [1, None]
        await pilot.click(Overview, offset=(cell.plot[len(cell.plot) // 2], cell.lines[-1]))
        assert pilot.app.chosen[-1] in (15, 16)


async def test_scores_and_events_are_below_the_metrics():
    async with Bench().run_test(size=(80, 36)) as pilot:
        view = view_of(20)
        pane = await opened(pilot, view)
        assert "events" not in await shown(pilot)
        assert "scores" not in await shown(pilot)
        view.take(CheckpointSaved(iteration=20, path="checkpoints/step-000020", seconds=0.1))
        for code in "xyz":
            view.take(Alert(iteration=20, level="warning", code=code, message="[@click=app.quit]\x1b[2J"))
        pane.show_run(view)
        pane.show_scores(20, [0.1, 0.9, math.nan])
        screen = await shown(pilot)
        assert "scores of iteration 20 · 3 · mean 0.50" in screen
        assert "events · 3 · checkpoint 20" in screen
        assert "⚠ 20 [@click=app.quit]␛[2J" in screen
        await pilot.resize_terminal(160, 40)
        histogram, events = pane.query_one("#training-scores"), pane.query_one(Timeline)
        await pilot.pause()
        assert histogram.region.y == events.region.y, "side by side where there is room"
        pane.show_run(view_of(5))
        assert "scores" not in await shown(pilot), "these were another run's"


def of_history(history: MetricHistory) -> RunView:
    """Return the view of a run with these iterations."""
    view = RunView()
    view.history = history
    return view


async def test_compared_runs_are_drawn_in_the_enlarged_chart_five_at_most_and_the_open_one_once():
    async with Bench().run_test(size=(120, 30)) as pilot:
        view = view_of(20)
        assert view.started is not None
        pane = await opened(pilot, view)

        async def legend() -> str:
            return " ".join("".join(line for line in (await shown(pilot)).splitlines() if "this run" in line).split())

        others = [(Path(f"run-{number}"), of_history(history_of([0.1 * number] * 90))) for number in range(7)]
        pane.compare(others)
        await pilot.press("enter")
        assert await legend() == "─ this run a run-0 b run-1 c run-2 d run-3 e run-4"
        pane.compare([(Path(view.started.folder).resolve(), view), *others[:1]])
        assert await legend() == "─ this run a run-0"
        view.take(started(folder="run-0"))
        view.take(iteration(1))
        pane.show_run(view)
        assert await legend() == "─ this run a quickstart-0001", "another run was opened meanwhile"
        pane.compare([])
        assert await legend() == ""


async def test_a_run_of_another_kind_has_its_own_metrics_and_no_choice_among_them():
    async with Bench().run_test(size=(80, 24)) as pilot:
        pane = await opened(pilot, view_of(5))
        pane.metrics_shown = ("kl", "grad_norm")
        await pilot.press("down")
        pane.show_run(view := dpo_view(40))
        assert "held-out acc." not in await shown(pilot), "before the first evaluation"
        view.take(dpo_evaluation(40))
        pane.show_run(view)
        for size in ((44, 30), (80, 24), (122, 60)):
            await pilot.resize_terminal(*size)
            screen = await shown(pilot)
            for metric in METRICS_OF_KIND["dpo"]:
                assert metric.label in screen, metric.label
            assert "clip fraction" not in screen
        assert "▸gradient norm" in screen, "both kinds have it"
        assert pane.check_action("choose", ()) is False
        await pilot.press(*["up"] * 20, "enter")
        assert (await shown(pilot)).splitlines()[1].startswith("▸loss    0.660  ▼ 0.001")
        pane.show_run(view_of(5))
        assert pane.check_action("choose", ())
        assert pane.metrics_shown == ("kl", "grad_norm")
        await pilot.press("escape")
        assert "entropy" not in await shown(pilot)
        pane.metrics_shown = ()
        assert pane.metrics_shown == tuple(metric.field for metric in DEFAULT)


async def test_a_compared_run_of_another_kind_is_drawn_where_it_has_the_metric():
    async with Bench().run_test(size=(120, 30)) as pilot:
        pane = await opened(pilot, dpo_view(20))
        other = MetricHistory("reward-model")
        for number in range(1, 200):
            other.append(reward_step(number))
        pane.compare([(Path("by-reward"), of_history(other)), (Path("by-ppo"), of_history(history_of([0.1] * 90)))])
        await pilot.press("enter")
        screen = await shown(pilot)
        assert "a by-reward" in screen
        assert "by-ppo" not in screen
        await pilot.press("down", "down", "down")
        assert (await shown(pilot)).splitlines()[1].startswith("▸chosen reward")
        assert "this run" not in await shown(pilot)
        await pilot.press(*["down"] * 6)
        assert "b by-ppo" in await shown(pilot), "both have a speed"


async def test_evaluations_are_among_the_events_the_newest_first():
    async with Bench().run_test(size=(60, 26)) as pilot:
        view = dpo_view(20)
        pane = await opened(pilot, view)
        view.take(dpo_evaluation(20))
        view.take(human(20))
        for number in range(1, 21):
            view.take(CheckpointSaved(iteration=number, path=f"checkpoints/step-{number:06d}", seconds=0.1))
        pane.show_run(view)
        for size in ((60, 26), (120, 40)):
            await pilot.resize_terminal(*size)
            lines = [line.strip() for line in (await shown(pilot)).splitlines()]
            first = next(place for place, line in enumerate(lines) if line.startswith("events"))
            assert "checkpoints 1 to 20, newest 20" in lines[first]
            assert lines[first + 1] == "◇ 20 human win rate 61% (52 to 70) of 80"
            assert lines[first + 2].startswith("◇ 20 held-out accuracy 0.71 (0.64 to 0.77) of 200")
        view.take(human(20, comparisons=81))
        pane.show_run(view)
        assert "(52 to 70) of 81" in await shown(pilot)
        pane.show_run(dpo_view(20))
        assert "held-out" not in await shown(pilot)


async def test_k_plots_score_against_kl_with_the_marked_runs_and_y_copies_the_point():
    async with Bench().run_test(size=(100, 30)) as pilot:
        pane = await opened(pilot, view_of(10))
        pane.compare([(Path("other"), view_of(12)), (Path("dpo"), dpo_view(9))])
        await pilot.press("k")
        screen = await shown(pilot)
        assert screen.splitlines()[1].startswith(" score against KL   iteration 10: score 0.1")
        assert "a other" in screen
        assert "dpo" not in screen, "it has no score"
        assert not pane.check_action("mode", ("one",))
        await pilot.press("home", "y")
        assert pilot.app.clipboard.startswith("iteration 1: score 0.0")
        assert pilot.app.clipboard.endswith(" at a KL of 0.50 nats/seq")
        await pilot.press("escape")
        assert "▸score" in await shown(pilot)
        pane.show_run(dpo_view(5))
        assert pane.check_action("mode", ("plot",)) is False


MARKS = [Mark(number, "evaluation", f"score {number}") for number in range(1, 31)]


class TimelineBench(ThemedApp[None]):
    CSS_PATH = styles_path("training.tcss")

    def compose(self) -> ComposeResult:
        yield Timeline()


def test_events_are_in_the_order_of_their_iterations_the_newest_on_top():
    marks = [
        Mark(1, "alarm", "old error", "error"),
        Mark(2, "alert", "warning", "warning"),
        Mark(4, "setting", "setting"),
        Mark(3, "alarm", "error", "error"),  # reported late
        Mark(4, "alert", "note", "info"),
        Mark(20, "evaluation", "score 1"),
    ]
    lines = texts(timeline(marks, 50))
    assert lines[0].startswith(" events · 6 ─")
    assert lines[1:] == [
        " ◇ 20 score 1",
        " ⚠  4 note",
        " →  4 setting",
        " ✖  3 error",
        " ⚠  2 warning",
        " ✖  1 old error",
    ]


@pytest.mark.parametrize(
    ("saved", "width", "heading"),
    [
        ([12], 70, " events · 1 · checkpoint 12 ─"),
        ([10, 20, 15], 70, " events · 1 · checkpoints 10 to 20, newest 15 ─"),
        ([10, 20, 15], 40, " events · 1 · checkpoints 10 to 20 ─"),  # shorter, not cut
        ([10, 20, 15], 30, " 1 · checkpoints 10 to 20 ─"),
    ],
)
def test_checkpoints_are_folded_into_the_heading(saved: list[int], width: int, heading: str):
    marks = [Mark(number, "checkpoint", "x") for number in saved]
    first, event = texts(timeline([*marks, Mark(16, "setting", "kl_coef 0.05 -> 0.1")], width))
    assert first.startswith(heading)
    assert event == " → 16 kl_coef 0.05 -> 0.1"
    assert len(timeline(marks, width)) == 1
    assert timeline([], width) == []


def test_every_kind_of_mark_has_a_sign_of_its_own_one_column_wide_but_alarms_are_warnings_like_others():
    assert SIGNS["alarm"] == SIGNS["alert"] == level_sign("warning")
    assert len({*SIGNS.values(), ERROR}) == len(SIGNS)
    assert all(cell_len(sign) == 1 for sign in SIGNS.values())


@pytest.mark.parametrize("kind", ["alert", "alarm"])
def test_an_error_is_drawn_as_an_error_a_warning_as_a_warning_and_a_note_as_neither(kind):
    error, warning, note = (timeline([Mark(7, kind, "x", level)], 40)[1:] for level in ("error", "warning", "info"))
    assert (texts(error), roles(error, "missing"), roles(error, "warning")) == ([" ✖ 7 x"], " ✖ x", "")
    signed = f" {SIGNS[kind]} x"
    assert (roles(warning, "missing"), roles(warning, "warning")) == ("", signed)
    assert (roles(note, "missing"), roles(note, "warning")) == ("", "")


def test_messages_are_cut_to_the_width_shown_and_not_obeyed():
    lines = timeline([Mark(7, "alert", "\x1b]0;x\x07[@click=app.quit]\u202e" + "日本" * 50)], 40)
    assert cell_len(texts(lines)[1]) <= 40
    assert texts(lines)[1].startswith(" ⚠ 7 ␛]0;x␇[@click=app.quit]\\u202e")
    assert texts(lines)[1].endswith("…")


async def test_keys_scroll_to_the_last_mark_and_back_and_a_new_one_does_not_move_what_is_shown():
    app = TimelineBench()
    async with app.run_test(size=(50, 20)) as pilot:
        widget = app.query_one(Timeline)
        widget.styles.height = 6

        def shown() -> list[str]:
            return [widget.render_line(y).text.rstrip() for y in range(widget.size.height)]

        await pilot.pause()
        assert widget.show(MARKS) == 13, "lines that it wants; more are scrolled to"
        widget.focus()
        await pilot.pause()
        assert shown()[1] == " ◇ 30 score 30"
        await pilot.press("down", "down")
        assert shown()[0] == " ◇ 29 score 29"
        before = shown()
        widget.show([*MARKS, Mark(32, "alert", "newer")])
        await pilot.pause()
        assert shown() == before
        await pilot.press(*["pagedown"] * 20)
        assert shown()[-1] == " ◇  1 score 1"
        await pilot.press(*["pageup"] * 20)
        assert shown()[1:3] == [" ⚠ 32 newer", " ◇ 30 score 30"]
        widget.show([*MARKS, Mark(32, "alert", "newer"), Mark(33, "alert", "newest")])
        await pilot.pause()
        assert shown()[1] == " ⚠ 33 newest", "at the top it is followed"
