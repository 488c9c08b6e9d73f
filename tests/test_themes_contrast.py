"""Every shipped theme can be read: WCAG 2.2 contrast, and colour deficiency for the theme made for it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from textual.color import Color

from workbench.theming import EXTRA_VARIABLES, ThemeSpec, read_theme, shipped_themes_dir, to_textual

SPECS = {spec.name: spec for spec in map(read_theme, sorted(shipped_themes_dir().glob("*.toml")))}
ACCENTS = ("primary", "secondary", "accent", "success", "warning", "error")
GROUNDS = ("background", "surface", "panel")

# xterm's default colours, 0 to 15 (XTerm-col.ad).
XTERM = [
    "#000000", "#cd0000", "#00cd00", "#cdcd00", "#0000ee", "#cd00cd", "#00cdcd", "#e5e5e5",
    "#7f7f7f", "#ff0000", "#00ff00", "#ffff00", "#5c5cff", "#ff00ff", "#00ffff", "#ffffff",
]  # fmt: skip

XTERM_DARK = ("#ffffff", "#000000")  # default text and ground; a light terminal has them the other way about

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
DEFICIENCIES = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


class Palette:
    """The colours a theme gives the screen, as they reach the eye."""

    def __init__(self, spec: ThemeSpec) -> None:
        theme = to_textual(spec)
        self._variables = {**theme.to_color_system().generate(), **theme.variables}
        self._default_text, self._default_ground = map(Color.parse, XTERM_DARK if theme.dark else XTERM_DARK[::-1])

    def ground(self, name: str) -> Color:
        """A background; a translucent one lies on the theme's."""
        base = self._parsed("background", default=self._default_ground)
        color = self._parsed(name, default=self._default_ground)
        return base + color

    def text(self, name: str, *, on: str = "background") -> Color:
        """A text or a line on a ground."""
        ground = self.ground(on)
        return ground + self._parsed(name, default=self._default_text, auto_on=ground)

    def _parsed(self, name: str, *, default: Color, auto_on: Color | None = None) -> Color:
        text, _, percent = self._variables[name].partition(" ")
        alpha = float(percent.rstrip("%") or 100) / 100
        if text == "auto" and auto_on is not None:
            return auto_on.get_contrast_text(alpha)
        color = Color.parse(text)
        if color.ansi is not None:
            color = default if color.ansi == -1 else Color.parse(XTERM[color.ansi])
        return color.multiply_alpha(alpha)


def linear(color: Color) -> np.ndarray:
    """Linear RGB of sRGB, each 0 to 1."""
    channels = np.array(color.normalized)
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one: Color, other: Color) -> float:
    """The contrast ratio of WCAG 2.2, 1 to 21."""
    light, dark = sorted((float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def delta_e(one: Color, other: Color, seen_by: str | None = None) -> float:
    """Distance in CIE L*a*b* (CIE76); 2.3 is about the least that is seen. seen_by: a key of DEFICIENCIES."""

    def lab(color: Color) -> np.ndarray:
        rgb = linear(color)
        if seen_by:
            rgb = np.clip(np.array(DEFICIENCIES[seen_by]) @ rgb, 0, 1)
        to_xyz = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                           [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip
        xyz = to_xyz @ rgb / [0.95047, 1.0, 1.08883]
        f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    return float(np.linalg.norm(lab(one) - lab(other)))


def text_pairs() -> list[tuple[str, str]]:
    """Every text colour with every ground that it is used on."""
    texts = ["foreground", "text", "text-muted", "foreground-muted", "chart-axis", *(f"text-{a}" for a in ACCENTS)]
    texts += ["label-first", "label-second", "label-tie"]
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


def test_the_high_contrast_theme_reaches_the_enhanced_level() -> None:
    palette = Palette(SPECS["high-contrast"])
    assert min(contrast(palette.text(text, on=ground), palette.ground(ground)) for text, ground in text_pairs()) >= 7


@pytest.mark.parametrize("name", SPECS)
def test_charts_and_labels_use_colours_that_differ(name: str) -> None:
    palette = Palette(SPECS[name])
    for names in (
        [f"chart-{n}" for n in range(1, 7)],
        ["heat-low", "heat-mid", "heat-high"],
        ["label-first", "label-second"],
    ):
        assert min(delta_e(palette.text(a), palette.text(b)) for a, b in itertools.combinations(names, 2)) > 15


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_opposites_stay_apart_for_eyes_that_lack_a_colour(deficiency: str) -> None:
    palette = Palette(SPECS["blue-orange"])
    for one, other in (("heat-low", "heat-high"), ("label-first", "label-second"), ("success", "error")):
        assert delta_e(palette.text(one), palette.text(other), deficiency) > 60
    series = [palette.text(f"chart-{n}") for n in range(1, 7)]
    assert min(delta_e(a, b, deficiency) for a, b in itertools.combinations(series, 2)) > 10


def test_red_and_green_would_not_stay_apart() -> None:
    red, green = Color.parse("#d70000"), Color.parse("#5f8700")
    assert delta_e(red, green) > 60
    assert delta_e(red, green, "deuteranopia") < 30


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast(Color.parse("#ffffff"), Color.parse("#000000")) == pytest.approx(21)
    assert contrast(Color.parse("#767676"), Color.parse("#ffffff")) == pytest.approx(4.54, abs=0.005)
