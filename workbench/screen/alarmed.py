"""Actions of the keys for alarms: open, fix and dismiss them."""

from __future__ import annotations

from trainer.errors import TrainerError
from trainer.events import Alarm, Fix
from workbench.run.alarms import title, urgent_first
from workbench.screen.labelling import LabellingScreen
from workbench.training.alarm_fix_screen import FixScreen
from workbench.training.alarm_screen import AlarmScreen, Answer


class AlarmedScreen(LabellingScreen):
    """A screen that shows the alarms of a run and hands their fixes to its trainer."""

    def show_run(self) -> None:
        """Show the current state of the run."""
        raise NotImplementedError

    def allows_alarm(self, action: str) -> bool:
        """Return whether a key for alarms applies now."""
        alarms = self.supervisor.view.alarms
        return bool(alarms) and (action == "open_alarm" or bool(self.supervisor.fixes(urgent_first(alarms)[0])))

    def action_open_alarm(self) -> None:
        """Show the active alarms, the most severe one first."""

        def answered(answer: Answer | None) -> None:
            if answer is None:
                return
            if answer.fix is None:
                self.supervisor.view.put_away(answer.alarm)
                self.show_run()
            else:
                self._apply(answer.alarm, answer.fix)

        alarms = urgent_first(self.supervisor.view.alarms)
        self.app.push_screen(AlarmScreen(alarms, self.supervisor.fixes), answered)

    def action_fix_alarm(self) -> None:
        """Apply the likeliest fix of the most severe alarm, once the user agrees."""
        alarm = urgent_first(self.supervisor.view.alarms)[0]
        fix = self.supervisor.fixes(alarm)[0]

        def answered(agreed: bool | None) -> None:
            if agreed:
                self._apply(alarm, fix)

        self.app.push_screen(FixScreen(alarm, fix), answered)

    def _apply(self, alarm: Alarm, fix: Fix) -> None:
        """Hand the fix to the trainer, unless it no longer applies to the run."""
        name = title(alarm)
        if fix not in self.supervisor.fixes(alarm):
            self.say(f"{name} does not stand any more, or its run has ended: nothing was changed", about="steer")
            return
        try:
            self.supervisor.apply(fix, name)
        except TrainerError as error:
            self.say(str(error), about="steer")
        else:
            self.settle("steer")
            self.notify(f"asked of the run: {fix.label}", title=name, markup=False)
        self.show_run()
