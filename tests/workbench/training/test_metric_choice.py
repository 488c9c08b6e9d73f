"""The choice of metrics."""

from __future__ import annotations

from pathlib import PurePath
from typing import ClassVar

from workbench.kit.dialog import ChoiceList
from workbench.kit.theming import ALL_STYLES, ThemedApp
from workbench.training.pane import ChooseMetricsScreen


class Host(ThemedApp[None]):
    CSS_PATH: ClassVar[list[str | PurePath]] = [*ALL_STYLES]


async def test_what_is_chosen_can_be_told_without_colour() -> None:
    app = Host()
    async with app.run_test(size=(80, 40)) as pilot:
        await app.push_screen(ChooseMetricsScreen(["kl"]))
        await pilot.pause()
        listed = app.screen.query_one(ChoiceList)

        def marked() -> list[str]:
            lines = (listed.render_line(y).text for y in range(listed.option_count))
            return [line.split("▌")[1].strip() for line in lines if "X" in line.split("▌")[0]]

        assert marked() == ["KL"]
        await pilot.press("home", "space")
        assert marked() == ["score", "KL"]
