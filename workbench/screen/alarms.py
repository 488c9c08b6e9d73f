"""What the keys for alarms do: open, fix and dismiss them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.errors import TrainerError
from trainer.events import Alarm, Fix
from workbench.run.wording import title, urgent_first
from workbench.training.alarms import AlarmScreen, Answer, FixScreen

if TYPE_CHECKING:
    from workbench.screen.main import MainScreen


class Alarms:
    """Controller of the alarms on `screen`: shows them, and hands their fixes to the run's trainer."""

    def __init__(self, screen: MainScreen) -> None:
        self._screen = screen
        self._supervisor = screen.supervisor

    def allows(self, action: str) -> bool:
        """Return whether the key for `open_alarm` or `fix_alarm` applies now."""
        alarms = self._supervisor.view.alarms
        return bool(alarms) and (action == "open_alarm" or bool(self._supervisor.fixes(urgent_first(alarms)[0])))

    def open(self) -> None:
        """Show the active alarms, the most severe one first."""

        def answered(answer: Answer | None) -> None:
            if answer is None:
                return
            if answer.fix is None:
                self._supervisor.view.put_away(answer.alarm)
                self._screen.show_run()
            else:
                self._apply(answer.alarm, answer.fix)

        alarms = urgent_first(self._supervisor.view.alarms)
        self._screen.app.push_screen(AlarmScreen(alarms, self._supervisor.fixes), answered)

    def fix(self) -> None:
        """Apply the likeliest fix of the most severe alarm, once the user agrees."""
        alarm = urgent_first(self._supervisor.view.alarms)[0]
        fix = self._supervisor.fixes(alarm)[0]
        self._screen.app.push_screen(FixScreen(alarm, fix), lambda agreed: self._apply(alarm, fix) if agreed else None)

    def _apply(self, alarm: Alarm, fix: Fix) -> None:
        """Hand the fix to the trainer, unless it no longer applies to the run."""
        screen, name = self._screen, title(alarm)
        if fix not in self._supervisor.fixes(alarm):
            screen.say(f"{name} is no longer active, or its run has ended: nothing was changed", about="steer")
            return
        try:
            self._supervisor.apply(fix, name)
        except TrainerError as error:
            screen.say(str(error), about="steer")
        else:
            screen.settle("steer")
            screen.notify(f"Requested: {fix.label}", title=name, markup=False)
        screen.show_run()
