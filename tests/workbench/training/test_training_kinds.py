"""The training pane with runs of other kinds, with marked runs, and with evaluations."""

from __future__ import annotations

from pathlib import Path

from charts import history_of
from run_kinds_helper import dpo_evaluation, human, reward_step
from scripted_run import iteration, started
from training_bench import Bench, dpo_view, opened, shown, view_of

from trainer.events import CheckpointSaved
from workbench.run.history import MetricHistory
from workbench.run.metrics import DEFAULT, METRICS_OF_KIND
from workbench.run.view import RunView


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
        assert (await shown(pilot)).startswith("▸loss  0.660  ▼ 0.001")
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
        assert (await shown(pilot)).startswith("▸chosen reward")
        assert "this run" not in await shown(pilot)
        await pilot.press(*["down"] * 6)
        assert "b by-ppo" in await shown(pilot), "both have a speed"


async def test_the_newest_evaluations_have_a_line_each_above_the_events():
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
            first = lines.index("◇ 20 human win rate 61% (52 to 70) of 80")
            assert lines[first + 1].startswith("◇ 20 held-out accuracy 0.71 (0.64 to 0.77) of 200")
            assert lines[first + 2].startswith("events")
            assert "checkpoints 1 to 20, newest 20" in lines[first + 2]
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
        assert screen.startswith(" score against KL   iteration 10: score 0.1")
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
