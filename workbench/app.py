"""The Textual application: its screen, its themes and keys, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.console import Console
from textual import work
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.screen import Screen
from textual.theme import Theme
from textual.widgets import Static

from workbench.kit.keys import ANYWHERE
from workbench.kit.theming import (
    DEFAULT_THEME,
    AsciiOnly,
    ThemedApp,
    apply_themes,
    no_color,
    read_themes,
    shipped_themes,
)
from workbench.opening import Opening
from workbench.system.environment import ScreenSettings, config_dir
from workbench.system.signals import REASONS, leave_now

if TYPE_CHECKING:
    from textual.command import Provider
    from textual.notifications import SeverityLevel

    from trainer.errors import TrainerError
    from workbench.kit.banner import Kind
    from workbench.screen.main_screen import MainScreen

_KINDS: dict[SeverityLevel, Kind] = {"information": "note", "warning": "warning", "error": "error"}


def _commands() -> type[Provider]:
    from workbench.kit.command_provider import WorkbenchCommands

    return WorkbenchCommands


class WorkbenchApp(ThemedApp[str]):
    """The application. It shows a first frame at once, then the main screen, which takes longer to import.

    What the first frame does not need is imported after it.

    The result is a message for the user, to print once the terminal is restored.
    """

    TITLE = "ppo-workbench"
    CSS = """
    Screen { background: $background; color: $foreground; }
    #program { padding: 0 1; background: $panel; text-style: bold; }
    """
    COMMANDS: ClassVar = {_commands}
    BINDINGS: ClassVar[list[BindingType]] = ANYWHERE

    def __init__(
        self, opening: Opening, default_theme: str = DEFAULT_THEME, typed: bytes = b"", *, ascii_only: bool = False
    ) -> None:
        if os.environ.get("NO_COLOR") == "":
            del os.environ["NO_COLOR"]  # no-color.org: an empty value does not count; Textual accepts any
        super().__init__(ansi_color=True if no_color() else None)  # a filter without colour, not grey
        self.animation_level = "none"
        self.report = StringIO()  # of the bug that ended the application: written by Textual
        self.error_console = Console(file=self.report)
        self._ascii_only = ascii_only
        self._more_filters = [AsciiOnly()] if ascii_only else []
        self.opening = opening
        self._default_theme = default_theme  # if the user has chosen none
        self._typed = typed.decode(errors="replace")  # before the application could read it
        self.main: MainScreen | None = None
        self.terminal_gone = False
        self.ended_by: signal.Signals | None = None
        self._loop_and_context: tuple[asyncio.AbstractEventLoop, contextvars.Context] | None = None  # once mounted
        self._leaving = False  # a dialog asks about what would be lost
        self.crashed = False  # ended by a bug, while a run goes on without the screen
        self.refusal: TrainerError | None = None  # why nothing could be opened
        self._settings = ScreenSettings.load(config_dir())
        self._saving = asyncio.Lock()
        self._problems: list[str] = []  # of themes and keys, shown once there is a screen

    def compose(self) -> ComposeResult:
        yield Static("ppo-workbench", id="program")

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *self._more_filters]

    def get_key_display(self, binding: Binding) -> str:
        shown = super().get_key_display(binding)
        return binding.key if self._ascii_only and not shown.isascii() else shown  # a word: "/" could be ⏎ or /

    def on_mount(self) -> None:
        self._use_themes()
        self.set_interval(1.0, self._look_at_themes)
        self._loop_and_context = asyncio.get_running_loop(), contextvars.copy_context()
        if self.terminal_gone or self.ended_by is not None:  # a signal came before there was a loop
            self.exit()
        self.call_after_refresh(self._open)

    async def _open(self) -> None:
        from trainer.errors import TrainerError
        from workbench.screen.main_screen import MainScreen

        try:
            self.main = MainScreen(self.opening, self.opening.document(), self._settings)
        except TrainerError as error:
            self.refusal = error
            self.exit()
            return
        path = config_dir() / "keys.toml"  # first, so that the screen shows the right keys from the start
        if path.exists():  # only then, because finding all bindings imports every widget
            from workbench.kit.keys import load_keymap, own_bindings

            keymap, problems = load_keymap(path, own_bindings())
            self.set_keymap(keymap)
            self._problems += [f"Keys: {problem}" for problem in problems]
        await self.push_screen(self.main)
        for character in filter(str.isprintable, self._typed):
            self.simulate_key(character)
        self._show_problems()

    def _use_themes(self) -> None:
        for name in [name for name in self.available_themes if name != "textual-dark"]:  # that one is the fallback
            self.unregister_theme(name)
        self._shipped, self._own_themes = shipped_themes(), read_themes(config_dir() / "themes")
        themes, chosen = self._shipped | self._own_themes[0], self._settings.theme
        apply_themes(self, themes)
        self.theme = self._shown_theme = chosen if chosen in themes else self._default_theme
        self.theme_changed_signal.subscribe(self, self._remember_theme)
        self._problems += [f"Theme: {problem}" for problem in self._own_themes[1]]

    @work(group="settings")
    async def _remember_theme(self, theme: Theme) -> None:
        """Save a theme that the user chose, but not the default one: another terminal may need another."""
        if theme.name != self._shown_theme:
            self._settings.theme = self._shown_theme = theme.name
            async with self._saving:  # so that the newest settings are written last
                await asyncio.to_thread(self._settings.save, config_dir())

    @work(group="themes", exclusive=True)
    async def _look_at_themes(self) -> None:
        found = await asyncio.to_thread(read_themes, config_dir() / "themes")
        if found != self._own_themes:
            self._own_themes = found
            themes, problems = found
            apply_themes(self, self._shipped | themes)
            if self._shown_theme == self._default_theme and self._settings.theme in themes:
                self.theme = self._settings.theme  # its file could not be read before
            self._problems += [f"Theme: {problem}" for problem in problems]
            self._show_problems()

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Show a message in the banner of the screen on top and of the main screen: a toast would cover what is read.

        Its text is never markup. An error stays until it is dismissed, whatever the timeout.
        """
        from workbench.kit.banner import Banner

        kind = _KINDS[severity]
        if self.main is not None and self.main.is_attached:
            self.main.panes.say(f"{title}: {message}" if title else message, kind)
        if self.screen is not self.main:
            Banner.of(self.screen).say(f"{title}: {message}" if title else message, kind)

    def _show_problems(self) -> None:
        if self._problems and self.main is not None:
            from workbench.kit.banner import Banner

            Banner.of(self.main).say("\n".join(self._problems), "warning")  # about no pane: it stays when one is left
        self._problems.clear()

    def action_command_palette(self) -> None:
        from textual.command import CommandPalette

        if not isinstance(self.screen, CommandPalette):
            wanted = "Search commands, runs, settings, presets, samples and docs"
            self.push_screen(CommandPalette(placeholder=wanted, id="--command-palette"))

    def action_jump(self) -> None:
        from workbench.kit.jump import JumpScreen

        JumpScreen.toggle(self)

    def action_help(self) -> None:
        from workbench.kit.help import HelpScreen

        HelpScreen.toggle(self)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        yield SystemCommand("Theme", "Choose the colours", self.action_change_theme)
        yield SystemCommand("Screenshot", "Save the screen as SVG, in the current folder", self._save_screenshot)

    @work
    async def _save_screenshot(self) -> None:
        from trainer.errors import StorageError
        from trainer.files import unused
        from workbench.kit.saving import write_lines

        picture = self.export_screenshot()

        def save() -> Path:
            write_lines(path := unused(Path("screenshot.svg")), [picture])
            return path

        try:
            path = await asyncio.to_thread(save)
        except StorageError as error:
            self.notify(str(error), severity="error", markup=False)
        else:
            self.notify(f"Saved {path} in the current folder", markup=False)

    @work(group="asking to leave")
    async def action_leave(self) -> None:
        """Ask what should happen to a run that is trained here. Without one, leave if nothing else would be lost."""
        if self.main is None:
            self.exit()
            return
        if self._leaving:
            return  # already asked
        self._leaving, supervisor = True, self.main.supervisor
        try:
            if not supervisor.trains_here:
                if await self.main.steering.may_discard():
                    self.exit()
                return
            from workbench.screen.dialogs import QuitScreen

            started = supervisor.view.started
            if choice := await self.push_screen_wait(QuitScreen(started.name if started else "A run")):
                self.leave(choice)
        finally:
            self._leaving = False

    def handle_signal(self, number: signal.Signals) -> bool:
        """Close the screen when the terminal is gone; end the run and the screen on any other signal.

        A run that goes on after a bug has ended the screen is ended as a headless one: by SIGHUP too, and by a second
        SIGINT at once. Called inside a signal handler of the main thread, also before the screen exists and after it
        has closed. Returns whether the signal ends the process.
        """
        if number == signal.SIGHUP and not self.crashed:
            self.terminal_gone = True
            # The SIGCONT that comes with it would let Textual begin to read and draw once more, in threads that stay.
            signal.signal(signal.SIGCONT, lambda *_: None)
            self._call_soon(self.exit)
            return False
        if self.crashed and self.ended_by is not None and number == signal.SIGINT:
            leave_now()
        self.ended_by = self.ended_by or number
        if self.main is not None and self.main.supervisor.trains_here:
            self.main.supervisor.stop(REASONS[number])
        self._call_soon(self.leave, "stop", REASONS[number])
        return True

    def _call_soon(self, action: Callable[..., object], *arguments: object) -> None:
        """Call `action` on the screen's loop, if there still is one."""
        if self._loop_and_context is not None:
            loop, context = self._loop_and_context
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: action(*arguments), context=context)

    @work(exclusive=True, group="leaving")
    async def leave(self, choice: str, reason: str = "stopped by the user") -> None:
        """End the run as chosen in `QuitScreen`, show the progress, and exit."""
        if self.main is None:
            self.exit()
            return
        supervisor = self.main.supervisor
        if supervisor.trains_here:  # a run that another process trains goes on
            if choice == "abort":
                supervisor.abort()
            else:
                supervisor.stop("detached" if choice == "detach" else reason)
        while supervisor.trains_here and not supervisor.stuck:  # the screen keeps showing the progress
            await asyncio.sleep(0.05)
            self.main.panes.poll()
        message = supervisor.failure
        if choice == "detach" and not message:
            from trainer.errors import TrainerError

            try:
                message = supervisor.detach()
            except TrainerError as error:
                self.main.panes.say(str(error), about="steer")
                return
        self.exit(message)
