"""Code shared by PPO, reward models and DPO: schedules, gradients over micro-batches, skipped steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from trainer.config.pairs import PairsOptimConfig
from trainer.config.schema import OptimConfig
from trainer.errors import DivergedError
from trainer.events import Alert, Event
from trainer.fitting.optimisation import SkippedSteps, StepOptimizer, accumulate, global_norm, schedule_factor


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25, 0]),
        ("cosine", [0.25, 0.5, 0.75, 1, 1, 0.853553, 0.5, 0.146447, 0]),
    ],
)
def test_learning_rates_rise_over_the_warm_up_and_then_follow_their_schedule(schedule: Any, expected: Any) -> None:
    config = OptimConfig(schedule=schedule)
    assert [schedule_factor(config, step, 8, warmup=4) for step in range(9)] == pytest.approx(expected, abs=1e-6)
    assert schedule_factor(config, 100, 8, warmup=4) == pytest.approx(expected[-1], abs=1e-6)  # an extended run


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_warm_up_of_a_run_of_steps_is_a_share_of_them(schedule: Any) -> None:
    config = PairsOptimConfig(lr=1.0, warmup=0.2, schedule=schedule)
    optimizer = StepOptimizer(config, {"a": mx.zeros(2)}, total_steps=20)
    rates = [optimizer.learning_rate(number) for number in range(1, 21)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1, 1]
    expected = {"constant": 1, "linear": 1 - 8 / 16, "cosine": 0.5}[schedule]
    assert rates[12] == pytest.approx(expected)


def test_the_norm_of_a_gradient_is_the_same_in_any_order_of_its_arrays() -> None:
    rng = np.random.default_rng(0)
    arrays = {str(number): mx.array(rng.normal(0, 10.0 ** (number % 9 - 4), 50), mx.float32) for number in range(60)}
    expected = math.sqrt(sum((np.array(array, np.float64) ** 2).sum() for array in arrays.values()))
    assert global_norm(arrays) == pytest.approx(expected, rel=1e-6)
    for _ in range(20):
        order = rng.permutation(60)
        assert global_norm({str(place): arrays[str(place)] for place in order}) == global_norm(arrays)
    assert global_norm({"a": mx.array([3.0]), "b": {"c": mx.array([[4.0]], mx.bfloat16)}}) == 5.0
    assert math.isnan(global_norm(arrays | {"bad": mx.array([math.nan, 1.0])}))
    assert global_norm(arrays | {"bad": mx.array([-math.inf, 1.0])}) == math.inf
    assert global_norm({}) == 0.0


class Sums(NamedTuple):
    loss: mx.array
    rows: mx.array


class Weights:
    """Model of one array."""

    def __init__(self) -> None:
        self.array = self.real = mx.array([1.0, 2.0])

    def put(self, parameters: dict[str, mx.array]) -> None:
        self.array = parameters["a"]

    def loss(self, part: mx.array) -> tuple[mx.array, Sums]:
        loss = (self.array * part).sum() / 3
        return loss, Sums(loss, mx.array(1.0))


def test_gradients_and_sums_add_up_and_the_real_arrays_are_there_before_each_part() -> None:
    weights = Weights()

    def parts() -> Iterator[mx.array]:
        for factor in (1.0, 2.0, 4.0):
            yield mx.array([factor, 0.5 * factor])
            assert weights.array is weights.real

    gradients, found = accumulate(weights.loss, {"a": weights.real}, parts(), put=weights.put, backbone=nn.Identity())
    assert weights.array is weights.real
    assert gradients["a"].tolist() == pytest.approx([7 / 3, 3.5 / 3])
    assert (found.loss.item(), found.rows.item()) == (pytest.approx(14 / 3), 3)


def test_only_the_sum_of_the_gradients_is_held_while_the_next_parts_are_computed() -> None:
    weights, held = Weights(), list[int]()
    weights.array = weights.real = mx.ones((250_000,))
    mx.eval(weights.real)
    before = mx.get_active_memory()

    def parts() -> Iterator[mx.array]:
        for _ in range(6):
            held.append(mx.get_active_memory() - before)
            yield mx.array([1.0])

    def loss(part: mx.array) -> tuple[mx.array, Sums]:
        return weights.loss(weights.array * part)  # whose gradient is not a view of a part

    accumulate(loss, {"a": weights.real}, parts(), put=weights.put, backbone=nn.Identity())
    assert held[0] < 10_000
    assert all(1_000_000 <= size < 1_010_000 for size in held[1:]), held


def test_the_backbone_is_in_training_mode_for_gradients_alone_and_its_dropout_stays_off() -> None:
    """Otherwise the hybrid models of mlx-lm choose a Metal kernel that has no gradient."""
    backbone = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    backbone.eval()
    weights, modes = Weights(), []

    def loss(part: mx.array) -> tuple[mx.array, Sums]:
        modes.append((backbone.training, backbone.layers[0].training, backbone.layers[1].training))
        return weights.loss(part)

    accumulate(loss, {"a": weights.real}, [mx.array([1.0, 1.0])], put=weights.put, backbone=backbone)
    assert modes == [(True, True, False)]
    assert not any(module.training for module in backbone.modules())


def test_the_real_arrays_are_there_after_an_error_of_a_loss_and_of_the_parts() -> None:
    weights = Weights()

    def broken_parts() -> Iterator[mx.array]:
        yield mx.array([1.0, 1.0])
        raise KeyError

    def broken_loss(part: mx.array) -> tuple[mx.array, Sums]:
        weights.loss(part)
        raise KeyError

    for loss, parts in ((weights.loss, broken_parts()), (broken_loss, iter([mx.array([1.0, 1.0])]))):
        with pytest.raises(KeyError):
            accumulate(loss, {"a": weights.real}, parts, put=weights.put, backbone=nn.Identity())
        assert weights.array is weights.real


def test_the_third_skipped_step_in_a_row_ends_the_run_after_its_alert() -> None:
    events: list[Event] = []
    skipped = SkippedSteps("step", lambda: "lower optim.lr (0.1)", hint="; so it is")
    for number, is_skipped in enumerate([True, True, False, True, True], 1):
        skipped.after(number, skipped=is_skipped, report=events.append)
    with pytest.raises(DivergedError) as error:
        skipped.after(6, skipped=True, report=events.append)
    assert str(error.value) == "loss or gradient was NaN or inf 3 times in a row at step 6: lower optim.lr (0.1)"
    alerts = [event for event in events if isinstance(event, Alert)]
    assert [alert.iteration for alert in alerts] == [1, 2, 4, 5, 6]
    assert alerts[0].message == "loss or gradient was NaN or inf: the step was skipped; so it is"
