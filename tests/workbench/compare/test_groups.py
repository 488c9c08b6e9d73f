"""Groups of runs over seeds: means, differences and their intervals against numbers computed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from compared_runs import compared
from scripted_run import ended, iteration, started

from trainer.confidence import t_quantile
from workbench.compare.compared_run import ComparedRun
from workbench.compare.groups import (
    LEVELS,
    MEASURES,
    Group,
    Value,
    best_within,
    contrast,
    group_mean,
    seed_of,
    values_of,
    welch_interval,
)
from workbench.run.history import History

NAN = math.nan
OF = {measure.key: measure.of for measure in MEASURES}
BY_KEY = {measure.key: measure for measure in MEASURES}


def history(scores: Sequence[float], kls: Sequence[float], **changes: Sequence[float]) -> History:
    found = History()
    for place, (score, kl) in enumerate(zip(scores, kls, strict=True)):
        more = {name: values[place] for name, values in changes.items()}
        found.append(iteration(place + 1, score_mean=score, kl=kl, **more))
    return found


def run(scores: Sequence[float], seed: int = 0, place: int = 0) -> ComparedRun:
    steps = (iteration(number, score_mean=score, kl=1.0) for number, score in enumerate(scores, 1))
    return compared(f"r{seed}", [started(seed=seed), *steps, ended(iteration=len(scores))], place=place)


def values(*numbers: float, first: int = 0) -> list[Value]:
    return [Value(seed, number) for seed, number in enumerate(numbers, first)]


@pytest.mark.parametrize("seed", range(4))
def test_the_best_score_within_a_kl_is_that_of_all_stretches_of_five(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, kls = rng.normal(size=23), rng.uniform(0, 20, size=23).cumsum() / 12
    found = history(scores.tolist(), kls.tolist())
    for level in LEVELS:
        slow = [scores[at : at + 5].mean() for at in range(19) if kls[at : at + 5].mean() <= level]
        assert best_within(found, level) == pytest.approx(max(slow, default=NAN), nan_ok=True)


def test_a_stretch_counts_by_its_mean_kl_and_at_the_level_itself() -> None:
    found = history([1, 2, 3, 4, 5], [0, 0, 0, 0, 10])
    assert best_within(found, 2) == 3
    assert math.isnan(best_within(found, 1.99))


@pytest.mark.parametrize("scores", [[1.0] * 4, [1.0, NAN, 1.0, 1.0, 1.0]])
def test_fewer_than_five_known_iterations_reach_no_level(scores: list[float]) -> None:
    assert math.isnan(best_within(history(scores, [0.5] * len(scores)), 16))


def test_the_other_measures_are_means_of_the_last_five_the_second_half_and_all() -> None:
    found = history(
        range(12),
        [2.0 * n for n in range(12)],
        explained_variance=[n / 10 for n in range(12)],
        seconds=[{"update": 3.0}, {"update": 4.0}] * 6,
    )
    assert OF["score"](found) == 9
    assert OF["kl"](found) == 18
    assert OF["explained_variance"](found) == pytest.approx(0.85)
    assert OF["seconds_an_iteration"](found) == 3.5


def test_what_a_run_has_not_reached_is_unknown() -> None:
    short = history([1.0] * 4, [1.0] * 4, explained_variance=[NAN] * 4)
    assert all(math.isnan(OF[key](short)) for key in OF if key != "seconds_an_iteration")
    assert all(math.isnan(of(History())) for of in OF.values())


def test_the_mean_of_a_group_leaves_out_runs_without_the_measure() -> None:
    found = group_mean(BY_KEY["score"], [*values(1.0, 2.0, 4.5), Value(7, NAN)])
    margin = 4.302653 * math.sqrt(3.25 / 3)  # t of 2 degrees of freedom; deviations -1.5, -0.5 and 2
    assert found == pytest.approx((2.5, 2.5 - margin, 2.5 + margin), abs=1e-5)


def test_one_run_has_a_mean_without_an_interval() -> None:
    assert group_mean(BY_KEY["score"], values(0.25)) == pytest.approx((0.25, NAN, NAN), nan_ok=True)


@pytest.mark.parametrize(
    ("key", "numbers", "ends"),
    [
        ("explained_variance", (0.2, 0.9), (0.55 - 12.7062 * 0.35, 1.0)),
        ("seconds_an_iteration", (10.0, 40.0), (0.0, 25 + 12.7062 * 15)),
        ("kl", (1.0, 9.0), (0.0, 5 + 12.7062 * 4)),
        ("kl", (-0.2, 0.0), (-0.1, -0.1 + 12.7062 * 0.1)),  # an estimate can be below 0
        ("score", (-0.9, 0.9), (-12.7062 * 0.9, 12.7062 * 0.9)),
    ],
)
def test_an_interval_holds_only_values_that_the_measure_can_have(
    key: str, numbers: tuple[float, float], ends: tuple[float, float]
) -> None:
    assert group_mean(BY_KEY[key], values(*numbers))[1:] == pytest.approx(ends, abs=1e-3)


def test_seeds_of_both_groups_are_paired_whatever_their_order() -> None:
    first = [Value(0, 1.0), Value(1, 5.0), Value(2, 9.0), Value(3, 100.0)]
    other = [Value(2, 9.3), Value(1, 5.2), Value(0, 1.1), Value(9, -50.0)]
    found = contrast(first, other)
    margin = 4.302653 * 0.1 / math.sqrt(3)  # differences 0.1, 0.2 and 0.3
    assert found.difference == pytest.approx((0.2, 0.2 - margin, 0.2 + margin), abs=1e-5)
    assert (found.pairs, found.first, found.other) == (3, 3, 3)
    assert found.is_told is False  # -0.05 to 0.45


def test_pairs_tell_what_unpaired_runs_hide() -> None:
    scores = (1.0, 5.0, 9.0, 3.0)
    more = [score + 0.5 + 0.01 * place for place, score in enumerate(scores)]
    assert contrast(values(*scores), values(*more)).is_told is True
    assert contrast(values(*scores), values(*more, first=10)).is_told is False


def test_a_seed_whose_run_has_not_reached_the_measure_is_no_pair() -> None:
    found = contrast(values(1.0, 2.0, NAN), values(1.5, 2.6, 9.0))
    assert (found.pairs, found.difference.value) == (2, pytest.approx(0.55))


@pytest.mark.parametrize("other", [values(2.0, 2.5, 4.0, first=10), [Value(None, x) for x in (2.0, 2.5, 4.0)]])
def test_without_two_seeds_in_common_the_interval_is_welchs(other: list[Value]) -> None:
    found = contrast(values(1.0, 2.0), other)
    # Variances 0.5 and 13/12, so parts 0.25 and 13/36; df = (11/18)^2 / (0.25^2 / 1 + (13/36)^2 / 2) = 2.92
    margin = 4.302653 * math.sqrt(11 / 18)
    assert found.difference == pytest.approx((4 / 3, 4 / 3 - margin, 4 / 3 + margin), abs=1e-5)
    assert (found.pairs, found.first, found.other) == (0, 2, 3)


def test_welchs_interval_of_equal_groups_is_students() -> None:
    first, other = np.array([0.0, 1.0, 2.0, 3.0]), np.array([5.0, 6.0, 7.0, 8.0])
    margin = t_quantile(6) * math.sqrt(2 * first.var(ddof=1) / 4)
    assert welch_interval(first, other) == pytest.approx((5.0, 5.0 - margin, 5.0 + margin))
    tiny = welch_interval(1e-160 * first, 1e-160 * other)
    assert tiny.low == pytest.approx(1e-160 * (5.0 - margin))


def test_groups_that_do_not_vary_have_an_interval_of_no_width() -> None:
    assert contrast(values(1.0, 1.0), values(2.0, 2.0, first=5)).difference == (1.0, 1.0, 1.0)


def test_one_run_in_a_group_tells_nothing() -> None:
    for other in (values(1.5), values(1.5, first=5)):
        found = contrast(values(1.0, 2.0), other)
        assert found.difference.value == 0.0
        assert (found.is_told, found.pairs, found.first, found.other) == (None, 0, 2, 1)
    assert contrast(values(1.0, 2.0), values(NAN, NAN)).is_told is None


@pytest.mark.parametrize(("low", "told"), [(0.0, False), (1e-12, True), (-0.1, False)])
def test_an_interval_that_contains_0_tells_nothing(low: float, told: bool) -> None:
    found = contrast(values(0.0, 0.0), values(1.0, 1.0))
    assert found._replace(difference=found.difference._replace(low=low)).is_told is told
    mirrored = found.difference._replace(value=-1.0, low=-2.0, high=-low)
    assert found._replace(difference=mirrored).is_told is told


def test_numbers_at_the_end_of_the_floats_give_no_interval_and_no_error() -> None:
    huge = values(1e308, -1e308, 1e308)
    assert contrast(huge, values(-1e308, 1e308, 0.0)).is_told is not True
    assert contrast(huge, values(0.0, 1.0, first=9)).is_told is not True
    assert not math.isfinite(group_mean(BY_KEY["score"], huge).high)


def test_the_values_of_a_group_have_the_seeds_of_its_runs() -> None:
    group = Group("A", "a", [run([0.5] * 5, seed=3), run([0.25] * 3, seed=1)])
    assert group.seeds == [1, 3]
    (score,) = [measure for measure in MEASURES if measure.key == "score"]
    whole, short = values_of(score, group)
    assert (whole, short.seed) == (Value(3, 0.5), 1)
    assert math.isnan(short.number)


def test_the_seed_of_a_run_without_its_start_is_that_of_its_configuration() -> None:
    assert seed_of(compared("a", [iteration(1)], config={"run": {"seed": 7}})) == 7
    assert seed_of(compared("a", [iteration(1)], config={"run": 3})) is None
    assert seed_of(compared("a", [iteration(1)], config=None)) is None
