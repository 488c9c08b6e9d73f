"""The footer: the keys that apply now, drawn in one line, pressed by a click."""

from __future__ import annotations

from pathlib import PurePath
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.pilot import Pilot
from textual.widgets import Button, Input
from themed_app import ThemedApp
from waiting import until

from workbench.kit.key_footer import KeyFooter
from workbench.kit.styles import ALL_STYLES


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
    bells = 0
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

    def bell(self) -> None:
        self.bells += 1


async def shown(app: Keys, pilot: Pilot[None]) -> str:
    """Return the footer's line, once it has heard of the keys."""
    await until(pilot, lambda: bool(app.query_one(KeyFooter).pinned))
    await pilot.pause()
    return "".join(segment.text for segment in app.screen._compositor.render_strips()[-1])


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
        footer = app.query_one(KeyFooter)
        await pilot.hover(footer, offset=(51, 0))
        assert footer.tooltip == "Leave"
        await pilot.hover(footer, offset=(11, 0))
        assert footer.tooltip is None


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
        await pilot.click(footer, offset=(line.index("go on"), 0))
        await pilot.click(footer, offset=(line.index("back"), 0))
        await until(pilot, lambda: app.pressed == "ab")
        await pilot.click(footer, offset=(line.index("not now"), 0))
        await until(pilot, lambda: app.bells == 1)
        await pilot.click(footer, offset=(45, 0))
        await pilot.hover(footer, offset=(45, 0))
        assert footer.tooltip is None
        assert (app.pressed, app.bells) == ("ab", 1)


async def test_a_key_that_cannot_be_used_now_is_muted_and_can_still_be_read() -> None:
    app = Keys()
    async with app.run_test(size=(90, 5)) as pilot:
        await shown(app, pilot)
        footer = app.query_one(KeyFooter)
        styles = {segment.text: segment.style for segment in footer.render_line(0)}
        assert styles["not now"] != styles["go on"]
        muted = styles["not now"]
        assert muted is not None
        assert not muted.dim, "many terminals draw dimmed text with half of its contrast"
        assert muted.color == footer.get_component_rich_style("key-footer--disabled").color


async def test_keys_appear_and_disappear_as_they_begin_and_cease_to_apply() -> None:
    app = Keys()
    async with app.run_test(size=(90, 5)) as pilot:
        await shown(app, pilot)
        footer = app.query_one(KeyFooter)
        assert [key.enabled for key in footer.keys] == [True, True, False]
        app.never = True
        app.refresh_bindings()
        await until(pilot, lambda: all(key.enabled for key in footer.keys))
        app.never = False
        app.refresh_bindings()
        await until(pilot, lambda: [key.key for key in footer.keys] == ["a", "b"])
