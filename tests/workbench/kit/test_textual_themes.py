"""Textual's own themes: chosen like ours, and as legible."""

from __future__ import annotations

import itertools

from colors import contrast
from textual.color import Color
from textual.theme import BUILTIN_THEMES
from waiting import until
from workbench_app import workbench

from workbench.kit.screen_settings import ScreenSettings
from workbench.kit.theme_file import textual_themes
from workbench.kit.theming import EXTRA_VARIABLES, shipped_themes
from workbench.system.environment import config_dir

GROUNDS = ("background", "surface", "panel")


def test_words_and_lines_stand_out_in_every_theme_of_textual() -> None:
    themes = textual_themes()
    assert len(themes) > 10
    wrong = {}
    for name, theme in themes.items():
        made = {**theme.to_color_system().generate(), **theme.variables}
        words = [one for one in made if one.startswith("text-") and "auto" not in made[one]]
        pairs = [(one, 4.5) for one in ("foreground", *words)] + [(one, 3.0) for one in EXTRA_VARIABLES]
        for (one, least), ground in itertools.product(pairs, GROUNDS):
            ratio = contrast(Color.parse(made[one]), Color.parse(made[ground]))
            if ratio < least:
                wrong[name, one, ground] = round(ratio, 2)
    assert wrong == {}


async def test_they_can_be_chosen_and_are_shown_at_the_next_start() -> None:
    async with workbench() as (screen, pilot):
        await until(pilot, lambda: "nord" in screen.app.available_themes)
        assert {*screen.app.available_themes} == {*textual_themes(), *shipped_themes()}
        screen.app.theme = "nord"
        await pilot.pause()
        assert screen.app.theme_variables["chart-1"] != EXTRA_VARIABLES["chart-1"]
        assert screen.app.current_theme != BUILTIN_THEMES["nord"]
    assert ScreenSettings.load(config_dir()).theme == "nord"
    async with workbench() as (screen, _):
        assert screen.app.theme == "nord"
