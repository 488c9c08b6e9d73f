"""The enlarged chart of one metric."""

from __future__ import annotations

from typing import ClassVar

from workbench.kit.drawing import ROLES, Drawn, Line, component_classes
from workbench.training.braille_chart import Picture, braille_chart


class MetricChart(Drawn, can_focus=True):
    """Widget that draws a picture. The pane handles the keys that move through it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = component_classes(*ROLES)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._picture: Picture | None = None

    def show(self, picture: Picture) -> None:
        """Draw `picture` from now on."""
        self._picture = picture
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        return braille_chart(self._picture, width, height) if self._picture else []
