"""Theme files: what is refused and how it is reported, users' own over the shipped ones, live reload, no colour."""

from __future__ import annotations

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
from rich.color import Color, ColorSystem
from rich.style import Style
from textual.app import App, ComposeResult
from textual.widgets import Input, OptionList, Static
from waiting import until

from workbench.app import WorkbenchApp
from workbench.kit import theming
from workbench.kit.theming import (
    ALL_STYLES,
    DEFAULT_THEME,
    EXTRA_VARIABLES,
    FEW_COLORS_THEME,
    SHIPPED_THEMES,
    ThemedApp,
    apply_themes,
    no_color,
    read_themes,
    shipped_themes,
    theme_problems,
)
from workbench.opening import Opening
from workbench.system.environment import ScreenSettings


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


def test_at_least_six_themes_are_shipped_and_the_default_is_one_of_them() -> None:
    themes = shipped_themes()
    assert len(themes) >= 6
    assert DEFAULT_THEME in themes
    assert any(not theme.dark for theme in themes.values())
    assert any(theme.ansi for theme in themes.values())


def test_the_shipped_files_pass_the_checks_of_a_users_file() -> None:
    themes, problems = read_themes(SHIPPED_THEMES)
    assert (themes, problems) == (shipped_themes(), [])
    assert {*themes} == {path.stem for path in SHIPPED_THEMES.glob("*.toml")}, "each is in a file of its name"
    assert all(EXTRA_VARIABLES.keys() <= theme.variables.keys() for theme in themes.values())


@pytest.mark.parametrize("name", [name for name, theme in shipped_themes().items() if not theme.ansi])
def test_the_grounds_of_a_theme_are_greys_where_a_terminal_has_256_colours(name: str) -> None:
    theme = shipped_themes()[name]
    for ground in (theme.background, theme.surface, theme.panel):
        shown = Color.parse(ground or "").downgrade(ColorSystem.EIGHT_BIT).get_truecolor()
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
        (
            {"heat": {}},
            "missing: heat.low, heat.mid, heat.high",
        ),
        (
            {"heat": {"low": "#000", "mid": "#888", "high": "#fff", "lwo": "#111"}},
            "unknown key heat.lwo: did you mean heat.low?",
        ),
        (
            {"heat": {"low": "tael", "mid": "#888", "high": "#fff"}},
            'heat.low = \'tael\': must be a colour: "#rrggbb", a CSS name like "teal", or "ansi_blue": '
            "did you mean teal?",
        ),
        (
            {"heat": {"low": 5, "mid": "#888", "high": "#fff"}},
            'heat.low = 5: must be a colour: "#rrggbb", a CSS name like "teal", or "ansi_blue"',
        ),
        (
            {"heat": {"low": "#11223344", "mid": "#888", "high": "#fff"}},
            "heat.low = '#11223344': must be opaque: leave the alpha out",
        ),
        (
            {"heat": {"low": "ansi_red", "mid": "#888", "high": "#fff"}},
            "heat.low is a colour of the terminal and others are not: use one kind in a file",
        ),
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


def test_of_two_user_files_with_one_name_the_second_is_reported(tmp_path: Path) -> None:
    write_theme(tmp_path, "a.toml", name="mine", dark=True)
    write_theme(tmp_path, "b.toml", name="mine", dark=False)
    themes, problems = read_themes(tmp_path)
    assert problems == [f"{tmp_path / 'b.toml'}: name = 'mine' is taken by another file"]
    assert themes["mine"].dark


def test_anything_but_a_file_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    assert read_themes(tmp_path) == ({}, [])


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
    assert (site / "workbench" / "kit" / "keymaps" / "vim.toml").is_file()
    assert (site / "workbench" / "kit" / "help.tcss").is_file()
    code = "from workbench.kit.theming import *; print(len(shipped_themes()), SHIPPED_THEMES)"
    reported = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        check=True,
        capture_output=True,
        text=True,
    )
    count, _, where = reported.stdout.strip().partition(" ")
    assert int(count) >= 6
    assert where == str(site / "workbench" / "themes")
