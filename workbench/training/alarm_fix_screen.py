"""Confirmation before the first fix of the most severe alarm is applied."""

from __future__ import annotations

from typing import ClassVar

from trainer.events import Alarm, Fix
from workbench.kit.confirm import ConfirmScreen
from workbench.run.alarms import title


class FixScreen(ConfirmScreen):
    """Dialog that asks whether to apply `fix`. Yes has the focus: the user has just pressed the key for fixes."""

    FOCUSED: ClassVar[str] = "#yes"

    def __init__(self, alarm: Alarm, fix: Fix) -> None:
        question = f"{fix.label[:1].upper()}{fix.label[1:]}?"
        super().__init__(question, f"{title(alarm)}: {alarm.message}", yes="Do it", no="Leave it")
