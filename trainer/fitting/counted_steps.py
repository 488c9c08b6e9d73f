"""Steps of a run: how many there are, which groups each one takes, and how many in a row were skipped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import numpy as np

from trainer.config.dpo import DPOTrainConfig
from trainer.config.reward_model import RewardTrainConfig
from trainer.errors import DivergedError
from trainer.events import Alert, Event
from trainer.seeding import Purpose

MAX_SKIPPED_IN_A_ROW = 3

Item = TypeVar("Item")
TrainConfig = RewardTrainConfig | DPOTrainConfig


class SkippedSteps:
    """Counter of steps that were skipped in a row because loss or gradient was NaN or inf.

    unit: what the run counts. hint: ends the alert. remedy: returns the advice in the error, when it is raised.
    """

    def __init__(self, unit: Literal["iteration", "step"], remedy: Callable[[], str], *, hint: str = "") -> None:
        self.in_a_row = 0
        self._unit = unit
        self._remedy = remedy
        self._hint = hint

    def after(self, number: int, *, skipped: bool, emit: Callable[[Event], None]) -> None:
        """Report a step of `number` if it was skipped. Raises DivergedError at the third in a row."""
        if not skipped:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        message = f"loss or gradient was NaN or inf: the step was skipped{self._hint}"
        emit(Alert(iteration=number, level="warning", code="step_skipped", message=message))
        if self.in_a_row == MAX_SKIPPED_IN_A_ROW:
            raise DivergedError(
                f"loss or gradient was NaN or inf {MAX_SKIPPED_IN_A_ROW} times in a row at {self._unit} {number}: "
                f"{self._remedy()}"
            )


def steps_in(groups: int, config: TrainConfig) -> int:
    """Return the number of optimiser steps of the whole run over `groups` groups."""
    return config.epochs * math.ceil(groups / config.batch_size)


def step_groups(groups: Sequence[Item], number: int, config: TrainConfig, seed: int) -> list[Item]:
    """Return the groups of step `number`, counted from 1.

    Each epoch visits all groups in its own order, which depends on `seed` and the epoch alone.
    """
    epoch, step = divmod(number - 1, math.ceil(len(groups) / config.batch_size))
    order = np.random.default_rng([seed, Purpose.MINIBATCHES, epoch]).permutation(len(groups))
    return [groups[place] for place in order[step * config.batch_size : (step + 1) * config.batch_size]]
