"""Columns of metrics: what goes in comes out, and a chart's buckets are exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_kinds_helper import dpo_evaluation, dpo_step, other_run, reward_evaluation, reward_step
from scripted_run import evaluation, iteration, started

from trainer.events import CheckpointSaved, Iteration
from workbench.run.history import Bucket, MetricHistory
from workbench.run.view import RunView

ODD = (math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 0.1, 0.1)


@st.composite
def columns(draw: st.DrawFn) -> list[float]:
    """Draw up to a few thousand values, some of them odd, in stretches of some length."""
    random = Random(draw(st.integers(0, 10**6)))
    size, share, run = draw(st.integers(0, 3000)), draw(st.sampled_from([0, 0.02, 0.5, 1])), draw(st.integers(1, 90))
    values: list[float] = []
    while len(values) < size:
        odd = random.random() < share
        values += [random.choice(ODD)] * run if odd else [random.gauss(0, 3) for _ in range(run)]
    return values[:size]


def history_of(kl: Sequence[float], first: int = 1) -> MetricHistory:
    history = MetricHistory()
    for number, value in enumerate(kl, first):
        history.append(iteration(number, kl=value))
    return history


def slow_bucket(kl: Sequence[float], first: int, end: int) -> Bucket:
    """Compute a bucket by its definition."""
    finite = [value for value in kl[first:end] if math.isfinite(value)]
    missing = end - first - len(finite)
    if not finite:
        return Bucket(math.nan, math.nan, math.nan, math.nan, first, end - 1, missing)
    mean = math.fsum(value / len(finite) for value in finite)  # divided first: the sum may be beyond all floats
    return Bucket(min(finite), max(finite), mean, finite[-1], first, end - 1, missing)


def assert_same(bucket: Bucket, wanted: Bucket) -> None:
    exact = ("low", "high", "last", "first_index", "last_index", "missing")
    for name in exact:
        assert getattr(bucket, name) == pytest.approx(getattr(wanted, name), rel=0, abs=0, nan_ok=True), name
    if math.isnan(wanted.mean):
        assert math.isnan(bucket.mean)
        return
    assert wanted.low <= bucket.mean <= wanted.high
    size = max(abs(wanted.low), abs(wanted.high))
    if size < 1e300:
        assert bucket.mean == pytest.approx(wanted.mean, abs=1e-12 * size + 1e-300)


@settings(deadline=None)
@given(columns(), st.integers(1, 40), st.data())
def test_buckets_are_what_the_definition_says_for_any_stretch_and_width(
    kl: list[float], width: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(kl)))
    stop = data.draw(st.integers(start, len(kl)))
    buckets = history_of(kl).buckets("kl", width, start, stop)
    assert len(buckets) == min(width, stop - start)
    end = start
    for bucket in buckets:
        assert bucket.first_index == end
        end = bucket.last_index + 1
        assert_same(bucket, slow_bucket(kl, bucket.first_index, end))
    assert end == (stop if buckets else start)
    sizes = {bucket.last_index - bucket.first_index for bucket in buckets}
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["append", "prepend", "cut", "look"]), st.integers(1, 90)), max_size=25))
def test_buckets_stay_right_while_the_history_grows_at_both_ends_and_is_cut(steps: list[tuple[str, int]]) -> None:
    history, numbers, kl = history_of([0.5], first=10_000), [10_000], [0.5]
    for count, (step, size) in enumerate(steps):
        new_kl = [math.sin(100 * count + i) for i in range(size)]
        if step == "append":
            first = numbers[-1] + 1 if numbers else 10_000
            numbers += range(first, first + size)
            kl += new_kl
            for i, value in enumerate(new_kl):
                history.append(iteration(first + i, kl=value))
        elif step == "prepend" and numbers:
            first = numbers[0] - size
            numbers[:0] = range(first, first + size)
            kl[:0] = new_kl
            history.prepend(history_of(new_kl, first))
        elif step == "cut" and numbers:
            history.cut(numbers[-1] - size)
            del numbers[-size:], kl[-size:]
        assert list(history.numbers) == numbers
        assert list(history.column("kl")) == kl
        if step == "look":
            for bucket in history.buckets("kl", 7):
                assert_same(bucket, slow_bucket(kl, bucket.first_index, bucket.last_index + 1))


def test_the_seconds_of_an_iteration_include_its_evaluation_and_its_checkpoints() -> None:
    view = RunView()
    view.take(started())
    for number in (1, 2):
        view.take(iteration(number, seconds={"generate": 6.0, "score": 5.0, "update": 11.5}))
        view.take(CheckpointSaved(iteration=number, path="x", seconds=0.25))
    view.take(CheckpointSaved(iteration=2, path="x", seconds=0.5))
    view.take(evaluation(2, seconds=4.0))
    view.take(CheckpointSaved(iteration=9, path="of an iteration that is not there", seconds=1.0))
    assert view.history.seconds_at(0) == {"generate": 6.0, "score": 5.0, "update": 11.5, "save": 0.25}
    assert view.history.seconds_at(1) == {
        "generate": 6.0,
        "score": 5.0,
        "update": 11.5,
        "evaluate": 4.0,
        "save": 0.75,
    }
    assert [view.history.column(f"seconds_{name}")[1] for name in ("total", "update")] == [22.5, 11.5]
    assert math.isnan(view.history.column("seconds_reward")[0])
    assert not {"seconds", "iteration"} & set(view.history.names)
    other = RunView()
    for event in (other_run("reward-model"), reward_step(1), reward_evaluation(1)):
        other.take(event)
    assert other.history.seconds_at(0) == {"train": 2.5, "evaluate": 4.2}


def test_an_iteration_has_the_results_of_the_newest_evaluation_by_then() -> None:
    history = MetricHistory()
    history.evaluate(evaluation(0, win_rate=0.5))
    for number in range(1, 6):
        history.append(iteration(number))
        if number == 3:
            history.evaluate(evaluation(3, win_rate=0.75, score_mean=9.0))
    assert list(history.column("eval/win_rate")) == [0.5, 0.5, 0.75, 0.75, 0.75]
    assert history.range_of("eval/win_rate") == (0.5, 0.75)
    assert history.range_of("eval/score_mean") == (0.512, 9.0)
    history.append(iteration(3))
    assert list(history.column("eval/win_rate")) == [0.5, 0.5, 0.5], "it is evaluated anew too"
    history.append(iteration(4))
    assert history.column("eval/win_rate")[-1] == 0.5
    assert history.column("score_mean")[-1] == iteration(4).score_mean


def test_a_run_of_another_kind_has_the_accuracy_on_held_out_pairs_from_the_step_of_its_evaluation() -> None:
    history = MetricHistory("dpo")
    for number in (1, 2, 3):
        history.append(dpo_step(number))
        if number == 2:
            history.evaluate(dpo_evaluation(2))
            history.evaluate(evaluation(2))  # of its scores, which has no accuracy
    assert [name for name in history.names if name.startswith("eval/")] == ["eval/accuracy"]
    assert math.isnan(history.column("eval/accuracy")[0])
    assert list(history.column("eval/accuracy")[1:]) == [dpo_evaluation(2).accuracy] * 2


def test_the_nearest_position_of_an_iteration_is_found_also_between_and_beside_those_there_are() -> None:
    history = MetricHistory()
    assert history.index_of(3) == 0
    for number in (10, 20, 24):
        history.append(iteration(number))
    assert [history.index_of(n) for n in (-5, 10, 14, 16, 20, 23, 1000)] == [0, 0, 0, 1, 1, 2, 2]


def test_calibrations_are_pooled_by_tokens_and_come_and_go_with_their_iterations() -> None:
    def with_calibration(number: int, value: float, tokens: int) -> Iteration:
        return iteration(number, calibration=[[value, 2 * value, tokens], [value + 1, 0.0, tokens]])

    history, earlier = MetricHistory(), MetricHistory()
    history.append(iteration(3))  # of an older version, or without a critic
    assert history.calibration(0, 1) == []
    history.append(with_calibration(4, 3.0, 10))
    earlier.append(with_calibration(1, 1.0, 30))
    earlier.append(iteration(2, calibration=[[math.inf, 0, 5], [1, math.nan, 5], [1, 1, -5], [1]]))
    history.prepend(earlier)
    assert history.calibration(0, 4) == [(pytest.approx(1.5), pytest.approx(3.0), 40), (pytest.approx(2.5), 0.0, 40)]
    assert history.calibration(1, 4) == [(3.0, 6.0, 10), (4.0, 0.0, 10)]
    history.cut(3)
    assert history.calibration(1, 3) == []
    assert MetricHistory("dpo").calibration(0, 1) == []
