"""Panes of the main screen: which of them a terminal of some size shows, and what is said and asked above them."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TypeVar

from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from trainer.config.schema import RunConfig
from trainer.errors import TrainerError
from trainer.runs.folder import TRASH
from workbench.config.pane import ConfigPane
from workbench.kit.banner import Banner, Kind
from workbench.kit.keys import keys_of
from workbench.kit.pane import Pane
from workbench.kit.pane_strip import TopLines
from workbench.labelling.pane import LabelPane
from workbench.log.pane import LogPane
from workbench.reward_model.pane import RewardModelPane
from workbench.run.supervisor import Supervisor
from workbench.runs.pane import RunsPane
from workbench.samples.pane import SamplesPane

SMALLEST = (60, 20)  # columns, lines: below, nothing useful can be read
SIDE_BY_SIDE = (116, 24)
EVERYTHING = (180, 48)

DASHBOARD = ("config", "training", "samples")
EDITING = ("config", "training")
READING = ("training", "samples")
ALONE = ("home", "label", "reward-model")  # they need the whole width, and nothing should distract a labeller
DRAWER = ("log",)  # below the dashboard if there is room for all

T = TypeVar("T")


def arrange(width: int, height: int, current: str, *, zoomed: bool = False, empty_log: bool = False) -> tuple[str, ...]:
    """Return the panes to show on `width` columns by `height` lines, when the user is at the pane `current`.

    Empty if the terminal is too small. On a small terminal or when zoomed, only the current pane is shown. Home and the
    panes for labels and reward models are always shown alone. Otherwise configuration, charts and samples are side by
    side, without the samples while the user is at the configuration, and without that while at the samples. A large
    terminal shows all three, and the log below them unless it is empty, higher when the user is there; a smaller one
    shows the log alone.
    """
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return ()
    if zoomed or current in ALONE or width < SIDE_BY_SIDE[0] or height < SIDE_BY_SIDE[1]:
        return (current,)
    if width >= EVERYTHING[0] and height >= EVERYTHING[1]:
        return DASHBOARD if empty_log and current not in DRAWER else DASHBOARD + DRAWER
    if current in ("config", "samples"):
        return EDITING if current == "config" else READING
    return DASHBOARD if current in DASHBOARD else (current,)


class Panes:
    """The panes of `screen`, which show the supervisor's run, and what their controllers say and ask.

    current: the pane at which the user is; it is shown if any fits.
    """

    def __init__(
        self,
        screen: Screen[None],
        supervisor: Supervisor,
        config: ConfigPane,
        label: LabelPane,
        log: LogPane,
        current: str,
    ) -> None:
        self.screen, self.app, self.supervisor = screen, screen.app, supervisor
        self.config, self.label, self.log = config, label, log
        self.current = current
        self.listed = self.runs_dir  # the folder whose runs the panes list
        self.zoomed = False  # the current pane has the whole terminal
        self._focused: Widget | None = None  # before the terminal became too small for any pane
        self._situation: tuple[object, ...] = ()  # on which the active keys depend
        self._under_way = False
        self._problems: dict[str, str] = {}  # that the banner reported, by what they are about

    @property
    def runs_dir(self) -> Path:
        """Folder of the run on the screen, or else the one in which the configuration puts runs."""
        if (run := self.supervisor.folder) is not None:
            return run.parent.parent if run.parent.name == TRASH else run.parent
        configured = self.config.document.get("run.dir")
        usable = isinstance(configured, str) and configured and "\0" not in configured
        return Path(os.path.expanduser(configured) if usable else RunConfig().dir)  # noqa: PTH111  it does not raise

    def keys(self) -> dict[str, str]:
        """Return the keys of the screen and of the Label pane, by the ids of their bindings."""
        return keys_of(self.screen, self.label)

    # What is shown

    def go_to(self, name: str) -> None:
        """Show a pane as the terminal's size allows, and give it the focus."""
        self._move_to(name)
        self._arrange()
        pane = self.screen.query_one(f"#{name}", Pane)
        pane.update_run(self.supervisor.view)
        pane.take_focus()

    def follow(self, widget: Widget) -> None:
        """Make the pane of `widget`, which has the focus now, the current one, however the focus got there."""
        if widget is not self.screen.focused:
            return  # the focus has moved on since
        pane = next((node for node in widget.ancestors_with_self if isinstance(node, Pane)), None)
        if pane is not None and pane.id:
            self._move_to(pane.id)

    def resize(self) -> None:
        """Arrange the panes again; the widget with the focus before all of them were hidden gets it back."""
        focused, current = self.screen.focused, self.screen.query_one(f"#{self.current}", Pane)
        self._arrange()
        if focused is not None and not any(pane.display for pane in self.screen.query(Pane)):
            self._focused = focused  # nothing can be focused meanwhile
        elif self._focused is not None and current.display:
            before, self._focused = self._focused, None
            if before.is_attached and before.focusable:
                before.focus()
            else:
                current.take_focus()

    def _move_to(self, name: str) -> None:
        before, self.current = self.current, name
        self.screen.query_one(TopLines).current = name
        if before != name:
            self.settle(before)

    def _arrange(self) -> None:
        screen = self.screen
        width, height = self.app.size
        shown = arrange(width, height, self.current, zoomed=self.zoomed, empty_log=self.log.is_empty)
        for pane in screen.query(Pane):
            was, pane.display = pane.display, pane.id in shown
            if pane.display and not was:
                pane.update_run(self.supervisor.view)
        for pane in (self.config, screen.query_one(SamplesPane)):
            is_wide = self.current == pane.id and "training" in shown
            if pane.has_class("-wide") != is_wide:  # half of the dashboard, or its usual share
                pane.set_class(is_wide, "-wide", update=False)  # without restyling all that is in the pane
                self.app.stylesheet.apply(pane)
        screen.query_one("#top").display = bool({*shown} & {*DASHBOARD})
        drawer = screen.query_one("#bottom")
        drawer.display = bool({*shown} & {*DRAWER})
        drawer.set_class(self.current in DASHBOARD, "-low")
        too_small = screen.query_one("#too-small", Static)
        too_small.display = not shown
        too_small.update(f"{width} x {height} is too small: enlarge the terminal to {SMALLEST[0]} x {SMALLEST[1]}")

    def poll(self) -> None:
        """Fold in the events since the last call, and show the result."""
        if self.supervisor.take() or self._situation_now() != self._situation:
            self.show_run()

    def show_run(self) -> None:
        """Show the state of the run in all panes, and settle what no longer applies to it."""
        supervisor, view, screen = self.supervisor, self.supervisor.view, self.screen
        if (runs_dir := self.runs_dir) != self.listed:
            self.listed = runs_dir
            screen.query_one(RunsPane).set_runs_dir(runs_dir)
            screen.query_one(RewardModelPane).set_runs_dir(runs_dir)
        screen.query_one(TopLines).show_run(view, note=supervisor.note)
        for pane in screen.query(Pane):
            # Even if hidden, the samples give the charts their scores, and the log has the time of each alert.
            pane.update_run(view, shown=pane.display or isinstance(pane, (SamplesPane, LogPane)))
        self.say_once("\n".join(filter(None, [supervisor.failure, *view.problems])), about="run")
        if (situation := self._situation_now()) != self._situation:
            before, self._situation = self._under_way, situation
            self._under_way = supervisor.under_way
            self.config.set_running(self._under_way)
            if before != self._under_way:
                self.settle("start")
                self.settle("steer")
                if self._under_way and self.current == "home":
                    self.go_to("training")
            screen.query_one(RunsPane).refresh_runs()
            self._arrange()
            screen.refresh_bindings()

    def _situation_now(self) -> tuple[object, ...]:
        supervisor, view = self.supervisor, self.supervisor.view
        alarms = [(alarm.code, alarm.iteration) for alarm in view.alarms]
        return view.state, supervisor.note, supervisor.under_way, alarms, self.runs_dir, self.log.is_empty

    # What is said and asked

    def say(self, message: str, kind: Kind = "error", *, about: str = "") -> None:
        """Show a message above the panes until it is dismissed or settled.

        A message that does not concern all panes also goes when the user leaves its pane. What keeps a run from
        starting or going on, or ended the training of a reward model, stays in the log: it may have no folder whose
        journal says so.
        """
        if kind == "error" and about in ("start", "run", "training"):
            for log in self.screen.query(LogPane):
                log.report(message)
        for banner in self.screen.query(Banner):  # there is none while the screen closes
            banner.say(message, kind, {about} if about == "run" else {about, self.current})

    def say_once(self, problem: str, *, about: str) -> None:
        """Show an error that lasts, once; "" settles it."""
        if problem != self._problems.get(about, ""):
            self._problems[about] = problem
            self.settle(about)
            if problem:
                self.say(problem, about=about)

    def settle(self, about: str) -> None:
        """Remove an error about this: it no longer applies."""
        for banner in self.screen.query(Banner):
            banner.settle(about)

    def ask(self, flow: Coroutine[None, None, object]) -> None:
        """Run a flow of reading and dialogs; a newer one takes the place of one that is still reading."""
        no_dialog = self.app.screen is self.screen  # the flow of an open dialog waits for its answer
        self.screen.run_worker(flow, group="dialog", exclusive=no_dialog)

    def attempt(self, action: Callable[[], None], *, about: str) -> bool:
        """Call `action` and settle errors about it; return False if it fails: the banner shows why."""
        try:
            action()
        except TrainerError as error:
            self.show_run()
            self.say(str(error), about=about)
            return False
        self.show_run()
        self.settle(about)
        return True

    async def tried(self, work: Awaitable[T], about: str) -> T | None:
        """Return the result of `work` and settle errors about it; None if it fails: the banner shows why."""
        try:
            result = await work
        except TrainerError as error:
            self.say(str(error), about=about)
            return None
        self.settle(about)
        return result
