"""The training pane: what its keys do, and what it reports to the app."""

from __future__ import annotations

import math

from scripted_run import alarm, ended, evaluation, iteration, started
from training_bench import Bench, opened, shown, view_of

from trainer.events import Alert, CheckpointSaved, StateChanged
from workbench.kit.dialog import ChoiceList
from workbench.run.metrics import DEFAULT
from workbench.run.view import RunView
from workbench.training.overview import Overview
from workbench.training.pane import TrainingPane
from workbench.training.timeline import Timeline


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
        assert f"▸score  {score:.3f}" in await shown(pilot)
        for value in (8.0, 9.0):  # the iteration is done again
            view.take(iteration(51, score_mean=value))
            pane.show_run(view)
            assert f"▸score  {score:.3f}" in await shown(pilot)
        await pilot.press("escape")
        assert "▸score  9.000" in await shown(pilot)
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
        assert screen.startswith("▸KL  !25.00 nats/seq  ▲ 0.50")
        assert "entropy" not in screen
        assert not pane.check_action("mode", ("one",))
        await pilot.press("left")
        assert "KL  !24.50" in await shown(pilot)
        await pilot.click(Overview, offset=(40, 5))
        assert pilot.app.chosen[-1] not in (49, None), "a click moves the cursor"
        assert "▸KL" in await shown(pilot)
        await pilot.press("end", "left", "up")
        assert (await shown(pilot)).startswith("▸score")
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
            lines = [listed.render_line(y).text.split("▌") for y in range(listed.size.height)]
            return [line[1].strip() for line in lines if "X" in line[0]]

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
        assert "KL  25.00" in await shown(pilot), "to miss a target is nothing to mark"


async def test_active_alarms_are_shown_above_the_metrics():
    async with Bench().run_test(size=(100, 30)) as pilot:
        view = view_of(20)
        pane = await opened(pilot, view)
        before = await shown(pilot)
        for number, code in enumerate(("truncation", "repetition", "entropy_collapse", "kl_high"), 17):
            view.take(alarm(number, code=code, message="[@click=app.quit]\x1b[2J"))
        for height, lines in ((14, 1), (30, 3)):
            await pilot.resize_terminal(100, height)
            pane.show_run(view)
            screen = (await shown(pilot)).splitlines()
            assert screen[0].startswith(" ⚠ 20 KL high  [@click=app.quit]␛[2J")
            assert screen[0].rstrip().endswith(f"and {4 - lines} more   ! opens")
            assert [line.startswith(" ⚠") for line in screen[: lines + 1]] == [True] * lines + [False]
            assert "▸score" in "\n".join(screen)
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
