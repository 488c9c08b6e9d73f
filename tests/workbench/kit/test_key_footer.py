"""The footer: the keys that apply now, drawn in one line, pressed by a click."""

from __future__ import annotations

from pathlib import PurePath
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.pilot import Pilot
from textual.widgets import Button, Input
from waiting import until

from workbench.kit.footer import KeyFooter
from workbench.kit.theming import ALL_STYLES, ThemedApp


class Keys(ThemedApp[None]):
    CSS_PATH: ClassVar[list[str | PurePath]] = [*ALL_STYLES]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a,A", "press('a')", "go on", tooltip="Goes on"),
        Binding("b", "press('b')", "[/x] back"),
        Binding("c", "never", "not now"),
        Binding("d", "press('d')", "hidden", show=False),
        Binding("escape,n", "press('esc')", "close"),
        Binding("q,ctrl+q", "app.leave", "quit", tooltip="Leave"),
        Binding("question_mark,f1", "app.help", "help", show=False),
    ]
    pressed = ""
    never: bool | None = None  # whether that key can be used

    def __init__(self, *, field: bool = False) -> None:
        super().__init__()
        self.field = field

    def compose(self) -> ComposeResult:
        yield Input() if self.field else Button("x")
        yield KeyFooter()

    def action_leave(self) -> None: ...

    def action_help(self) -> None: ...

    def action_press(self, key: str) -> None:
        self.pressed += key

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.never if action == "never" else True


async def shown(app: Keys, pilot: Pilot[None]) -> str:
    """Return the footer's line, once the keys are known."""
    await pilot.pause()
    footer = app.query_one(KeyFooter)
    await until(pilot, lambda: "quit" in str(footer.content))
    return "".join(segment.text for segment in footer.render_line(0))


async def test_keys_are_shown_once_each_and_escape_palette_help_and_quit_at_the_right_end_at_every_width() -> None:
    app = Keys()
    async with app.run_test(size=(90, 5)) as pilot:
        line = await shown(app, pilot)
        assert line.startswith(" a go on  b [/x] back  c not now ")
        assert line.endswith("▏esc close  ^p commands  ? help  q quit ")
        assert "hidden" not in line
        assert len(line) == 90
        for width, start in ((73, " a go on  b [/x] back  c not now ▏"), (72, " a go on  b [/x] back  … ")):
            await pilot.resize_terminal(width, 5)
            line = await shown(app, pilot)
            assert line.startswith(start)
            assert line.endswith("▏esc close  ^p commands  ? help  q quit ")
        await pilot.resize_terminal(53, 5)
        assert await shown(app, pilot) == " a go on  …  ▏esc close  ^p commands  ? help  q quit "


async def test_while_text_is_typed_only_keys_that_are_no_text_are_shown() -> None:
    app = Keys(field=True)
    async with app.run_test(size=(60, 5)) as pilot:
        assert (await shown(app, pilot)).rstrip().endswith("esc close  ^p commands  f1 help  ^q quit")


async def test_a_click_presses_the_key_and_the_mouse_over_it_says_what_it_does() -> None:
    app = Keys()
    async with app.run_test(size=(90, 5)) as pilot:
        line = await shown(app, pilot)
        footer = app.query_one(KeyFooter)
        await pilot.hover(footer, offset=(line.index("go on"), 0))
        assert footer.tooltip == "Goes on"
        for words in ("go on", "back", "not now"):
            await pilot.click(footer, offset=(line.index(words), 0))
        await until(pilot, lambda: app.pressed == "ab")
        await pilot.click(footer, offset=(45, 0))
        await pilot.hover(footer, offset=(45, 0))
        assert footer.tooltip is None
        assert app.pressed == "ab"


async def test_keys_appear_and_disappear_as_they_begin_and_cease_to_apply() -> None:
    app = Keys()
    async with app.run_test(size=(90, 5)) as pilot:
        assert "not now" in await shown(app, pilot), "muted"
        app.never = False
        app.refresh_bindings()
        await until(pilot, lambda: "not now" not in str(app.query_one(KeyFooter).content))
