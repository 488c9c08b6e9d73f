"""Numbers compared between runs and between groups of seeds, with intervals by hand, and what is claimed from them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared_runs import HOSTILE, compared, evaluation, events_of_kind, hostile_events, make_run, singles
from rich.cells import cell_len
from run_kinds_helper import human
from scripted_run import ended, iteration, started

from trainer.confidence import Interval, t_quantile
from trainer.config import Config
from trainer.events import Alarm, Alert, DataChanged, Decision, RolledBack, RunStarted
from trainer.runs.listing import list_runs
from workbench.compare.compared_run import LETTERS, ComparedRun, RunGroup, read_runs
from workbench.compare.differences import Contrast, contrast, group_mean, sentence, welch_interval
from workbench.compare.frontier import Curve, Point, curves_of, levels
from workbench.compare.measures import LEVELS, RunMeasure, best_within, sections
from workbench.compare.measures import tested_measures as measures_over_seeds
from workbench.compare.report import all_cautions, interval_of, plain_values, report_lines
from workbench.compare.settings import compared_settings
from workbench.headless import summary
from workbench.run.metrics import DPO, REWARD_MODEL
from workbench.text import plain


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


NAN = math.nan
MEASURE = RunMeasure("x", "x", "", lambda run, field: run.column(field)[-1], "score_mean", 3)


def steps(scores: Sequence[float], kls: Sequence[float] | None = None, **changes: Any) -> list[Any]:
    kls = kls if kls is not None else [1.0] * len(scores)
    return [iteration(n, score_mean=s, kl=kl, **changes) for n, (s, kl) in enumerate(zip(scores, kls, strict=True), 1)]


def values(*numbers: float, first: int = 0, seeds: Sequence[int | None] | None = None) -> RunGroup:
    """Return a group whose runs have these numbers as `MEASURE`, and seeds from `first` on."""
    of_runs = seeds if seeds is not None else range(first, first + len(numbers))
    runs = [
        compared(f"r{place}", [*([started(seed=seed)] if seed is not None else []), iteration(1, score_mean=number)])
        for place, (seed, number) in enumerate(zip(of_runs, numbers, strict=True))
    ]
    return RunGroup("A", "a", runs)


def measured(**changes: Any) -> RunMeasure:
    return MEASURE._replace(**changes)


@pytest.mark.parametrize("seed", range(4))
def test_the_best_score_within_a_kl_is_that_of_all_stretches_of_five(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, kls = rng.normal(size=23), rng.uniform(0, 20, size=23).cumsum() / 12
    run = compared("a", steps(scores.tolist(), kls.tolist()))
    for level in LEVELS:
        slow = [scores[at : at + 5].mean() for at in range(19) if kls[at : at + 5].mean() <= level]
        assert best_within(run, str(level)) == pytest.approx(max(slow, default=NAN), nan_ok=True)


def test_a_stretch_counts_by_its_mean_kl_and_needs_five_known_iterations() -> None:
    run = compared("a", steps([1, 2, 3, 4, 5], [0, 0, 0, 0, 10]))
    assert best_within(run, "2") == 3
    assert math.isnan(best_within(run, "1.99"))
    for scores in ([1.0] * 4, [1.0, NAN, 1.0, 1.0, 1.0]):
        assert math.isnan(best_within(compared("a", steps(scores)), "16"))


def test_a_run_of_fewer_than_five_iterations_is_not_compared_over_seeds() -> None:
    short = compared("a", [started(seed=1), *steps([1.0] * 4)])
    whole = compared("b", [started(seed=2), *steps([0.5] * 5)])
    group = RunGroup("A", "a", [short, whole])
    for measure in measures_over_seeds([group]):
        first, second = measure.values(group)
        assert (math.isnan(first), math.isfinite(second)) == (True, True), measure.key
    (score,) = [measure for measure in measures_over_seeds([group]) if measure.key == "score"]
    assert score.values(RunGroup("A", "a", [short])) == [1.0]


def test_the_mean_of_a_group_leaves_out_runs_without_the_measure() -> None:
    margin = 4.302653 * math.sqrt(3.25 / 3)  # t of 2 degrees of freedom; deviations -1.5, -0.5 and 2
    found = group_mean(MEASURE, values(1.0, 2.0, 4.5, NAN))
    assert found == pytest.approx((2.5, 2.5 - margin, 2.5 + margin), abs=1e-5)
    assert group_mean(MEASURE, values(0.25)) == pytest.approx((0.25, NAN, NAN), nan_ok=True)


@pytest.mark.parametrize(
    ("limits", "numbers", "ends"),
    [
        ({"high": 1}, (0.2, 0.9), (0.55 - 12.7062 * 0.35, 1.0)),
        ({"low": 0}, (10.0, 40.0), (0.0, 25 + 12.7062 * 15)),
        ({"low": 0}, (-0.2, 0.0), (-0.1, -0.1 + 12.7062 * 0.1)),  # an estimate of a KL can be below 0
    ],
)
def test_an_interval_holds_only_values_that_the_measure_can_have(
    limits: dict[str, float], numbers: tuple[float, float], ends: tuple[float, float]
) -> None:
    assert group_mean(measured(**limits), values(*numbers))[1:] == pytest.approx(ends, abs=1e-3)


@pytest.mark.parametrize(
    ("limits", "first", "other", "ends"),
    [
        ({"low": 0}, (10.0, 90.0), (30.0, 50.0), (-50.0, 40.0)),  # seconds: none saves more than the first takes
        ({"high": 1}, (0.2, 0.6), (0.9, 0.5), (-0.3, 0.6)),  # explained variance
        ({}, (10.0, 90.0), (30.0, 50.0), (-391.19, 371.19)),
    ],
)
@pytest.mark.parametrize("seeds", [(0, 1), (5, 6)])
def test_a_difference_is_cut_to_what_the_measure_leaves_room_for(
    limits: dict[str, float],
    first: tuple[float, float],
    other: tuple[float, float],
    ends: tuple[float, float],
    seeds: tuple[int, int],
) -> None:
    found = contrast(measured(**limits), values(*first), values(*other, seeds=seeds))
    if limits or seeds == (0, 1):
        assert found.difference[1:] == pytest.approx(ends, abs=0.01)
    assert found.excludes_zero is False


def test_seeds_of_both_groups_are_paired_whatever_their_order() -> None:
    found = contrast(MEASURE, values(1.0, 5.0, 9.0, 100.0), values(9.3, 5.2, 1.1, -50.0, seeds=(2, 1, 0, 9)))
    margin = 4.302653 * 0.1 / math.sqrt(3)  # differences 0.1, 0.2 and 0.3
    assert found.difference == pytest.approx((0.2, 0.2 - margin, 0.2 + margin), abs=1e-5)
    assert (found.pairs, found.first, found.other) == (3, 3, 3)
    assert found.excludes_zero is False  # -0.05 to 0.45
    scores = (1.0, 5.0, 9.0, 3.0)
    more = [score + 0.5 + 0.01 * place for place, score in enumerate(scores)]
    assert contrast(MEASURE, values(*scores), values(*more)).excludes_zero is True, "what unpaired runs hide"
    assert contrast(MEASURE, values(*scores), values(*more, first=10)).excludes_zero is False
    assert contrast(MEASURE, values(1.0, 2.0, NAN), values(1.5, 2.6, 9.0)).pairs == 2


@pytest.mark.parametrize("other", [values(2.0, 2.5, 4.0, first=10), values(2.0, 2.5, 4.0, seeds=(None, None, None))])
def test_without_two_seeds_in_common_the_interval_is_welchs(other: RunGroup) -> None:
    found = contrast(MEASURE, values(1.0, 2.0), other)
    # Variances 0.5 and 13/12, so parts 0.25 and 13/36; df = (11/18)^2 / (0.25^2 / 1 + (13/36)^2 / 2) = 2.92
    margin = 4.302653 * math.sqrt(11 / 18)
    assert found.difference == pytest.approx((4 / 3, 4 / 3 - margin, 4 / 3 + margin), abs=1e-5)
    assert (found.pairs, found.first, found.other) == (0, 2, 3)


def test_welchs_interval_of_equal_groups_is_students_also_of_tiny_numbers() -> None:
    first, other = np.array([0.0, 1.0, 2.0, 3.0]), np.array([5.0, 6.0, 7.0, 8.0])
    margin = t_quantile(6) * math.sqrt(2 * first.var(ddof=1) / 4)
    for scale, precision in ((1.0, 1e-9), (1e-160, 1e-3)):  # variances near the end of the floats have few digits
        found = np.array(welch_interval(scale * first, scale * other))
        assert found / scale == pytest.approx((5.0, 5.0 - margin, 5.0 + margin), rel=precision)


def test_too_few_runs_and_runs_that_do_not_vary_and_numbers_at_the_end_of_the_floats() -> None:
    assert contrast(MEASURE, values(1.0, 1.0), values(2.0, 2.0, first=5)).difference == (1.0, 1.0, 1.0)
    for other in (values(1.5), values(1.5, first=5)):
        found = contrast(MEASURE, values(1.0, 2.0), other)
        assert found.difference.value == 0.0
        assert (found.excludes_zero, found.pairs, found.first, found.other) == (None, 0, 2, 1)
    assert contrast(MEASURE, values(1.0, 2.0), values(NAN, NAN)).excludes_zero is None
    huge = values(1e308, -1e308, 1e308)
    for other in (values(-1e308, 1e308, 0.0), values(0.0, 1.0, first=9)):
        assert contrast(MEASURE, huge, other).excludes_zero is not True
    assert not math.isfinite(group_mean(MEASURE, huge).high)


def test_the_seed_of_a_run_without_its_start_is_that_of_its_configuration() -> None:
    for config, seed in (({"run": {"seed": 7}}, 7), ({"run": 3}, None), (None, None)):
        assert compared("a", [iteration(1)], config=config).seed == seed


# The report


def run(
    name: str, seed: int, *, gain: float = 0.0, count: int = 12, config: dict[str, Any] | None = None, **changes: Any
) -> ComparedRun:
    rng, base = random.Random(f"{name} {seed}"), 0.1 * seed
    scores = [base + gain + rng.gauss(0, 0.01) for _ in range(count)]
    ends = [ended(iteration=count)] if count == 12 else []
    events = [started(seed=seed), *steps(scores, [0.5 * n for n in range(1, count + 1)]), *ends]
    whole = Config.model_validate({"run": {"seed": seed}, **(config or {})}).model_dump()
    return compared(f"{name}-{seed}", events, config=whole, **changes)


def group(place: int, name: str, seeds: range = range(3), **changes: Any) -> RunGroup:
    return RunGroup(LETTERS[place], name, [run(name, seed, **changes) for seed in seeds])


def report(groups: list[RunGroup], width: int = 80) -> list[str]:
    return [plain(line).rstrip() for line in report_lines(groups, width)]


def cautions_of(*groups: RunGroup) -> list[str]:
    return all_cautions(groups, compared_settings(groups))


def hostile() -> list[RunGroup]:
    return [
        RunGroup(
            LETTERS[place],
            f"{place}{HOSTILE}",
            [
                compared(HOSTILE.replace("/", ""), hostile_events(), config={HOSTILE: place + n}, problems=[HOSTILE])
                for n in range(2)
            ],
        )
        for place in range(3)
    ]


PAIR = [group(0, "a"), group(1, "b", gain=0.2)]
GROUPS = {
    "two": PAIR,
    "many": [group(place, f"method-{place}", range(place + 1)) for place in range(6)],
    "hostile": hostile(),
    "empty": [
        RunGroup("A", "a", [compared("x", [], config=None), compared("z", [])]),
        RunGroup("B", "b", [compared("y", [started()])]),
    ],
}


@pytest.mark.parametrize(("groups", "width"), [*itertools.product(GROUPS, (60, 80, 120))])
def test_every_line_fits_the_width_and_is_safe_to_print(groups: str, width: int) -> None:
    for line in report(GROUPS[groups], width):
        assert cell_len(line) <= width, line
        assert line.isprintable(), line


def test_groups_have_the_report_of_runs_with_their_seeds_intervals_and_differences() -> None:
    lines = report(PAIR)
    titles = [line.partition("  ")[0].rstrip(" ─") for line in lines if line.endswith("──") and line[0] != " "]
    assert titles == [
        "groups",
        "numbers",
        "differences",
        "score against KL",
        "curves",
        "settings",
        "the same prompts",
    ]
    assert [line.split() for line in lines[1:3]] == [
        [letter, name, "3", "runs,", "seeds", "0-2", "done", "12/12", "13m", "12s", "starter"]
        for letter, name in (("A", "a"), ("B", "b"))
    ]
    (at,) = [place for place, line in enumerate(lines) if line.split()[:1] == ["score"] and len(line.split()) == 3]
    assert lines[at + 1].split()[:2] == ["95%", "interval"]
    assert lines[at + 1].count(" to ") == 2


def sentence_of(low: float, high: float, pairs: int = 5, **changes: Any) -> str:
    groups = RunGroup("A", "a", []), RunGroup("B", "b", [])
    return sentence(measured(**changes), *groups, Contrast(Interval((low + high) / 2, low, high), pairs, 5, 4))


def test_a_difference_is_claimed_only_by_an_interval_without_0() -> None:
    assert sentence_of(0.03, 0.21, label="score") == "b - a, score: +0.120 (+0.030 to +0.210, 5 pairs)"
    assert sentence_of(1.0, 2.0, label="KL", unit="nats") == "b - a, KL: +1.500 nats (+1.000 to +2.000, 5 pairs)"
    assert sentence_of(-0.1, 0.25, 3) == "b - a, x: unclear, -0.100 to +0.250 (3 pairs)"
    assert sentence_of(0.1, 0.3, 0).endswith("(+0.100 to +0.300, 4 and 5 unpaired runs)")
    for low, high in ((0.0, 0.5), (-0.5, 0.0), (-1e-9, 4.0)):
        assert "unclear" in sentence_of(low, high)
    assert "(+3.0e-05 to +0.201, 5 pairs)" in sentence_of(0.00003, 0.201), "an end that is not 0 is not shown as 0"


def test_a_measure_that_runs_of_a_group_do_not_have_is_reported_as_missing() -> None:
    late = [
        compared(f"b-{n}", [started(seed=n), *(iteration(i, kl=9.0) for i in range(1, 13)), ended()]) for n in range(3)
    ]
    lines = report([PAIR[0], RunGroup("B", "b", late)])
    (row,) = [line for line in lines if line.startswith("  score within 2 nats")]
    assert row.split()[-1] == "-"
    assert " b - a, score within 2 nats: not measured in any run of b" in lines
    partly = RunGroup("B", "b", [*PAIR[1].runs[:2], run("b", 2, count=3)])
    assert ["runs", "3", "of", "3", "2", "of", "3"] in [line.split() for line in report([PAIR[0], partly])]
    short = RunGroup("B", "b", [run("b", n, count=3) for n in range(3)])
    unknown = Contrast(Interval(NAN, NAN, NAN), 0, 3, 0)
    assert sentence(MEASURE, PAIR[0], short, unknown) == "b - a, x: not enough iterations to compare (5 needed)"


@pytest.mark.parametrize(
    ("seeds", "caution"),
    [
        (range(3), []),
        (range(1, 4), ["a and b share 2 seeds: the differences use these 2 pairs alone"]),
        (range(2, 5), ["a and b share 1 seed: the differences are unpaired"]),
        (range(1), []),
    ],
)
def test_groups_that_do_not_share_all_seeds_cause_a_caution(seeds: range, caution: list[str]) -> None:
    assert cautions_of(group(0, "a"), group(1, "b", seeds)) == caution


def test_seeds_are_counted_as_ranges_and_so_are_the_comparisons() -> None:
    runs = [run("a", seed) for seed in (7, 0, 1, 2)]
    lines = report([RunGroup("A", "a", [*runs, compared("x", [], config=None)]), group(1, "b", range(2))], 100)
    assert "seeds 0-2 7 unknown" in lines[1]
    assert "seeds 0 1 " in lines[2]
    assert "8 measures in 16 comparisons" in " ".join(report([*PAIR, group(2, "c")]))
    assert " b - a: no interval, which takes two runs of each" in report([group(0, "a"), group(1, "b", range(1))])


def test_a_setting_that_each_seed_has_its_own_value_of_differs_within_but_not_between_groups() -> None:
    def with_prompts(place: int, name: str) -> RunGroup:
        runs = [run(name, n, config={"data": {"prompts": f"prompts-{n}.jsonl"}}) for n in range(2)]
        return RunGroup(LETTERS[place], name, runs[:: 1 - 2 * place])

    groups = [with_prompts(0, "a"), with_prompts(1, "b")]
    found = compared_settings(groups)
    assert found.between == []
    assert found.within == {"A": ["data.prompts"], "B": ["data.prompts"]}
    assert cautions_of(*groups)[0] == "the runs of a differ in more than their seed (data.prompts)"
    assert "No shared setting differs" in report(groups)
    found = compared_settings([group(0, "a"), group(1, "b", range(3, 6), config={"ppo": {"epochs": 7}})])
    assert [(one.key, one.values) for one in found.between] == [("ppo.epochs", {"A": Config().ppo.epochs, "B": 7})]
    assert found.within == {}, "seeds do not count"


def test_what_makes_numbers_of_groups_not_comparable_is_a_caution() -> None:
    assert cautions_of(group(0, "a"), group(1, "b", config={"reward": {"clip": 2.0}})) == [
        "different rewards: the scores are not comparable (reward.clip)"
    ]
    gpu = compared("b", [started(device="Device(gpu, 0)"), *(iteration(n) for n in range(1, 13)), ended()])
    assert cautions_of(group(0, "a"), RunGroup("B", "b", [gpu])) == [
        "different devices: the times are not comparable (Device(cpu, 0), Device(gpu, 0))"
    ]
    short = RunGroup("B", "b", [run("b", 0), run("b", 1, count=7, problems=["a line is cut"])])
    assert cautions_of(group(0, "a", range(2)), short) == [
        "the runs have 7 to 12 iterations: the best of a longer run is higher by chance alone",
        "b-1 of b is not done: interrupted at iteration 7 of 12",
        "b-1 of b is damaged: it counts as far as it can be read",
    ]
    assert "1 done, 1 interrupted, 1 damaged" in " ".join(report([group(0, "a"), short])[2:4]).replace("  ", " ")


def test_the_values_are_those_of_the_lines() -> None:
    values = plain_values(PAIR)
    (score,) = [one for one in values["differences"] if one["key"] == "score"]
    assert score["difference"] == pytest.approx(values["numbers"]["score"]["B"] - values["numbers"]["score"]["A"])
    assert len(values["numbers"]["score_interval"]["A"]) == 2
    assert (score["pairs"], score["excludes_zero"]) == (3, True)
    assert f" {score['sentence']}" in report(PAIR, 200)
    assert [one["letter"] for one in values["runs"]] == ["A1", "A2", "A3", "B1", "B2", "B3"]
