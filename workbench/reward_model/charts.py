"""The four charts of a reward model: all if there is room, else one at a time."""

from __future__ import annotations

import math

from textual.app import ComposeResult
from textual.containers import Container

from trainer.reward_model.predictions import Predictions
from workbench.kit.drawing import Drawn
from workbench.kit.whole import MountedWhole
from workbench.reward_model.accuracy import RewardAccuracy
from workbench.reward_model.calibration import RewardCalibration
from workbench.reward_model.course import Course
from workbench.reward_model.curve import RewardCurve
from workbench.reward_model.histogram import RewardHistogram
from workbench.reward_model.measures import Measured

_ALL = (96, 30)  # columns and lines of the smallest pane that shows all
_CHARTS = (RewardAccuracy, RewardCurve, RewardCalibration, RewardHistogram)


class RewardCharts(MountedWhole, Container):
    """Container with accuracy, curve, calibration and rewards, in that order."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._at = 0  # index of the chart that is shown alone
        self.all_shown = False

    def compose(self) -> ComposeResult:
        for chart in _CHARTS:
            yield chart()

    def on_mount(self) -> None:
        self._display()

    def show(self, course: Course, measured: Measured | None, predictions: Predictions | None) -> None:
        """Draw a run from now on."""
        self.query_one(RewardAccuracy).show(measured)
        self.query_one(RewardCurve).show(course)
        bins, error = (measured.calibration, measured.calibration_error) if measured else ([], math.nan)
        self.query_one(RewardCalibration).show(bins, error)
        rewards = (predictions.chosen, predictions.rejected) if predictions else ((), ())
        self.query_one(RewardHistogram).show(*rewards)

    def fit_into(self, width: int, height: int) -> None:
        """Set the height for a pane of this size, leaving enough room for the pairs below."""
        self.all_shown = width >= _ALL[0] and height >= _ALL[1]
        self.set_class(self.all_shown, "-all")
        self.styles.height = 2 * min(max(height // 4, 8), 14) if self.all_shown else min(max(height // 3, 5), 10)
        self._display()

    def next(self) -> None:
        """Show the next chart if only one is shown."""
        self._at = (self._at + 1) % len(_CHARTS)
        self._display()

    def _display(self) -> None:
        for place, chart in enumerate(self.query(Drawn)):
            chart.display = self.all_shown or place == self._at
