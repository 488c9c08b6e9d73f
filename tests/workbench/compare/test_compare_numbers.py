"""Numbers compared between runs: those of each run, and the score reached at each KL."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from compared_runs import compared, evaluation, events_of_kind, make_run, ppo_events, singles
from run_kinds_helper import human
from scripted_run import ended, iteration, started

from trainer.events import Alarm, Alert, DataChanged, Decision, RolledBack, RunStarted
from trainer.runs.listing import list_runs
from workbench.compare.compared_run import ComparedRun, distinct_names, read_runs
from workbench.compare.frontier import Curve, Point, best, curves_of, levels
from workbench.compare.measures import RunMeasure, sections
from workbench.compare.report import interval_of
from workbench.headless import summary
from workbench.run.metrics import DPO, REWARD_MODEL


def measures(*runs: ComparedRun) -> dict[str, RunMeasure]:
    return {measure.key: measure for found in sections(singles(*runs)).values() for measure in found}


def number(run: ComparedRun, key: str) -> Any:
    (value,) = measures(run)[key].values(*singles(run))
    return value


def interval(run: ComparedRun, key: str) -> Any:
    return interval_of(measures(run)[key], *singles(run))


def curves(*runs: ComparedRun) -> list[Curve]:
    return [curve for (curve,) in curves_of(singles(*runs))]


def training_points(run: ComparedRun) -> list[Point]:
    return [*curves(run)[0].training]


def scored(*scores: float, kls: Sequence[float] = ()) -> ComparedRun:
    """Return a run with these scores, and KLs that are the numbers of its iterations unless they are given."""
    pairs = zip(scores, kls or range(1, len(scores) + 1), strict=True)
    return compared("a", [started(), *(iteration(n, score_mean=s, kl=float(kl)) for n, (s, kl) in enumerate(pairs, 1))])


def test_the_last_numbers_are_means_of_five_iterations_without_those_that_are_not_finite() -> None:
    run = scored(*range(1, 13), kls=[2.0 * n for n in range(1, 13)])
    assert number(run, "score") == pytest.approx((8 + 9 + 10 + 11 + 12) / 5)
    assert number(run, "kl") == pytest.approx(20.0)
    assert number(scored(0.0, 1.0, math.nan, 3.0, math.inf, 5.0), "score") == pytest.approx(3.0)


def test_the_best_stretch_has_its_iteration_and_its_kl_and_is_a_twentieth_of_a_long_run() -> None:
    run = scored(*[0.0] * 5, *[1.0] * 5, *[0.5] * 5)
    assert [number(run, key) for key in ("best_score", "best_iteration", "best_kl")] == [1.0, 10, pytest.approx(8.0)]
    assert number(scored(*range(1, 201)), "best_score") == pytest.approx(195.5)


@pytest.mark.parametrize("size", [1, 4, 5, 12, 300])
def test_list_comparison_and_summary_say_the_same_score_and_kl(size: int, tmp_path: Path) -> None:
    noise = random.Random(size)
    events = [started(), *(iteration(n, score_mean=noise.random(), kl=9 * noise.random()) for n in range(1, size + 1))]
    make_run(tmp_path, "a", events)
    (listed,), run = list_runs(tmp_path), compared("a", events)
    reported = dict(summary(run.view))
    assert (number(run, "score"), number(run, "kl")) == pytest.approx((listed.score, listed.kl), abs=1e-9)
    assert f"-> {listed.score:.3f} (" in reported["score"]
    assert reported["KL"].endswith(f"-> {listed.kl:.3f} nats a sequence")


def test_the_newest_and_the_best_evaluation_are_distinguished() -> None:
    events = [
        started(),
        iteration(1),
        evaluation(4, score_mean=0.9, score_low=0.8, score_high=1.0, kl=3.0),
        evaluation(8, score_mean=0.6, score_low=0.5, score_high=0.7, kl=6.0, win_rate=0.75, parts={"a": 1.0, "b": 2.0}),
        human(8, win_rate=0.6, low=0.5, high=0.7),
    ]
    run = compared("a", events)
    assert number(run, "held_out_score") == 0.6
    assert interval(run, "held_out_score") == (0.5, 0.7)
    assert (number(run, "best_held_out_score"), number(run, "best_held_out_iteration")) == (0.9, 4)
    assert (number(run, "win_rate"), number(run, "human_win_rate")) == (0.75, 0.6)
    labels = measures(run)
    assert (labels["win_rate"].label, labels["human_win_rate"].label) == ("win rate by score", "human win rate")
    assert (number(run, "part:a"), number(run, "part:b")) == (1.0, 2.0)
    alone = compared("a", [started(), iteration(1), evaluation(1, parts={"lexicon": 0.5})])
    assert not [key for key in measures(alone) if key.startswith("part:")], "a single source is the score"


def test_costs_are_sums_means_and_peaks() -> None:
    events = [
        started(),
        iteration(1, seconds={"generate": 2.0, "update": 4.0}, memory_bytes=3_000_000_000, tokens=100),
        iteration(2, seconds={"generate": 1.0, "update": 3.0}, memory_bytes=2_000_000_000, tokens=250, skipped_steps=3),
    ]
    run = compared("a", events)
    assert (number(run, "seconds"), number(run, "seconds_an_iteration")) == (10.0, 5.0)
    assert (number(run, "memory_bytes"), number(run, "tokens")) == (3e9, 250)
    assert (number(run, "iterations"), number(run, "skipped_steps")) == (2, 3)


@pytest.mark.parametrize("kind", [REWARD_MODEL, DPO])
def test_other_kinds_of_run_have_the_numbers_that_they_have(kind: str) -> None:
    run = compared("a", events_of_kind(kind))
    assert math.isnan(number(run, "score"))
    assert number(run, "loss") == pytest.approx(0.612)
    assert number(run, "pair_accuracy") == 0.71
    assert interval(run, "pair_accuracy") == (0.644, 0.769)
    assert math.isfinite(number(run, "pair_kl")) is (kind == DPO)
    assert math.isfinite(number(run, "held_out_kl")) is (kind == DPO)


def test_a_run_without_iterations_has_no_numbers_and_fails_nothing() -> None:
    run = compared("a", [])
    reported = {key: measure.text(number(run, key)) for key, measure in measures(run).items()}
    assert {key for key, text in reported.items() if text != "-"} == {"iterations", "alarms", "rollbacks"}


def test_two_runs_differ_by_a_difference_a_ratio_or_nothing_meaningful() -> None:
    found = measures(compared("a", []))
    assert found["score"].difference(0.5, 0.25) == "-0.250"
    assert found["truncated"].difference(0.1, 0.35) == "+25.0"
    assert found["seconds"].difference(60.0, 30.0) == "×0.50"
    assert found["seconds"].difference(0.0, 30.0) == ""
    assert found["best_iteration"].difference(3, 9) == ""
    assert found["score"].difference(math.nan, 0.25) == ""


def test_warnings_errors_alarms_and_rollbacks_are_counted(tmp_path: Path) -> None:
    alert = {"iteration": 3, "message": "m", "code": "c"}
    events = [
        started(),
        Alert(**alert, level="info"),
        Alert(**alert, level="warning"),
        Alarm(**alert, level="error", evidence={}, advice="a"),
        Decision(**alert, level="warning", rule="plateau", action="stop", evidence={}),
        RolledBack(iteration=3, to=1, reason="r"),
    ]
    (group,) = read_runs([make_run(tmp_path, "a", events)])
    assert (group.runs[0].alarms, group.runs[0].rollbacks) == (2, 1)


def test_points_are_means_of_neighbouring_iterations_and_the_last_one_ends_with_the_run() -> None:
    run = scored(*range(1, 8), kls=[0.5 * n for n in range(1, 8)])
    assert training_points(run) == [Point(5, 1.5, 3.0), Point(6, 2.0, 4.0), Point(7, 2.5, 5.0)]
    points = training_points(scored(*range(1, 1004)))
    assert len(points) == 96
    assert [points[-1].iteration - point.iteration for point in points[-3:]] == [20, 10, 0]
    assert points[-1] == Point(1003, pytest.approx(978.5), pytest.approx(978.5))
    assert training_points(scored(1.0, 2.0, kls=[1.0, math.nan])) == [Point(1, 1.0, 1.0)]


def test_the_best_score_at_a_kl_is_that_of_the_points_within_it() -> None:
    points = [Point(1, 1.0, 0.2), Point(2, 3.0, 0.9), Point(3, 2.0, 0.4), Point(4, 9.0, 0.95)]
    assert [best(points, kl) for kl in (0.5, 1.0, 2.5, 3.0, 100.0)] == [
        None,
        points[0],
        points[2],
        points[1],
        points[3],
    ]


def test_levels_are_round_and_end_where_all_points_are_within() -> None:
    def at(*kls: float) -> list[float]:
        return levels(Point(1, kl, 0.0) for kl in kls)

    assert at(0.9, 12.5) == [1, 2, 5, 10, 20]
    assert at(2.0, 10.0) == [2, 5, 10]
    assert at(0.001, 900.0) == [20, 50, 100, 200, 500, 1000]
    assert at(-0.1, 0.0) == []
    assert at(5e-324, 1.7e308)[-1] >= 1.7e308


def test_runs_are_compared_on_held_out_prompts_where_each_has_enough_of_them() -> None:
    many = [evaluation(number) for number in range(5)]
    start: RunStarted = started()
    with_many = compared("a", [start, iteration(1), *many])
    with_few = compared("b", [start, iteration(1), *many[:4]])
    dpo = compared("c", events_of_kind(DPO))
    for runs, on_held_out in (
        ([with_many, with_many], [True, True]),
        ([with_many, with_few], [False, False]),
        ([with_few, dpo], [False, True]),
        ([with_many, compared("d", [])], [True, False]),
    ):
        assert [curve.on_held_out for curve in curves(*runs)] == on_held_out
    assert not any(curve.compared for curve in curves(compared("d", events_of_kind(REWARD_MODEL))))


def test_evaluations_on_pairs_and_before_a_change_of_the_data_are_not_compared() -> None:
    (curve,) = curves(compared("a", events_of_kind(DPO)))
    assert [*curve.compared] == [Point(8, pytest.approx(3.2), pytest.approx(0.4))], "of pairs, the KL has another unit"
    changed = DataChanged(iteration=4, message="the prompts changed")
    events = [started(), iteration(1), evaluation(4, score_mean=0.9), changed, evaluation(5), evaluation(8)]
    run = compared("a", events)
    assert [point.iteration for point in curves(run)[0].held_out] == [5, 8]
    assert number(run, "best_held_out_iteration") == 8


def test_names_are_as_long_as_it_takes_to_tell_them_apart() -> None:
    folders = [Path("/w/x/seed-0/ppo"), Path("/w/x/seed-1/ppo"), Path("/w/y/seed-1/ppo"), Path("/w/dpo")]
    assert distinct_names(folders) == ["seed-0/ppo", "x/seed-1/ppo", "y/seed-1/ppo", "dpo"]


def test_what_a_run_did_after_it_was_resumed_replaces_what_it_did_before() -> None:
    events = [
        *ppo_events(8)[:-1],
        started(resumed_at=4),
        *(iteration(n, score_mean=9.0) for n in range(5, 10)),
        ended(iteration=9),
    ]
    run = compared("a", events)
    assert number(run, "iterations") == 9
    assert number(run, "score") == 9.0
