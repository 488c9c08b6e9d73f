"""The question before the first fix of the newest alarm is applied."""

from __future__ import annotations

from typing import ClassVar

from trainer.events import Alarm, Fix
from workbench.kit.confirm import ConfirmScreen
from workbench.run.alarms import title


class FixScreen(ConfirmScreen):
    """Asks whether `fix` is to be applied. Enter says yes: who pressed the key for fixes means it."""

    FOCUSED: ClassVar[str] = "#yes"

    def __init__(self, alarm: Alarm, fix: Fix) -> None:
        question = f"{fix.label[:1].upper()}{fix.label[1:]}?"
        super().__init__(question, f"{title(alarm)}: {alarm.message}", yes="Do it", no="Leave it")
