"""Main screen: the panes around one run, laid out for the terminal's size, and the keys that steer the run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.events import DescendantFocus
from textual.widgets import Static

from trainer.config import load_config, parse_overrides
from trainer.config.schema import RewardConfig, RolloutConfig, RunConfig
from trainer.errors import TrainerError, UsageError
from trainer.runs.folder import TRASH, RunFolder
from trainer.runs.listing import PPO, is_complete
from workbench.config.document import ConfigDocument
from workbench.config.pane import ConfigPane
from workbench.kit.banner import Banner, Kind
from workbench.kit.confirm import ConfirmScreen
from workbench.kit.key_footer import KeyFooter
from workbench.kit.keys import keys_of
from workbench.kit.pane import Pane
from workbench.kit.screen_settings import ScreenSettings
from workbench.kit.status_line import StatusLine
from workbench.kit.text_prompt import TextPromptScreen
from workbench.labelling.pane import LabelPane
from workbench.log.pane import LogPane
from workbench.opening import Opening
from workbench.reward_model.pane import RewardModelPane
from workbench.run.attached import whole_history
from workbench.run.metrics import DEFAULT
from workbench.run.supervisor import Request, Supervisor, report_bug
from workbench.runs.pane import RunsPane
from workbench.samples.ask_screen import AskScreen
from workbench.samples.pane import SamplesPane
from workbench.screen.alarmed import AlarmedScreen
from workbench.screen.places import Places
from workbench.screen.trust_code import TrustScreen
from workbench.system.code_trust import trusted_code, untrusted_code
from workbench.system.paths import config_dir
from workbench.training.pane import TrainingPane


class _Situation(NamedTuple):
    """What the active keys depend on."""

    state: str
    note: str
    under_way: bool
    alarms: list[tuple[str, int]]
    runs_dir: Path


class MainScreen(AlarmedScreen):
    """Main screen: shows the run's events in the panes, and does what keys and panes request."""

    AUTO_FOCUS: ClassVar[str | None] = ""  # the first pane takes the focus itself
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "ask('start')", "start", id="run.start", tooltip="Train the configuration on the screen"),
        Binding("space", "ask('pause')", "pause", id="run.pause", tooltip="Hold the run within a token or micro-batch"),
        Binding("space", "ask('resume')", "go on", id="run.resume", tooltip="Let the paused run go on"),
        Binding("s", "ask('step')", "one iteration", id="run.step", tooltip="Train one iteration, then pause"),
        Binding("c", "ask('checkpoint')", "checkpoint", id="run.checkpoint", tooltip="Save a checkpoint now"),
        Binding("X", "ask('stop')", "stop", id="run.stop", tooltip="Save a checkpoint and end the run"),
        Binding("exclamation_mark", "open_alarm", "alarm", id="alarm.open", tooltip="What is wrong, and what to do"),
        Binding("F", "fix_alarm", "fix", id="alarm.fix", tooltip="Apply the worst alarm's first fix, once you agree"),
        Binding("f2", "show_pane('config')", "Config", show=False, id="pane.config", tooltip="Go to the configuration"),
        Binding("f3", "show_pane('training')", "Training", show=False, id="pane.training", tooltip="Go to the charts"),
        Binding("f4", "show_pane('samples')", "Samples", show=False, id="pane.samples", tooltip="Go to the samples"),
        Binding("f5", "show_pane('label')", "Label", show=False, id="pane.label", tooltip="Go to the labelling"),
        Binding(
            "f6",
            "show_pane('reward-model')",
            "Reward model",
            show=False,
            id="pane.reward-model",
            tooltip="Go to the reward models",
        ),
        Binding("f7", "show_pane('runs')", "Runs", show=False, id="pane.runs", tooltip="Go to the list of runs"),
        Binding("f8", "show_pane('log')", "Log", show=False, id="pane.log", tooltip="Go to what libraries printed"),
        Binding("z", "zoom", "zoom", id="pane.zoom", tooltip="Give the pane the whole terminal, or take it back"),
        Binding("escape", "put_away", "hide message", show=False, id="app.put_away", tooltip="Hide the message on top"),
    ]

    def __init__(self, opening: Opening, document: ConfigDocument, settings: ScreenSettings) -> None:
        super().__init__(opening.label)
        self.supervisor = Supervisor(opening.train)
        self._opening = opening
        self._document = document
        self._settings = settings
        self._training = TrainingPane(id="training")
        self._places = Places(self, "training", lambda: self.supervisor.view, self.settle)
        self._listed = self.runs_dir  # the folder whose runs the panes list
        self._situation: _Situation | None = None
        self._told = ""  # what the banner has reported about the run
        self.bugs: list[str] = []  # reported so far
        self.ready = False  # the panes exist and show the run

    def compose(self) -> ComposeResult:
        yield StatusLine(id="status")
        yield Banner(id="banner")
        with Vertical(id="panes"):
            with Horizontal(id="top"):
                yield ConfigPane(self._document, id="config")
                yield self._training
                yield SamplesPane(id="samples")
            yield LabelPane(id="label")
            yield RewardModelPane(self._listed, id="reward-model")
            with Horizontal(id="bottom"):
                yield RunsPane(self._listed, id="runs")
                yield LogPane(self._opening.log, id="log")
        yield Static(id="too-small", markup=False)
        yield KeyFooter()

    def on_mount(self) -> None:
        keys = keys_of(self)
        for pane in self.query(Pane):
            pane.border_title = f"{pane.TITLE} {keys[f'pane.{pane.id}']}"
        over_ssh = {"SSH_CONNECTION", "SSH_TTY"} & set(os.environ)
        self.set_interval(0.25 if over_ssh else 0.1, self.poll)
        if (watched := self._opening.watch) is not None:
            self._try(lambda: self.supervisor.watch(watched), about="start")
        if (resumed := self._opening.resume) is not None:
            self.resume_run(resumed, self._opening.overrides)
        if self._settings.metrics:
            self.query_one(TrainingPane).metrics_shown = self._settings.metrics
        self.action_show_pane(self._places.current)
        self.show_run()
        self.open_labelling()
        self.ready = True

    def on_unmount(self) -> None:
        self.close_labelling()
        self.supervisor.close()
        shown = list(self._training.metrics_shown)
        self._settings.metrics = [] if shown == [metric.field for metric in DEFAULT] else shown
        self._settings.save(config_dir())

    # Layout

    def on_resize(self) -> None:
        self._places.resize()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        self._places.follow(event.widget)

    def action_show_pane(self, name: str) -> None:
        """Go to a pane; it is shown as the terminal's size allows."""
        self._places.go_to(name)

    def action_zoom(self) -> None:
        self._places.zoom()

    # The run

    def poll(self) -> None:
        """Fold in the events since the last call, and show the result."""
        try:
            if self.supervisor.poll() or self._situation_now() != self._situation:
                self.show_run()
        except Exception as bug:  # noqa: BLE001  a screen that shows less is better than a run that ends
            self.report(bug)

    def report(self, bug: Exception) -> None:
        """Report an unexpected error once in the banner, with its traceback in the log; the run goes on."""
        if (line := repr(bug)) not in self.bugs:
            self.bugs.append(line)
            self.say(report_bug(bug), about="bug")

    @property
    def runs_dir(self) -> Path:
        """Folder of the run on the screen, or else the one in which the configuration puts runs."""
        if (run := self.supervisor.folder) is not None:
            return run.parent.parent if run.parent.name == TRASH else run.parent
        pane = self.query(ConfigPane)
        document = pane.first().document if pane else self._document
        configured = document.get("run.dir")
        return Path(configured if isinstance(configured, str) and configured else RunConfig().dir)

    def show_run(self) -> None:
        supervisor = self.supervisor
        if (runs_dir := self.runs_dir) != self._listed:
            self._listed = runs_dir
            self.query_one(RunsPane).set_runs_dir(runs_dir)
            self.query_one(RewardModelPane).set_runs_dir(runs_dir)
        self.query_one(StatusLine).show_run(supervisor.view, note=supervisor.note)
        for pane in self.query(Pane):
            if pane.display or isinstance(pane, SamplesPane):  # the charts show its scores, even if it is hidden
                pane.show_run(supervisor.view)
        view = supervisor.view
        trouble = "\n".join(filter(None, [supervisor.failure, *view.problems]))
        if trouble != self._told:
            self.settle("run")
            if trouble:
                self.say(trouble, about="run")
        self._told = trouble
        if (situation := self._situation_now()) != self._situation:
            if self._situation and self._situation.under_way != situation.under_way:
                self.settle("start")
                self.settle("steer")
            self._situation = situation
            self.query_one(ConfigPane).set_running(supervisor.under_way)
            self.query_one(RunsPane).refresh_runs()
            self.refresh_bindings()

    def _situation_now(self) -> _Situation:
        alarms = [(alarm.code, alarm.iteration) for alarm in self.supervisor.view.alarms]
        return _Situation(
            self.supervisor.view.state, self.supervisor.note, self.supervisor.under_way, alarms, self.runs_dir
        )

    def say(self, message: str, kind: Kind = "error", *, about: str = "") -> None:
        """Show a message above the panes until it is dismissed or settled.

        A message that does not concern all panes also goes when the user leaves its pane.
        """
        self.query_one(Banner).say(message, kind, {about} if about in ("run", "bug") else {about, self._places.current})

    def settle(self, about: str) -> None:
        """Remove an error about this: it no longer applies."""
        self.query_one(Banner).settle(about)

    def action_put_away(self) -> None:
        self.query_one(Banner).put_away()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("ask", "open_alarm", "fix_alarm"):
            if self._places.current == "label" and self.query_one(LabelPane).desk is not None:
                return False  # a slip of the hand between two judgements must not stop a run
            if action != "ask":
                return self.allows_alarm(action)
            return self.supervisor.allows(parameters[0])  # type: ignore[arg-type]
        return True

    def action_ask(self, request: Request) -> None:
        """Do what a key requests of the run."""
        if request == "start" or (request == "step" and not self.supervisor.under_way):
            self._start(one_iteration=request == "step")
        elif request == "stop":
            self._ask_to_stop()
        else:
            self._try(lambda: self.supervisor.ask(request), about="steer")

    def _ask_to_stop(self) -> None:
        """Stop the run once the user agrees: even a capital letter can be typed by mistake."""

        def answered(agreed: bool | None) -> None:
            if agreed and self.supervisor.allows("stop"):
                self._try(self.supervisor.stop, about="steer")

        folder = self.supervisor.folder
        question = f"Stop {f'run {folder.name}' if folder else 'the run'} after a checkpoint?"
        detail = "It can be resumed later, from that checkpoint."
        self.app.push_screen(ConfirmScreen(question, detail, yes="Stop run", no="Keep training"), answered)

    def watch_run(self, folder: Path) -> bool:
        """Show the run in `folder` and its configuration; return False if that fails: the banner shows why."""

        def watch() -> None:
            self.supervisor.watch(folder)
            self._show_configuration_of(folder)

        return self._try(watch, about="start")

    def resume_run(self, folder: Path, overrides: Sequence[str] = ()) -> None:
        """Resume the run in `folder` on this process's trainer thread; if it is complete, ask for more iterations."""
        run = RunFolder(folder)

        def resume() -> None:
            self.supervisor.check_free()
            config = load_config(run.config, parse_overrides(list(overrides)))
            done = config.ppo.iterations
            begin = partial(ask_for_more, done) if is_complete(run, done) else partial(go_on, overrides)
            self._once_trusted(config.reward, begin, about="start")

        def ask_for_more(done: int) -> None:
            async def add(count: str) -> str:
                try:
                    go_on([*overrides, f"ppo.iterations={done + int(count)}"])
                except TrainerError as error:
                    return str(error)
                return ""

            question = f"{run.name} is complete after {done} iterations. How many more?"
            self.app.push_screen(TextPromptScreen(question, str(done), _count_problem, add))

        def go_on(overrides: Sequence[str]) -> None:
            changes = parse_overrides(list(overrides))
            self.supervisor.start(load_config(run.config, changes), resume=folder)
            self.action_show_pane("training")
            self._edit(ConfigDocument.of_run(folder, changes))

        self._try(resume, about="start")

    def _once_trusted(self, reward: RewardConfig, action: Callable[[], None], *, about: str) -> None:
        """Call `action`, which runs `reward`, once the user has trusted the reward's code. Raises TrainerError."""
        codes = untrusted_code(reward)
        if not codes:
            action()
            return

        def trusted(agreed: bool | None) -> None:
            if agreed:
                self._try(lambda: trusted_code().remember(codes), about="trust")
                self._try(action, about=about)

        self.app.push_screen(TrustScreen(codes), trusted)

    def _show_configuration_of(self, folder: Path) -> None:
        self._edit(ConfigDocument.of_run(folder))

    def _edit(self, document: ConfigDocument) -> None:
        """Show another configuration, unless the user keeps unsaved changes."""
        self.when_nothing_is_lost(lambda: self.query_one(ConfigPane).show_document(document))

    def when_nothing_is_lost(self, action: Callable[[], None]) -> ConfirmScreen | None:
        """Call `action`, which discards the configuration on the screen; with unsaved changes, only if the user agrees.

        Returns the question, if it is asked.
        """
        document = self.query_one(ConfigPane).document
        if not document.dirty:
            action()
            return None

        def answered(agreed: bool | None) -> None:
            if agreed:
                action()

        question = f"{document.name} has changes that are not saved."
        asking = ConfirmScreen(question, yes="Discard them", no="Keep them")
        self.app.push_screen(asking, answered)
        return asking

    def _start(self, *, one_iteration: bool) -> None:
        pane = self.query_one(ConfigPane)
        config = pane.document.config()
        if config is None:
            problems = pane.document.problems
            self.action_show_pane("config")
            pane.focus_field(problems[0].key)
            count = "a problem" if len(problems) == 1 else f"{len(problems)} problems; the first"
            self.say(f"the configuration has {count}: {problems[0].message}", about="configuration")
            return
        path = pane.document.path
        preset = pane.document.preset or (path.stem if path else "run")
        start = partial(self.supervisor.start, config, preset=preset, one_iteration=one_iteration)
        self._try(lambda: self._once_trusted(config.reward, start, about="start"), about="start")

    def _try(self, action: Callable[[], None], *, about: str) -> bool:
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

    def reward_sources(self, sources: list[dict[str, Any]]) -> None:
        pane = self.query_one(ConfigPane)
        if pane.document.kind != PPO:
            raise UsageError("Config shows no PPO run: open a PPO configuration first")
        pane.document.set("reward.sources", sources)
        pane.show_document(pane.document)
        self.action_show_pane("config")
        pane.focus_field("reward.sources")

    # Requests of the panes

    @on(ConfigPane.LiveSettingChanged)
    def _set_live(self, message: ConfigPane.LiveSettingChanged) -> None:
        change = partial(self.supervisor.set, message.key, message.value)
        if message.key == "reward.sources":
            reward = RewardConfig(sources=message.value)
            self._try(lambda: self._once_trusted(reward, change, about="steer"), about="steer")
        else:
            self._try(change, about="steer")

    @on(ConfigPane.Changed)
    def _settle_configuration(self) -> None:
        if not self.query_one(ConfigPane).document.problems:
            self.settle("configuration")

    @on(ConfigPane.OpenRequested)
    def _open_configuration(self, message: ConfigPane.OpenRequested) -> None:
        self._try(lambda: self._edit(ConfigDocument.open(message.source)), about="configuration")

    @on(TrainingPane.IterationChosen)
    def _show_iteration(self, message: TrainingPane.IterationChosen) -> None:
        self.query_one(SamplesPane).show_iteration(message.iteration)

    @on(SamplesPane.ScoresRead)
    def _show_scores(self, message: SamplesPane.ScoresRead) -> None:
        self.query_one(TrainingPane).show_scores(message.iteration, message.scores)

    @on(SamplesPane.AskRequested)
    def _ask(self, message: SamplesPane.AskRequested) -> None:
        """Show the dialog that asks the run's models: the trainer's if it is under way, else a saved one."""
        folder = self.supervisor.folder
        if folder is None:
            return
        try:
            rollout = load_config(RunFolder(folder).config).rollout
        except TrainerError:
            rollout = RolloutConfig()
        self.app.push_screen(
            AskScreen(
                self.supervisor.ask_model,
                message.asked,
                temperature=rollout.temperature,
                max_new_tokens=rollout.max_new_tokens,
                checkpoints=self.supervisor.saved_policies(),
            )
        )

    @on(RunsPane.OpenRequested)
    def _open_run(self, message: RunsPane.OpenRequested) -> None:
        if self.watch_run(message.folder):
            self.action_show_pane("training")

    @on(RunsPane.ResumeRequested)
    def _resume_run(self, message: RunsPane.ResumeRequested) -> None:
        self.resume_run(message.folder)

    @on(RunsPane.Moved)
    def _follow(self, message: RunsPane.Moved) -> None:
        shown = self.supervisor.folder
        if shown is not None and shown.resolve() == message.folder.resolve():
            self.watch_run(message.to)

    @on(RunsPane.DuplicateRequested)
    def _duplicate(self, message: RunsPane.DuplicateRequested) -> None:
        if self._try(lambda: self._show_configuration_of(message.folder), about="configuration"):
            self.action_show_pane("config")

    @on(RunsPane.CompareChanged)
    @work(exclusive=True, group="compare")
    async def _compare(self, message: RunsPane.CompareChanged) -> None:
        runs = [(folder, await asyncio.to_thread(whole_history, folder)) for folder in message.folders]
        self.query_one(TrainingPane).compare(runs)


def _count_problem(text: str) -> str:
    """Return why `text` is not a number of iterations; empty if it is one."""
    text = text.strip()
    return "" if text.isdecimal() and len(text) < 10 and int(text) else "write a number of iterations, from 1 up"
