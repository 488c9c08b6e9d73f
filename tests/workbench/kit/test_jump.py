"""Jump mode: letters on panes and controls at every size, and where they go."""

from __future__ import annotations

from textual.widgets import Static
from waiting import until
from workbench_app import workbench

from workbench.kit.dialog import ConfirmScreen
from workbench.kit.jump import LETTERS, JumpScreen
from workbench.kit.pane_strip import TopLines


async def test_a_letter_goes_to_its_pane_or_control_at_every_size_and_in_dialogs() -> None:
    async with workbench() as (screen, pilot):
        app, strip = screen.app, screen.query_one(TopLines)
        for size, number in (((80, 24), 4), ((120, 40), 1), ((200, 60), 2)):
            await pilot.resize_terminal(*size)
            await pilot.press("ctrl+o")
            await until(pilot, lambda: isinstance(app.screen, JumpScreen))
            letters = [letter for letter in app.screen.query(".letter").results(Static) if letter.region.area]
            assert len(letters) == len(app.screen.query(".letter")) > len(strip.places)
            assert letters[number].region.offset == (strip.places[number][1], 0)
            await pilot.press(LETTERS[number])
            await until(pilot, lambda number=number: strip.current == strip.places[number][0].id)  # type: ignore[misc]
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, JumpScreen))
        for key, pane in (("f4", "samples"), ("right_parenthesis", "label"), ("left_parenthesis", "samples")):
            await pilot.press(key, "ctrl+o")
            await until(pilot, lambda pane=pane: strip.current == pane and isinstance(app.screen, JumpScreen))  # type: ignore[misc]
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
        app.push_screen(dialog := ConfirmScreen("Sure?"))
        await until(pilot, lambda: app.screen is dialog and app.focused is not None)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, JumpScreen))
        await pilot.press(LETTERS[1])
        await until(pilot, lambda: app.screen is dialog and app.focused is not None and app.focused.id == "yes")
        await pilot.press("ctrl+o", "escape", "escape")
        await until(pilot, lambda: app.screen is screen)
