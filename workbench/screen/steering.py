"""Control of the run by keys and panes of the main screen: start, stop, resume, watch, live settings, fixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from trainer.config import load_config, parse_overrides
from trainer.config.schema import RewardConfig
from trainer.errors import TrainerError
from trainer.events import Alarm, Fix
from trainer.rewards.code import Code
from trainer.runs.folder import RunFolder
from trainer.runs.listing import is_complete
from workbench.config.document import ConfigDocument
from workbench.config.pane import ConfigPane
from workbench.kit.dialog import Answer, AnswerScreen, ConfirmScreen, TextPromptScreen
from workbench.run.supervisor import Request
from workbench.run.wording import title, urgent_first
from workbench.system.code_trust import code_text, trusted_code, untrusted_code
from workbench.text import visible
from workbench.training.alarms import AlarmScreen, FixScreen

if TYPE_CHECKING:
    from workbench.screen.main_screen import MainScreen


class Steering:
    """Controller of the run on `screen`: asks what has to be asked, then hands the request to the supervisor.

    A request that fails changes nothing; the banner shows why.
    """

    def __init__(self, screen: MainScreen) -> None:
        self._screen = screen
        self._supervisor = screen.supervisor

    def request(self, request: Request) -> None:
        """Do what a key requests of the run."""
        if request == "start" or (request == "step" and not self._supervisor.under_way):
            self._start(one_iteration=request == "step")
        elif request == "stop":
            self._stop()
        else:
            self.attempt(lambda: self._supervisor.ask(request), about="steer")

    def watch(self, folder: Path) -> bool:
        """Show the run in `folder`, and its configuration unless the user keeps unsaved changes; False if it fails."""
        return self._watch(folder, self._edit)

    def open_run(self, folder: Path) -> None:
        """Show the run in `folder` in the Training pane, and its configuration.

        A run that trains is controlled through that configuration, so with unsaved changes it opens only if the user
        discards them.
        """

        def open_run(show: Callable[[ConfigDocument], None]) -> None:
            if self._watch(folder, show):
                self._screen.action_show_pane("training")

        if RunFolder(folder).is_live():
            self.when_nothing_is_lost(lambda: open_run(self._show))
        else:
            open_run(self._edit)

    def resume(self, folder: Path, overrides: Sequence[str] = ()) -> None:
        """Resume the run in `folder` on this process's trainer thread; if it is complete, ask for more iterations.

        Its configuration takes the place of the one on the screen; with unsaved changes, only if the user agrees.
        """
        run = RunFolder(folder)

        def attempt() -> None:
            self.attempt(resume, about="start")

        def resume() -> None:
            self._supervisor.check_free()
            config = load_config(run.config, parse_overrides(list(overrides)))
            done = config.ppo.iterations
            begin = partial(ask_for_more, done) if is_complete(run, done) else partial(train, overrides)
            self._once_trusted(config.reward, begin, about="start")

        def ask_for_more(done: int) -> None:
            async def add(count: str) -> str:
                try:
                    train([*overrides, f"ppo.iterations={done + int(count)}"])
                except TrainerError as error:
                    return str(error)
                return ""

            question = f"{run.name} is complete after {done} iterations. How many more?"
            self._screen.app.push_screen(TextPromptScreen(question, str(done), _count_problem, add))

        def train(overrides: Sequence[str]) -> None:
            changes = parse_overrides(list(overrides))
            self._supervisor.start(load_config(run.config, changes), resume=folder)
            self._screen.action_show_pane("training")
            self._show(ConfigDocument.of_run(folder, changes))

        self.when_nothing_is_lost(attempt)

    def set(self, key: str, value: Any) -> None:
        """Change a live setting before the run's next iteration."""
        change = partial(self._supervisor.set, key, value)
        if key == "reward.sources":
            reward = RewardConfig(sources=value)
            self.attempt(lambda: self._once_trusted(reward, change, about="steer"), about="steer")
        else:
            self.attempt(change, about="steer")

    def allows_alarm(self, action: str) -> bool:
        """Return whether the key for `open_alarm` or `fix_alarm` applies now."""
        alarms = self._supervisor.view.alarms
        return bool(alarms) and (action == "open_alarm" or bool(self._supervisor.fixes(urgent_first(alarms)[0])))

    def open_alarm(self) -> None:
        """Show the active alarms, the most severe one first."""

        def answered(answer: tuple[Alarm, Fix | None] | None) -> None:
            if answer is None:
                return
            alarm, fix = answer
            if fix is None:
                self._supervisor.view.put_away(alarm)
                self._screen.show_run()
            else:
                self._apply(alarm, fix)

        alarms = urgent_first(self._supervisor.view.alarms)
        self._screen.app.push_screen(AlarmScreen(alarms, self._supervisor.fixes), answered)

    def fix_alarm(self) -> None:
        """Apply the likeliest fix of the most severe alarm, once the user agrees."""
        alarm = urgent_first(self._supervisor.view.alarms)[0]
        fix = self._supervisor.fixes(alarm)[0]
        self._screen.app.push_screen(FixScreen(alarm, fix), lambda agreed: self._apply(alarm, fix) if agreed else None)

    def open_configuration(self, read: Callable[[], ConfigDocument]) -> bool:
        """Show the configuration that `read` returns, unless the user keeps unsaved changes; False if it fails."""
        return self.attempt(lambda: self._edit(read()), about="configuration")

    def when_nothing_is_lost(self, action: Callable[[], None]) -> ConfirmScreen | None:
        """Call `action`, which discards the configuration on the screen; with unsaved changes, only if the user agrees.

        Returns the question, if it is asked.
        """
        document = self._screen.query_one(ConfigPane).document
        if not document.dirty:
            action()
            return None
        question = ConfirmScreen(f"{document.name} has unsaved changes.", yes="Discard changes", no="Keep changes")
        self._screen.app.push_screen(question, lambda agreed: action() if agreed else None)
        return question

    def attempt(self, action: Callable[[], None], *, about: str) -> bool:
        """Call `action` and settle errors about it; return False if it fails: the banner shows why."""
        screen = self._screen
        try:
            action()
        except TrainerError as error:
            screen.show_run()
            screen.say(str(error), about=about)
            return False
        screen.show_run()
        screen.settle(about)
        return True

    def _apply(self, alarm: Alarm, fix: Fix) -> None:
        """Hand the fix to the trainer, unless it no longer applies to the run."""
        name = title(alarm.code)
        if fix not in self._supervisor.fixes(alarm):
            message = f"{name} is no longer active, or its run has ended: nothing was changed"
            self._screen.say(message, about="steer")
        elif self.attempt(lambda: self._supervisor.apply(fix, name), about="steer"):
            self._screen.notify(f"Requested: {fix.label}", title=name, markup=False)

    def _start(self, *, one_iteration: bool) -> None:
        pane = self._screen.query_one(ConfigPane)
        config = pane.document.config
        if config is None:
            problems = pane.document.problems
            self._screen.action_show_pane("config")
            pane.focus_field(problems[0].key)
            count = "a problem" if len(problems) == 1 else f"{len(problems)} problems; the first"
            self._screen.say(f"The configuration has {count}: {problems[0].message}", about="configuration")
            return
        path = pane.document.path
        preset = pane.document.preset or (path.stem if path else "run")
        start = partial(self._supervisor.start, config, preset=preset, one_iteration=one_iteration)
        self.attempt(lambda: self._once_trusted(config.reward, start, about="start"), about="start")

    def _stop(self) -> None:
        """Stop the run once the user agrees: even a capital letter can be typed by mistake."""

        def answered(agreed: bool | None) -> None:
            if agreed and self._supervisor.allows("stop"):
                self.attempt(self._supervisor.stop, about="steer")

        folder = self._supervisor.folder
        question = f"Stop {f'run {folder.name}' if folder else 'the run'} after a checkpoint?"
        detail = "It can be resumed later, from that checkpoint."
        self._screen.app.push_screen(ConfirmScreen(question, detail, yes="Stop run", no="Keep training"), answered)

    def _once_trusted(self, reward: RewardConfig, action: Callable[[], None], *, about: str) -> None:
        """Call `action`, which runs `reward`, once the user has trusted the reward's code. Raises TrainerError."""
        codes = untrusted_code(reward)
        if not codes:
            action()
            return

        def trusted(agreed: bool | None) -> None:
            if agreed:
                self.attempt(lambda: trusted_code().remember(codes), about="trust")
                self.attempt(action, about=about)

        self._screen.app.push_screen(TrustScreen(codes), trusted)

    def _watch(self, folder: Path, show: Callable[[ConfigDocument], None]) -> bool:
        def watch() -> None:
            self._supervisor.watch(folder)
            show(ConfigDocument.of_run(folder))

        return self.attempt(watch, about="start")

    def _edit(self, document: ConfigDocument) -> None:
        """Show another configuration, unless the user keeps unsaved changes."""
        self.when_nothing_is_lost(lambda: self._show(document))

    def _show(self, document: ConfigDocument) -> None:
        self._screen.query_one(ConfigPane).show_document(document)


def _count_problem(text: str) -> str:
    """Return why `text` is not a number of iterations; empty if it is one."""
    text = text.strip()
    return "" if text.isdecimal() and len(text) < 10 and int(text) else "Enter a number of iterations, 1 or more"


class QuitScreen(AnswerScreen):
    """Dialog that asks what should happen to the run called `run` when the user leaves; None means to stay."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "stay", id="quit.stay", tooltip="Close this dialog")
    ]

    def __init__(self, run: str) -> None:
        answers = (
            Answer("stop", "Stop and save", "save a checkpoint, then leave"),
            Answer("detach", "Detach", "continue headless; watch shows it again"),
            Answer("abort", "Abort", "leave at once, without a checkpoint"),
        )
        super().__init__(f"{run} is training. What should happen to it?", answers)


class TrustScreen(ConfirmScreen):
    """Dialog that shows the code that the reward would run, and asks whether it may."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pagedown", "read(1)", "read on", id="trust.on", tooltip="Scroll the code down"),
        Binding("pageup", "read(-1)", "back", show=False, id="trust.back", tooltip="Scroll the code up"),
    ]

    def __init__(self, codes: Sequence[Code]) -> None:
        super().__init__(
            "You have not trusted this version of the reward's Python code.",
            "It runs with all your permissions, now and in every later run that uses it.",
            yes="Trust",
            no="Cancel",
        )
        self._codes = codes

    def compose_detail(self) -> ComposeResult:
        with VerticalScroll(classes="code"):
            for code in self._codes:
                head = f"{visible(code.name)}\nSHA-256 {code.sha256 or 'unknown'}\n"
                yield Static(f"{head}\n{code_text(code)}\n", markup=False)
        yield from super().compose_detail()

    def action_read(self, pages: int) -> None:
        code = self.query_one(".code")
        code.scroll_relative(y=pages * max(code.size.height - 1, 1), animate=False)
