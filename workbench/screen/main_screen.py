"""Main screen: the panes around one run, laid out for the terminal's size, and the keys that steer the run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.events import DescendantFocus
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Static

from trainer.config import load_config
from trainer.config.schema import RolloutConfig
from trainer.errors import TrainerError
from trainer.runs.folder import RunFolder
from workbench.config.document import ConfigDocument
from workbench.config.form import ConfigForm
from workbench.config.pane import ConfigPane
from workbench.kit.banner import Banner
from workbench.kit.footer import KeyFooter
from workbench.kit.keys import bind, hidden_key, keys_of
from workbench.kit.pane import MountedWhole, Pane, Throttled
from workbench.kit.pane_strip import TopLines
from workbench.kit.theming import ALL_STYLES
from workbench.labelling.pane import LabelPane
from workbench.log.pane import LogPane
from workbench.opening import Opening
from workbench.reward_model.pane import RewardModelPane
from workbench.run.metrics import DEFAULT
from workbench.run.run_listing import Workspace
from workbench.run.run_on_disk import whole_run
from workbench.run.sample_table import TokenSample
from workbench.run.supervisor import Supervisor
from workbench.runs.loop import HomeFacts
from workbench.runs.pane import RunsPane
from workbench.runs.table import RunTable
from workbench.samples.ask_screen import AskScreen
from workbench.samples.pane import SamplesPane
from workbench.samples.sample_list import SampleListView
from workbench.screen.finders import Finder
from workbench.screen.home import NextRun, home_facts
from workbench.screen.labelling_controller import LabellingController
from workbench.screen.panes import Panes
from workbench.screen.steering import Steer, Steering
from workbench.system.environment import ScreenSettings, config_dir
from workbench.text import visible
from workbench.training.pane import TrainingPane

_LOOK = 1.0  # seconds between two looks at the win rate, and at a reward model that is being trained


class MainScreen(MountedWhole, Screen[None]):
    """Main screen: shows the run's events in the panes, and passes on what keys and panes request."""

    CSS_PATH: ClassVar = ALL_STYLES
    COMMANDS: ClassVar = {Finder}
    AUTO_FOCUS: ClassVar[str | None] = ""  # the first pane takes the focus itself
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("space", "ask('start')", "start", "run.start", "Train the configuration on the screen"),
        bind("space", "ask('pause')", "pause", "run.pause", "Pause within a token or micro-batch"),
        bind("space", "ask('resume')", "resume", "run.resume", "Resume the paused run"),
        bind("s", "ask('step')", "one iteration", "run.step", "Train one iteration, then pause"),
        bind("c", "ask('checkpoint')", "checkpoint", "run.checkpoint", "Save a checkpoint now"),
        bind("X", "ask('stop')", "stop", "run.stop", "Save a checkpoint and end the run"),
        bind("exclamation_mark", "ask('alarm')", "alarm", "alarm.open", "Show the active alarms and their fixes"),
        bind("F", "ask('fix')", "fix", "alarm.fix", "Apply the first fix of the most severe alarm, if you agree"),
        *(
            hidden_key(key, f"show_pane('{pane}')", title, f"pane.{pane}", f"Go to {title}: {what}")
            for key, pane, title, what in (
                ("f9", "home", "Home", "the next step, and the runs"),
                ("f2", "config", "Config", "settings and presets"),
                ("f3", "training", "Training", "charts, alarms and events"),
                ("f4", "samples", "Samples", "responses, token by token"),
                ("f5", "label", "Label", "compare answers"),
                ("f6", "reward-model", "Reward model", "its accuracy and pairs"),
                ("f8", "log", "Log", "alerts and output of libraries"),
            )
        ),
        hidden_key("f7", "show_runs", "Runs", "pane.runs", "Go to the runs, in Home"),
        hidden_key("left_parenthesis", "step_pane(-1)", "previous pane", "pane.previous", "Go to the previous pane"),
        hidden_key("right_parenthesis", "step_pane(1)", "next pane", "pane.next", "Go to the next pane"),
        bind("z", "zoom", "zoom", "pane.zoom", "Enlarge this pane, or show all panes again"),
        hidden_key("escape", "put_away", "hide message", "app.put_away", "Hide the message on top"),
    ]

    def __init__(self, opening: Opening, document: ConfigDocument, settings: ScreenSettings) -> None:
        super().__init__()
        self.supervisor = Supervisor(opening.train)
        self.config = ConfigPane(document, id="config")
        self.config.form.view = "all" if settings.all_settings else "basic"
        self.label = LabelPane(lambda what: self.labelling.request(what), id="label")
        self._training, log = TrainingPane(id="training"), LogPane(opening.log, id="log")
        start = "training" if opening.watch or opening.resume or opening.label else "home"
        self.panes = Panes(self, self.supervisor, self.config, self.label, log, start)
        self.steering = Steering(self.panes)
        self.labelling = LabellingController(self.panes, opening.label)
        self._opening, self._settings = opening, settings
        self._looking = Throttled(rests=False)
        self.ready = False  # the panes exist and show the run

    def compose(self) -> ComposeResult:
        yield TopLines()
        yield Banner(id="banner")
        with Vertical(id="panes"):
            yield RunsPane(self.panes.listed, self._home_facts, id="home")
            with Horizontal(id="top"):
                yield self.config
                yield self._training
                yield SamplesPane(self._ask_models, id="samples")
            yield self.label
            yield RewardModelPane(self.panes.listed, id="reward-model")
            with Horizontal(id="bottom"):
                yield self.panes.log
        yield Static(id="too-small", markup=False)
        yield KeyFooter()

    def on_mount(self) -> None:
        keys = keys_of(self)
        for pane in self.query(Pane):
            pane.border_title = f"{pane.TITLE} {keys[f'pane.{pane.id}']}"
        self.query_one(TopLines).follow(self.query(Pane))
        over_ssh = {"SSH_CONNECTION", "SSH_TTY"} & set(os.environ)
        self.set_interval(0.25 if over_ssh else 0.1, self.poll)
        if (watched := self._opening.watch) is not None:
            self.panes.attempt(lambda: self.supervisor.watch(watched), about="start")
        if (resumed := self._opening.resume) is not None:
            self.panes.ask(self.steering.resume(resumed, self._opening.overrides, agreed=True))
        if self._settings.metrics:
            self._training.metrics_shown = self._settings.metrics
        self.label.facts_shown = self._settings.label_facts
        self.panes.go_to(self.panes.current)
        self.panes.show_run()
        self.labelling.open()
        self.set_interval(_LOOK, self.labelling.watch)
        self.ready = True

    async def on_unmount(self) -> None:
        self.labelling.close()
        self.supervisor.close()
        shown = list(self._training.metrics_shown)
        self._settings.metrics = [] if shown == [metric.field for metric in DEFAULT] else shown
        self._settings.label_facts = self.label.facts_shown
        self._settings.all_settings = self.config.form.view == "all"
        await asyncio.to_thread(self._settings.save, config_dir())

    def on_resize(self) -> None:
        self.panes.resize()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        self.panes.follow(event.widget)

    def poll(self) -> None:
        """Show what has happened since the last call; look into the run's folder in a thread."""
        self.panes.poll()
        if self.supervisor.past is not None:
            self._look()

    @work(group="look")
    async def _look(self) -> None:
        found = await self._looking.read(self.supervisor.look)
        if found is not None and self.supervisor.fold(found):
            self.panes.show_run()

    # Keys

    def action_show_pane(self, name: str) -> None:
        """Go to a pane; it is shown as the terminal's size allows."""
        self.panes.go_to(name)

    def action_show_runs(self) -> None:
        """Go to the runs, which are in Home."""
        self.panes.go_to("home")
        self.query_one(RunTable).focus()

    def action_step_pane(self, step: int) -> None:
        """Go to the pane that is `step` places further in the strip of panes, around its ends."""
        panes = [pane.id for pane in self.query(Pane) if pane.id]
        self.panes.go_to(panes[(panes.index(self.panes.current) + step) % len(panes)])

    def action_zoom(self) -> None:
        self.panes.zoomed = not self.panes.zoomed
        self.panes.go_to(self.panes.current)

    def action_put_away(self) -> None:
        self.query_one(Banner).put_away()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action != "ask":
            return True
        if self.panes.current == "label" and self.label.worker is not None:
            return False  # a slip of the hand between two judgements must not stop a run
        return self.steering.allows(parameters[0])  # type: ignore[arg-type]

    def action_ask(self, what: Steer) -> None:
        self.steering.request(what)

    # What panes ask for

    async def _ask_models(self, sample: TokenSample | None, at: int | None) -> None:
        """Show the dialog that asks the run's models: the trainer's if it is under way, else a saved one."""
        if (folder := self.supervisor.folder) is None:
            return

        def read() -> tuple[RolloutConfig, list[str]]:
            rollout = RolloutConfig()
            with suppress(TrainerError):  # the configuration cannot be read
                rollout = load_config(RunFolder(folder).config).rollout
            return rollout, self.supervisor.saved_policies()

        rollout, checkpoints = await asyncio.to_thread(read)
        if folder == self.supervisor.folder:
            ask, most = self.supervisor.ask_model, rollout.max_new_tokens
            self.app.push_screen(
                AskScreen(
                    ask, sample, at, temperature=rollout.temperature, max_new_tokens=most, checkpoints=checkpoints
                )
            )

    @on(ConfigForm.LiveSettingChanged)
    @on(ConfigForm.Changed)
    @on(ConfigPane.OpenRequested)
    @on(TrainingPane.IterationChosen)
    @on(SampleListView.ScoresRead)
    @on(RewardModelPane.LabelAgain)
    @on(RunsPane.Moved)
    def _pass_on(self, message: Message) -> None:
        """Pass on what a pane asks of the run or of another pane."""
        match message:
            case ConfigForm.LiveSettingChanged():
                self.steering.set(message.key, message.value)
            case ConfigForm.Changed() if message.document and not self.config.document.problems:
                self.panes.settle("configuration")
            case ConfigPane.OpenRequested():
                self.panes.ask(self.steering.open_configuration(partial(ConfigDocument.open, message.source)))
            case TrainingPane.IterationChosen():
                self.query_one(SamplesPane).show_iteration(message.iteration)
            case SampleListView.ScoresRead():
                self._training.update_run(self.supervisor.view)  # while hidden, it may still show the run before
                self._training.show_scores(message.iteration, message.scores)
            case RewardModelPane.LabelAgain():
                self.panes.ask(self.labelling.label_again(message.keys))
            case RunsPane.Moved() if self.supervisor.shows(message.folder):
                self.panes.ask(self.steering.follow(message.to))

    def _home_facts(self) -> Callable[[Workspace | None], HomeFacts]:
        """Return a function that reads what Home offers and says, as of now."""
        document, supervisor, folder = self.config.document, self.supervisor, self.supervisor.folder
        is_quickstart = document.preset == "quickstart" and document.path is None and not document.dirty
        name = "the quickstart" if is_quickstart else visible(document.name)
        training = (visible(folder.name) if folder else "a run") if supervisor.trains_here else ""
        store, problems = self.labelling.worker.path, len(document.problems)
        plan = NextRun(name, document.config, problems, training, self.panes.runs_dir, store)
        return partial(home_facts, plan)

    @on(RunsPane.Chosen)
    def _choose(self, message: RunsPane.Chosen) -> None:
        match message.what:
            case "train":
                self.steering.request("start")
            case "label":
                self.panes.go_to("label")
                if self.label.worker is None:
                    self.labelling.request("start")
            case "model":
                self.labelling.request("train")
            case "use":
                self.labelling.request("use")
            case "configure":
                self.panes.ask(self.steering.new_configuration())
            case pane:
                self.panes.go_to(pane)

    @on(RunsPane.Requested)
    def _run_requested(self, message: RunsPane.Requested) -> None:
        match message.what:
            case "open":
                self.steering.open_run(message.folder)
            case "resume":
                self.panes.ask(self.steering.resume(message.folder))
            case "branch":
                self.panes.ask(self.steering.branch(message.folder))
            case "duplicate":
                if self.supervisor.under_way:  # it is controlled through the document on the screen
                    self.panes.say("A run is training: duplicate once it has ended", about="configuration")
                else:
                    read = partial(ConfigDocument.of_run, message.folder)
                    self.panes.ask(self.steering.open_configuration(read, "config"))

    @on(RunsPane.CompareChanged)
    @work(exclusive=True, group="compare")
    async def _compare(self, message: RunsPane.CompareChanged) -> None:
        runs = [(folder, await asyncio.to_thread(whole_run, folder)) for folder in message.folders]
        self._training.compare(runs)
