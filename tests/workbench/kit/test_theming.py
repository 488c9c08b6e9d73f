"""Themes: what is refused and reported, contrast for everyone, no colour, live reload; the screen in ASCII."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
import tomli_w
from apart import ROOT
from colors import DEFICIENCIES, SPECS, XTERM, XTERM_DARK, contrast, delta_e
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.color import Color as TerminalColor
from rich.color import ColorSystem
from rich.style import Style
from snapshots import drawn_pieces, written_run
from textual.app import App, ComposeResult
from textual.color import Color
from textual.theme import Theme
from textual.widgets import Input, OptionList, Static
from waiting import until
from workbench_app import workbench as running

import workbench
from workbench.app import WorkbenchApp
from workbench.kit import theming
from workbench.kit.theming import (
    ALL_STYLES,
    DEFAULT_THEME,
    DEFAULT_THEMES,
    EXTRA_VARIABLES,
    FEW_COLORS_THEME,
    ROLES,
    SHIPPED_THEMES,
    ThemedApp,
    apply_themes,
    ascii_text,
    no_color,
    read_themes,
    shipped_themes,
    theme_problems,
)
from workbench.opening import Opening
from workbench.samples.sample_list import SampleList
from workbench.system.environment import ScreenSettings, needs_ascii


class Probe(ThemedApp[None]):
    """The workbench's own stylesheets, text in every variable of ours, and a list with a cursor."""

    CSS_PATH: ClassVar = ALL_STYLES
    CSS = "\n".join(f"#{name} {{ color: ${name}; }}" for name in EXTRA_VARIABLES)

    def __init__(self) -> None:
        super().__init__(ansi_color=True if no_color() else None)

    def compose(self) -> ComposeResult:
        yield from (Static(name, id=name) for name in EXTRA_VARIABLES)
        yield OptionList("one", "two")
        yield Input("typed", select_on_focus=False)


def raw_theme(**changes: Any) -> dict[str, Any]:
    """Return the content of the default theme's file, with top-level `changes`."""
    raw = tomllib.loads((SHIPPED_THEMES / f"{DEFAULT_THEME}.toml").read_text())
    return raw | changes


def heat(low: object, **others: str) -> dict[str, Any]:
    return {"heat": {"low": low, "mid": "#888", "high": "#fff"} | others}


def write_theme(folder: Path, file: str = "mine.toml", **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file
    path.write_text(tomli_w.dumps(raw_theme(**changes)), encoding="utf-8")
    return path


def styles_on_screen(app: App[None]) -> list[tuple[str, Style]]:
    """Return every stretch of text as it goes to the terminal, with its style."""
    return [
        (segment.text, segment.style or Style())
        for strip in app.screen._compositor.render_strips()
        for segment in strip
    ]


def test_the_shipped_files_pass_the_checks_of_a_users_file() -> None:
    themes, problems = read_themes(SHIPPED_THEMES)
    assert (themes, problems) == (shipped_themes(), [])
    assert {*themes} == {path.stem for path in SHIPPED_THEMES.glob("*.toml")}, "each is in a file of its name"
    assert all(EXTRA_VARIABLES.keys() <= theme.variables.keys() for theme in themes.values())
    assert {*DEFAULT_THEMES.values()} <= {*themes}


@pytest.mark.parametrize("name", [name for name, theme in shipped_themes().items() if not theme.ansi])
def test_the_grounds_of_a_theme_are_greys_where_a_terminal_has_256_colours(name: str) -> None:
    theme = shipped_themes()[name]
    for ground in (theme.background, theme.surface, theme.panel):
        shown = TerminalColor.parse(ground or "").downgrade(ColorSystem.EIGHT_BIT).get_truecolor()
        assert len({*shown}) == 1, f"{ground} becomes {shown.hex}"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"nmae": "x"}, "unknown key nmae: did you mean name?"),
        ({"zzz": 1}, "unknown key zzz"),
        ({"name": "My Theme"}, "name = 'My Theme': must be small letters, digits and dashes, as in \"my-theme\""),
        ({"name": 5}, 'name = 5: must be small letters, digits and dashes, as in "my-theme"'),
        ({"dark": "yes"}, "dark = 'yes': must be true or false"),
        ({"heat": "red"}, "unknown key heat: did you mean heat.mid?\nmissing: heat.low, heat.mid, heat.high"),
        ({"heat": {}}, "missing: heat.low, heat.mid, heat.high"),
        (heat("#000", lwo="#111"), "unknown key heat.lwo: did you mean heat.low?"),
        (
            heat("tael"),
            'heat.low = \'tael\': must be a colour: "#rrggbb", a CSS name like "teal", or "ansi_blue": '
            "did you mean teal?",
        ),
        (heat(5), 'heat.low = 5: must be a colour: "#rrggbb", a CSS name like "teal", or "ansi_blue"'),
        (heat("#11223344"), "heat.low = '#11223344': must be opaque: leave the alpha out"),
        (heat("ansi_red"), "heat.low is a colour of the terminal and others are not: use one kind in a file"),
    ],
)
def test_a_problem_is_reported_in_one_line_with_the_way_out(changes: dict[str, Any], problem: str) -> None:
    assert [*theme_problems(raw_theme(**changes))] == problem.split("\n")


def test_all_problems_of_a_file_are_reported_at_once() -> None:
    assert len([*theme_problems({"tables": 1, "dark": 2, "chart": {"1": "tael"}})]) == 4


def test_the_text_table_may_be_left_out() -> None:
    raw = raw_theme()
    del raw["text"]
    assert [*theme_problems(raw)] == []
    theme = theming.theme_of(raw)
    assert theme.variables["text-muted"] not in (theme.foreground, theme.background)


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (b"name = ", "cannot be read: "),
        (b"name = " + b"[" * 3000, "nested deeper than 32"),
        (b"\xff\xfe", "cannot be read: 'utf-8' codec"),
        (b"", "missing: name, dark, colors.primary, "),
        (b"[colors]\nprimary = '\x1b[31m'", "cannot be read: "),
        (b'[colors]\nprimary = "\\u001b[31m"', "must be a colour"),
    ],
)
def test_a_broken_file_is_reported_and_leaves_the_shipped_theme(tmp_path: Path, content: bytes, reported: str) -> None:
    (tmp_path / f"{DEFAULT_THEME}.toml").write_bytes(content)
    themes, problems = read_themes(tmp_path)
    assert any(reported in problem for problem in problems)
    assert all(problem.isprintable() and "workbench.toml" in problem for problem in problems)
    assert themes == {}


def test_a_name_that_is_taken_is_reported_and_anything_but_a_file_is_skipped(tmp_path: Path) -> None:
    write_theme(tmp_path, "a.toml", name="mine", dark=True)
    write_theme(tmp_path, "b.toml", name="mine", dark=False)
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    themes, problems = read_themes(tmp_path)
    assert problems == [f"{tmp_path / 'b.toml'}: name = 'mine' is taken by another file"]
    assert themes["mine"].dark


async def test_a_changed_file_of_the_current_theme_changes_the_screen(tmp_path: Path) -> None:
    async with (app := Probe()).run_test() as pilot:
        apply_themes(app, shipped_themes())
        app.theme = DEFAULT_THEME
        await pilot.pause()
        write_theme(tmp_path, heat={"low": "#123456", "mid": "#888888", "high": "#ffffff"})
        apply_themes(app, read_themes(tmp_path)[0])
        await pilot.pause()
        assert app.query_one("#heat-low").styles.color.hex == "#123456"


@pytest.mark.parametrize("theme", [DEFAULT_THEME, "paper", "ansi-16"])
async def test_without_colour_nothing_is_coloured_and_the_cursor_is_still_seen(
    theme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with (app := Probe()).run_test(size=(60, 30)) as pilot:
        apply_themes(app, shipped_themes())
        app.theme = theme
        app.query_one(OptionList).focus()
        await pilot.press("down")
        await pilot.pause()
        shown = styles_on_screen(app)
        for color in (c for _, style in shown for c in (style.color, style.bgcolor)):
            assert color is None or color.is_default
        (one,), (two,) = ([style for text, style in shown if text.strip() == name] for name in ("one", "two"))
        assert two.underline
        assert not one.underline
        app.query_one(Input).focus()
        await pilot.pause()
        assert " " in [text for text, style in styles_on_screen(app) if style.reverse]  # the cursor after the text


async def test_the_theme_that_a_user_chose_is_kept_where_there_are_few_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPO_WORKBENCH_CONFIG_DIR", str(tmp_path))

    def opened(app: WorkbenchApp) -> bool:
        return app.main is not None and app.main.ready

    for default, chosen in ((FEW_COLORS_THEME, ""), (DEFAULT_THEME, ""), (FEW_COLORS_THEME, "ember")):
        app = WorkbenchApp(Opening(), default)
        async with app.run_test() as pilot:
            await until(pilot, lambda app=app: opened(app))  # type: ignore[misc]
            assert app.theme == default
            app.theme = chosen or default
            await pilot.pause()
        assert ScreenSettings.load(tmp_path).theme == chosen, "the default is nobody's choice"
    app = WorkbenchApp(Opening(), FEW_COLORS_THEME)
    async with app.run_test() as pilot:
        await until(pilot, lambda: opened(app))
        assert app.theme == "ember"


def test_a_wheel_carries_the_themes_and_finds_them(tmp_path: Path) -> None:
    build = "import os, runpy, sys; os.chdir(sys.argv.pop(1)); runpy.run_module('hatchling', run_name='__main__')"
    arguments = [str(ROOT), "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run([sys.executable, "-c", build, *arguments], check=True, capture_output=True)
    site = tmp_path / "site"
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    for packed in ("kit/keymaps/vim.toml", "kit/help.tcss", "docs/workbench.md"):
        assert (site / "workbench" / packed).is_file()
    code = "from workbench.kit.theming import *; print(len(shipped_themes()), SHIPPED_THEMES)"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    python = [sys.executable, "-P", "-c", code]
    reported = subprocess.check_output(python, cwd=tmp_path, env=environment, text=True)
    count, _, where = reported.strip().partition(" ")
    assert int(count) >= 6
    assert where == str(site / "workbench" / "themes")


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
    texts = ["foreground", "text", "text-muted", "foreground-muted", "chart-axis", *ROLES]
    texts += [f"text-{accent}" for accent in ACCENTS]
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
def test_text_lines_and_heat_stand_out_from_every_ground_they_are_used_on(name: str) -> None:
    palette = Palette(SPECS[name])
    least = dict.fromkeys(itertools.product(EXTRA_VARIABLES, GROUNDS), 3.0)
    least |= dict.fromkeys(text_pairs(), 7.0 if name == "high-contrast" else 4.5)  # of WCAG's two levels
    ratios = {(text, on): contrast(palette.text(text, on=on), palette.ground(on)) for text, on in least}
    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < least[pair]} == {}


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


@pytest.mark.parametrize("name", SPECS)
def test_what_is_compared_stays_apart_for_everyone_and_focus_is_no_model(name: str) -> None:
    palette = Palette(SPECS[name])
    for seen_by in (None, *DEFICIENCIES):
        for one, other in (("policy", "reference"), ("better", "worse")):
            assert delta_e(palette.text(one), palette.text(other), seen_by) > 24, (one, other, seen_by)
    for role in ROLES:
        least = 10 if role == "better" else 20  # a mark is beside it, and blues are few
        assert delta_e(palette.text("accent"), palette.text(role)) > least, role


@given(st.text())
def test_a_text_is_as_wide_as_before(text: str) -> None:
    assert ascii_text(text).isascii()
    assert cell_len(ascii_text(text)) == cell_len(text)


def test_every_sign_of_the_program_has_one_of_its_own() -> None:
    sources = "".join(path.read_text() for path in Path(workbench.__file__).parent.rglob("*.py"))
    signs = {char for char in sources if not char.isascii() and not char.isalpha() and cell_len(char)}
    assert len(signs) > 40
    assert {char for char in signs if ascii_text(char) == "?"} <= {"¡", "¬", "®", "҂", "˿"}, (
        "those are examples in code"
    )


def test_curves_and_letters_stay_legible() -> None:
    assert ascii_text("⠉⣀⡇⣿⠀") == "'.:# "
    assert ascii_text("╭─┬│ Zoë ▁▄█ 語") == "+-+| Zoe _-# ??"


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locale.getencoding", lambda: "utf-8")
    cases = (("1", "xterm", True), ("", "linux", True), ("", "xterm", False), ("0", "linux", False))
    for wanted, terminal, expected in cases:
        monkeypatch.setenv("PPO_WORKBENCH_ASCII", wanted)
        monkeypatch.setenv("TERM", terminal)
        assert needs_ascii() is expected
    monkeypatch.setenv("PPO_WORKBENCH_ASCII", "")
    monkeypatch.setattr("locale.getencoding", lambda: "ISO-8859-1")
    assert needs_ascii()


async def test_the_whole_screen_is_ascii() -> None:
    app = WorkbenchApp(Opening(), ascii_only=True)
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: app.main is not None and app.main.ready)
        await pilot.press("f3", "f9")
        lines = ["".join(part.text for part in strip) for strip in app.screen._compositor.render_strips()]
        assert "Training" in "".join(lines)
        assert "".join(lines).isascii(), [line for line in lines if not line.isascii()]
        assert lines[-1].split()[:2] == ["enter", "choose"], "the sign of the enter key would look like another key"
