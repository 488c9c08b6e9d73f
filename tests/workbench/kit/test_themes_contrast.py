"""Every shipped theme can be read: WCAG 2.2 contrast, and colour deficiency for the theme made for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from colors import DEFICIENCIES, SPECS, XTERM, XTERM_DARK, contrast, delta_e
from snapshots import drawn_pieces, written_run
from textual.color import Color
from textual.css.stylesheet import Stylesheet
from textual.theme import Theme
from waiting import until
from workbench_app import workbench as running

from workbench.kit.theming import ALL_STYLES, EXTRA_VARIABLES
from workbench.samples.sample_list import SampleList

ACCENTS = ("primary", "secondary", "accent", "success", "warning", "error")
GROUNDS = ("background", "surface", "panel")
HEX = [name for name, spec in SPECS.items() if not spec.ansi]


class Palette:
    """The colours a theme gives the screen, as they reach the eye."""

    def __init__(self, theme: Theme) -> None:
        self.variables = {**theme.to_color_system().generate(), **theme.variables}
        self._default_text, self._default_ground = map(Color.parse, XTERM_DARK if theme.dark else XTERM_DARK[::-1])

    def ground(self, name: str) -> Color:
        """Return a background; a translucent one lies on the theme's."""
        base = self._parsed("background", default=self._default_ground)
        color = self._parsed(name, default=self._default_ground)
        return base + color

    def text(self, name: str, *, on: str = "background") -> Color:
        """Return a text or a line on a ground."""
        ground = self.ground(on)
        return ground + self._parsed(name, default=self._default_text, auto_on=ground)

    def _parsed(self, name: str, *, default: Color, auto_on: Color | None = None) -> Color:
        text, _, percent = self.variables[name].partition(" ")
        alpha = float(percent.rstrip("%") or 100) / 100
        if text == "auto" and auto_on is not None:
            return auto_on.get_contrast_text(alpha)
        color = Color.parse(text)
        if color.ansi is not None:
            color = default if color.ansi == -1 else Color.parse(XTERM[color.ansi])
        return color.multiply_alpha(alpha)


def text_pairs() -> list[tuple[str, str]]:
    """Return every text colour with every ground that it is used on."""
    texts = ["foreground", "text", "text-muted", "foreground-muted", "chart-axis", *(f"text-{a}" for a in ACCENTS)]
    grounds = [*GROUNDS, "panel-lighten-1", "surface-darken-1"]  # toasts, and buttons under the mouse
    return [
        *itertools.product(texts, grounds),
        *itertools.product(ACCENTS, GROUNDS),
        *((f"text-{accent}", f"{accent}-muted") for accent in ACCENTS),
        *(("button-color-foreground", accent) for accent in ("primary", "success", "warning", "error")),
        ("block-cursor-foreground", "block-cursor-background"),
        ("block-cursor-blurred-foreground", "block-cursor-blurred-background"),
        ("input-selection-foreground", "input-selection-background"),
        ("footer-key-foreground", "footer-background"),
        ("footer-description-foreground", "footer-background"),
    ]


@pytest.mark.parametrize("name", SPECS)
def test_text_stands_out_from_every_ground_it_is_used_on(name: str) -> None:
    palette = Palette(SPECS[name])
    pairs = {
        (text, ground): contrast(palette.text(text, on=ground), palette.ground(ground)) for text, ground in text_pairs()
    }
    assert {pair: round(ratio, 2) for pair, ratio in pairs.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("name", SPECS)
def test_lines_heat_and_labels_stand_out_from_every_ground(name: str) -> None:
    palette = Palette(SPECS[name])
    pairs = {
        pair: contrast(palette.text(pair[0]), palette.ground(pair[1]))
        for pair in itertools.product(EXTRA_VARIABLES, GROUNDS)
    }
    assert {pair: round(ratio, 2) for pair, ratio in pairs.items() if ratio < 3} == {}


def used_by_stylesheets(palette: Palette) -> Iterator[tuple[str, float, float]]:
    """Return what each rule of our stylesheets draws: the rule, its contrast, and the least that it needs.

    A rule without a ground of its own is checked on every ground.
    """
    sheet = Stylesheet(variables=palette.variables)
    for path in ALL_STYLES:
        sheet.read(path)
    sheet.parse()
    for rule in sheet.rules:
        styles = rule.styles
        grounds = [palette.ground(name) for name in GROUNDS]
        if styles.has_rule("background") and styles.background.a:
            grounds = [palette.ground("background") + styles.background]
        texts = ("color", "border_title_color", "border_subtitle_color")
        least = 3.0 if str(rule.selectors).endswith("separator") else 4.5
        if str(rule.selectors).endswith(("--button", "--button-highlighted")):
            least = 1.0  # the sign in a box that is off must not be seen
        drawn = [(name, getattr(styles, name), least) for name in texts if styles.has_rule(name)]
        for edge in ("top", "right", "bottom", "left"):
            kind, color = getattr(styles, f"border_{edge}")
            if styles.has_rule(f"border_{edge}") and kind not in ("", "none", "hidden", "blank"):
                drawn.append((f"border_{edge}", color, 3.0))
        for (name, color, least), ground in itertools.product(drawn, grounds):
            yield f"{rule.selectors} {name}", contrast(ground + color, ground), least


@pytest.mark.parametrize("name", HEX)
def test_a_box_that_is_off_stands_out_and_its_sign_does_not(name: str) -> None:
    palette = Palette(SPECS[name])
    sheet = Stylesheet(variables=palette.variables)
    for path in ALL_STYLES:
        sheet.read(path)
    sheet.parse()
    boxes = [rule.styles for rule in sheet.rules if str(rule.selectors).endswith(("--button", "--button-highlighted"))]
    assert boxes
    for styles, ground in zip(boxes, ("surface", "block-cursor-background"), strict=True):  # the cursor's row is last
        assert styles.color == styles.background
        assert contrast(styles.background, palette.ground(ground)) >= 3


@pytest.mark.parametrize("name", HEX)
def test_every_text_and_line_of_the_stylesheets_can_be_seen(name: str) -> None:
    found = list(used_by_stylesheets(Palette(SPECS[name])))
    assert len(found) > 100
    assert {what: round(ratio, 2) for what, ratio, least in found if ratio < least} == {}


STOPS = {  # keys that lead on from the stop before
    "Home": ["f9"],
    "Config": ["f2"],
    "a value of Config": ["slash", *"kl_coef", "enter", "enter"],
    "Training": ["escape", "escape", "f3"],
    "a chart": ["enter"],
    "score against KL": ["escape", "k"],
    "Samples": ["escape", "f4"],
    "a sample": ["enter"],
    "Label": ["f5"],
    "Reward model": ["f6"],
    "Log": ["f8"],
}


@pytest.mark.usefixtures("hurried")
async def test_every_word_and_line_can_be_seen_as_it_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPO_WORKBENCH_CONFIG_DIR", str(tmp_path))
    written_run(run := tmp_path / "runs" / "past")
    faint: dict[tuple[str, str, str], float] = {}
    async with running(size=(120, 40), watch=run) as (screen, pilot):
        app = screen.app
        await until(pilot, lambda: bool(screen.query_one(SampleList).items))
        screen.panes.say("cannot write it")
        for stop, keys in STOPS.items():
            for key in keys:
                await pilot.press(key)
                await until(pilot, lambda: app.screen is screen)
            for name in HEX:
                app.theme = name
                await pilot.pause()
                pieces = drawn_pieces(app.screen)
                assert pieces
                faint |= {(stop, name, text): round(ratio, 2) for text, ratio, least in pieces if ratio < least}
    assert faint == {}


def test_the_high_contrast_theme_reaches_the_enhanced_level() -> None:
    palette = Palette(SPECS["high-contrast"])
    assert min(contrast(palette.text(text, on=ground), palette.ground(ground)) for text, ground in text_pairs()) >= 7


@pytest.mark.parametrize("name", SPECS)
def test_charts_and_heat_use_colours_that_differ(name: str) -> None:
    palette = Palette(SPECS[name])
    for names in ([f"chart-{n}" for n in range(1, 7)], ["heat-low", "heat-mid", "heat-high"]):
        assert min(delta_e(palette.text(a), palette.text(b)) for a, b in itertools.combinations(names, 2)) > 15


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_opposites_stay_apart_for_eyes_that_lack_a_colour(deficiency: str) -> None:
    palette = Palette(SPECS["blue-orange"])
    for one, other in (("heat-low", "heat-high"), ("success", "error")):
        assert delta_e(palette.text(one), palette.text(other), deficiency) > 60
    series = [palette.text(f"chart-{n}") for n in range(1, 7)]
    assert min(delta_e(a, b, deficiency) for a, b in itertools.combinations(series, 2)) > 10


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast(Color.parse("#ffffff"), Color.parse("#000000")) == pytest.approx(21)
    assert contrast(Color.parse("#767676"), Color.parse("#ffffff")) == pytest.approx(4.54, abs=0.005)
